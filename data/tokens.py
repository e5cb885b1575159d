"""
Token files: the format, and its one reader, behind train.py. data/writer.py writes them.

A folder (data/NAME/TOKENIZER, e.g. data/stdlib/bytes) holds two splits, one to train and one to validate on, each in
shards: train.bin, train.1.bin, ... and val.bin, val.1.bin, ... A shard is token ids as little-endian unsigned integers
and nothing else; every document ends with an end-of-text token.

meta.json says what they are and comes last, so a folder that has it is whole. Until then it is called progress.json.
"""

import json
import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Ids below n_vocab stand for text. vocab_size is what the model is built with: gpt2's 50,258 ids are padded, with ids
# that never occur, to a multiple of 64, as nanoGPT pads them, because matrix products of such sizes are faster.
# dtype is the smallest that holds all ids: beyond 65,536 of them "<u4".
TOKENIZERS = {
    "bytes": dict(n_vocab=256, eot_token=256, mask_token=257, vocab_size=258, dtype="<u2"),
    "gpt2": dict(n_vocab=50256, eot_token=50256, mask_token=50257, vocab_size=50304, dtype="<u2"),
}


class DataError(Exception):
    """What a user can cause and mend: one line that says what to do."""


class Shard(NamedTuple):
    path: Path
    n_tokens: int


class Corpus(NamedTuple):
    meta: dict
    train: "Stream"
    val: "Stream"


def load(folder):
    """The Corpus in a folder, meta.json checked against the sizes of the files: no file is read, however large."""
    folder = Path(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text())
        for key, value in TOKENIZERS[meta["tokenizer"]].items():
            if meta[key] != value:
                raise broken(folder, f"has {key} = {meta[key]}, but {meta['tokenizer']} has {value}", meta)
        for shard in shards(folder, "train", meta) + shards(folder, "val", meta):
            check_size(shard, meta)
        return Corpus(meta, Stream(folder, "train", meta), Stream(folder, "val", meta))
    except FileNotFoundError:
        begun = folder / "progress.json"
        meta = json.loads(begun.read_text()) if begun.exists() else {}
        raise DataError(f"{folder} has no finished token files: run {command(folder, meta)}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise broken(folder, f"has a meta.json that cannot be understood ({error!r})", {}) from None


class Stream:
    """The shards of a split as one sequence of tokens."""

    def __init__(self, folder, split, meta):
        self.meta = meta
        self.shards = [shard for shard in shards(folder, split, meta) if shard.n_tokens > 0]
        self.ends = list(accumulate(shard.n_tokens for shard in self.shards))  # where each shard ends in the sequence
        self.times = [shard.path.stat().st_mtime_ns for shard in self.shards]

    def __len__(self):
        return self.ends[-1]

    def rows(self, starts, length):
        """`length` tokens from each of `starts` (B,): (B, length) int64. DataError when the files have changed."""
        assert (starts >= 0).all() and (starts + length <= len(self)).all()
        rows = np.empty((len(starts), length), self.meta["dtype"])
        files = {}  # those of this batch: shard number -> open file
        try:
            for row, start in zip(rows, starts.tolist()):
                self.fill(row, start, files)
            for i, file in files.items():
                self.check_time(i, file)
        finally:
            for file in files.values():
                file.close()
        if rows.max(initial=0) > self.meta["eot_token"]:
            folder = self.shards[0].path.parent
            raise broken(folder, f"has the id {rows.max()}, which {self.meta['tokenizer']} has not", self.meta)
        return rows.astype(np.int64)

    def fill(self, row, start, files):
        """Fill row (T,) with the tokens from `start` on, which may lie in several shards."""
        i = bisect_right(self.ends, start)  # the shard that holds the first of them
        while len(row) > 0:
            shard = self.shards[i]
            left = self.ends[i] - start  # tokens from `start` to the end of the shard
            piece = row[:left]
            if i not in files:
                check_size(shard, self.meta)
                files[i] = open(shard.path, "rb", buffering=0)
            # Not a memmap: a process that reads beyond the end of a file that was cut would die of SIGBUS.
            files[i].seek((shard.n_tokens - left) * row.itemsize)
            if files[i].readinto(piece) < piece.nbytes:
                check_size(shard, self.meta)
            row = row[left:]
            start = self.ends[i]
            i += 1

    def check_time(self, i, file):
        path = self.shards[i].path
        if os.fstat(file.fileno()).st_mtime_ns != self.times[i]:
            raise broken(path.parent, f"has another {path.name} than a moment ago", self.meta)


def shards(folder, split, meta):
    """The shards of a split, as meta has them."""
    found = []
    for i, n_tokens in enumerate(meta["tokens"][split]):
        name = f"{split}.{i}.bin" if i > 0 else f"{split}.bin"
        found.append(Shard(folder / name, n_tokens))
    return found


def check_size(shard, meta):
    """DataError when the file of a shard does not have the size that its tokens need."""
    expected = shard.n_tokens * np.dtype(meta["dtype"]).itemsize
    found = shard.path.stat().st_size if shard.path.exists() else 0
    if found != expected:
        raise broken(shard.path.parent, f"has {found:,} bytes of {shard.path.name}, not {expected:,}", meta)


def broken(folder, what, meta):
    return DataError(f"{folder} {what}: delete it and run {command(folder, meta)}")


def command(folder, meta):
    """The command that makes the files of a folder: as meta has it, else as the path tells."""
    if "command" in meta:
        return f"{meta['command']} --out_dir={folder}"
    name, tokenizer = folder.absolute().parts[-2:]
    if tokenizer in TOKENIZERS and (Path(__file__).parent / name / "prepare.py").exists():
        return f"python data/{name}/prepare.py --tokenizer={tokenizer} --out_dir={folder}"
    return f"python data/NAME/prepare.py --out_dir={folder}"
