"""The files of a checkpoint, read by ranges of bytes: here those of a local folder, in hub.py those of a repository."""

import json
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu}  # the last two only together: fp8.py


class CheckpointError(Exception):
    """A checkpoint that cannot be read; str(e) is one line that says what to do."""


def require(condition, message: str):
    if not condition:
        raise CheckpointError(message)


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: its bytes are [start, end) of `file`, or of memory if the whole file has been read."""

    file: str
    dtype: str  # as safetensors writes it: F32, BF16, ...
    shape: tuple[int, ...]
    start: int
    end: int
    stride: tuple[int, ...] | None = None  # in elements; None: those of a contiguous tensor
    loaded: torch.Tensor | None = None  # the tensor itself, if the whole file has been read
    scale: "TensorInfo | None" = None  # by which an F8_E4M3 tensor is to be multiplied

    @property
    def n_bytes(self) -> int:
        """What reading it takes, with its scale."""
        own = self.end - self.start
        return own if self.scale is None else own + self.scale.n_bytes


def read_json(path: Path) -> dict:
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as e:
        raise CheckpointError(f"{path} is not a JSON object ({str(e):.100}): get it again") from e


class Folder:
    """
    A local folder. source: as the user wrote it, for messages. names: of its files.
    revision: the commit it is pinned to, None if it is no snapshot of a repository. note: what the user should know,
    or "". bytes_read_of: the bytes that were read so far of each weight file; one that was loaded whole counts whole.
    """

    def __init__(self, source: str, path: Path | None, names: list[str], revision: str | None = None, note: str = ""):
        self.source, self.path, self.names, self.revision, self.note = source, path, names, revision, note
        self.bytes_read_of = Counter()
        self._lock = threading.Lock()  # several threads count

    def fetch(self, name: str) -> Path:
        """The path of a whole file."""
        return self.path / name

    def read(self, name: str, start: int, view: memoryview) -> int:
        """Fills `view` with the bytes of a file from `start` on, as far as the file goes; -> the size of the file."""
        return self.read_path(self.fetch(name), name, start, view)

    def read_path(self, path: Path, name: str, start: int, view: memoryview) -> int:
        try:
            with open(path, "rb") as f:
                f.seek(start)
                self.count(name, f.readinto(view))
                return os.fstat(f.fileno()).st_size
        except OSError as e:
            raise CheckpointError(f"cannot read {self.source}/{name} ({e.strerror or e})") from e

    def read_exactly(self, name: str, start: int, view: memoryview):
        size = self.read(name, start, view)
        require(size >= start + len(view), f"{self.source}/{name} is cut short: get it again")

    def read_bytes(self, name: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file; none of them if end <= start."""
        data = bytearray(max(0, end - start))
        if data:
            self.read_exactly(name, start, memoryview(data))
        return bytes(data)

    def count(self, name: str, n_bytes: int):
        with self._lock:
            self.bytes_read_of[name] += n_bytes

    def close(self):
        """No range is read any more."""
