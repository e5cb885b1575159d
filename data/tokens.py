"""
Token files: their format, and how they are read. data/writer.py writes them.

    corpus = tokens.load("data/pytorch/bytes")
    corpus.train[:32]  # the ids of the first 32 tokens

A folder (data/NAME/TOKENIZER) holds two splits, train.bin and val.bin: token ids as little-endian unsigned integers and
nothing else. Every document ends with an end-of-text token. meta.json describes them, and tells one corpus from another
by the SHA-256 of both files. It is written last, so a folder that has it is complete.
"""

import contextlib
import hashlib
import json
import os
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
    """A problem with token files. The message is one line that says what to do."""


class Corpus(NamedTuple):
    meta: dict  # meta.json
    train: np.ndarray  # (N,) ids. The file is mapped into memory, so only those that are asked for are read.
    val: np.ndarray  # as train


def load(folder):
    """The Corpus in a folder. DataError unless its files are those that meta.json describes."""
    folder = Path(folder)
    if not (folder / "meta.json").exists():
        script = folder.parent / "prepare.py"
        advice = f"run python {script}" if script.exists() else "one of data/*/prepare.py makes them"
        raise DataError(f"{folder} has no finished token files: {advice} (data/README.md); to try train.py without, "
                        "--data_dir=data/pytorch/gpt2 prepares itself")
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        meta |= TOKENIZERS[meta["tokenizer"]]
        is_whole = all(digest(folder / f"{split}.bin") == meta["sha256"][split] for split in SPLITS)
    except (FileNotFoundError, LookupError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise DataError(f"{folder}: meta.json is damaged, or of another version or program, or train.bin and val.bin "
                        "are not the files that it describes: move the folder away, and prepare it again")
    return Corpus(meta, *(np.memmap(folder / f"{split}.bin", meta["dtype"], "r") for split in SPLITS))


def digest(path):
    """The SHA-256 of a file, in hexadecimal."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):  # hashlib.file_digest needs Python 3.11
            sha256.update(block)
    return sha256.hexdigest()


# ---- files of any kind -------------------------------------------------------------------------------------------


class FileError(OSError):
    """A file cannot be written. The message is one line that says what to do."""


@contextlib.contextmanager
def writing(path):
    """Let an error of the system, such as a full disk, name the file. By itself it names none."""
    try:
        yield
    except (OSError, RuntimeError) as e:
        cause = e if isinstance(e, OSError) else e.__context__  # torch.save hides an OSError behind a RuntimeError
        if isinstance(e, FileError) or not isinstance(cause, OSError):
            raise
        raise FileError(f"{path} cannot be written ({cause.strerror}): put that right and run it again") from e


@contextlib.contextmanager
def replacing(path):
    """A temporary path for the block to write. At its end it becomes `path`: complete or not at all."""
    path = Path(os.path.realpath(path))  # where a link leads, or the link would be replaced
    temporary = path.with_name(f"{path.name}.unfinished-{os.getpid()}.tmp")  # of this process alone
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with open(temporary, "rb+") as f:
                os.fsync(f.fileno())  # or after a power cut the new name could be there without the bytes
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path, value):
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def locked(folder, wait=False):
    """Let one process at a time write into a folder, until it ends. Another one waits, or a FileError ends it."""
    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock = open(Path(folder) / ".lock", "a")  # "w" would empty a file of that name
    with lock:
        try:
            import fcntl  # which Windows does not have

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise FileError(f"{folder}: another process is writing there: wait for it, or set --out_dir") from None
            print(f"{folder}: another process is writing there; this one waits for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except (OSError, ImportError):
            pass  # there are no locks here
        for left in Path(folder).glob("*.unfinished-*.tmp"):  # of a process that was killed in `replacing`
            left.unlink(missing_ok=True)
        yield
