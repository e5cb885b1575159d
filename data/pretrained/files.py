"""The folder of a checkpoint: its files, ranges of their bytes, and its config. In hub.py it is one of the Hub."""

import contextlib
import json
import os
import re
from pathlib import Path

import numpy as np

from ..names import printable

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")  # of the files that can be read; all but the first by torch
# What to do with a file, or with weights in memory, that only one of several processes has.
MERGE = ("merge the pieces with the program that wrote them (Meta: convert_llama_weights_to_hf.py of transformers; "
         "DeepSpeed: zero_to_fp32.py; FSDP: torch.distributed.checkpoint.format_utils; Megatron: tools/checkpoint), or "
         "gather weights in memory around score_model (deepspeed.zero.GatheredParameters, FSDP.summon_full_params)")
PIECE = 1 << 24  # bytes in a range at most, so that little is lost if one has to be read again
MOST = 100_000  # layers, heads, dimensions and the like: a larger number in a config.json is damage


class CheckpointError(Exception):
    """A checkpoint cannot be read, or it is not certain what is q and k. str(e) is one line that says what to do."""

    def __init__(self, message: str):
        super().__init__(printable(message))


def require(condition, message: str):
    if not condition:
        raise CheckpointError(message)


@contextlib.contextmanager
def only_checkpoint_errors(what: str):
    """Turns every error that the bytes of a checkpoint can cause into a CheckpointError that names `what`."""
    # They can hold anything, such as a list where a number belongs. Errors that only a bug of ours can cause pass.
    try:
        yield
    except (CheckpointError, NameError, ImportError, AssertionError):
        raise
    except OSError as e:
        raise CheckpointError(f"{e.filename or what} cannot be read ({e.strerror or e})") from e
    except Exception as e:
        why = f"{type(e).__name__}: {e}".partition("\n")[0]
        raise CheckpointError(f"{what} makes no sense ({why:.150}): get it again") from e


class Folder:
    """A local folder. Its methods raise OSError, which names the file, if the system does not let it be read."""

    def __init__(self, path: Path, note: str = ""):
        self.path = path
        self.names = sorted(os.listdir(path))  # of files and folders
        self.models = []  # names of folders in it that hold weights, of a repository of the Hub
        self.note = note  # what the user should know, or ""
        self.lengths = []  # of every range that was read; and no sum, because several threads can append, but not add

    def fetch(self, name: str) -> Path:
        """Returns the path of a whole file."""
        return self.path / name

    def size(self, name: str) -> int:
        return self.fetch(name).stat().st_size

    def read(self, name: str, start: int, n_bytes: int) -> memoryview:
        """Returns the bytes of a file from `start` on. Raises CheckpointError if the file is too short."""
        data = memoryview(np.empty(n_bytes, np.uint8))  # a bytearray would be filled with zeros first
        for first in range(0, n_bytes, PIECE):
            piece = data[first : first + PIECE]
            n_read = self.fill(piece, name, start + first)
            require(n_read == len(piece), f"{name} is cut short: get it again")
            self.lengths.append(n_read)
        return data

    def fill(self, piece: memoryview, name: str, start: int) -> int:
        """Fills `piece` with bytes of a file, as far as the file goes. Returns how many they are."""
        with open(self.fetch(name), "rb") as f:
            f.seek(start)
            return f.readinto(piece)


def read_json(folder: Folder, name: str) -> dict:
    """Returns the object in a file of JSON. Raises CheckpointError if there is none."""
    with only_checkpoint_errors(name):
        found = json.loads(folder.fetch(name).read_bytes())
        require(isinstance(found, dict), f"{name} holds {found!r:.60}, expected an object: get it again")
        return found


def pick(config: dict, kind: type, *keys: str, default=None):
    """
    Returns the first value of a config.json that is there. null counts as absent.

    keys: the names of the same thing in different models, in the order in which they are tried.
    Raises CheckpointError if the value is of another type, or larger than any size.
    """
    for key in keys:
        value = config.get(key)
        if value is not None:
            expected = f"int below {MOST}" if kind is int else kind.__name__
            makes_sense = type(value) is kind and (kind is not int or value < MOST)
            require(makes_sense, f"config.json: {key} is {value!r:.60}, expected {expected}")
            return value
    return default


# ---- the config -----------------------------------------------------------------------------------------------------
#
# It tells the layout of the weights. It is in config.json, or in what a training script writes in place of one.


def read_config(folder: Folder, file: str, saved: dict) -> dict:
    """Returns the config for a file of weights, {} if there is none. saved: what torch.save has put into this file."""
    model_args = saved.get("model_args")
    of_training = saved.get("config")
    if isinstance(model_args, dict):
        return {**model_args, "model_type": "nanogpt"}
    if isinstance(of_training, dict) and "causal" in of_training:
        n_heads = saved.get("n_heads")  # of each layer; None: the checkpoint is older
        return {**of_training, "num_attention_heads_per_layer": n_heads, "model_type": "train.py-checkpoint"}

    meta = re.sub(r"^model_(\d+)\.pt$", r"meta_\1.json", file)  # nanochat writes it beside model_000650.pt
    if meta != file and meta in folder.names:
        config = pick(read_json(folder, meta), dict, "model_config", default={})
        n_kv_head = config.get("n_kv_head", config.get("n_head"))
        return {**config, "num_key_value_heads": n_kv_head, "model_type": "nanochat-checkpoint"}

    return read_json(folder, "config.json") if "config.json" in folder.names else {}
