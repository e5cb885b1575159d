"""
Several runs: pools them by setting, and keeps a comparison in one small CSV file.

    # config of symmetric {"n_layer": 2, ...}    of each arm; older files have what all share in `# config {...}`
    arm,seed,step,train_loss,val_loss,...   then one row for every step of a run that has a loss, or scores, or both
"""

import json
import re
from pathlib import Path

import pandas

from config import FACTS, as_now, differing_keys, may_differ, require
from data.atomic import replacing
from data.runs.read import DIGITS, Runs, read_run

ORIGIN = "commit", "python", "torch", "device_name"  # of steps; only older runs have python


def write_comparison(path, arms):
    """Writes {name: Runs}. Raises ConfigError if a file at path would lose a run, or a step of one."""
    table = pandas.concat({name: arm.table for name, arm in arms.items()}, names=["arm"])
    for name in arms:
        require(not re.search("[#,\n]", name), f"{name!r} is no name for a CSV file: rename its folders")
    for old in read_comparison(path) if Path(path).exists() else []:
        rows = set(arms[old.name].table.index) if old.name in arms else set()  # (seed, step)
        require(rows.issuperset(old.table.index), f"{path} would lose runs of {old.name}, or steps of them: give "
                "another --csv")
        for key in differing_keys([old.config, arms[old.name].config]):
            require(may_differ(key, "setting"), f"{path} has runs of {old.name} with another {key}: give another --csv")
    lines = []
    for name, arm in arms.items():
        config = {key: value for key, value in arm.config.items() if is_kept(key)}
        lines.append(f"# config of {name} {json.dumps(config)}")
    rows = table.to_csv(float_format=f"%.{DIGITS}f", lineterminator="\n")
    with replacing(path) as temporary:
        temporary.write_text("\n".join([*lines, rows]), encoding="utf-8", newline="\n")


def is_kept(key):
    """Returns whether the file of a comparison has this key of its runs."""
    return key != "seed" and not may_differ(key, "how")


def read_comparison(path):
    """
    Returns the arms, a list of Runs, in a file of write_comparison. Raises ConfigError if it is none, or if its runs
    have a key that this code does not know.
    """
    require(Path(path).exists(), f"there is no file or folder {path}")
    comments = re.findall(r"^# config (?:of (.+?) )?(\{.*\})$", Path(path).read_text("utf-8"), re.MULTILINE)
    configs = {name: json.loads(keys) for name, keys in comments}  # {"": of all arms, name of an arm: its own}
    require(configs, f"{path} is no comparison: it has no line # config of ARM {{...}}")
    # An arm may be called null, which pandas would read as nan.
    rows = pandas.read_csv(path, comment="#", dtype=dict(arm=str), na_values=[""], keep_default_na=False)
    tables = rows.set_index(["seed", "step"]).groupby("arm", sort=False)
    shared = configs.get("", {})
    arms = []
    for name, table in tables:
        config = shared | configs[name]
        facts = {key: config.pop(key) for key in FACTS if key in config}
        arms.append(Runs(name, as_now(config, path, only_known=True) | facts, table.drop(columns="arm")))
    return arms


def pool(paths):
    """Returns {name: Runs}, of folders of runs and of files of comparisons."""
    arms = {}
    for path in paths:
        for arm in [read_run(path)] if Path(path).is_dir() else read_comparison(path):
            arms[arm.name] = add_runs(arms[arm.name], arm) if arm.name in arms else arm
    return arms


def add_runs(arm, more):
    """Returns the Runs of both. Raises ConfigError if they are not of one setting."""
    for key in differing_keys([arm.config, more.config]):
        require(may_differ(key, "setting"), f"two runs called {arm.name} differ in {key}")
    for seed in more.seeds():
        require(seed not in arm.seeds(), f"two runs called {arm.name} have the seed {seed}")
    origin = {key: sorted({*arm.config[key], *more.config.get(key, [])}) for key in ORIGIN if key in arm.config}
    return Runs(arm.name, arm.config | origin, pandas.concat([arm.table, more.table]))
