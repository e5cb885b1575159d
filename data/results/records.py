"""
Reads runs of train.py, from the folder of a run or from the file of a comparison, and writes such files.

One small CSV file keeps all runs of a comparison, with all that its tables and figures show:

    # config {"n_layer": 2, ...}            what all arms share
    # config of symmetric {"init": ...}     what is special to one of them
    arm,seed,step,train_loss,val_loss,...   then one row for every step of a run that has a loss, or scores, or both
"""

import io
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pandas

from config import HOW, TrainConfig, require
from data.atomic import replacing
from data.results.runs import ORIGIN

GONE = {"optimizer": "adamw", "keep": 0, "qkv_rate": 1.0}  # keys of older runs, with the values that mean what the code does now
DIGITS = 4  # a run is rounded when it is read, so that it and its rows in a CSV file give the same results


class Arm(NamedTuple):
    """Runs of train.py, finished or not, that differ only in their seed."""

    name: str
    config: dict  # its configuration and its corpus
    origin: dict  # {key: [text, ...]}: where its runs come from
    # Rows by seed and step. Losses are nan at a step that has scores only, and scores at one that has losses only;
    # train_loss at step 0, and update_symmetry at the first scores.
    table: pandas.DataFrame

    def seeds(self):
        return self.table.index.unique("seed")

    def values(self, measure):
        """Returns a measure of all rows: a Series by seed and step, nan where a run has none."""
        column = "val_loss" if measure == "loss" else measure
        return self.table.reindex(columns=[column])[column]

    def curves(self, measure):
        """Returns a measure at those steps that have it: a DataFrame (S, seeds), or an empty one."""
        return self.values(measure).unstack("seed").dropna(how="all")

    def at_end(self, measure):
        """Returns the last value of a measure in each run: a Series by seed, nan where a run has none."""
        return self.values(measure).groupby("seed", sort=False).last()

    def unfinished(self):
        """Returns the seeds of runs whose last loss is not that of max_iters."""
        losses = self.curves("loss")
        return [seed for seed in self.seeds() if losses[seed].last_valid_index() != self.config["max_iters"]]

    def layers(self, score):
        """Returns a score of each layer at those steps that have it: a DataFrame (S, L), columns such as symmetry_0."""
        table = self.table.filter(regex=rf"^{score}_\d+$").dropna(how="all")
        return table.dropna(axis="columns", how="all")  # layers that another arm of the same file has


def by_step(rows):
    """Turns the rows of scores.csv into a row for each step: each score as a median over layers, and by layer."""
    keys = ["matrix", "step", "layer"]
    table = rows[rows["head"].isna()].set_index(keys).drop(columns="head")
    heads = rows.dropna(subset="head").sort_values("symmetry", na_position="first").groupby(keys)
    means = heads.mean()
    highest = heads.tail(1).set_index(keys)  # the last one has the highest symmetry
    table = table.assign(heads=means["symmetry"], heads_chance=means["chance"],
                         heads_directionality=means["directionality"],
                         highest_head=highest["symmetry"], highest_head_chance=highest["chance"])
    of_wqk = table.query("matrix == 'wqk'").droplevel("matrix")
    of_positions = table.query("matrix == 'positions'").droplevel("matrix")  # which untied ones have of their own
    of_positions = of_positions.add_prefix("positions_").rename(columns={"positions_symmetry": "positions"})
    table = pandas.concat([of_wqk, of_positions], axis="columns").dropna(axis="columns", how="all")
    layers = table.unstack("layer")  # (S, scores L)
    layers.columns = [f"{score}_{layer}" for score, layer in layers.columns]
    return pandas.concat([table.groupby("step").median(), layers], axis="columns")


