"""
Runs read again: one run from its folder, or all runs of a comparison from one small CSV file, which has all that its
tables and figures show.

    # config {"n_layer": 2, ...}            what all arms share
    # config of symmetric {"init": ...}     what is special to one of them
    arm,seed,step,train_loss,val_loss,...   then a row for every step of every run that has a loss, or scores, or both

An arm is one configuration; it has several runs, which differ only in their seed. compare.py compares arms.
"""

import io
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pandas

from config import TrainConfig
from config.__main__ import parse_comparison
from data.disk import replacing
from data.results.runs import HOW, SCORES, RunError, read, read_config, require

FREE = HOW | {"seed", "data_dir"}  # runs of one arm may differ in these keys
# Scores kept as medians over layers.
MEDIANS = ["symmetry", "directionality", "directionality_eq17", "update_symmetry"]
# Values are rounded when they are read, so that a run and its rows in a CSV file give the same results.
DIGITS = 4


class Record(NamedTuple):
    """
    A run of train.py, finished or not; or the training of a pretrained model, of which we have scores of layers only.
    """

    arm: str
    seed: int
    config: dict
    # A row for each step, as in the file of a comparison. Losses are nan at a step that has scores only, and scores at
    # one that has losses only; train_loss at step 0, and update_symmetry at the first scores.
    table: pandas.DataFrame

    def curve(self, column):
        """A column at those steps that have it: a Series by step."""
        return self.table[column].dropna()

    def last(self, column):
        return self.curve(column).iloc[-1]

    def is_finished(self):
        return self.curve("val_loss").index[-1] == self.config["max_iters"]  # the step of its last loss

    def layers(self, score):
        """One of SCORES at those steps that have it: a DataFrame (S, L) with columns such as symmetry_0."""
        return self.table.filter(regex=rf"^{score}_\d+$").dropna(how="all")


def record_of_table(arm, config, table):
    """A Record from a table with at least these columns. ValueError, KeyError: it is damaged."""
    losses = ["train_loss", "val_loss"]  # [nats/token]
    spread = "symmetry_std"  # over the heads of a layer, mean over layers
    layers = [f"{score}_{layer}" for layer in range(config["n_layer"]) for score in SCORES]
    table = table[[*losses, *MEDIANS, spread, *layers]].astype(float).round(DIGITS)
    # Losses and scores may have been written at different steps.
    return Record(arm, config["seed"], config, table.sort_index())


def by_layer(rows):
    """A row for each step and layer -> a row for each step, with columns such as symmetry_0."""
    table = rows.pivot(index="step", columns="layer", values=SCORES)  # (S, 2 L)
    table.columns = [f"{score}_{layer}" for score, layer in table.columns]
    return table


# ---- the folder of a run -----------------------------------------------------------------------------------------


def read_run(folder):
    """The Record of a run in a folder. RunError if there is no run."""
    folder = Path(folder)
    log, scores = read(folder / "log.csv"), read(folder / "scores.csv")
    config = read_config(folder)
    try:
        log = log.set_index("step").astype(float)
        scores = scores.astype(float).astype(dict(step=int, layer=int))
    except ValueError as e:
        raise RunError(f"{folder}: log.csv or scores.csv is damaged ({e})") from e
    n_rows = config["n_layer"] * (1 + config["n_head"])  # of a step
    # The last step may lack some, as the run may be writing them.
    scores = scores.groupby("step").filter(lambda rows: len(rows) == n_rows)
    require(len(log) and len(scores), f"{folder} has no row in its CSV files yet")
    of_layers = scores[scores["head"].isna()]
    of_heads = scores[scores["head"].notna()]
    medians = of_layers.groupby("step")[MEDIANS].median()
    spread = of_heads.groupby(["step", "layer"])["symmetry"].std(ddof=0)  # over the heads of a layer
    spread = spread.groupby("step").mean().rename("symmetry_std")
    table = pandas.concat([log, medians, spread, by_layer(of_layers)], axis="columns")
    arm = folder.resolve().name.removesuffix(f"-{config['seed']}")
    return record_of_table(arm, config, table)


def report_run(folder):
    """A table with the first and the last scores of every layer of a run."""
    run = read_run(folder)
    lines = ["layer   symmetry: start     end   directionality: start     end"]
    for layer in range(run.config["n_layer"]):
        symmetry = run.curve(f"symmetry_{layer}").to_numpy()  # (S,)
        directionality = run.curve(f"directionality_{layer}").to_numpy()  # (S,)
        lines.append(f"{layer:5}         {symmetry[0]:8.2f}{symmetry[-1]:8.2f}"
                     f"                 {directionality[0]:8.2f}{directionality[-1]:8.2f}")
    loss = run.last("val_loss")
    lines.append(f"validation loss {loss:.4f} nats/token; picture: {folder}/run.png")
    return "\n".join(lines)


# ---- the file of a comparison ------------------------------------------------------------------------------------


def write_comparison(path, arms):
    """arms: {name: its records}. RunError if the file at path would lose something."""
    records = itertools.chain.from_iterable(arms.values())
    tables = {(record.arm, record.seed): record.table for record in records}
    if Path(path).exists():
        for record in read_comparison(path):
            require((record.arm, record.seed) in tables, f"{path} holds a run of {record.arm} with the seed "
                    f"{record.seed}, which would be lost: give another --csv")
    whole = pandas.concat(tables, names=["arm", "seed", "step"])
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        f.write("\n".join(config_lines(arms)) + "\n")
        whole.to_csv(f, float_format=f"%.{DIGITS}f")


def config_lines(arms):
    """'# config {...}' with the keys that all arms share, and '# config of NAME {...}' with the others, as JSON."""
    configs = {}
    for name, records in arms.items():
        config = records[0].config
        configs[name] = {key: config[key] for key in config if key not in HOW - {"init_from"} | {"seed"}}
    first = next(iter(configs.values()))
    shared = {}
    for key, value in first.items():
        if all(config.get(key) == value for config in configs.values()):
            shared[key] = value
    lines = [f"# config {json.dumps(shared)}"]
    for name, config in configs.items():
        special = {key: value for key, value in config.items() if key not in shared}
        lines.append(f"# config of {name} {json.dumps(special)}")
    return lines


def read_comparison(path):
    """The records in a CSV file that write_comparison wrote. RunError: it is another file, or damaged."""
    try:
        configs, lines = parse_comparison(path)
        types = dict(arm=str, seed=int, step=int)
        # An arm may be called null, which pandas would read as nan.
        table = pandas.read_csv(io.StringIO("\n".join(lines)), dtype=types, na_values=[""], keep_default_na=False)
        records = []
        for (arm, seed), rows in table.groupby(["arm", "seed"], sort=False):
            # A key that is newer than the file has its default.
            config = asdict(TrainConfig()) | configs[arm] | dict(seed=seed)
            records.append(record_of_table(arm, config, rows.set_index("step")))
        return records
    except (KeyError, TypeError, ValueError) as e:
        raise RunError(f"{path} is no comparison, or damaged ({str(e).strip()}): give another file") from e
