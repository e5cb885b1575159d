"""
A comparison of runs in one small CSV file, which has all that its tables and figures show.

    # config {"n_layer": 2, ...}            what all arms share
    # config of symmetric {"init": ...}     what is special to one of them
    arm,seed,step,train_loss,val_loss,...   then a row for every step of every run that has a loss, or scores, or both

An arm is one configuration; it has several runs, which differ only in their seed. compare.py compares arms.
"""

import csv
import itertools
import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import TrainConfig
from data.results.runs import RunError, find_lost, replacing, require

# Runs of one arm may differ in these keys. All but the seed say where and how a run runs, and not what it computes.
FREE = {"seed", "out_dir", "init_from", "device", "threads", "compile", "profile", "keep", "micro_batch_size",
        "data_dir"}
MEDIANS = ["symmetry", "directionality", "directionality_eq17", "update_symmetry"]  # scores kept as medians over layers
BY_LAYER = ["symmetry", "directionality"]  # scores kept of every layer as well, in columns symmetry_0, symmetry_1, ...
COLUMNS = ["arm", "seed", "step", "train_loss", "val_loss", *MEDIANS, "symmetry_std"]  # and those of BY_LAYER
DIGITS = 4  # values are rounded when they are read, so that a run and its rows in a CSV file give the same results


class Record(NamedTuple):
    """One run, as a comparison keeps it."""

    arm: str
    seed: int
    config: dict
    eval_steps: np.ndarray  # the steps of evaluations, (E,)
    train_loss: np.ndarray  # (E,) [nats/token]
    val_loss: np.ndarray  # (E,) [nats/token]
    steps: np.ndarray  # the steps at which scores were written, (S,)
    medians: dict  # name of MEDIANS -> median over layers, (S,)
    symmetry_std: np.ndarray  # standard deviation over the heads of a layer, mean over layers, (S,)
    layers: dict  # name of BY_LAYER -> (S, L)


def record_of_run(run):
    """runs.Run -> Record: medians over layers, and standard deviations over heads."""
    medians = {name: np.round(np.median(run.layers[name], axis=1), DIGITS) for name in MEDIANS}
    layers = {name: np.round(run.layers[name], DIGITS) for name in BY_LAYER}
    over_heads = run.heads["symmetry"].std(axis=2)  # (S, L)
    return Record(
        arm=run.name,
        seed=run.config["seed"],
        config=run.config,
        eval_steps=run.log["step"].astype(int),
        train_loss=np.round(run.log["train_loss"], DIGITS),
        val_loss=np.round(run.log["val_loss"], DIGITS),
        steps=run.steps,
        medians=medians,
        symmetry_std=np.round(over_heads.mean(axis=1), DIGITS),
        layers=layers,
    )


# ---- the file of a comparison ------------------------------------------------------------------------------------


def write_comparison(path, arms):
    """arms: {name: its records}"""
    all_records = list(itertools.chain(*arms.values()))
    n_layer = max(record.config["n_layer"] for record in all_records)
    layer_columns = [f"{name}_{layer}" for layer in range(n_layer) for name in BY_LAYER]
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        f.write("\n".join(config_lines(arms)) + "\n")
        out = csv.DictWriter(f, COLUMNS + layer_columns)
        out.writeheader()
        for record in all_records:
            out.writerows(rows_of_record(record))


def config_lines(arms):
    """'# config {...}' with the keys that all arms share, and '# config of NAME {...}' with the others, as JSON."""
    configs = {}
    for name, records in arms.items():
        config = records[0].config
        configs[name] = {key: value for key, value in config.items() if key not in FREE or key == "data_dir"}
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


def rows_of_record(record):
    """A dict for every step that has a loss, or scores, or both. Cells without a value are left out."""
    rows = {}  # step -> its row
    for step in sorted({*record.eval_steps.tolist(), *record.steps.tolist()}):
        rows[step] = dict(arm=record.arm, seed=record.seed, step=step)
    for i, step in enumerate(record.eval_steps.tolist()):
        rows[step]["train_loss"] = cell(record.train_loss[i])
        rows[step]["val_loss"] = f"{record.val_loss[i]:.{DIGITS}f}"  # never empty: an evaluation may have found nan
    for i, step in enumerate(record.steps.tolist()):
        for name in MEDIANS:
            rows[step][name] = cell(record.medians[name][i])
        rows[step]["symmetry_std"] = cell(record.symmetry_std[i])
        for name in BY_LAYER:
            for layer, value in enumerate(record.layers[name][i]):
                rows[step][f"{name}_{layer}"] = cell(value)
    return list(rows.values())


