"""
The files that hold the tokens of a corpus. data/writer.py makes them from text.

    corpus = tokens.load("data/sympy/bytes")
    ids = corpus.train[:32]  # the first 32 tokens

A folder (data/NAME/TOKENIZER) has two splits, train.bin and val.bin: token ids as little-endian unsigned integers, with
an end-of-text token after every document. meta.json describes them, and comes last: a folder that has it is complete.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

SPLITS = "train", "val"
# Ids below n_vocab stand for text. vocab_size is the size that the model is built with: the 50,258 ids of gpt2 are
# padded to a multiple of 64 with ids that never occur, as in nanoGPT, because matrix products of such sizes are faster.
TOKENIZERS = {
    "bytes": dict(n_vocab=256, eot_token=256, mask_token=257, vocab_size=258, dtype="<u2"),
    "gpt2": dict(n_vocab=50256, eot_token=50256, mask_token=50257, vocab_size=50304, dtype="<u2"),
}


class DataError(Exception):
    """A problem with tokens or their files. The message is one line that says what to do."""


class Corpus(NamedTuple):
    meta: dict  # meta.json
    train: np.ndarray  # (N,) ids. The file is mapped into memory: what nobody looks at is never read
    val: np.ndarray  # (N,) likewise, to validate on


def load(folder):
    """Returns the Corpus in a folder. Raises DataError unless its files are those that meta.json describes."""
    folder = Path(folder)
    if not (folder / "meta.json").exists():
        script = folder.parent / "prepare.py"
        command = script if script.exists() else f"data/text/prepare.py FILES --out_dir={folder}"
        raise DataError(f"{folder} has no finished token files: python {command} makes them")
    meta = json.loads((folder / "meta.json").read_text("utf-8"))

    # do ids mean what they did when they were written, and are the files still the same, to the bit?
    sha256 = {split: digest(folder / f"{split}.bin") for split in SPLITS}
    if meta | TOKENIZERS[meta["tokenizer"]] | dict(sha256=sha256) != meta:
        raise DataError(f"{folder}: train.bin and val.bin are not the files that meta.json describes, or have other "
                        "ids than data/tokens.py now: move the folder away, and prepare it again")

    train = np.memmap(folder / "train.bin", meta["dtype"], "r")
    val = np.memmap(folder / "val.bin", meta["dtype"], "r")
    return Corpus(meta, train, val)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
