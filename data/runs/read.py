"""Reads a run of train.py from its folder, and one row per step from its rows."""

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import pandas

from config import as_now, may_differ, require
from data.runs.write import AT_END

DIGITS = 4  # as in the CSV file of a comparison: a run is rounded when it is read, so that both give the same results


class Runs(NamedTuple):
    """Runs of one setting, finished or not. They differ only in their seed. A single run is one of these, too."""

    name: str
    config: dict  # their configuration, their corpus, and where their steps come from, such as commit: [texts]
    # Rows by seed and step, and nan where there is no number: losses [nats/token] at a step with scores only, scores at
    # a step with losses only, train_loss at step 0, and update_symmetry at the first scores.
    table: pandas.DataFrame

    def seeds(self):
        return self.table.index.unique("seed")

    def values(self, measure):
        """Returns a measure of all rows: a Series by seed and step, nan where a run has none."""
        column = "val_loss" if measure == "loss" else measure
        return self.table.reindex(columns=[column])[column]

    def curves(self, measure):
        """Returns a measure at the steps that have it: a DataFrame (S, seeds), or an empty one."""
        return self.values(measure).unstack("seed").dropna(how="all")

    def at_end(self, measure):
        """Returns the last value of a measure in each run: a Series by seed, nan where a run has none."""
        return self.values(measure).groupby("seed", sort=False).last()


def by_step(rows):
    """
    Turns scores.csv into a row for each step: each score as a median over layers, and by layer. Example:
        step  layer  head  symmetry         step  symmetry  symmetry_0  symmetry_1  heads  heads_0  heads_1
        100   0            0.2          ->  100   0.3       0.2         0.4         0.2    0.1      0.3
        100   0      0     0.1
        100   1            0.4
        100   1      0     0.3
    """
    # a row for each layer, and in it the means over its heads
    keys = ["matrix", "step", "layer"]
    table = rows[rows["head"].isna()].set_index(keys).drop(columns="head")
    of_heads = rows.dropna(subset="head").groupby(keys)[["symmetry", "chance", "directionality"]].mean()
    table = table.join(of_heads.add_prefix("heads_"))

    # untied positions have a matrix of their own: its scores go beside those of W_qk
    of_positions = table.query("matrix == 'positions'").droplevel("matrix").add_prefix("positions_")
    table = pandas.concat([table.loc["wqk"], of_positions], axis="columns").dropna(axis="columns", how="all")
    table.columns = table.columns.str.replace("(heads|positions)_symmetry$", r"\1", regex=True)  # heads, positions

    # layers side by side, and their medians. subtle: a median of symmetry_95 would have the name of layer 95
    layers = table.unstack("layer")  # (S, scores L)
    layers.columns = [f"{score}_{layer}" for score, layer in layers.columns]
    medians = table.groupby("step").median()
    medians = medians.drop(columns=medians.filter(like="symmetry_95").columns)
    return pandas.concat([medians, layers], axis="columns")


def what_differs(parent, child):
    """
    Returns {key: the parent's value}, the keys of a setting in which a parent differs from its child. What its own
    parent was is in it, too: {"causal": False, "parent_config": {"causal": True}}
    """
    parent, differing = as_now(parent, "its parent"), {}
    for key, value in parent.items():
        if key == "parent_config":
            differing[key] = what_differs(value, parent)
        elif key != "parent" and child.get(key) != value and not may_differ(key, "setting"):
            differing[key] = value
    return differing


def read_run(folder):
    """Returns the Runs of one run in a folder. Raises ConfigError if there is no run, or if scores are missing."""
    folder = Path(folder)
    require((folder / "log.csv").exists(), f"{folder} holds no run of train.py, or one without rows")
    run = json.loads((folder / "run.json").read_text("utf-8"))

    # 1) what the run is: its configuration, its corpus, and where its steps come from
    config = as_now(run["config"], folder)
    sha256 = " ".join(run["data"]["sha256"].values())  # train.bin and val.bin
    config |= dict(tokenizer=run["data"]["tokenizer"], sha256=sha256, n_params=run["n_params"])
    if config["parent"]:  # each seed has another one: out/plans/switch/both-301 and both-302 become `both`
        config["parent"] = re.sub(r"-\d+$", "", Path(config["parent"]).name)
    if len(run.get("lengths", [])) > 1:  # made longer on the way, so its learning rate has another course
        config["lengths"] = run["lengths"]
    parent = run.get("parent_config") or {}  # older runs have none
    if parent:
        config["parent_config"] = what_differs(parent, config)
    for key, texts in run["origin"].items():
        config[key] = [texts] if isinstance(texts, str) else texts  # older code wrote one text

    how = "micro_batch_size", "threads", "compile", "deterministic"
    config["made_with"] = [" ".join(f"{key}={config[key]}" for key in how)]

    # 2) its losses and its scores
    log = pandas.read_csv(folder / "log.csv", index_col="step")
    scores = pandas.read_csv(folder / "scores.csv")
    last_loss, last_score = log.index[-1], scores["step"].iloc[-1]
    at_end = scores.columns.intersection(AT_END)
    scores.loc[scores["step"] < last_score, at_end] = math.nan  # a run that was made longer has older ones, too

    # 3) a finished run must have scores at its last step, or older ones would be taken for them
    is_finished = last_loss == config["max_iters"]
    require(not is_finished or last_score == last_loss, f"{folder}: scores.csv ends at step {last_score}, and "
            f"log.csv at step {last_loss}: --init_from=resume writes them again from ckpt.pt")

    # 4) both in one table, by seed and step
    log = log[["train_loss", "val_loss", "tokens_per_s"]]
    table = pandas.concat([log, by_step(scores)], axis="columns").sort_index()
    if parent:
        table["parent_seed"] = parent["seed"]  # runs of one parent are no independent pairs
    table = pandas.concat({config["seed"]: table.astype(float).round(DIGITS)}, names=["seed"])
    setting = folder.resolve().name.removesuffix(f"-{config['seed']}")
    return Runs(setting, config, table)
