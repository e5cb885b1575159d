"""
The folder of a checkpoint: its files, and reading ranges of their bytes. Here it is a local folder; the one of hub.py
is in a repository of the Hub.
"""

import json
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu}  # for the last two see fp8.py


class CheckpointError(Exception):
    """A checkpoint cannot be read. str(e) is one line that says what to do, without the name of the model."""

    def __init__(self, message: str):
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Replace control characters: the text may come from a file that somebody else has made."""
    return "".join(c if c.isprintable() else "?" for c in text)


def require(condition, message: str):
    if not condition:
        raise CheckpointError(message)


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: in the bytes [start, end) of `file`, or of memory if the whole file has been read."""

    file: str
    dtype: str  # as safetensors writes it: F32, BF16, ...
    shape: tuple[int, ...]
    start: int
    end: int
    stride: tuple[int, ...] | None = None  # in elements; None: contiguous
    loaded: torch.Tensor | None = None  # the tensor itself, if the whole file has been read
    scale: "TensorInfo | None" = None  # an F8_E4M3 tensor has to be multiplied by it

    @property
    def n_bytes(self) -> int:
        """How many bytes must be read for it, with its scale."""
        own = self.end - self.start
        return own if self.scale is None else own + self.scale.n_bytes


class WeightFile(NamedTuple):
    """What one file of weights holds."""

    size: int  # bytes of the file
    tensors: dict[str, TensorInfo]
    model_args: dict | None = None  # nanoGPT's config, which lies in the file itself


class Folder:
    """
    A local folder.

    names: its files
    revision: the commit of the repository that it is a snapshot of, or None
    notes: what the user should know
    bytes_read_of: {file of weights: how many of its bytes were read so far}
    """

    def __init__(self, path: Path | None, names: list[str], revision: str | None = None):
        self.path, self.names, self.revision = path, names, revision
        self.notes = []
        self.bytes_read_of = Counter()
        self._heads = {}  # file -> its first bytes, which were read to find the tensors
        self._lock = threading.Lock()  # because several threads count bytes

    def subfolders(self) -> list[str]:
        return [name for name in self.names if (self.path / name).is_dir()]

    def enter(self, inner: str):
        """From now on, this object stands for the folder `inner` in it."""
        self.path = self.path / inner
        self.names = sorted(os.listdir(self.path))

    def fetch(self, name: str) -> Path:
        """The path of a whole file."""
        return self.path / name

    def read(self, name: str, start: int, view: memoryview) -> int:
        """Fill `view` with the bytes of a file from `start` on, as far as the file goes -> the size of the file."""
        return self.read_path(self.fetch(name), name, start, view)

    def read_path(self, path: Path, name: str, start: int, view: memoryview) -> int:
        try:
            with open(path, "rb") as f:
                f.seek(start)
                self.count(name, f.readinto(view))
                return os.fstat(f.fileno()).st_size
        except OSError as e:
            raise CheckpointError(f"cannot read {name} ({e.strerror or e})") from e

    def read_head(self, name: str, n_bytes: int) -> tuple[bytes, int]:
        """-> the first bytes of a file (fewer if it is shorter) and its size. These bytes are never read twice."""
        head = bytearray(n_bytes)
        size = self.read(name, 0, memoryview(head))
        refuse_pointer(head, name)
        self._heads[name] = bytes(head[:size])
        return self._heads[name], size

    def read_exactly(self, name: str, start: int, view: memoryview):
        """Fill all of `view`. CheckpointError if the file is too short."""
        known = self._heads.get(name, b"")[start : start + len(view)]
        view[: len(known)] = known
        if len(known) < len(view):
            start, rest = start + len(known), view[len(known) :]
            size = self.read(name, start, rest)
            require(size >= start + len(rest), f"{name} is cut short: get it again")

    def read_bytes(self, name: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file; no bytes if end <= start."""
        data = bytearray(max(0, end - start))
        self.read_exactly(name, start, memoryview(data))
        return bytes(data)

    def count(self, name: str, n_bytes: int):
        with self._lock:
            self.bytes_read_of[name] += n_bytes

    def close(self):
        """Read no more ranges."""


def read_json(folder: Folder, name: str) -> dict:
    try:
        text = folder.fetch(name).read_bytes()
        refuse_pointer(text, name)
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{name} is not a JSON object ({str(e):.100}): get it again") from e
    except OSError as e:
        raise CheckpointError(f"cannot read {name} ({e.strerror or e})") from e
    require(isinstance(found, dict), f"{name} is not a JSON object ({found!r:.60}): get it again")
    return found


def refuse_pointer(head: bytes, name: str):
    """CheckpointError for the small text file that git leaves in place of a large one until git-lfs gets it."""
    require(not head.startswith(b"version https://git-lfs"),
            f"{name} is a pointer of Git LFS, not the file itself: run git lfs pull where it was cloned")
