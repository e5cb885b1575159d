"""
The files of a run of train.py, as it writes them; records.py reads them. log.csv and scores.csv grow by rows. Any other
file is complete, or not there.

    run.json     the configuration, the token files, and where its last start comes from; written first
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

import contextlib
import json
import platform
import shutil
import subprocess
from dataclasses import asdict, replace
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import torch

from config import HOW, TrainConfig
from data.atomic import replacing, write_json, writing
from data.trained import RunError, opened_checkpoint

DATA = ["tokenizer", "tokens", "sha256"]  # the keys of meta.json that identify a corpus and its split


class LogRow(NamedTuple):
    """A row of log.csv, in numbers. At step 0 three of them are nan, and their cells are empty."""

    step: int
    tokens: int
    train_loss: float = nan  # [nats/token], mean since the row before
    val_loss: float = nan  # [nats/token]
    learning_rate: float = nan  # of the last update
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
    chance: float  # mean symmetry of random matrices in the same directions (chance.symmetry_in_place)


DIGITS_OF = {"learning_rate": ".6g", "tokens_per_s": ".0f"}  # how these numbers are written; all others as .6f
HEADERS = {  # the first lines of the files that grow by rows
    "log.csv": ",".join(LogRow._fields) + "\n",
    "scores.csv": ",".join(RunScore._fields) + "\n",
}


def require(condition, message):
    if not condition:
        raise RunError(message)


# ---- a run begun, or gone on with --------------------------------------------------------------------------------


def describe(cfg, meta):
    """Returns what run.json and every checkpoint say about a run: its configuration and its token files."""
    return dict(config=asdict(cfg), data={key: meta[key] for key in DATA})


def identity(described):
    """Returns what must be the same in all processes of a run, and when it goes on: {key: value}."""
    keys = vars(TrainConfig(**described["config"])) | described["data"]  # a newer key has its default
    return {key: value for key, value in keys.items() if key not in HOW | {"data_dir"}}


def find_origin(device_name):
    """Returns where a run comes from: {key of config.ORIGIN: a text}."""
    # The hash of the commit, with "-dirty" behind it if a tracked file has been changed since.
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # git is not installed
        commit = ""
    return dict(commit=commit or "no repository", python=platform.python_version(), torch=torch.__version__,
                device_name=device_name)


@contextlib.contextmanager
def checkpoint_to_resume(folder, cfg, meta, device):
    """
    Gives a block the checkpoint (a dict) from which a run goes on, or None if it begins at step 0.

    Raises RunError if the folder has a run and cfg does not resume, or another run, or a model, or if the checkpoint is
    damaged, or if the block fails on it. Nothing is changed in the folder.
    """
    path = folder / "ckpt.pt"
    if not path.exists():
        require_nothing_to_lose(folder)
        yield None
        return
    require(cfg.init_from == "resume",
            f"{folder} holds a run already: go on with --init_from=resume, or set --out_dir")
    with opened_checkpoint(path, device) as state:
        before = identity(state)
        for key, here in identity(describe(cfg, meta)).items():
            there = before[key]
            may_change = key in ("eval_interval", "score_interval") or (key == "max_iters" and there < here)
            require(there == here or may_change, f"{path} is of another run: {key} = {there!r} there, {here!r} here")
        yield state


def require_nothing_to_lose(folder):
    """Raises RunError if a run that begins in the folder would overwrite a model or the rows of a run."""
    log = folder / "log.csv"
    rows = log.read_text(errors="replace") if log.exists() else ""
    if rows.startswith(HEADERS["log.csv"]) and rows.count("\n") <= 2:  # a header and the start
        return  # a run was killed before its first checkpoint
    for name in "log.csv", "scores.csv", "model.safetensors", "config.json":
        require(not (folder / name).exists(),
                f"{folder} holds a {name}, and no ckpt.pt to go on from: set --out_dir, or move the folder away")


def begin(folder, cfg, meta, rows, device_name, n_params):
    """Writes run.json, log.csv and scores.csv, before any training. rows: {name: text} of both CSV files."""
    cfg = replace(cfg, init_from="scratch")  # a run is the same, resumed or not
    write_json(folder / "run.json", describe(cfg, meta) | dict(origin=find_origin(device_name), n_params=n_params))
    for name, text in rows.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(text)


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


def read_config(folder):
    """Returns what run.json says of a run, in one dict: its configuration, its corpus, and where it comes from."""
    path = Path(folder) / "run.json"
    try:
        run = json.loads(path.read_text())
        digests = run["data"]["sha256"]  # of train.bin and val.bin
        data = dict(tokenizer=run["data"]["tokenizer"], sha256=f"{digests['train']} {digests['val']}")
        # A key that is newer than the run has its default.
        return asdict(TrainConfig()) | run["config"] | data | dict(n_params=run.get("n_params")) | run.get("origin", {})
    except (OSError, LookupError, TypeError, ValueError) as e:
        raise RunError(f"{path} cannot be read: {e}") from e
