"""
The runs of a comparison, one a line, as arguments of train.py:

    python -m config.arms emergence                      # those of config/arms/emergence.py, which explains such a file
    python -m config.arms emergence --max_iters=40       # a key for all of them
    python -m config.arms data/results/csv/starts.csv    # those that made this file

A comparison is a file of config/arms, one of your own, or the CSV file in which analyze.py --runs keeps it. Such a CSV
file has what a run computes, and not how it ran (device, threads, compile, keep, micro_batch_size): these keys are as
in config/tiny.py, unless the command sets them, as with --compile=on.
"""

import csv
import shlex
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from config import HOW, ORIGIN, ConfigError, checked, load, read_flags, run_file, split_comparison
from config.planned import require_planned

BASE = "config/tiny.py"  # of the runs of a CSV file
# A CSV file also says where its runs come from, their corpus (once by a checksum), and their size.
NO_KEYS = {"tokenizer", "sha256", "checksum", "n_params", *ORIGIN}
BY_ITSELF = {"seed", "out_dir", "init_from"}  # every run of a comparison has its own


class Comparison(NamedTuple):
    base: str  # the config file that all arms share
    own_keys: dict  # {arm: {key: value}}, where an arm differs from base
    runs: list  # the pairs (arm, seed), in the order in which they run
    planned: list  # the tests; of a CSV file none, because its runs alone are wanted


def arms(path, flags=()):
    """
    Yields the arguments of train.py for every run of a comparison, each a list of words.

    path: a file of config/arms, or a CSV file; flags: words --key=value for all runs. All arguments are checked here,
    so a mistake in the last arm is found before the first run begins. Raises ConfigError if there is one.
    """
    for_all = read_flags(flags)
    base, own_keys, runs, planned = read_csv(path) if str(path).endswith(".csv") else read_plan(path)
    keys = set().union(*own_keys.values())
    if BY_ITSELF & keys:
        raise ConfigError(f"{path}: an arm sets {', '.join(sorted(BY_ITSELF & keys))}, which every run sets by itself: "
                          "take it out")
    for key, value in for_all.items():
        values = {str(own.get(key)) for own in own_keys.values()}  # of all arms
        if key in BY_ITSELF or len(values) > 1:
            raise ConfigError(f"{path}: its runs differ in {key}, so --{key}={value} is not for all of them: copy the "
                              "file, and change the copy")
    configs = {}
    for arm, seed in runs:
        out_dir = f"out/arms/{Path(path).stem}/{arm}-{seed}"
        of_run = dict(seed=seed, out_dir=out_dir, init_from="resume")  # no finished run is repeated
        config = own_keys[arm] | for_all | of_run
        words = [base, *(f"--{key}={value}" for key, value in config.items())]
        configs[arm] = vars(load(words))
        yield words
    require_planned(path, planned, configs)


def read_plan(path):
    """Returns the Comparison in a file of config/arms. Raises ConfigError if the file is none."""
    plan = run_file(path)
    base, own_keys, seeds = plan.get("base"), plan.get("arms"), plan.get("seeds")
    are_dicts = isinstance(own_keys, dict) and all(isinstance(own, dict) for own in own_keys.values())
    if not (isinstance(base, str) and are_dicts and isinstance(seeds, list | tuple | range)):
        raise ConfigError(f"{path} is no comparison: it must set base, a file; arms, a dict of dicts; and seeds, a "
                          "list (config/arms/emergence.py is one to copy)")
    # All arms of one seed first: if it is stopped, it is a comparison with fewer seeds.
    runs = [(arm, seed) for seed in seeds for arm in own_keys]
    return Comparison(base, own_keys, runs, plan.get("planned", []))


def read_csv(path):
    """Returns the Comparison in a CSV file, without arms that need a patch: it names them, and leaves them out."""
    try:
        configs, _, rows = split_comparison(path)
        runs = {(row["arm"], int(row["seed"])) for row in csv.DictReader(rows)}
    except (LookupError, TypeError, ValueError) as e:
        raise ConfigError(f"{path} is no comparison, or damaged: give another file") from e
    usual = vars(load([BASE]))
    own_keys = {}
    for arm, config in configs.items():
        config = {key: value for key, value in config.items() if key not in NO_KEYS | HOW | {"seed"}}
        try:
            own_keys[arm] = {key: value for key, value in config.items() if checked(key, value) != usual[key]}
        except ConfigError as e:
            print(f"{path}: without {arm}, a patch beside this file brings it back: {e}", file=sys.stderr)
    seeds = sorted({seed for _, seed in runs})
    in_order = [(arm, seed) for seed in seeds for arm in own_keys if (arm, seed) in runs]
    return Comparison(BASE, own_keys, in_order, planned=[])


def main(argv):
    flags = [word for word in argv if word.startswith("-")]
    names = [word for word in argv if not word.startswith("-")]
    if not names:
        sys.exit("python -m config.arms: expected a comparison, such as emergence")
    lines = []
    try:
        for name in names:
            path = name if name.endswith((".py", ".csv")) else Path(__file__).parent / f"{Path(name).name}.py"
            lines += [shlex.join(words) for words in arms(path, flags)]
    except (ConfigError, OSError) as e:
        sys.exit(f"python -m config.arms: {e}")
    print("\n".join(lines))  # none before all are known to be right


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # if nobody reads on, as after `| head`, end without a traceback
    main(sys.argv[1:])
