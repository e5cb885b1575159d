"""python -m config config/arms/NAME.py: the arguments of train.py for every run of a comparison, one run a line."""

import sys

from config import arms

print(*arms(sys.argv[1]), sep="\n")
