"""
Reads the checkpoint of a run: to go on from it, or for the model in it. runs.py writes it.

    model, cfg, meta = open_run("out/tiny")
"""

import contextlib
import pickle
import textwrap
import zipfile
from pathlib import Path

import torch

from config import HOW, TrainConfig
from data.results.runs import DATA, HEADERS, RunError, describe, require
from data.tokens import TOKENIZERS
from model import Transformer


@contextlib.contextmanager
def opened_checkpoint(path, device):
    """Gives a block the checkpoint, a dict. Raises RunError if it is damaged, or if the block fails on it."""
    problem = "is not a checkpoint that can be resumed: missing, cut short, damaged, or of another program"
    try:
        with zipfile.ZipFile(path) as zipped:
            damaged = zipped.testzip()  # reads all of it, and compares checksums, which torch does not
        if damaged:
            raise zipfile.BadZipFile(damaged)
        state = torch.load(path, map_location=device, weights_only=True)
        if not all((x < torch.inf).all() for x in tensors_in(state)):  # -inf may be: in a mask that a fork keeps
            raise ValueError("it holds nan or inf")
        problem = "does not fit this code: go on with the commit that is in run.json"  # a weight more in model.py, say
        yield state
    except (OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, LookupError, TypeError,
            ValueError) as e:
        said = textwrap.shorten(f"{type(e).__name__}: {e}", 300)
        raise RunError(f"{path} {problem} ({said})") from e


def tensors_in(value):
    """Yields the tensors in dicts and lists of any depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


def open_run(folder):
    """
    Returns the model of a run at its last checkpoint, its TrainConfig, and the meta of its tokens.

    Raises RunError if there is no checkpoint, or if it is damaged.
    """
    with opened_checkpoint(Path(folder, "ckpt.pt"), "cpu") as state:
        cfg = TrainConfig(**state["config"])  # a newer key has its default
        meta = state["data"] | TOKENIZERS[state["data"]["tokenizer"]]
        model = Transformer(cfg.of_model(meta["vocab_size"])).eval()
        model.load_state_dict(state["model"])
    return model, cfg, meta


# ---- a run that begins, or goes on -------------------------------------------------------------------------------


def identity(described):
    """Returns what must be the same in all processes of a run, and when it goes on: {key: value}."""
    keys = vars(TrainConfig(**described["config"])) | described["data"]  # a newer key has its default
    free = HOW | {"data_dir"}
    if keys["dropout"] or keys["attn_dropout"]:  # each micro-batch has random numbers of its own
        free -= {"micro_batch_size"}
    return {key: value for key, value in keys.items() if key not in free}


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
            may_change |= key == "micro_batch_size" and state["step"] == 0  # there was no room for it
            corpus = f", and its corpus was --data_dir={state['config']['data_dir']}" if key in DATA else ""
            require(there == here or may_change,
                    f"{path} is of another run: {key} = {there!r} there, {here!r} here{corpus}")
        for name, header in HEADERS.items():
            require(state["rows"][name].startswith(header),
                    f"{path} is of code with other columns of {name}: go on with the commit that is in run.json")
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
