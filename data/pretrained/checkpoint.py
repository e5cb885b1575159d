"""Chosen tensors of a checkpoint and nothing else: from a local folder or file, or by byte ranges from the Hub.

    with open_checkpoint("openai-community/gpt2") as checkpoint:
        for weights in checkpoint.stream([["h.0.attn.c_attn.weight"], ["h.1.attn.c_attn.weight"]]):  # a dict per group

A safetensors file is 8 bytes of header length, a JSON header (name -> dtype, shape, data_offsets) and the data, so one
small read tells where every tensor lies (https://huggingface.co/docs/safetensors). A pytorch_model.bin tells so only
inside a pickle: it is fetched whole and opened with weights_only=True.
"""

import json
import math
import os
import pickle
import re
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
N_READERS = 8  # ranges in flight
PIECE = 1 << 24  # bytes of a range at most: one big tensor keeps every reader busy, and a retry loses little
AHEAD = 1 << 27  # bytes read ahead of the arithmetic (one group at least)
HEAD = 1 << 15  # bytes of the first read of a file; most headers are shorter
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library


class CheckpointError(Exception):
    """A checkpoint that cannot be read; str(e) is one line that says what to do."""


def need(ok, told: str):
    if not ok:
        raise CheckpointError(told)


@dataclass(frozen=True)
class TensorInfo:
    dtype: str  # as safetensors writes it: F32, BF16, ...
    shape: tuple[int, ...]
    start: int  # its bytes are [start, end) of its file (.bin: of memory)
    end: int


def read_json(path: Path) -> dict:
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as e:
        raise CheckpointError(f"{path} is not a JSON object ({str(e):.100}): get it again") from e


def unique(pairs: list[tuple]) -> dict:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice")
    return dict(pairs)


