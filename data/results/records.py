"""
Runs read again: one run from its folder, or all runs of a comparison from one small CSV file, which has all that its
tables and figures show.

    # config {"n_layer": 2, ...}            what all arms share
    # config of symmetric {"init": ...}     what is special to one of them
    arm,seed,step,train_loss,val_loss,...   then a row for every step of every run that has a loss, or scores, or both

An arm is one configuration; it has several runs, which differ only in their seed. compare.py compares arms.

The last part reads the authors' own runs, as they published them (csv/published/README.md):

    loss_curves.csv    training losses [nats/token], a column per run: Table 1
    trajectories.csv   symmetry and directionality of every layer: Figures 3, S3, S4
"""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from config import TrainConfig
from config.__main__ import parse_comparison
from data.results.runs import HOW, LOG_COLUMNS, SCORES_COLUMNS, RunError, read, read_config, replacing, require

FREE = HOW | {"seed", "data_dir"}  # runs of one arm may differ in these keys
MEDIANS = ["symmetry", "directionality", "directionality_eq17", "update_symmetry"]  # scores kept as medians over layers
BY_LAYER = ["symmetry", "directionality"]  # scores kept of every layer as well, in columns symmetry_0, symmetry_1, ...
DIGITS = 4  # values are rounded when they are read, so that a run and its rows in a CSV file give the same results


class Record(NamedTuple):
    """One run, finished or not. train_loss is nan at step 0, and update_symmetry at the first scores."""

    arm: str
    seed: int
    config: dict
    table: pandas.DataFrame  # its rows in the file of a comparison, by step. All that follows is taken from it
    eval_steps: np.ndarray  # the steps of evaluations, (E,)
    train_loss: np.ndarray  # (E,) [nats/token]
    val_loss: np.ndarray  # (E,) [nats/token]
    steps: np.ndarray  # the steps at which scores were written, (S,)
    medians: dict  # name of MEDIANS -> median over layers, (S,)
    layers: dict  # name of BY_LAYER -> (S, L)


def columns(n_layer):
    """The columns of a table: two of losses, then scores."""
    by_layer = [f"{name}_{layer}" for layer in range(n_layer) for name in BY_LAYER]
    return ["train_loss", "val_loss", *MEDIANS, "symmetry_std", *by_layer]  # of symmetry over heads, mean over layers


def record_of_table(arm, seed, config, table):
    """A Record from its rows in the file of a comparison. ValueError, KeyError: they are damaged."""
    n_layer = config["n_layer"]
    table = table[columns(n_layer)].astype(float).round(DIGITS)
    table = table.sort_index()  # a spreadsheet may have sorted its rows in another way
    evaluated = table[table["val_loss"].notna()]
    scored = table[table["symmetry"].notna()]
    if evaluated.empty or scored.empty:
        raise ValueError(f"no loss or no score of {arm}, seed {seed}")
    layers = {}
    for name in BY_LAYER:
        layers[name] = scored[[f"{name}_{layer}" for layer in range(n_layer)]].to_numpy()  # (S, L)
    return Record(
        arm=arm,
        seed=seed,
        config=config,
        table=table,
        eval_steps=evaluated.index.to_numpy(),
        train_loss=evaluated["train_loss"].to_numpy(),
        val_loss=evaluated["val_loss"].to_numpy(),
        steps=scored.index.to_numpy(),
        medians={name: scored[name].to_numpy() for name in MEDIANS},
        layers=layers,
    )


# ---- the folder of a run -----------------------------------------------------------------------------------------


def read_run(folder):
    """The Record of a run in a folder. RunError if there is no run."""
    folder = Path(folder)
    log = read_numbers(folder / "log.csv", LOG_COLUMNS)
    scores = read_numbers(folder / "scores.csv", SCORES_COLUMNS)
    config = read_config(folder)
    n_rows = config["n_layer"] * (1 + config["n_head"])  # of a step
    scores = scores.groupby("step").filter(lambda rows: len(rows) == n_rows)  # the last step may lack some
    require(len(log) and len(scores), f"{folder} has no row in its CSV files yet")
    of_layers = scores[scores["head"].isna()]
    of_heads = scores[scores["head"].notna()]
    medians = of_layers.groupby("step")[MEDIANS].median()
    spread = of_heads.groupby(["step", "layer"])["symmetry"].std(ddof=0)  # over the heads of a layer
    by_layer = of_layers.pivot(index="step", columns="layer", values=BY_LAYER)  # a column for each (score, layer)
    by_layer.columns = [f"{name}_{layer}" for name, layer in by_layer.columns]
    parts = [log.set_index("step"), medians, spread.groupby("step").mean().rename("symmetry_std"), by_layer]
    table = pandas.concat(parts, axis="columns")
    arm = folder.resolve().name.removesuffix(f"-{config['seed']}")
    return record_of_table(arm, config["seed"], config, table)


def read_numbers(path, header):
    """A CSV file of a run as a DataFrame of numbers."""
    try:
        table = pandas.DataFrame(read(path, header), columns=header).replace("", "nan").astype(float)
        return table.astype({name: int for name in header if name in ("step", "layer")})
    except (TypeError, ValueError) as e:
        raise RunError(f"{path} is damaged ({e})") from e


# ---- the file of a comparison ------------------------------------------------------------------------------------


