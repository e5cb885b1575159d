"""
Token files: their format, and how they are read. data/writer.py writes them.

    corpus = tokens.load("data/stdlib/bytes")
    corpus.train.rows(np.array([0, 1000]), 32)  # 32 tokens from each of two places: (2, 32)

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


# ---- reading -----------------------------------------------------------------------------------------------------


class Corpus(NamedTuple):
    meta: dict  # meta.json
    train: "Stream"
    val: "Stream"


def load(folder):
    """The Corpus in a folder. The sizes of the files are compared with meta.json, but no file is read yet."""
    folder = Path(folder)
    if not (folder / "meta.json").exists():
        raise DataError(what_is_missing(folder))
    meta = read_meta(folder / "meta.json")
    return Corpus(meta, Stream(folder, "train", meta), Stream(folder, "val", meta))


class Stream:
    """The tokens of a split. Its file is mapped into memory, so only those that are asked for are read."""

    def __init__(self, folder, split, meta):
        require_size(folder, split, meta)
        self.ids = np.memmap(folder / f"{split}.bin", meta["dtype"], "r")  # (N,)

    def __len__(self):
        return len(self.ids)

    def rows(self, starts, length):
        """`length` tokens from each of `starts` (B,): (B, length) int64."""
        return self.ids[starts[:, None] + np.arange(length)].astype(np.int64)


# ---- meta.json and the files -------------------------------------------------------------------------------------


def read_meta(path):
    """meta.json or progress.json as a dict. DataError if data/writer.py has not written it."""
    folder = path.parent
    try:
        meta = json.loads(path.read_bytes())
        ids = TOKENIZERS[meta["tokenizer"]]
        for split in "train", "val":
            int(meta["tokens"][split])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} cannot be understood: move {folder} away and run {command(folder, {})}") from None
    return meta | ids


def require_size(folder, split, meta, at_least=False):
    """DataError if the file of a split has not the size that meta (meta.json or progress.json) says, or is shorter."""
    path = folder / f"{split}.bin"
    size = path.stat().st_size if path.exists() else 0
    expected = meta["tokens"][split] * np.dtype(meta["dtype"]).itemsize
    if size < expected or (size > expected and not at_least):
        raise DataError(f"{folder} has {size:,} bytes of {path.name}, not {expected:,}: delete it and run "
                        f"{command(folder, meta)}")


def what_is_missing(folder):
    """Why there is nothing to load in a folder without meta.json, and which command makes it."""
    meta = {}
    if (folder / "progress.json").exists():
        meta = read_meta(folder / "progress.json")
    elif folder.is_file() or any(folder.glob("[!.]*")):  # then nothing should be written there
        return (f"{folder} holds no token files: pass a folder that a prepare script makes, such as data/text/bytes; "
                "of your own text data/text/prepare.py makes one")
    return f"{folder} has no finished token files: run {command(folder, meta)}"


def command(folder, meta):
    """The command that makes the files of a folder: from meta.json, else guessed from the path."""
    *_, dataset, name = folder.absolute().parts
    if not (Path(__file__).parent / dataset / "prepare.py").exists():
        dataset = "NAME"
    guess = " ".join([f"python data/{dataset}/prepare.py", *options(name)])
    return f"{meta.get('command', guess)} --out_dir={folder}"


def options(name):
    """The options with which a prepare script makes a folder of this name; none if it makes no such folder."""
    tokenizer = name.removesuffix("_spaced")
    if tokenizer not in TOKENIZERS:
        return []
    spaced = ["--spaced"] if name.endswith("_spaced") else []
    return [f"--tokenizer={tokenizer}", *spaced]


def open_gpt2():
    """tiktoken's gpt2. DataError if it can neither find nor fetch its two files."""
    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise DataError(f"tiktoken cannot fetch the files of gpt2 ({error}): data/README.md says how to give it these, "
                        "or use --tokenizer=bytes, which needs none") from None
