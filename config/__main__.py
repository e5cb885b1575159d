"""python -m config config/arms/NAME.py ...: the arguments of train.py for every run of a comparison, one run a line."""

import os
import shlex
import sys

from config import ConfigError, arms

if len(sys.argv) < 2:
    sys.exit("python -m config: expected config/arms/NAME.py, a comparison")
lines = []
try:
    for path in sys.argv[1:]:
        for words in arms(path):
            lines.append(shlex.join(words))
except ConfigError as e:
    sys.exit(f"python -m config: {e}")
try:
    print("\n".join(lines), flush=True)  # none before all are known to be right
except BrokenPipeError:  # nobody reads on, as after `| head`; then what is left goes nowhere
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
