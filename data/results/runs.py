"""
The files of a run, as train.py writes them and goes on from them; records.py reads them for analyze.py. log.csv and
scores.csv grow by rows, and `read` leaves out a last row that is incomplete. Any other file is complete, or not there.

    run.json     the configuration, and which token files the run was trained on; written first
    log.csv      one row per evaluation; losses in nats/token; train_loss is the mean since the row before
    scores.csv   at every score_interval, one row per layer and one per head (an empty head: the whole layer)
    ckpt.pt      what resuming needs, written at every evaluation; a finished run does not need it any more
    ckpt-STEP.pt                      with --keep=N: the last N checkpoints
    model.safetensors, config.json    the model as a Hugging Face BERT
    run.png      losses and scores over the steps, drawn at the end, and before if the last one is not too recent
    .lock        empty; the process that writes the run holds a lock on it

Rows are written before the checkpoint of their step. So a run that was killed may have rows after its last checkpoint.
When it resumes, `begin` drops these rows, and the run writes them again: no row is lost, and none is there twice.
"""

import csv
import io
import json
import os
import pickle
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import pandas
import torch
from safetensors.torch import save as safetensors

from config import TrainConfig
from data.disk import replacing, write_json, writing

DATA = ["tokenizer", "tokens", "checksum"]  # the keys of meta.json that identify a corpus and its split
# These keys say where and how a run runs, and not what it computes.
HOW = {"out_dir", "init_from", "device", "threads", "compile", "keep", "micro_batch_size"}
# A resumed run may change these; and max_iters may grow.
RESUME_FREE = HOW | {"data_dir", "eval_interval", "score_interval"}


class LogRow(NamedTuple):
    """A row of log.csv. At step 0 three cells are empty."""

    step: int
    tokens: int
    train_loss: str = ""  # [nats/token], mean since the row before
    val_loss: str = ""  # [nats/token]
    learning_rate: str = ""  # of the last update
    tokens_per_s: str = ""  # without the time of evaluations and checkpoints


class RunScore(NamedTuple):
    """A row of scores.csv: one layer, or one of its heads. The scores are texts with six decimals."""

    step: int
    layer: int
    head: int | str  # "": the whole layer
    symmetry: str
    directionality: str
    directionality_eq17: str
    update_symmetry: str  # symmetry of the change of W_qk since the rows before; nan at the start


SCORES = ["symmetry", "directionality"]  # of the three, the two that are compared and drawn
ROWS = {"log.csv": LogRow, "scores.csv": RunScore}  # the files that grow by rows


class RunError(Exception):
    """A problem with the files of a run, in one line."""


def require(condition, message):
    if not condition:
        raise RunError(message)


def save_hf(folder, config, state):
    """Write the files that from_pretrained of transformers reads. config, state: as data/bert.py's to_hf returns them."""
    state = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    with replacing(folder / "model.safetensors") as temporary:
        temporary.write_bytes(safetensors(state, {"format": "pt"}))
    write_json(folder / "config.json", config)


# ---- rows --------------------------------------------------------------------------------------------------------


def append(path, rows):
    with writing(path), open(path, "a", newline="") as f:
        csv.writer(f, lineterminator="\n").writerows(rows)
        f.flush()
        os.fsync(f.fileno())  # before the checkpoint of these rows


def read(path):
    """The rows of log.csv or scores.csv: a DataFrame of texts, but for step, without a last row that is incomplete."""
    path = Path(path)
    columns = ROWS[path.name]._fields
    header = ",".join(columns)
    try:
        text = path.read_text(errors="replace")
    except OSError as e:
        raise RunError(f"{path}: {e.strerror}; the folder of a run of train.py has it") from e
    require(text.startswith(f"{header}\n"), f"{path} is not a {path.name} of train.py: it does not begin with {header}")
    whole_rows = io.StringIO(text[: text.rfind("\n") + 1])
    types = dict.fromkeys(columns, str) | dict(step=int)  # texts, because a run that resumes writes the rows again
    try:
        return pandas.read_csv(whole_rows, dtype=types, index_col=False, na_values=[""], keep_default_na=False)
    except ValueError as e:
        raise RunError(f"{path} is damaged ({e})") from e


def describe_row(row):
    """A LogRow as a line of output, without the cells that are empty."""
    return ", ".join(f"{name} {cell}" for name, cell in row._asdict().items() if cell != "")


# ---- a run begun, or gone on with --------------------------------------------------------------------------------