def parse_header(header: bytes, file: str, start: int, size: int) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file of `size` bytes, whose data begin at `start`; they must fill it exactly."""
    tensors, end = {}, start
    try:
        table = json.loads(header.decode(), object_pairs_hook=unique)
        metadata = table.pop("__metadata__", None)
        if metadata is not None and not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("metadata that is not text")
        for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (a, b) = entry["dtype"], entry["shape"], entry["data_offsets"]
            bits = 8 if dtype == "BOOL" else int(re.match(r"[A-Z]+(\d{1,3})", dtype)[1])  # F8_E4M3: 8
            if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 63 for n in (*shape, a, b)):
                raise ValueError("a size is not a natural number")
            if start + a != end or 8 * (b - a) != math.prod(shape) * bits:
                raise ValueError(f"the bytes of {name!r:.60} overlap, leave a hole or do not fit its dtype and shape")
            tensors[name] = TensorInfo(dtype, tuple(shape), start + a, end := start + b)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise CheckpointError(f"{file} has a damaged header ({str(e):.150}): get it again") from e
    need(end == size, f"{file} has {size} bytes, its header says {end}: cut short or damaged, get it again")
    return tensors


class Checkpoint(AbstractContextManager):
    """An open checkpoint; this class reads local files, HubCheckpoint in hub.py those of the Hub.

    source: as asked for. revision: the commit it is pinned to, None if local. config: its config.json. tensors: a
    TensorInfo by name. n_params: elements of the floating-point tensors. size, bytes_read: bytes of the weight files,
    all and read so far (a .bin counts whole). note: what the user should know, or "".
    """

    def __init__(self, source: str, folder: Path | None, names: list[str], revision: str | None = None, only: str = ""):
        self.source, self.revision, self.note, self.bytes_read = source, revision, "", 0
        self._folder, self._loaded, self._lock, self._closed = folder, {}, threading.Lock(), False
        self._pool = ThreadPoolExecutor(N_READERS)
        try:
            self._open(names, only)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self._closed = True
        self._pool.shutdown(cancel_futures=True)

    def _open(self, names: list[str], only: str):
        need("config.json" in names, f"{self.source} has no config.json, the layout of its weights: put it there")
        self.config = read_json(self._fetch("config.json"))
        files, index = ([only], None) if only else self._weight_files(names)
        read = self._read_bin if files[0].endswith(".bin") else self._read_header
        sizes, tables = zip(*self._pool.map(read, files))
        self.size, tables = sum(sizes), dict(zip(files, tables))
        self._file = index or dict.fromkeys(tables[files[0]], files[0])  # of each tensor
        for name, file in self._file.items():
            need(name in tables[file], f"{self.source}/{file} lacks {name!r:.60}, which the index names: get both")
        self.tensors = {name: tables[file][name] for name, file in self._file.items()}
        placed = {(self._file[n], t.start, t.end): t for n, t in self.tensors.items()}  # tied weights of a .bin: once
        self.n_params = sum(math.prod(t.shape) for t in placed.values() if t.dtype.startswith(("F", "BF")))

    def _weight_files(self, names: list[str]) -> tuple[list[str], dict[str, str] | None]:
        """The weight files among `names`, and the index (tensor -> file) if they are shards of one checkpoint."""
        lone = [n for n in names if n.endswith(".safetensors") and "/" not in n and not n.startswith("adapter_")]
        order = ["model.safetensors", "model.safetensors.index.json", *(lone if len(lone) == 1 else []),
                 "pytorch_model.bin", "pytorch_model.bin.index.json"]
        name = next((n for n in order if n in names), None)
        found = [n for n in names if re.search(r"\.(safetensors|bin|gguf|h5|msgpack|onnx|ckpt|pth?|npz)\b", n)]
        need(name, f"{self.source} has no model.safetensors or pytorch_model.bin (found {', '.join(found[:5]) or 'no'} "
                   "weights): convert it with save_pretrained, or give the path of one file")
        if not name.endswith(".json"):
            return [name], None
        index = read_json(self._fetch(name)).get("weight_map")
        need(isinstance(index, dict) and index and all(isinstance(file, str) for file in index.values()),
             f"{self.source}: {name} has no weight_map, get it again")
        missing = sorted(set(index.values()) - set(names))
        need(not missing, f"{self.source} lacks {', '.join(missing):.100}, which {name} names: get it again")
        return sorted(set(index.values())), index

    def _fetch(self, name: str) -> Path:
        return self._folder / name

    def _count(self, n_bytes: int):
        with self._lock:
            self.bytes_read += n_bytes

    def _read(self, file: str, start: int, view: memoryview) -> int:
        """Fills `view` with the bytes of a file from `start` on, as far as the file goes; -> the size of the file."""
        try:
            with open(self._fetch(file), "rb") as f:
                f.seek(start)
                self._count(f.readinto(view))
                return os.fstat(f.fileno()).st_size
        except OSError as e:
            raise CheckpointError(f"cannot read {self.source}/{file} ({e.strerror or e})") from e

    def _read_all(self, file: str, start: int, view: memoryview):
        size = self._read(file, start, view)
        need(size >= start + len(view), f"{self.source}/{file} is cut short: get it again")

    def _read_header(self, file: str) -> tuple[int, dict[str, TensorInfo]]:
        head = bytearray(HEAD)
        size = self._read(file, 0, memoryview(head))
        start = 8 + int.from_bytes(head[:8], "little")
        need(9 < start <= min(size, MAX_HEADER), f"{self.source}/{file} is cut short or no safetensors: get it again")
        if start > HEAD:
            head += bytes(start - HEAD)
            self._read_all(file, HEAD, memoryview(head)[HEAD:])
        return size, parse_header(bytes(head[8:start]), f"{self.source}/{file}", start, size)

    def _read_bin(self, file: str) -> tuple[int, dict[str, TensorInfo]]:
        """Opens a pytorch_model.bin; torch's restricted unpickler refuses whatever would run code."""
        path, tensors = self._fetch(file), {}
        try:
            with open(path, "rb") as f:
                zipped = f.read(4) == b"PK\3\4"  # files older than torch 1.6 are not, and cannot be mapped
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
            for name, tensor in state.items():
                if isinstance(tensor, torch.Tensor) and tensor.nbytes <= tensor.untyped_storage().nbytes():
                    dtype = next((n for n, d in DTYPES.items() if d == tensor.dtype), str(tensor.dtype)[6:].upper())
                    self._loaded[name], start = tensor.detach(), tensor.data_ptr()
                    tensors[name] = TensorInfo(dtype, tuple(tensor.shape), start, start + tensor.nbytes)
        except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError,
                AssertionError, ArithmeticError, MemoryError, struct.error) as e:  # torch's unpickler checks little
            code = re.search(r"GLOBAL (\S+)", str(e))
            why = f"is refused: unpickling it would run {code[1]}" if code else "is damaged, or no PyTorch state dict"
            raise CheckpointError(f"{path} {why}; look for a safetensors version") from e
        self._count(path.stat().st_size)
        return path.stat().st_size, tensors

    def stream(self, groups: Sequence[Sequence[str]], zeros: bool = False) -> Iterator[dict[str, torch.Tensor]]:
        """
        The tensors of each group, in order and in their own dtype, while the next groups are being read. One that holds
        NaN or infinity is refused; so is one of zeros alone, which has no score, unless `zeros` (biases may be such).
        """
        for name in (name for group in groups for name in group):
            need(name in self.tensors, f"{self.source} has no tensor {name!r}")
            dtype = self.tensors[name].dtype
            need(dtype in DTYPES, f"{self.source}: {name!r} is {dtype}, use a checkpoint in {', '.join(DTYPES)}")
        sizes = [sum(self.tensors[name].end - self.tensors[name].start for name in group) for group in groups]
        reading, n = deque(), 0
        for i in range(len(groups)):
            while n < len(groups) and (n < i + 2 or sum(sizes[i : n + 1]) <= AHEAD):
                reading.append({name: self._start(name) for name in groups[n]})
                n += 1
            yield {name: self._finish(name, *started, zeros) for name, started in reading.popleft().items()}

    def _start(self, name: str) -> tuple[torch.Tensor, list]:
        info = self.tensors[name]
        if name in self._loaded:
            return self._loaded[name], []
        data = torch.empty(info.end - info.start, dtype=torch.uint8)
        view = memoryview(data.numpy())
        return data.view(DTYPES[info.dtype]).reshape(info.shape), [
            self._pool.submit(self._read_all, self._file[name], info.start + a, view[a : a + PIECE])
            for a in range(0, len(view), PIECE)]

    def _finish(self, name: str, tensor: torch.Tensor, futures: list, zeros: bool) -> torch.Tensor:
        for future in futures:
            future.result()
        low, high = map(float, tensor.aminmax()) if tensor.numel() else (0.0, 1.0)  # one pass, and NaN wins
        need(math.isfinite(low) and math.isfinite(high), f"{self.source}: {name!r} holds NaN or infinity")
        need(zeros or low != 0 or high != 0, f"{self.source}: {name!r} is all zeros and has no score")
        return tensor


def open_checkpoint(source: str, revision: str | None = None) -> Checkpoint:
    """Opens a folder, a .safetensors or .bin file with config.json beside it, or the Hub's org/name[@revision]."""
    path = os.path.expanduser(source)
    if not os.path.exists(path):
        repo, _, tail = source.partition("@")
        need(re.fullmatch(r"\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", repo, re.ASCII)
             and not re.search(r"--|\.\.|\.(safetensors|bin)$", repo),
             f"there is no file or folder {source!r}, and a Hub id looks like org/name or org/name@revision")
        from data.pretrained.hub import open_hub  # here, so that local files need no Hub client
        return open_hub(source, repo, revision or tail or None)
    need(not revision, f"{source} is local, where there is no revision {revision}")
    folder, only = (path, "") if os.path.isdir(path) else os.path.split(path)
    need(only.endswith((".safetensors", ".bin")) or not only, f"{source} is no folder, .safetensors or .bin file")
    try:
        return Checkpoint(source, Path(folder), sorted(os.listdir(folder or ".")), only=only)
    except OSError as e:
        raise CheckpointError(f"cannot read {source} ({e.strerror or e})") from e
