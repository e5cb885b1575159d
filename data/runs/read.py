"""Reads a run of train.py from its folder, and one row per step from its rows."""

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import pandas

from config import as_now, require

DIGITS = 4  # a run is rounded when it is read, so that it and its rows in a CSV file give the same results


class Runs(NamedTuple):
    """Runs of one setting, finished or not, which differ only in their seed. A single run is one of these, too."""

    name: str
    config: dict  # its configuration, its corpus, and where its runs come from, such as commit: a list of texts
    # Rows by seed and step. Losses [nats/token] are nan at a step that has scores only, and scores at one that has
    # losses only; train_loss at step 0, and update_symmetry at the first scores.
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

    def common_steps(self):
        """Returns the steps at which all seeds have both a loss and scores, a set."""
        return {*self.curves("loss").dropna().index} & {*self.curves("symmetry").dropna().index}

    def at_end(self, measure):
        """Returns the last value of a measure in each run: a Series by seed, nan where a run has none."""
        return self.values(measure).groupby("seed", sort=False).last()

    def layers(self, score):
        """Returns a score of each layer at those steps that have it: a DataFrame (S, L), columns such as symmetry_0."""
        table = self.table.filter(regex=rf"^{score}_\d+$").dropna(how="all")
        return table.dropna(axis="columns", how="all")  # layers that another arm of the same file has


def by_step(rows):
    """Turns scores.csv into a row for each step: each score as a median over layers, and by layer."""
    keys = ["matrix", "step", "layer"]
    table = rows[rows["head"].isna()].set_index(keys).drop(columns="head")
    heads = rows[rows["head"].notna()]
    for score in "symmetry", "chance", "directionality":
        table[f"heads_{score}"] = heads.groupby(keys)[score].mean()
    table = table.rename(columns={"heads_symmetry": "heads"})
    of_wqk = table.query("matrix == 'wqk'").droplevel("matrix")
    of_positions = table.query("matrix == 'positions'").droplevel("matrix")  # which untied ones have of their own
    of_positions = of_positions.add_prefix("positions_").rename(columns={"positions_symmetry": "positions"})
    table = pandas.concat([of_wqk, of_positions], axis="columns").dropna(axis="columns", how="all")
    layers = table.unstack("layer")  # (S, scores L)
    layers.columns = [f"{score}_{layer}" for score, layer in layers.columns]
    medians = table.groupby("step").median()
    medians = medians.filter(regex="^(?!.*symmetry_95$)")  # this name would be that of layer 95, and a limit is of one
    return pandas.concat([medians, layers], axis="columns")


def read_run(folder):
    """Returns the Runs of one run in a folder. Raises ConfigError if there is no run, or if scores are missing."""
    folder = Path(folder)
    require((folder / "log.csv").exists(), f"{folder} holds no run of train.py, or one without rows")
    run = json.loads((folder / "run.json").read_text("utf-8"))
    sha256 = " ".join(run["data"]["sha256"].values())  # of both splits
    config = run["config"] | dict(tokenizer=run["data"]["tokenizer"], sha256=sha256, n_params=run["n_params"])
    if config.get("parent"):  # of each seed another run: out/plans/switch/both-301 is one of both
        config["parent"] = re.sub(r"-\d+$", "", Path(config["parent"]).name)
    if len(run.get("lengths", [])) > 1:  # made longer on the way: its learning rate is not that of one run
        config["lengths"] = run["lengths"]
    log = pandas.read_csv(folder / "log.csv", index_col="step")
    scores = pandas.read_csv(folder / "scores.csv")
    last_loss, last_score = log.index[-1], scores["step"].iloc[-1]
    if "symmetry_95" in scores:  # a run that was made longer has older ones, too
        scores.loc[scores["step"] < last_score, "symmetry_95"] = math.nan
    is_finished = last_loss == config["max_iters"]  # then an earlier score would pass for the last one
    require(not is_finished or last_score == last_loss, f"{folder}: scores.csv ends at step {last_score}, and "
            f"log.csv at step {last_loss}: --init_from=resume writes them again from ckpt.pt")
    table = pandas.concat([log[["train_loss", "val_loss"]], by_step(scores)], axis="columns").sort_index()
    table = pandas.concat({config["seed"]: table.astype(float).round(DIGITS)}, names=["seed"])
    for key, texts in run["origin"].items():
        config[key] = [texts] if isinstance(texts, str) else texts  # older code wrote one text
    return Runs(folder.resolve().name.removesuffix(f"-{config['seed']}"), as_now(config, folder), table)