def read_run(folder):
    """Returns the Arm of one run in a folder. Raises ConfigError if there is no run, or if scores are missing."""
    folder = Path(folder)
    for name in "run.json", "log.csv", "scores.csv":
        require((folder / name).exists(), f"{folder} holds no run of train.py, or one without a row: it has no {name}")
    run = json.loads((folder / "run.json").read_text())
    sha256 = run["data"]["sha256"]
    config = run["config"] | dict(tokenizer=run["data"]["tokenizer"], sha256=f"{sha256['train']} {sha256['val']}",
                                  n_params=run["n_params"])
    if len(run.get("lengths", [])) > 1:  # it was made longer on the way, so its learning rate is not that of one run
        config["lengths"] = run["lengths"]
    log, scores = pandas.read_csv(folder / "log.csv", index_col="step"), pandas.read_csv(folder / "scores.csv")
    last_loss, last_score = log.index[-1], scores["step"].iloc[-1]
    # Or an earlier score would pass for the last one.
    require(not last_score < last_loss == config["max_iters"], f"{folder}: scores.csv ends at step {last_score}, and "
            f"log.csv at step {last_loss}: --init_from=resume writes them again from ckpt.pt")
    # Losses [nats/token] and scores may have been written at different steps.
    table = pandas.concat([log[["train_loss", "val_loss"]], by_step(scores)], axis="columns").sort_index()
    table = pandas.concat({config["seed"]: table.astype(float).round(DIGITS)}, names=["seed"])
    name = folder.resolve().name.removesuffix(f"-{config['seed']}")
    return make_arm(name, config | {key: [text] for key, text in run["origin"].items()}, table)


def make_arm(name, found, table):
    """Returns an Arm. found: its configuration, its corpus and its origin, maybe of older code."""
    config = vars(TrainConfig()) | {key: value for key, value in found.items() if (key, value) not in GONE.items()}
    origin = {key: config.pop(key) for key in ORIGIN if key in config}
    return Arm(name, config, origin, table)


# ---- the file of a comparison ------------------------------------------------------------------------------------


def write_comparison(path, arms):
    """Writes {name: Arm}. Raises ConfigError if a file at path would lose a run."""
    table = pandas.concat({name: arm.table for name, arm in arms.items()}, names=["arm"])
    kept = set(table.index.droplevel("step"))  # {(name, seed)}
    for old in read_comparison(path) if Path(path).exists() else []:
        for seed in old.seeds():
            require((old.name, seed) in kept, f"{path} holds a run of {old.name} with the seed {seed}, which would be "
                    "lost: give another --csv")
    configs = {}
    for name, arm in arms.items():
        of_arm = arm.config | arm.origin
        configs[name] = {key: value for key, value in of_arm.items() if key not in HOW | {"seed"}}
    first, *others = configs.values()
    shared = {key: value for key, value in first.items() if all(config.get(key) == value for config in others)}
    lines = [f"# config {json.dumps(shared)}"]
    for name, config in configs.items():
        own = {key: value for key, value in config.items() if key not in shared}
        lines.append(f"# config of {name} {json.dumps(own)}")
    rows = table.to_csv(float_format=f"%.{DIGITS}f", lineterminator="\n")
    with replacing(path) as temporary:
        temporary.write_text("\n".join([*lines, rows]))


def read_comparison(path):
    """Returns the arms in a file of write_comparison. Raises ConfigError if it is none."""
    require(Path(path).exists(), f"there is no file or folder {path}")
    text = Path(path).read_text()
    comments = re.findall(r"^# config (?:of (.+?) )?(\{.*\})$", text, re.MULTILINE)
    configs = {name: json.loads(keys) for name, keys in comments}  # {"": of all arms, name of an arm: its own}
    require("" in configs, f"{path} is no comparison: it has no line # config {{...}}")
    types = defaultdict(lambda: float, arm=str, seed=int, step=int)
    # An arm may be called null, which pandas would read as nan.
    rows = pandas.read_csv(io.StringIO(text), comment="#", dtype=types, na_values=[""], keep_default_na=False)
    tables = rows.set_index(["seed", "step"]).groupby("arm", sort=False)
    return [make_arm(name, configs[""] | configs[name], table.drop(columns="arm")) for name, table in tables]
