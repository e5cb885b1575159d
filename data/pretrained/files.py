"""The files of a checkpoint, read by ranges of bytes: here those of a local folder, in hub.py those of a repository."""

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


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
    loaded: torch.Tensor | None = None  # the tensor itself, if the whole file has been read


def read_json(path: Path) -> dict:
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as e:
        raise CheckpointError(f"{path} is not a JSON object ({str(e):.100}): get it again") from e


class Folder:
    """
    A local folder. source: as the user wrote it, for messages. names: of its files.
    revision: the commit it is pinned to, None if it is no snapshot of a repository. note: what the user should know,
    or "". bytes_read: bytes of the weight files that were read so far; a file that was opened whole counts whole.
    """

    def __init__(self, source: str, path: Path | None, names: list[str], revision: str | None = None, note: str = ""):
        self.source, self.path, self.names, self.revision, self.note = source, path, names, revision, note
        self.bytes_read = 0
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
                self.count(f.readinto(view))
                return os.fstat(f.fileno()).st_size
        except OSError as e:
            raise CheckpointError(f"cannot read {self.source}/{name} ({e.strerror or e})") from e

    def read_exactly(self, name: str, start: int, view: memoryview):
        size = self.read(name, start, view)
        require(size >= start + len(view), f"{self.source}/{name} is cut short: get it again")

    def count(self, n_bytes: int):
        with self._lock:
            self.bytes_read += n_bytes

    def close(self):
        """No range is read any more."""
