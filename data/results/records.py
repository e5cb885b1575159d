"""
Reads runs of train.py, from the folder of a run or from the file of a comparison, and writes such files.

One small CSV file keeps all runs of a comparison, with all that its tables and figures show:

    # planned [["symmetry", "learned", ">", "decoder"]]    its tests, if they were planned (config/planned.py)
    # config {"n_layer": 2, ...}            what all arms share
    # config of symmetric {"init": ...}     what is special to one of them
    arm,seed,step,train_loss,val_loss,...   then one row for every step of a run that has a loss, or scores, or both
"""

import io
import json
import re
from collections import defaultdict
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from config import HOW, KEYS, TrainConfig, checked
from config.planned import OF_LAYERS
from data.atomic import replacing
from data.results.runs import RunError, require

# The scores of which the median over layers is kept. Those in OF_LAYERS are also kept for each layer.
MEDIANS = [*OF_LAYERS, "chance", "directionality_eq17", "update_symmetry", "positions_heads", "positions_chance"]
ORIGIN = ["commit", "python", "torch", "device_name"]  # where a run comes from
PLANNED = "# planned "  # how the line with the planned tests begins
DIGITS = 4  # a run is rounded when it is read, so that it and its rows in a CSV file give the same results


class Record(NamedTuple):
    """A run of train.py, finished or not."""

    arm: str
    seed: int
    config: dict
    # One row for each step, as in the file of a comparison. Losses are nan at a step that has scores only, and scores
    # at one that has losses only; train_loss at step 0, and update_symmetry at the first scores.
    table: pandas.DataFrame
    origin: dict = {}  # {key of ORIGIN: its texts}, several if an arm was made in several places

    def curve(self, column):
        """Returns a column at those steps that have it: a Series by step, empty if the column is newer than the run."""
        return self.table.get(column, pandas.Series(dtype=float)).dropna()

    def last(self, column):
        """Returns the last value of a column, or nan if it has none."""
        curve = self.curve(column)
        return curve.iloc[-1] if len(curve) else nan

    def last_step(self, column="val_loss"):
        return self.curve(column).last_valid_index()  # None if it has no value

    def is_finished(self):
        return self.last_step() == self.config["max_iters"]

    def layers(self, score):
        """Returns one of OF_LAYERS at those steps that have it: a DataFrame (S, L) with columns such as symmetry_0."""
        table = self.table.filter(regex=rf"^{score}_\d+$").dropna(how="all")
        return table.dropna(axis="columns", how="all")  # layers that another arm of the same file has


def of_layers(rows):
    """Returns the rows of whole layers, by step and layer, with a column heads: the mean symmetry of single heads."""
    table = rows[rows["head"].isna()].set_index(["step", "layer"])
    table["heads"] = rows.dropna(subset="head").groupby(["step", "layer"])["symmetry"].mean()
    return table


def by_step(rows):
    """Turns the rows of scores.csv into a row for each step: medians over layers, and some scores of each layer."""
    table = of_layers(rows[rows["matrix"] == "wqk"])
    of_positions = of_layers(rows[rows["matrix"] == "positions"])  # which untied ones have of their own
    table["positions"] = of_positions["symmetry"]
    table["positions_heads"] = of_positions["heads"]
    table["positions_chance"] = of_positions["chance"]
    table = table.dropna(axis="columns", how="all")
    medians = table.filter(MEDIANS).groupby("step").median()
    layers = table.filter(OF_LAYERS).unstack("layer")  # (S, scores L)
    layers.columns = [f"{score}_{layer}" for score, layer in layers.columns]
    return pandas.concat([medians, layers], axis="columns")


def with_defaults(config):
    """
    Returns the configuration of a run, in which a key that is newer than the run has its default.

    Raises ConfigError if there is no number where one belongs. Words may be those of other code.
    """
    config = vars(TrainConfig()) | config
    for name, field in KEYS.items():
        if field.type in (int, float):
            checked(name, config[name])
    return config


# ---- the folder of a run -----------------------------------------------------------------------------------------


def read_config(folder):
    """Returns what run.json says of a run: its configuration and its corpus, in one dict, and where it comes from."""
    path = folder / "run.json"
    try:
        run = json.loads(path.read_text())
        digests = run["data"]["sha256"]  # of train.bin and val.bin
        data = dict(tokenizer=run["data"]["tokenizer"], sha256=f"{digests['train']} {digests['val']}")
        config = with_defaults(run["config"]) | data | dict(n_params=run.get("n_params"))
        return config, {key: [text] for key, text in dict(run.get("origin", {})).items()}
    except (OSError, LookupError, TypeError, ValueError) as e:
        raise RunError(f"{path} cannot be read: {e}") from e


def read_rows(path):
    """Returns the rows of log.csv or scores.csv: a DataFrame, without a last row that is incomplete."""
    text = path.read_text(errors="replace")
    require(text.startswith("step,"), f"{path} is not a {path.name} of train.py: it does not begin with step,")
    whole_rows = io.StringIO(text[: text.rfind("\n") + 1])
    types = defaultdict(lambda: float, step=int, matrix=str)
    return pandas.read_csv(whole_rows, dtype=types, index_col=False)


