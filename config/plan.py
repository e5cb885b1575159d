"""
The runs of a comparison, one a line, as arguments of train.py:

    python -m config.plan positions                  # those of config/plans/positions.py, which explains such a file
    python -m config.plan mine.py --max_iters=40     # those of a file of your own, as a trial, in out/plans/mine_40
    python -m config.plan mine.py --threads=2        # with a key for all of them
"""

import shlex
import signal
import sys
from pathlib import Path

from config import ConfigError, load, read_flags, run_file
from config.planned import require_names, require_planned

BY_ITSELF = {"seed", "out_dir", "init_from"}  # every run of a comparison has its own


def arms(path, flags=()):
    """
    Returns the arguments of train.py for every run of a comparison, each a list of words.

    path: a file of config/plans; flags: words --key=value for all runs. All arguments are checked here, so a mistake in
    the last arm is found before the first run begins. Raises ConfigError if there is one.
    """
    for_all = read_flags(flags)
    plan = run_file(path)
    base, own_keys, seeds = plan.get("base"), plan.get("arms"), plan.get("seeds")
    are_dicts = isinstance(own_keys, dict) and all(isinstance(own, dict) for own in own_keys.values())
    if not (isinstance(base, str) and are_dicts and isinstance(seeds, list | tuple | range)):
        raise ConfigError(f"{path} is no comparison: it must set base, a file; arms, a dict of dicts; and seeds, a "
                          "list (config/plans/positions.py is one to copy)")
    if not own_keys or not seeds or len(set(map(str, seeds))) < len(seeds):
        raise ConfigError(f"{path}: expected one arm and one seed at least, and no seed twice")
    require_names(own_keys)
    for arm, own in own_keys.items():
        if BY_ITSELF & own.keys():
            raise ConfigError(f"{path}: {arm} sets {', '.join(sorted(BY_ITSELF & own.keys()))}, which every run sets "
                              "by itself: take it out")
    for key, value in for_all.items():
        values = {str(own.get(key)) for own in own_keys.values()}  # of all arms
        if key in BY_ITSELF or len(values) > 1:
            raise ConfigError(f"{path}: its runs differ in {key}, so --{key}={value} is not for all of them: copy the "
                              "file, and change the copy")
    folder = Path(path).stem
    if "max_iters" in for_all:  # a trial has a folder of its own, or the whole runs would go on from its end
        folder += f"_{for_all['max_iters']}"
    commands, configs = [], {}
    for seed in seeds:  # all arms of one seed first: if it is stopped, it is a comparison with fewer seeds
        for arm, own in own_keys.items():
            out_dir = f"out/plans/{folder}/{arm}-{seed}"
            of_run = dict(seed=seed, out_dir=out_dir, init_from="resume")  # no finished run is repeated
            words = [base, *(f"--{key}={value}" for key, value in (own | for_all | of_run).items())]
            configs[str(arm)] = vars(load(words))
            commands.append(words)
    require_planned(path, plan.get("planned", []), configs, configs.keys())
    return commands


def main(argv):
    flags = [word for word in argv if word.startswith("-")]
    names = [word for word in argv if not word.startswith("-")]
    if not names:
        sys.exit("python -m config.plan: expected a comparison, such as positions")
    lines = []
    try:
        for name in names:
            path = name if name.endswith(".py") else Path(__file__).parent / "plans" / f"{Path(name).name}.py"
            lines += [shlex.join(words) for words in arms(path, flags)]
    except (ConfigError, OSError) as e:
        sys.exit(f"python -m config.plan: {e}")
    print("\n".join(lines))  # none before all are known to be right


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # if nobody reads on, as after `| head`, end without a traceback
    main(sys.argv[1:])
