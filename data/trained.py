"""
The checkpoint of a run, and the model in it, for use. data/results/runs.py writes checkpoints, and resumes from them.

    model, cfg, meta = open_run("out/tiny")
"""

import contextlib
import pickle
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
    try:
        with zipfile.ZipFile(path) as zipped:
            damaged = zipped.testzip()  # reads all of it, and compares checksums, which torch does not
        if damaged:
            raise zipfile.BadZipFile(damaged)
        yield torch.load(path, map_location=device, weights_only=True)
    except (OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, LookupError, TypeError,
            ValueError) as e:
        raise RunError(f"{path} is not a checkpoint that can be resumed: missing, cut short, damaged, or of another "
                       "program") from e


def open_run(folder):
    """
    Returns the model of a run at its last checkpoint, its TrainConfig, and the meta of its tokens.

    Raises RunError if there is no checkpoint, or if it is damaged.
    """
    with opened_checkpoint(Path(folder, "ckpt.pt"), "cpu") as state:
        cfg = TrainConfig(**state["config"])
        meta = state["data"] | TOKENIZERS[state["data"]["tokenizer"]]
        model = Transformer(cfg.of_model(meta["vocab_size"])).eval()
        model.load_state_dict(state["model"])
    return model, cfg, meta