def read_run(folder):
    """Returns the Record of a run in a folder. Raises RunError if there is no run, or if its files are damaged."""
    folder = Path(folder)
    config, origin = read_config(folder)
    try:
        log = read_rows(folder / "log.csv").set_index("step")
        if not log.index.is_unique:
            raise ValueError("a step is there twice")
        scores = read_rows(folder / "scores.csv").astype(dict(layer=int))
        n_rows = (scores["step"] == 0).sum()
        # The last step may lack some, as the run may be writing them. The first is whole before log.csv has a row.
        scores = scores.groupby("step").filter(lambda rows: len(rows) >= n_rows)
        require(len(log) and len(scores), f"{folder} has no row in its CSV files yet")
        last_loss, last_score = log.index[-1], scores["step"].iloc[-1]
        if last_score < last_loss == config["max_iters"]:  # or an earlier score would pass for the last one
            raise ValueError(f"scores.csv ends at step {last_score}, and log.csv at step {last_loss}")
        losses = log[["train_loss", "val_loss"]]  # [nats/token]
        if np.isinf(losses).any(axis=None):
            raise ValueError("a loss is infinite")
        # Losses and scores may have been written at different steps.
        table = pandas.concat([losses, by_step(scores)], axis="columns").sort_index()
    except (KeyError, ValueError) as e:
        raise RunError(f"{folder}: log.csv or scores.csv is damaged ({str(e).strip()}); --init_from=resume writes them "
                       "again from ckpt.pt") from e
    arm = folder.resolve().name.removesuffix(f"-{config['seed']}")
    return Record(arm, config["seed"], config, table.round(DIGITS), origin)


# ---- the file of a comparison ------------------------------------------------------------------------------------


def write_comparison(path, arms, planned=()):
    """Writes {name of an arm: its records}, and the planned tests. Raises RunError if a file at path would lose any."""
    tables = {(name, record.seed): record.table for name, records in arms.items() for record in records}
    lines = [f"{PLANNED}{json.dumps(planned)}"] if planned else []
    if Path(path).exists():
        there, before = read_comparison(path)
        for record in there:
            require((record.arm, record.seed) in tables, f"{path} holds a run of {record.arm} with the seed "
                    f"{record.seed}, which would be lost: give another --csv")
        require(not before or json.dumps(before) == json.dumps(planned),
                f"{path} holds other planned tests, which would be lost: give another --csv, or --plan={path}")
    whole = pandas.concat(tables, names=["arm", "seed", "step"])
    rows = whole.to_csv(float_format=f"%.{DIGITS}f", lineterminator="\n")
    with replacing(path) as temporary:
        temporary.write_text("\n".join([*lines, *config_lines(arms), rows]))


def origins(records):
    """Returns {key of ORIGIN: the texts of these runs}, without a key that none of them has."""
    found = {}
    for key in ORIGIN:
        texts = set().union(*(record.origin.get(key, ["unknown"]) for record in records))
        if texts != {"unknown"}:
            found[key] = sorted(texts)
    return found


def config_lines(arms):
    """Returns the line '# config {...}' with what all arms share, and a line '# config of NAME {...}' for each arm."""
    configs = {}
    for name, records in arms.items():
        config = records[0].config
        configs[name] = {key: config[key] for key in config if key not in HOW | {"seed"}}
        configs[name] |= origins(records)
    first, *others = configs.values()
    shared = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    lines = [f"# config {json.dumps(shared)}"]
    for name, config in configs.items():
        own = {key: value for key, value in config.items() if key not in shared}
        lines.append(f"# config of {name} {json.dumps(own)}")
    return lines


def read_comparison(path):
    """Returns the records and the planned tests in a file of write_comparison. Raises RunError if it is damaged."""
    configs, planned, records = {}, [], []
    try:
        text = Path(path).read_text()
        for line in text.splitlines():
            comment = re.match(r"# config (?:of (.+?) )?(\{.*\})$", line)
            if comment:
                configs[comment[1]] = json.loads(comment[2])  # [None]: of the line without the name of an arm
            elif line.startswith(PLANNED):
                planned = [list(test) for test in json.loads(line.removeprefix(PLANNED))]
        if None not in configs:
            raise ValueError("it has no line # config {...}")
        types = defaultdict(lambda: float, arm=str, seed=int, step=int)
        # An arm may be called null, which pandas would read as nan.
        rows = io.StringIO(text)
        table = pandas.read_csv(rows, comment="#", dtype=types, na_values=[""], keep_default_na=False)
        if table.empty:
            raise ValueError("it has no rows")
        for (arm, seed), of_run in table.groupby(["arm", "seed"], sort=False):
            config = with_defaults(configs[None] | configs[arm]) | dict(seed=seed)
            # Older files have one text where there is a list now.
            origin = {key: np.atleast_1d(config.pop(key)).tolist() for key in ORIGIN if key in config}
            of_run = of_run.drop(columns=["arm", "seed"]).set_index("step")
            records.append(Record(arm, seed, config, of_run, origin))
    except (KeyError, TypeError, ValueError) as e:
        raise RunError(f"{path} is no comparison, or damaged ({str(e).strip()}): give another file") from e
    return records, planned
