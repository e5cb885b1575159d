"""
Token files: their format, and how they are read. data/writer.py writes them.

    corpus = tokens.load("data/pytorch/bytes")
    corpus.train[:32]  # the ids of the first 32 tokens

A folder (data/NAME/TOKENIZER) holds two splits, train.bin and val.bin: token ids as little-endian unsigned integers and
nothing else. Every document ends with an end-of-text token.

meta.json describes them. It is written last, so a folder that has it is complete. Until then it is progress.json.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Ids below n_vocab stand for text. vocab_size is the size that the model is built with: the 50,258 ids of gpt2 are
# padded to a multiple of 64 with ids that never occur, as in nanoGPT, because matrix products of such sizes are faster.
# dtype is the smallest integer that can hold all ids. For more than 65,536 ids it would be "<u4".
TOKENIZERS = {
    "bytes": dict(n_vocab=256, eot_token=256, mask_token=257, vocab_size=258, dtype="<u2"),
    "gpt2": dict(n_vocab=50256, eot_token=50256, mask_token=50257, vocab_size=50304, dtype="<u2"),
}


class DataError(Exception):
    """A problem with token files. The message is one line that says what to do."""


class Corpus(NamedTuple):
    meta: dict  # meta.json
    train: np.ndarray  # (N,) ids. The file is mapped into memory, so only those that are asked for are read.
    val: np.ndarray  # as train


def load(folder):
    """The Corpus in a folder. The sizes of the files are compared with meta.json, but no file is read yet."""
    folder = Path(folder)
    if not (folder / "meta.json").exists():
        script = folder.parent / "prepare.py"
        advice = f"run python {script}" if script.exists() else "one of data/*/prepare.py makes them"
        raise DataError(f"{folder} has no finished token files: {advice} (data/README.md)")
    meta = read_meta(folder / "meta.json")
    require_sizes(folder, meta)
    train = np.memmap(folder / "train.bin", meta["dtype"], "r")
    val = np.memmap(folder / "val.bin", meta["dtype"], "r")
    return Corpus(meta, train, val)


def read_meta(path):
    """meta.json or progress.json, as a dict with the ids of its tokenizer."""
    meta = json.loads(path.read_bytes())
    return meta | TOKENIZERS[meta["tokenizer"]]


def require_sizes(folder, meta, at_least=False):
    """DataError if a file has not the size that meta (meta.json or progress.json) says, or is shorter."""
    for split in "train", "val":
        path = folder / f"{split}.bin"
        size = path.stat().st_size if path.exists() else 0
        expected = meta["tokens"][split] * np.dtype(meta["dtype"]).itemsize
        if size < expected or (size > expected and not at_least):
            raise DataError(f"{folder} has {size:,} bytes of {path.name}, not {expected:,}: delete it and run "
                            f"data/{meta['dataset']}/prepare.py again")


def open_gpt2():
    """tiktoken's gpt2. DataError if it can neither find nor fetch its two files."""
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise DataError(f"tiktoken cannot fetch the files of gpt2 ({error}): data/README.md says how to give it these, "
                        "or use --tokenizer=bytes, which needs none") from None