def cell(x):
    """A number as the text of a cell; nan is an empty one."""
    return "" if math.isnan(x) else f"{x:.{DIGITS}f}"


def is_comparison(path):
    first = b"# config "
    with open(path, "rb") as f:  # as bytes, because a file of another kind may be no text
        return f.read(len(first)) == first


def require_no_others(path, arms):
    """RunError if the comparison at path, which is to be written anew, also has another run than those of arms."""
    kept = {(record.arm, str(record.seed)) for records in arms.values() for record in records}
    for arm, seed in find_lost(path, ["arm", "seed"], kept):
        raise RunError(f"{path} holds a run of {arm} with the seed {seed}, which would be lost: give another --csv")


def read_comparison(path):
    """The records in a CSV file that write_comparison wrote. RunError if it is damaged, or lacks a column."""
    try:
        return parse_comparison(path)
    except (KeyError, TypeError, ValueError, csv.Error) as e:  # TypeError: a line that is cut short
        raise RunError(f"{path} is damaged ({e}): write it again with --csv") from e


def parse_comparison(path):
    """The same, with whatever error a damaged file leads to. Keys that are newer than the file have their defaults."""
    shared, special, lines = {}, {}, []  # config of all arms; {arm: its own}; the other lines, which are the table
    for line in Path(path).read_text().splitlines(keepends=True):
        comment = re.match(r"# config (of (?P<arm>.+?) )?(?P<json>\{.*\})$", line)
        if comment is None:
            lines.append(line)
        elif comment["arm"] is None:
            shared = json.loads(comment["json"])
        else:
            special[comment["arm"]] = json.loads(comment["json"])
    table = csv.DictReader(lines)
    missing = {*COLUMNS} - {*(table.fieldnames or [])}
    require(not missing, f"{path} lacks the columns {', '.join(sorted(missing))}: write it again with --csv")
    rows_of_run = {}  # (arm, seed) -> its rows
    for row in table:
        rows_of_run.setdefault((row["arm"], int(row["seed"])), []).append(row)
    records = []
    for (arm, seed), rows in rows_of_run.items():
        if arm not in special:
            raise ValueError(f"no line says the config of {arm}")
        config = asdict(TrainConfig()) | shared | special[arm] | dict(seed=seed)
        if not {"checksum", "tokenizer"} <= config.keys():
            raise ValueError(f"the config of {arm} does not say its token files")
        rows.sort(key=lambda row: int(row["step"]))  # a spreadsheet may have sorted them in another way
        records.append(record_of_rows(arm, seed, config, rows))
    return records


def record_of_rows(arm, seed, config, rows):
    """A Record from the rows of one run in a CSV file."""
    evaluations = [row for row in rows if row["val_loss"]]
    scored = [row for row in rows if row["symmetry"]]
    if not evaluations or not scored:
        raise ValueError(f"no loss or no score of {arm}, seed {seed}")
    layers = {}
    for name in BY_LAYER:
        by_layer = [numbers(scored, f"{name}_{layer}") for layer in range(config["n_layer"])]  # L times (S,)
        layers[name] = np.array(by_layer).T  # (S, L)
    return Record(
        arm=arm,
        seed=seed,
        config=config,
        eval_steps=numbers(evaluations, "step").astype(int),
        train_loss=numbers(evaluations, "train_loss"),
        val_loss=numbers(evaluations, "val_loss"),
        steps=numbers(scored, "step").astype(int),
        medians={name: numbers(scored, name) for name in MEDIANS},
        symmetry_std=numbers(scored, "symmetry_std"),
        layers=layers,
    )


def numbers(rows, column):
    """A column as an array (rows,); empty cells are nan."""
    return np.array([float(row[column] or "nan") for row in rows])