def write_comparison(path, arms):
    """arms: {name: its records}"""
    tables = {(record.arm, record.seed): record.table for records in arms.values() for record in records}
    whole = pandas.concat(tables, names=["arm", "seed", "step"])
    with replacing(path) as temporary, open(temporary, "w", newline="") as f:
        f.write("\n".join(config_lines(arms)) + "\n")
        whole.to_csv(f, float_format=f"%.{DIGITS}f")


def config_lines(arms):
    """'# config {...}' with the keys that all arms share, and '# config of NAME {...}' with the others, as JSON."""
    configs = {}
    for name, records in arms.items():
        configs[name] = {key: value for key, value in records[0].config.items() if key not in HOW and key != "seed"}
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


def is_comparison(path):
    first = b"# config "
    with open(path, "rb") as f:  # as bytes, because a file of another kind may be no text
        return f.read(len(first)) == first


def require_no_others(path, arms):
    """RunError if the comparison at path, which is to be written anew, also has another run than those of arms."""
    ours = {(record.arm, record.seed) for records in arms.values() for record in records}
    for record in read_comparison(path):
        require((record.arm, record.seed) in ours, f"{path} holds a run of {record.arm} with the seed {record.seed}, "
                                                   "which would be lost: give another --csv")


def read_comparison(path):
    """The records in a CSV file that write_comparison wrote. RunError if it is damaged."""
    try:
        configs, lines = parse_comparison(path)
        # An arm may be called NA, which pandas would read as nan.
        table = pandas.read_csv(io.StringIO("\n".join(lines)), dtype=dict(arm=str, seed=int, step=int), na_values=[""],
                                keep_default_na=False)
        records = []
        for (arm, seed), rows in table.groupby(["arm", "seed"], sort=False):
            config = asdict(TrainConfig()) | configs[arm] | dict(seed=seed)  # a newer key has its default
            records.append(record_of_table(arm, seed, config, rows.set_index("step")))
        if not records:
            raise ValueError("no run is in it")
        return records
    except (KeyError, TypeError, ValueError) as e:
        raise RunError(f"{path} is damaged ({e}): write it again with --csv") from e


# ---- the authors' runs -----------------------------------------------------------------------------------------------

LOGGED_EVERY = 200  # updates; a row of losses is the mean over those since the row before
TRAJECTORIES = ["run", "step", "layer", "symmetry", "directionality"]  # the first line of trajectories.csv
N_LAYER = {"bert_small": 4, "bert": 12}  # by the first part of a run's name
SYMMETRIC = "--symmetric-init"  # how the name of a run ends that starts from W_k = W_q


class Trajectory(NamedTuple):
    """The scores of one of their runs: bert_small--encoder--jigsaw has 4 layers, bert--decoder--wikipedia 12."""

    name: str
    n_layer: int
    causal: bool
    corpus: str
    steps: np.ndarray  # (S,)
    symmetry: np.ndarray  # (S, L)
    directionality: np.ndarray  # (S, L)


class CsvFiles(NamedTuple):
    """What is in the authors' CSV files that were given to analyze.py --runs."""

    curves: dict  # name of a published run -> (steps, training loss)
    trajectories: list  # of Trajectory


def read_csv_files(paths):
    """Read files of both kinds; the first line tells which kind a file is. RunError: a file is neither."""
    found = CsvFiles({}, [])
    for path in paths:
        try:
            with open(path, newline="") as f:
                header = next(csv.reader(f), [])
            if header == TRAJECTORIES:
                found.trajectories.extend(read_trajectories(path))
            else:
                found.curves.update(read_curves(path))
        except (KeyError, TypeError, ValueError, csv.Error) as e:  # TypeError: a line that is cut short
            raise RunError(f"{path} is no CSV file of --runs, and none of data/results/csv/published: it has {e}; "
                           "for a run of train.py, give its folder") from e
    return found


def read_trajectories(path):
    """-> a list of Trajectory, in the order of the file."""
    scores = {}  # run -> step -> (symmetry, directionality) of each layer
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            steps = scores.setdefault(row["run"], {})
            layers = steps.setdefault(int(row["step"]), [])  # layers follow one another
            layers.append((float(row["symmetry"]), float(row["directionality"])))
    trajectories = []
    for name, steps in scores.items():
        model, kind, corpus = name.split("--")
        values = np.array(list(steps.values()))  # (S, L, 2)
        trajectories.append(Trajectory(
            name=name,
            n_layer=N_LAYER[model],
            causal=kind == "decoder",
            corpus=corpus,
            steps=np.array(list(steps)),
            symmetry=values[:, :, 0],
            directionality=values[:, :, 1],
        ))
    return trajectories


def read_curves(path):
    """Training losses, a column per run and a row every LOGGED_EVERY updates -> {name: (steps, loss)}."""
    with open(path, newline="") as f:
        names, *rows = csv.reader(f)
    for name in names:
        if name.split("--")[0] not in N_LAYER:
            raise ValueError(f"a column {name}, and no published run is called {name}")
    curves = {}
    for name, column in zip(names, zip(*rows)):
        loss = np.array([float(cell or "nan") for cell in column])
        steps = LOGGED_EVERY * np.arange(1, len(loss) + 1)
        curves[name] = (steps, loss)
    return curves
