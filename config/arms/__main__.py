"""
The runs of a comparison, one a line, as arguments of train.py:

    python -m config.arms starts | xargs -r -P 2 -L 1 python train.py    # config/arms/starts.py; -P: runs at a time
    python -m config.arms starts --max_iters=40                          # a key for all of them
    python -m config.arms data/results/csv/tuned.csv                     # those that made this file

A comparison is a file of config/arms (example.py explains one), one of your own, or the CSV file in which analyze.py
--runs keeps it. Such a CSV file has what a run computes, and not where and how it ran (device, threads, compile, keep,
micro_batch_size): these keys are those of config/tiny.py, if the command gives no others, such as --compile=on.
"""

import csv
import json
import os
import re
import shlex
import sys
from pathlib import Path

from config import HOW, TOLD, ConfigError, TrainConfig, checked, load, read_flags, run_file

BASE = "config/tiny.py"  # of the runs of a CSV file
OWN = "seed", "out_dir", "init_from"  # keys that every run of a comparison sets by itself


def arms(path, flags=()):
    """
    Yield the arguments of train.py for every run of a comparison, each a list of words.

    path: a file of config/arms, or a CSV file; flags: words --key=value for all runs. All arguments are checked here,
    so a mistake in the last arm is found before the first run begins.
    """
    overrides = read_flags(flags)
    planned = runs_of_csv(path) if str(path).endswith(".csv") else runs_of_file(path)
    for name, seed, base, changes in planned:
        changes = changes | overrides
        for key in OWN:
            if key in changes:
                raise ConfigError(f"{path}: arm {name} sets {key}, which every run of a comparison sets by itself")
        out_dir = f"out/arms/{Path(path).stem}/{name}-{seed}"
        changes |= dict(seed=seed, out_dir=out_dir, init_from="resume")  # a finished run is not repeated
        words = [base, *(f"--{key}={value}" for key, value in changes.items())]
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
    """
    The same of a CSV file that analyze.py --runs --csv has written, by seed. An arm that this code cannot run is left
    out and named: a patch had added a key, or a value of one.
    """
    usual = vars(load([BASE]))
    configs, seeds = read_csv(path)
    runs, left_out = [], {}
    for name, seed in seeds:
        config = {key: value for key, value in configs[name].items() if key not in TOLD | HOW | {"seed"}}
        for key, value in config.items():
            try:
                checked(key, value)
            except ConfigError:
                left_out[name] = f"{key} = {value}"
        if name not in left_out:
            runs.append((name, seed, BASE, {key: value for key, value in config.items() if value != usual[key]}))
    for name, needs in left_out.items():
        print(f"{path}: without {name}, which needs {needs}: a patch beside this file brings it back", file=sys.stderr)
    return sorted(runs, key=lambda run: run[1])


def read_csv(path):
    """{arm: its configuration}, and the pair (arm, seed) of every run, each once, of the CSV file of a comparison."""
    configs, lines = {}, []
    try:
        for line in Path(path).read_text().splitlines():
            comment = re.match(r"# config (?:of (.+?) )?(\{.*\})$", line)
            if comment:
                configs[comment[1]] = json.loads(comment[2])
            else:
                lines.append(line)
        shared = vars(TrainConfig()) | configs.pop(None)  # a key that is newer than the file has its default
        rows = csv.DictReader(lines)
        seeds = dict.fromkeys((row["arm"], int(row["seed"])) for row in rows)
        return {name: shared | config for name, config in configs.items()}, list(seeds)
    except (LookupError, TypeError, ValueError) as e:
        raise ConfigError(f"{path} is no comparison, or damaged: give another file") from e


def find_file(name):
    """The file of a comparison: a path, or the name of a file of this folder."""
    return name if name.endswith((".py", ".csv")) else os.path.relpath(Path(__file__).with_name(f"{name}.py"))


def main(argv):
    flags = [word for word in argv if word.startswith("-")]
    paths = [find_file(word) for word in argv if not word.startswith("-")]
    if not paths:
        sys.exit("python -m config.arms: expected a comparison, such as starts")
    try:
        lines = [shlex.join(words) for path in paths for words in arms(path, flags)]
        print("\n".join(lines), flush=True)  # none before all are known to be right
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConfigError, OSError) as e:
        sys.exit(f"python -m config.arms: {e}")


if __name__ == "__main__":
    main(sys.argv[1:])
