"""
Token files: their format, and how they are read. data/writer.py writes them.

    corpus = tokens.load("data/stdlib/bytes")
    corpus.train.rows(np.array([0, 1000]), 32)  # 32 tokens from each of two places: (2, 32)

A folder (data/NAME/TOKENIZER) holds two splits, train and val. Each split is one or more files, called shards:
train.bin, train.1.bin, ... and val.bin, val.1.bin, ... A shard holds token ids as little-endian unsigned integers and
nothing else. Every document ends with an end-of-text token.

meta.json describes the files. It is written last, so a folder that has it is complete. Until then it is progress.json.
"""

import json
import os
import resource
import zlib
from bisect import bisect_right
from itertools import accumulate
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


class Shard(NamedTuple):
    path: Path
    n_tokens: int
    crc32: int | None  # checksum of its bytes; None in old folders, where a new time counts as a change


class Corpus(NamedTuple):
    meta: dict  # meta.json
    train: "Stream"
    val: "Stream"

    def check(self):
        """DataError if a token file has changed since it was loaded. This is cheap enough for every evaluation."""
        self.train.check()
        self.val.check()


def load(folder):
    """The Corpus in a folder. The sizes of the files are checked against meta.json, but no file is read yet."""
    folder = Path(folder)
    if not (folder / "meta.json").exists():
        begun = folder / "progress.json"
        meta = read_meta(begun) if begun.exists() else {}
        raise DataError(f"{folder} has no finished token files: run {command(folder, meta)}")
    meta = read_meta(folder / "meta.json")
    for split in "train", "val":
        if sum(meta["tokens"][split]) == 0:
            raise broken(folder, f"has no token in split {split!r}", meta)
    return Corpus(meta, Stream(folder, "train", meta), Stream(folder, "val", meta))


def read_meta(path):
    """meta.json or progress.json as a dict. DataError if it is damaged in any way."""
    folder = path.parent
    try:
        meta = json.loads(path.read_bytes())
        tokenizer = TOKENIZERS[meta["tokenizer"]]
        counts = meta["tokens"]["train"] + meta["tokens"]["val"]
        if not all(type(n) is int and 0 <= n < 2**63 for n in counts):
            raise ValueError("tokens are not counted in whole numbers")
        for key in "checksum", "command":
            if len(meta[key].splitlines()) != 1:
                raise ValueError(f"{key} is not a line of text")
        for split in "train", "val":
            shards(folder, split, meta)  # fails if there are not as many checksums as shards
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(path) from error
    for key, value in tokenizer.items():
        if meta.get(key) != value:
            raise broken(folder, f"has {key} = {meta.get(key)!r}, but {meta['tokenizer']} has {value!r}", meta)
    return meta


