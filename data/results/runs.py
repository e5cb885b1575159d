"""
The files of a run, as train.py writes them and analyze.py reads them.

    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before
    scores.csv   one row per layer, and one per head (head empty: the whole layer)

Rows are appended whole and flushed before the checkpoint of their step is written. A run that was killed may hold rows
past its last checkpoint: `cut` drops them on resuming, so that none is lost and none stands twice.
"""

import contextlib
import csv
import dataclasses
import json
import os
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import save as safetensors

from config import TrainConfig

LOG = ["step", "tokens", "train_loss", "val_loss", "learning_rate", "tokens_per_s"]


class RunScore(NamedTuple):
    """A row of scores.csv: one layer, or one of its heads; scores as text of six decimals."""

    step: int
    layer: int
    head: int | str  # "": the whole layer
    symmetry: str
    directionality: str
    update_symmetry: str  # of what was added to W_qk since the step before in this file; nan at the start


SCORES = list(RunScore._fields)


class RunError(Exception):
    """Runs that cannot be read or compared, in one line."""


@contextlib.contextmanager
def writing(path):
    """What the system has against a file, a full disk for example, as a RunError that names it."""
    try:
        yield
    except Exception as e:
        cause = e if isinstance(e, OSError) else e.__context__  # torch.save makes a RuntimeError of its file's OSError
        if not isinstance(cause, OSError):
            raise
        raise RunError(f"{path} cannot be written ({cause.strerror}): mend that and go on; nothing is lost") from e


@contextlib.contextmanager
def replacing(path):
    """A temporary path beside `path`, which takes its place once the block is through: whole or not at all."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # that of a killed run: nothing may be appended to it
        try:
            yield temporary
            with open(temporary, "rb+") as f:
                os.fsync(f.fileno())  # or the name could outlive a power cut, and the bytes not
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def append(path, header, rows):
    new = not Path(path).exists()
    with writing(path), open(path, "a", newline="") as f:
        csv.writer(f).writerows([header, *rows] if new else rows)
        f.flush()
        os.fsync(f.fileno())  # before the checkpoint of these rows


def save_hf(folder, config, state):
    """The files that from_pretrained of transformers reads: config (dict) and state dict as model.to_hf gives them."""
    with replacing(folder / "model.safetensors") as path:
        path.write_bytes(safetensors({name: x.cpu().contiguous() for name, x in state.items()}, {"format": "pt"}))
    with replacing(folder / "config.json") as path:
        path.write_text(json.dumps(config, indent=2) + "\n")


def read(path, header):
    """The rows of a CSV as dicts of strings; a last row that was cut short is left out."""
    try:
        with open(path, newline="") as f:
            text = f.read()
    except OSError as e:
        raise RunError(f"{path}: {e.strerror}; the folder of a run of train.py has it") from e
    rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if rows[:1] != [header]:
        raise RunError(f"{path} is not a {Path(path).name} of train.py: it does not begin with {','.join(header)}")
    return [dict(zip(header, row)) for row in rows[1:]]


def cut(path, header, step):
    """Drop the rows of steps after `step`."""
    begun = Path(path).exists() and "\n" in Path(path).read_text()  # not if it was killed in its first line
    rows = [row for row in read(path, header) if int(row["step"]) <= step] if begun else []
    with replacing(path) as temporary:
        append(temporary, header, [row.values() for row in rows])


def traced(batches, path, on=True):
    """The same batches; if on, what is done with five of them, after the first ten, becomes a Chrome trace at path."""
    profiler = torch.profiler.profile()
    for i, batch in enumerate(batches):
        if on and i == 10:
            profiler.start()
        if on and i == 15:
            profiler.stop()
            with replacing(path) as temporary:
                profiler.export_chrome_trace(str(temporary))
        yield batch


# ---- reading a run back ------------------------------------------------------------------------------------------

SAME = "max_iters batch_size block_size eval_interval eval_iters mlm_probability checksum tokenizer".split()
FREE = {"seed", "out_dir", "init_from", "device", "threads", "compile", "profile", "micro_batch_size", "data_dir"}


class Run(NamedTuple):
    """What one run has written. A cell that is empty in its CSV files is nan."""

    name: str  # of its arm: the folder's, without the seed at the end
    config: dict
    log: dict  # column of log.csv -> (evaluations,)
    steps: np.ndarray  # of scores.csv, (steps,)
    layers: dict  # symmetry, directionality, update_symmetry -> (steps, L)
    heads: dict  # the same -> (steps, L, H)


def read_run(folder):
    """A finished or running run. Keys that its configuration lacks, as they are newer, have their default."""
    folder = Path(folder)
    log, scores = read(folder / "log.csv", LOG), read(folder / "scores.csv", SCORES)
    try:
        state = torch.load(folder / "ckpt.pt", map_location="cpu", weights_only=True, mmap=True)
        config = dataclasses.asdict(TrainConfig()) | state["config"]
        config |= {key: state["data"][key] for key in ("checksum", "tokenizer")}
    except (OSError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as e:
        raise RunError(f"{folder}/ckpt.pt cannot be read: {str(e).splitlines()[0]}") from e
    losses = {name: np.array([float(row[name] or "nan") for row in log]) for name in LOG}
    steps, layers, heads = read_scores(scores, config["n_layer"], config["n_head"])
    if not log or not len(steps):
        raise RunError(f"{folder} has no row in its CSV files yet")
    return Run(folder.name.removesuffix(f"-{config['seed']}"), config, losses, steps, layers, heads)


def read_scores(rows, n_layer, n_head):
    """The rows of scores.csv, in any order -> steps, layers, heads of a Run; a step that lacks rows is left out."""
    by_step = {}  # step -> (layer, head) -> its row
    for row in rows:
        by_step.setdefault(int(row["step"]), {})[row["layer"], row["head"]] = row
    n_rows = n_layer * (1 + n_head)
    steps = sorted(step for step, rows in by_step.items() if len(rows) == n_rows)  # the last may be being written
    layers, heads = {}, {}
    for name in "symmetry", "directionality", "update_symmetry":
        layers[name] = np.full((len(steps), n_layer), np.nan)
        heads[name] = np.full((len(steps), n_layer, n_head), np.nan)
        for i, step in enumerate(steps):
            for (layer, head), row in by_step[step].items():
                if head == "":
                    layers[name][i, int(layer)] = float(row[name])
                else:
                    heads[name][i, int(layer), int(head)] = float(row[name])
    return np.array(steps), layers, heads
