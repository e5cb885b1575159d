"""python -m config config/arms/NAME.py ...: the arguments of train.py for every run of a comparison, one run a line."""

import shlex
import sys

from config import ConfigError, arms

lines = []
try:
    for path in sys.argv[1:]:
        for words in arms(path):
            lines.append(shlex.join(words))
except ConfigError as e:
    sys.exit(f"python -m config: {e}")
print("\n".join(lines))  # none before all are known to be right