def most_open_files():
    """How many files the system lets this process open; often 1024."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else soft


class Stream:
    """
    The shards of a split as one sequence of tokens.

    A shard is opened when it is first needed, and stays open. Whether its file has changed is tested by check(), and
    not at every read, so a batch of 256 rows takes 256 reads and nothing else.
    """

    KEEP_OPEN = most_open_files() // 4  # for each split; further shards are opened again for every read

    def __init__(self, folder, split, meta):
        self.meta = meta
        self.shards = [shard for shard in shards(folder, split, meta) if shard.n_tokens > 0]
        for shard in self.shards:
            check_size(shard, size_of(shard.path), meta)
        self.ends = list(accumulate(shard.n_tokens for shard in self.shards))  # where each shard ends in the sequence
        self.stamps = [stamp(shard.path) for shard in self.shards]  # time and inode of each file, for check()
        self.files = {}  # number of a shard -> its open file

    def __len__(self):
        return self.ends[-1]

    def rows(self, starts, length):
        """`length` tokens from each of `starts` (B,) on: (B, length) int64. DataError if a file has become shorter."""
        assert (starts >= 0).all() and (starts + length <= len(self)).all()
        rows = np.empty((len(starts), length), self.meta["dtype"])
        for row, start in zip(rows, starts.tolist()):
            self.fill(row, start)
        if rows.max(initial=0) > self.meta["eot_token"]:
            folder = self.shards[0].path.parent
            raise broken(folder, f"has the id {rows.max()}, which {self.meta['tokenizer']} has not", self.meta)
        return rows.astype(np.int64)

    def fill(self, row, start):
        """Fill row (T,) with the tokens from `start` on. They may lie in several shards."""
        i = bisect_right(self.ends, start)  # the shard that holds the first token
        while len(row) > 0:
            shard = self.shards[i]
            left = self.ends[i] - start  # tokens from `start` to the end of this shard
            piece = row[:left]
            # Not a memmap: if the file has become shorter, reading beyond its end would kill the process (SIGBUS).
            offset = (shard.n_tokens - left) * row.itemsize
            file = self.file(i)
            read = os.pread(file.fileno(), piece.nbytes, offset)
            if len(read) < piece.nbytes:
                check_size(shard, os.fstat(file.fileno()).st_size, self.meta)
            piece[:] = np.frombuffer(read, row.dtype)
            row = row[left:]
            start = self.ends[i]
            i += 1

    def file(self, i):
        """The open file of shard i."""
        if i in self.files:
            return self.files[i]
        shard = self.shards[i]
        check_size(shard, size_of(shard.path), self.meta)
        file = open(shard.path, "rb", buffering=0)
        if len(self.files) < self.KEEP_OPEN:
            self.files[i] = file
        return file

    def check(self):
        """
        DataError if a file has changed since it was loaded. Only a file with another time or inode is read again. If
        its bytes are the same, it was only copied or touched.
        """
        for i, shard in enumerate(self.shards):
            check_size(shard, size_of(shard.path), self.meta)
            now = stamp(shard.path)
            if now != self.stamps[i]:
                if crc32(shard.path) != shard.crc32:
                    raise broken(shard.path.parent, f"has another {shard.path.name} than a moment ago", self.meta)
                self.stamps[i] = now


def stamp(path):
    """Time and inode. If both are the same as before, the file has not been written or replaced."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ino


def crc32(path):
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            found = zlib.crc32(chunk, found)
    return found


def shards(folder, split, meta):
    """The shards of a split, from meta.json."""
    counts = meta["tokens"][split]
    checksums = meta.get("crc32", {}).get(split, [None] * len(counts))
    found = []
    for i, n_tokens in enumerate(counts):
        name = f"{split}.{i}.bin" if i > 0 else f"{split}.bin"
        found.append(Shard(folder / name, n_tokens, checksums[i]))
    return found


def size_of(path):
    """The size of a file in bytes; 0 if there is no such file."""
    return path.stat().st_size if path.exists() else 0


def check_size(shard, size, meta):
    """DataError if the file of a shard does not have the size that meta.json says."""
    expected = shard.n_tokens * np.dtype(meta["dtype"]).itemsize
    if size != expected:
        raise broken(shard.path.parent, f"has {size:,} bytes of {shard.path.name}, not {expected:,}", meta)


def broken(folder, what, meta):
    return DataError(f"{folder} {what}: delete it and run {command(folder, meta)}")


def damaged(path):
    return broken(path.parent, f"has a {path.name} that cannot be understood", {})


def command(folder, meta):
    """The command that makes the files of a folder: from meta.json, else guessed from the path."""
    if "command" in meta:
        return f"{meta['command']} --out_dir={folder}"
    name = folder.absolute().name
    dataset = folder.absolute().parent.name
    if not (Path(__file__).parent / dataset / "prepare.py").exists():
        dataset = "NAME"
    return " ".join([f"python data/{dataset}/prepare.py", *options(name), f"--out_dir={folder}"])


def options(name):
    """The options with which a prepare script makes a folder of this name; none if it makes no such folder."""
    tokenizer = name.removesuffix("_spaced")
    if tokenizer not in TOKENIZERS:
        return []
    if name.endswith("_spaced"):
        return [f"--tokenizer={tokenizer}", "--spaced"]
    return [f"--tokenizer={tokenizer}"]
