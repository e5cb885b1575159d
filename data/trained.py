"""
Opens the checkpoint of a run, and the model in it. data/results/runs.py writes checkpoints, and resumes from them.

    model, cfg, meta = open_run("out/tiny")
"""

import contextlib
import pickle
import textwrap
import zipfile
from pathlib import Path

import torch

from config import TrainConfig
from data.tokens import TOKENIZERS
from model import Transformer


class RunError(Exception):
    """A problem with the files of a run, in one line."""


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
        problem = "does not fit this code: go on with the commit that is in run.json"  # a weight more in model.py, say
        yield state
    except (OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, LookupError, TypeError,
            ValueError) as e:
        said = textwrap.shorten(f"{type(e).__name__}: {e}", 300)
        raise RunError(f"{path} {problem} ({said})") from e


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
