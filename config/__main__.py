"""
The runs of a comparison, one a line, as arguments of train.py:

    python -m config config/arms/NAME.py | xargs -r -P 2 -L 1 python train.py      # -P: runs at a time, one core each
    python -m config config/arms/NAME.py --max_iters=40                            # a key for all of them
    python -m config data/results/csv/tuned.csv                                    # those that made this file

A comparison is a file of config/arms (config/arms/example.py explains one), or the CSV file in which analyze.py --runs
keeps it. Such a CSV file has what a run computes, and not where and how it ran (device, threads, compile, keep,
micro_batch_size): these keys are those of config/tiny.py, if the command gives no others, such as --compile=on. A run
that began with the weights of a folder (init_from) cannot be repeated from it.
"""

import csv
import json
import re
import shlex
import sys
from pathlib import Path

from config import KEYS, ConfigError, load, run_file

OWN = "seed", "out_dir", "init_from"  # keys that every run of a comparison sets by itself


def arms(path, overrides=()):
    """
    Yield the arguments of train.py for every run of a comparison, each a list of words.

    path: a file of config/arms, or a CSV file; overrides: words --key=value for all runs. All arguments are checked
    here, so a mistake in the last arm is found before the first run begins.
    """
    planned = runs_of_csv(path) if str(path).endswith(".csv") else runs_of_file(path)
    for name, seed, base, changes in planned:
        words = [base, *(f"--{key}={value}" for key, value in changes.items()), *overrides]
        for key in OWN:
            if any(word.startswith(f"--{key}=") for word in words):
                raise ConfigError(f"{path}: arm {name} sets {key}, which every run of a comparison sets by itself")
        out_dir = f"out/arms/{Path(path).stem}/{name}-{seed}"
        words += [f"--seed={seed}", f"--out_dir={out_dir}", "--init_from=resume"]  # a finished run is not repeated
        load(words)
        yield words


def runs_of_file(path):
    """The runs of a file that sets base, arms and seeds: [(arm, seed, base, {key: value})]."""
    plan = run_file(path)
    try:
        base, named, seeds = plan["base"], plan["arms"], plan["seeds"]
    except KeyError as e:
        raise ConfigError(f"{path} is no comparison, it sets no {e}: config/arms/example.py is one to copy")
    runs = []
    for seed in seeds:  # all arms of one seed first: if it is stopped, it is a comparison with fewer seeds
        for name, changes in named.items():
            runs.append((name, seed, base, changes))
    return runs


def runs_of_csv(path):
    """The same of a CSV file that data/results/records.py has written."""
    base = "config/tiny.py"
    defaults = vars(load([base]))
    try:
        configs, table = parse_comparison(path)
        runs = {}  # a run has many rows, and is named once
        for row in csv.DictReader(table):
            arm, seed = row["arm"], int(row["seed"])
            changes = {key: value for key, value in configs[arm].items() if key in KEYS and value != defaults[key]}
            runs[arm, seed] = arm, seed, base, changes
        return sorted(runs.values(), key=lambda run: run[1])  # by seed
    except (KeyError, ValueError) as e:
        raise ConfigError(f"{path} is no comparison, or damaged ({type(e).__name__} {e}): expected a file that "
                          "analyze.py --runs --csv wrote")


def parse_comparison(path):
    """The CSV file of a comparison -> {arm: its configuration}, the lines of its table."""
    shared, special, table = {}, {}, []  # what all arms share; {arm: its own}
    for line in Path(path).read_text().splitlines():
        comment = re.match(r"# config (?:of (.+?) )?(\{.*\})$", line)
        if comment is None:
            table.append(line)
        elif comment[1] is None:
            shared = json.loads(comment[2])
        else:
            special[comment[1]] = json.loads(comment[2])
    return {arm: shared | own for arm, own in special.items()}, table


def main(argv):
    overrides = [word for word in argv if word.startswith("-")]
    paths = [word for word in argv if not word.startswith("-")]
    if not paths:
        sys.exit("python -m config: expected config/arms/NAME.py, a comparison")
    try:
        lines = [shlex.join(words) for path in paths for words in arms(path, overrides)]
    except (ConfigError, OSError) as e:
        sys.exit(f"python -m config: {e}")
    print("\n".join(lines))  # none before all are known to be right


if __name__ == "__main__":
    main(sys.argv[1:])
