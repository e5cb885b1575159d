"""python -m config config/arms/NAME.py ...: the arguments of train.py for every run of a comparison, one run a line."""

import shlex
import sys

from config import ConfigError, arms

try:
    print(*[shlex.join(words) for path in sys.argv[1:] for words in arms(path)], sep="\n")
except ConfigError as e:
    sys.exit(f"python -m config: {e}")
