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


class Run(NamedTuple):
    arm: str
    seed: int
    base: str  # a config file
    shared: dict  # {key: value} that all arms set alike, and the command may set otherwise
    own: dict  # {key: value} of this arm


def arms(path, flags=()):
    """
    Yields the arguments of train.py for every run of a comparison, each a list of words.

    path: a file of config/arms, or a CSV file; flags: words --key=value for all runs. All arguments are checked here,
    so a mistake in the last arm is found before the first run begins.
    """
    overrides = read_flags(flags)
    for run in runs_of_csv(path) if str(path).endswith(".csv") else runs_of_file(path):
        for key in OWN:
            if key in run.own | overrides:
                raise ConfigError(f"{path}: arm {run.arm} sets {key}, which every run of a comparison sets by itself")
        changes = run.shared | run.own | overrides
        of_width = OF_WIDTH if "n_embd" in overrides else set()
        for key in (run.own.keys() & overrides.keys()) | (of_width & (run.shared | run.own).keys()):
            there = (run.shared | run.own)[key]
            raise ConfigError(f"{path}: arm {run.arm} has {key} = {there!r} of its own, so {' '.join(flags)} is "
                              "not for all arms: copy the file, and change the copy")
        out_dir = f"out/arms/{Path(path).stem}/{run.arm}-{run.seed}"
        changes |= dict(seed=run.seed, out_dir=out_dir, init_from="resume")  # a finished run is not repeated
        words = [run.base, *(f"--{key}={value}" for key, value in changes.items())]
        load(words)
        yield words


def runs_of_file(path):
    """The list of Runs of a file that sets base, arms and seeds."""
    plan = run_file(path)
    base, named, seeds = plan.get("base"), plan.get("arms"), plan.get("seeds")
    are_dicts = isinstance(named, dict) and all(isinstance(own, dict) for own in named.values())
    if not (isinstance(base, str) and are_dicts and isinstance(seeds, list | tuple | range)):
        raise ConfigError(f"{path} is no comparison: it must set base, a file; arms, a dict of dicts; and seeds, a "
                          "list (config/arms/example.py is one to copy)")
    # All arms of one seed first: if it is stopped, it is a comparison with fewer seeds.
    return [Run(arm, seed, base, {}, own) for seed in seeds for arm, own in named.items()]


def runs_of_csv(path):
    """
    The Runs of a CSV file that analyze.py --runs --csv has written, by seed. An arm that this code cannot run is left
    out and named: a patch had added a key, or a value of one.
    """
    usual = vars(load([BASE]))
    configs, seeds = read_csv(path)
    changes, left_out = {}, {}  # of each arm
    for name in configs:
        config = {key: value for key, value in configs[name].items() if key not in TOLD | HOW | {"seed"}}
        for key, value in config.items():
            try:
                checked(key, value)
            except ConfigError:
                left_out[name] = f"{key} = {value}"
        if name not in left_out:
            changes[name] = {key: value for key, value in config.items() if value != usual[key]}
    for name, needs in left_out.items():
        print(f"{path}: without {name}, which needs {needs}: a patch beside this file brings it back", file=sys.stderr)
    first = next(iter(changes.values()), {})
    shared = {key: first[key] for key in first if all(own.get(key) == first[key] for own in changes.values())}
    runs = []
    for name, seed in sorted(seeds, key=lambda pair: pair[1]):
        if name in changes:
            own = {key: value for key, value in changes[name].items() if key not in shared}
            runs.append(Run(name, seed, BASE, shared, own))
    return runs


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
    if name.endswith((".py", ".csv")):
        return name
    return f"{name}.py" if "/" in name else os.path.relpath(Path(__file__).with_name(f"{name}.py"))


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
