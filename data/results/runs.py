"""
The files of a run of train.py, as it writes them; records.py reads them, and checkpoints.py reads ckpt.pt. log.csv and
scores.csv grow by rows. Any other file is complete, or not there.

    run.json     the configuration, the token files, and where its last steps come from; written first
    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before
    scores.csv   at every score_interval, one row per layer and one per head (an empty head: the whole layer)
    ckpt.pt      what resuming needs, written at every evaluation; a finished run does not need it any more
    ckpt-STEP.pt                      with --keep=N: the last N checkpoints
    model.safetensors, config.json    the model as a Hugging Face BERT
    run.png      losses and scores over the steps, drawn at the end, and before if the last one is not too recent
    .lock        empty; the process that writes the run holds a lock on it

A checkpoint also holds all rows so far. A run that goes on writes both CSV files again from there. So no row is lost or
there twice, whatever a kill, an editor or a full disk has done to these files.
"""

import shutil
from dataclasses import asdict
from math import isnan, nan
from typing import NamedTuple

import torch

from data.atomic import replacing, writing

DATA = ["tokenizer", "tokens", "sha256"]  # the keys of meta.json that identify a corpus and its split


class LogRow(NamedTuple):
    """A row of log.csv, in numbers. At step 0 three of them are nan, and their cells are empty."""

    step: int
    tokens: int
    train_loss: float = nan  # [nats/token], mean since the row before
    val_loss: float = nan  # [nats/token]
    learning_rate: float = nan  # of the last step
    tokens_per_s: float = nan  # without the time of evaluations and checkpoints


class RunScore(NamedTuple):
    """A row of scores.csv: a matrix of one layer, or of one of its heads."""

    step: int
    matrix: str  # "wqk", or "positions": W_q W_k^T of untied positions, which have their own
    layer: int
    head: int | str  # "": the whole layer
    symmetry: float
    directionality: float
    directionality_eq17: float
    update_symmetry: float  # symmetry of the change of the matrix since the rows before; nan at the start
    chance: float  # mean symmetry of random matrices in the same directions (chance.mean_symmetry)


DIGITS_OF = {"learning_rate": ".6g", "tokens_per_s": ".0f"}  # how these numbers are written; all others as .6f
HEADERS = {  # the first lines of the files that grow by rows
    "log.csv": ",".join(LogRow._fields) + "\n",
    "scores.csv": ",".join(RunScore._fields) + "\n",
}


class RunError(Exception):
    """A problem with the files of a run, in one line."""


def require(condition, message):
    """Raises RunError with this message unless the condition is true."""
    if not condition:
        raise RunError(message)


def describe(cfg, meta):
    """Returns what run.json and every checkpoint say about a run: its configuration and its token files."""
    return dict(config=asdict(cfg), data={key: meta[key] for key in DATA})


def cells(row):
    """Returns {column: text} of a LogRow or RunScore. The text of nan is empty."""
    texts = {}
    for name, value in row._asdict().items():
        if isinstance(value, float):
            value = "" if isnan(value) else format(value, DIGITS_OF.get(name, ".6f"))
        texts[name] = str(value)
    return texts


def append(path, rows):
    """Appends rows, of LogRow or RunScore, to log.csv or scores.csv. Returns their text."""
    text = "".join(",".join(cells(row).values()) + "\n" for row in rows)
    with writing(path), open(path, "a", newline="") as f:  # so that lines end with \n on Windows too
        f.write(text)
    return text


def save_checkpoint(folder, cfg, meta, state):
    """Writes ckpt.pt, and with cfg.keep a copy named after its step. Of such copies only the newest ones remain."""
    with replacing(folder / "ckpt.pt") as temporary:
        with open(temporary, "wb") as f:
            torch.save(describe(cfg, meta) | state, f)
        if cfg.keep > 0:  # before ckpt.pt: a run that is killed in between comes here again
            newest = folder / f"ckpt-{state['step']:08d}.pt"
            with replacing(newest) as copy:
                shutil.copyfile(temporary, copy)
            others = set(folder.glob(f"ckpt-{8 * '[0-9]'}.pt")) - {newest}
            by_step = sorted(others, reverse=True)  # and not by time, because a copied folder has new times
            for old in by_step[cfg.keep - 1 :]:
                old.unlink()