def describe(cfg, meta):
    """What run.json and every checkpoint say about a run: its configuration and its token files."""
    return dict(config=asdict(cfg), data={key: meta[key] for key in DATA})


def find_checkpoint(folder, cfg, meta, resume, device):
    """
    The checkpoint (a dict) from which a run goes on, or None if it begins at step 0.

    RunError: the folder has a run and `resume` is False, or another run, or a model, or the checkpoint is damaged.
    """
    folder = Path(folder)
    path = folder / "ckpt.pt"
    if not path.exists():
        require_nothing_to_lose(folder, cfg)
        return None
    require(resume, f"{folder} holds a run already: go on with --init_from=resume, or set --out_dir")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        require_same_run(path, state, describe(cfg, meta))
    except (EOFError, pickle.UnpicklingError, RuntimeError, LookupError, TypeError, ValueError) as e:
        raise RunError(f"{path} is not a checkpoint that can be resumed: cut short, damaged, or of another "
                       "program") from e
    return state


def require_nothing_to_lose(folder, cfg):
    """RunError if a run that begins in the folder would overwrite a model or the rows of a run."""
    for name in "model.safetensors", "config.json":
        is_foreign = (folder / name).exists() and not (folder / "run.json").exists()
        require(not is_foreign, f"{folder} holds a {name} that is of no run, and would be overwritten: set --out_dir")
    start = began_from(folder)
    require(cfg.init_from != "resume" or start == "scratch",
            f"{folder} has no checkpoint yet, and its run began from {start}: begin again with --init_from={start}")
    for name in ROWS:
        has_rows = (folder / name).exists() and read(folder / name)["step"].max() > 0
        require(not has_rows, f"{folder} holds the {name} of a run, and no ckpt.pt to go on from: set --out_dir, or "
                              "move the folder away")


def began_from(folder):
    """Where the weights of the run in a folder came from: scratch (also if there is no run yet), or a folder."""
    return read_config(folder)["init_from"] if (folder / "run.json").exists() else "scratch"


def require_same_run(path, theirs, ours):
    """RunError if a run cannot continue the other because of a key. theirs, ours: as `describe` returns them."""
    theirs = asdict(TrainConfig()) | theirs["config"] | theirs["data"]  # a key that is newer has its default
    for key, here in (ours["config"] | ours["data"]).items():
        there = theirs[key]
        same = there == here or (key == "max_iters" and there < here)
        require(same or key in RESUME_FREE, f"{path} is of another run: {key} = {there!r} there, {here!r} here")


def begin(folder, cfg, meta, step):
    """Prepare the files of a run that is at `step`. Only one process does this, before any training."""
    folder = Path(folder)
    if cfg.init_from == "resume":
        cfg = replace(cfg, init_from=began_from(folder))  # it stays known where the weights came from
    write_json(folder / "run.json", describe(cfg, meta))
    for name, row in ROWS.items():
        rows = read(folder / name) if step > 0 else pandas.DataFrame(columns=row._fields)
        with replacing(folder / name) as temporary:
            rows[rows["step"] <= step].to_csv(temporary, index=False)


def save_checkpoint(folder, cfg, meta, state):
    """Write ckpt.pt. It needs no random state: batches and dropout follow from seed, step and micro-batch."""
    with replacing(folder / "ckpt.pt") as temporary:
        with open(temporary, "wb") as f:
            torch.save(describe(cfg, meta) | state, f)
        if cfg.keep > 0:  # before ckpt.pt is there: a run that is killed in between comes here again
            keep_checkpoint(temporary, state["step"], cfg.keep)


def keep_checkpoint(path, step, n):
    """Copy it to ckpt-STEP.pt, and keep the last n of these."""
    folder = path.parent
    with replacing(folder / f"ckpt-{step:08d}.pt") as temporary:
        shutil.copyfile(path, temporary)
    numbered = sorted(folder.glob(f"ckpt-{8 * '[0-9]'}.pt"))  # other files of such names are not ours
    for old in numbered[:-n]:
        old.unlink()


def read_config(folder):
    """The configuration of a run, and the checksum and tokenizer of its token files, from run.json."""
    path = folder / "run.json"
    try:
        run = json.loads(path.read_text())
        # A key that is newer than the run has its default.
        return asdict(TrainConfig()) | run["config"] | {key: run["data"][key] for key in ("checksum", "tokenizer")}
    except (OSError, LookupError, TypeError, ValueError) as e:
        raise RunError(f"{path} cannot be read: {e}") from e
