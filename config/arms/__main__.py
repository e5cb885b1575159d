"""
The runs of a comparison, one a line, as arguments of train.py:

    python -m config.arms starts | xargs -r -P 2 -L 1 python train.py    # config/arms/starts.py; -P: runs at a time
    python -m config.arms starts --max_iters=40                          # a key for all of them
    python -m config.arms data/results/csv/tuned.csv                     # those that made this file

A comparison is a file of config/arms (example.py explains one), one of your own, or the CSV file in which analyze.py
--runs keeps it. Such a CSV file has what a run computes, and not where and how it ran (device, threads, compile, keep,
micro_batch_size): these keys are as in config/tiny.py, unless the command sets them, as with --compile=on.
"""

import csv
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from config import HOW, TOLD, ConfigError, TrainConfig, checked, load, read_flags, run_file

BASE = "config/tiny.py"  # of the runs of a CSV file
OWN = "seed", "out_dir", "init_from"  # keys that every run of a comparison sets by itself
OF_WIDTH = {"qk_std", "v_std", "qkv_rate"}  # keys that a comparison may have computed from n_embd


class Comparison(NamedTuple):
    base: str  # a config file
    arms: dict  # {arm: {key: value}}
    runs: list  # the pair (arm, seed) of every run, in their order


def arms(path, flags=()):
    """
    Yields the arguments of train.py for every run of a comparison, each a list of words.

    path: a file of config/arms, or a CSV file; flags: words --key=value for all runs. All arguments are checked here,
    so a mistake in the last arm is found before the first run begins.
    """
    overrides = read_flags(flags)
    plan = read_csv(path) if str(path).endswith(".csv") else read_plan(path)
    for arm, seed in plan.runs:
        own = plan.arms[arm]
        for key in OWN:
            if key in own | overrides:
                raise ConfigError(f"{path}: arm {arm} sets {key}, which every run of a comparison sets by itself")
        # A key that is alike in all arms may be set otherwise, unless it follows from another one that is set.
        of_arm = {key for key in own if any(other.get(key) != own[key] for other in plan.arms.values())}
        for key in (of_arm & overrides.keys()) | (OF_WIDTH & own.keys() if "n_embd" in overrides else set()):
            raise ConfigError(f"{path}: arm {arm} has {key} = {own[key]!r} of its own, so {' '.join(flags)} is not for "
                              "all arms: copy the file, and change the copy")
        out_dir = f"out/arms/{Path(path).stem}/{arm}-{seed}"
        changes = own | overrides | dict(seed=seed, out_dir=out_dir, init_from="resume")  # no finished run is repeated
        words = [plan.base, *(f"--{key}={value}" for key, value in changes.items())]
        load(words)
        yield words


def read_plan(path):
    """The Comparison of a file that sets base, arms and seeds."""
    plan = run_file(path)
    base, named, seeds = plan.get("base"), plan.get("arms"), plan.get("seeds")
    are_dicts = isinstance(named, dict) and all(isinstance(own, dict) for own in named.values())
    if not (isinstance(base, str) and are_dicts and isinstance(seeds, list | tuple | range)):
        raise ConfigError(f"{path} is no comparison: it must set base, a file; arms, a dict of dicts; and seeds, a "
                          "list (config/arms/example.py is one to copy)")
    # All arms of one seed first: if it is stopped, it is a comparison with fewer seeds.
    return Comparison(base, named, [(arm, seed) for seed in seeds for arm in named])


def read_csv(path):
    """
    The Comparison in a CSV file that analyze.py --runs --csv has written. An arm that this code cannot run is left out
    and named: a patch had added a key, or a value of one.
    """
    configs, lines = {}, []
    try:
        for line in Path(path).read_text().splitlines():
            comment = re.match(r"# config (?:of (.+?) )?(\{.*\})$", line)  # of no arm: what all of them share
            if comment:
                configs[comment[1]] = json.loads(comment[2])
            else:
                lines.append(line)
        shared = vars(TrainConfig()) | configs.pop(None)  # a key that is newer than the file has its default
        runs = dict.fromkeys((row["arm"], int(row["seed"])) for row in csv.DictReader(lines))  # each once
    except (LookupError, TypeError, ValueError) as e:
        raise ConfigError(f"{path} is no comparison, or damaged: give another file") from e
    usual, named = vars(load([BASE])), {}
    for arm, config in configs.items():
        config = {key: value for key, value in (shared | config).items() if key not in TOLD | HOW | {"seed"}}
        try:
            named[arm] = {key: value for key, value in config.items() if checked(key, value) != usual[key]}
        except ConfigError as e:
            print(f"{path}: without {arm}, a patch beside this file brings it back: {e}", file=sys.stderr)
    return Comparison(BASE, named, sorted((run for run in runs if run[0] in named), key=lambda run: run[1]))


def main(argv):
    flags = [word for word in argv if word.startswith("-")]
    names = [word for word in argv if not word.startswith("-")]
    if not names:
        sys.exit("python -m config.arms: expected a comparison, such as starts")
    here = os.path.relpath(Path(__file__).parent)
    paths = [name if name.endswith((".py", ".csv")) else f"{here}/{name}.py" for name in names]
    try:
        lines = [shlex.join(words) for path in paths for words in arms(path, flags)]
        print("\n".join(lines), flush=True)  # none before all are known to be right
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConfigError, OSError) as e:
        sys.exit(f"python -m config.arms: {e}")


if __name__ == "__main__":
    main(sys.argv[1:])
