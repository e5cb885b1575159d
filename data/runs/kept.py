"""
Several runs: pools them by setting, and keeps a comparison in one small CSV file.

    # config of symmetric {"n_layer": 2, ...}    one such line for each arm (in older files, as most of ours,
                                                 `# config {...}` before them holds what all arms share)
    arm,seed,step,train_loss,val_loss,...        then a row for every step of a run with a loss, or scores, or both
"""

import json
import re
from pathlib import Path

import pandas

from config import FACTS, as_now, differing_keys, may_differ, require
from data.atomic import replacing
from data.runs.read import DIGITS, Runs, read_run


def write_comparison(path, arms):
    """Writes {name: Runs}. Raises ConfigError if a file at path would lose a run, or a step of one."""
    for name in arms:
        require(not re.search("[#,\n]", name), f"{name!r} is no name for a CSV file: rename its folders")
    if Path(path).exists():
        for old in read_comparison(path):
            new = arms.get(old.name)
            has_all = new and old.table.index.isin(new.table.index).all()
            require(has_all, f"{path} would lose runs of {old.name}, or steps of them: give another --csv")
            for key in differing(old, new):
                require(may_differ(key, "setting"), f"{path} has runs of {old.name} with another {key}: give another "
                        "--csv")

    # a line with the configuration of each arm, and then the rows of all
    lines = []
    for name, arm in arms.items():
        config = {key: value for key, value in arm.config.items() if is_kept(key)}
        lines.append(f"# config of {name} {json.dumps(config)}")
    table = pandas.concat({name: arm.table for name, arm in arms.items()}, names=["arm"])
    lines.append(table.to_csv(float_format=f"%.{DIGITS}f", lineterminator="\n"))
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8", newline="\n")


def differing(arm, other):
    """Returns the keys in which two Runs differ. A child of older code does not say what its parent was."""
    keys = differing_keys([arm.config, other.config])
    return [key for key in keys if key != "parent_config" or (key in arm.config and key in other.config)]


def is_kept(key):
    """Returns whether the file of a comparison has this key of its runs."""
    return key != "seed" and not may_differ(key, "how")


def read_comparison(path):
    """Returns the arms in a file, a list of Runs. ConfigError: it is no comparison, or has a key that is not known."""
    require(Path(path).exists(), f"there is no file or folder {path}")
    comments = re.findall(r"^# config (?:of (.+?) )?(\{.*\})$", Path(path).read_text("utf-8"), re.MULTILINE)
    configs = {name: json.loads(keys) for name, keys in comments}  # {"": of all arms, name of an arm: its own}
    require(configs, f"{path} is no comparison: it has no line # config of ARM {{...}}")
    # An arm may be called null, which pandas would read as nan.
    rows = pandas.read_csv(path, comment="#", dtype=dict(arm=str), na_values=[""], keep_default_na=False)
    arms = []
    for name, table in rows.set_index(["seed", "step"]).groupby("arm", sort=False):
        config = configs.get("", {}) | configs[name]
        facts = {key: config.pop(key) for key in FACTS if key in config}
        arms.append(Runs(name, as_now(config, path, only_known=True) | facts, table.drop(columns="arm")))
    return arms


def pool(paths):
    """Returns {name: Runs}, from folders of runs and from files of comparisons."""
    arms = {}
    for path in paths:
        found = [read_run(path)] if Path(path).is_dir() else read_comparison(path)
        for arm in found:
            if arm.name in arms:
                arm = add_runs(arms[arm.name], arm)
            arms[arm.name] = arm
    return arms


def add_runs(arm, more):
    """Returns the Runs of both. Raises ConfigError if they are not of one setting."""
    for key in differing(arm, more):
        require(may_differ(key, "setting"), f"two runs called {arm.name} differ in {key}")
    for seed in more.seeds():
        require(seed not in arm.seeds(), f"two runs called {arm.name} have the seed {seed}")

    # where the steps come from: together they may have several commits, say
    config = more.config | arm.config
    for key in "commit", "python", "torch", "device_name", "made_with":  # only older runs have python
        if key in config:
            config[key] = sorted({*config[key], *more.config.get(key, [])})
    return Runs(arm.name, config, pandas.concat([arm.table, more.table]))
