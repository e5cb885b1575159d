"""
Where each tensor lies in a file of weights, so that nothing else has to be read.

A file of safetensors (https://huggingface.co/docs/safetensors) is 8 bytes, the length of the header as a little-endian
number; the header, JSON: name -> dtype, shape, data_offsets; and the data, to which the offsets refer.

A file of torch.save, such as pytorch_model.bin, is a zip (https://docs.pytorch.org/docs/stable/notes/serialization).
Its record data.pkl is a pickle of everything but the numbers. The numbers of each storage are a record of their own,
data/KEY. Torch makes tensors without values from the pickle alone, and we note the keys of their storages. Files of
before torch 1.6, and those with sparse tensors, are loaded whole. A pickle that would run code is refused.
"""

import argparse
import bisect
import contextlib
import io
import json
import math
import re
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch._weights_only_unpickler import Unpickler

from .files import CheckpointError, Folder, only_checkpoint_errors, require

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn}
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
BLOCK = 1 << 14  # bytes in a block of a zip
RECORD_HEADER = 30  # bytes of a zip before the name of a record, which stands before its content
# The keys under which training scripts save the weights.
STATE_DICTS = ("state_dict", "model", "model_state_dict", "net", "module")

# The options of MAE, DeiT and DINO lie beside their weights; TransformerEngine's _extra_state is made of bytes.
torch.serialization.add_safe_globals([argparse.Namespace, io.BytesIO])


def dtype_of(tensor: torch.Tensor) -> torch.dtype | str:
    return tensor.dtype if tensor.layout == torch.strided else "sparse"


class TensorInfo(NamedTuple):
    """A tensor of a checkpoint, which is read when it is needed."""

    shape: tuple[int, ...]
    dtype: torch.dtype | str  # a text if it is not one of DTYPES, as of safetensors, or "sparse"
    storage: tuple  # which bytes hold it. Tied weights have the same
    read: Callable[[], torch.Tensor]  # gives it as it is stored


def read_range(folder: Folder, file: str, start: int, end: int, dtype: torch.dtype, shape, stride=None) -> torch.Tensor:
    """Returns the tensor in the bytes [start, end) of a file. stride: in elements; None if it is contiguous."""
    numbers = torch.frombuffer(folder.read(file, start, end - start), dtype=dtype)
    # With a stride it is transposed, or some columns of a wider tensor.
    return numbers.as_strided(shape, stride) if stride else numbers.reshape(shape)


# ---- safetensors -----------------------------------------------------------------------------------------------


def read_safetensors(folder: Folder, file: str) -> tuple[dict[str, TensorInfo], dict]:
    """Returns the tensors of a file by name, and {}. Raises CheckpointError if the file is damaged."""
    size = folder.size(file)
    n_bytes = int.from_bytes(folder.read(file, 0, 8), "little")
    start = 8 + n_bytes  # of the data
    require(start <= min(size, MAX_HEADER),
            f"{file} is cut short, a pointer of Git LFS, or no safetensors: get it again")
    with only_checkpoint_errors(f"the header of {file}"):
        header = json.loads(bytes(folder.read(file, 8, n_bytes)))
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            dtype = DTYPES.get(entry["dtype"], entry["dtype"])
            shape = tuple(entry["shape"])
            first, end = entry["data_offsets"]
            if dtype in DTYPES.values() and end - first != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{end - first} bytes for {shape} of {dtype}")
            storage = (file, start + first, start + end)
            tensors[name] = TensorInfo(shape, dtype, storage, partial(read_range, folder, *storage, dtype, shape))
    # A file that was cut short still begins with its whole header.
    end = max((info.storage[-1] for info in tensors.values()), default=start)
    require(end == size, f"{file} has {size} bytes, its header says {end}: cut short or damaged, get it again")
    return tensors, {}


# ---- torch.save --------------------------------------------------------------------------------------------------


class Ranges(io.RawIOBase):
    """A file of a Folder, as zipfile wants it. It is read in blocks, which are kept."""

    def __init__(self, folder: Folder, file: str):
        self.folder = folder
        self.file = file
        self.size = folder.size(file)
        self.position = 0  # where the next bytes are read
        self.blocks = {}

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = max(0, origin + offset)
        return self.position

    def readinto(self, buffer):
        """Fills the buffer, as far as the block goes. Returns how many bytes these are."""
        number, offset = divmod(self.position, BLOCK)
        if number not in self.blocks:
            start = number * BLOCK
            self.blocks[number] = self.folder.read(self.file, start, min(BLOCK, self.size - start))
        piece = self.blocks[number][offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)


def read_torch(folder: Folder, file: str) -> tuple[dict[str, TensorInfo], dict]:
    """Returns the tensors of a file by name, and all that is in it. Raises CheckpointError if it would run code."""
    try:
        if folder.read(file, 0, 2) == b"PK":
            with contextlib.suppress(NotImplementedError):  # of a file with sparse tensors
                return read_zip(folder, file)
        saved = torch.load(folder.fetch(file), map_location="cpu", weights_only=True)
        folder.lengths.append(folder.size(file))
        tensors = {}
        for name, tensor in find_tensors(saved, file).items():
            storage = (file, tensor.data_ptr(), tensor.numel()) if tensor.layout == torch.strided else (file, name)
            tensors[name] = TensorInfo(tuple(tensor.shape), dtype_of(tensor), storage, tensor.detach)
        return tensors, saved
    except (CheckpointError, OSError):
        raise
    except Exception as e:  # zipfile and torch raise more than a dozen kinds, for damaged files and for forbidden ones
        code = re.search(r"GLOBAL (\S+)", str(e))
        if "torchao" in str(e):
            told = "holds quantised weights of torchao: score the model that it was made from"
        elif code:
            told = f"would run {code[1]:.80}: look for a safetensors version, or save the state_dict() alone"
        else:
            told = "is damaged, a pointer of Git LFS, or no PyTorch state dict: get it again"
        raise CheckpointError(f"{file} {told}") from e


def read_zip(folder: Folder, file: str) -> tuple[dict[str, TensorInfo], dict]:
    """Returns the same as read_torch, from a zip, of which only the directory and the pickle are read."""
    ranges = io.BufferedReader(Ranges(folder, file))
    with zipfile.ZipFile(ranges) as zipped:
        # Names are FOLDER/data.pkl, FOLDER/data/0, ..., where FOLDER can be anything.
        records = {info.filename.partition("/")[2]: info for info in zipped.infolist()}
        begins = [*sorted(info.header_offset for info in records.values()), zipped.start_dir]
    require("constants.pkl" not in records,
            f"{file} is of TorchScript: save torch.jit.load(FILE).state_dict() with torch.save")
    require(all(info.compress_type == zipfile.ZIP_STORED for info in records.values()),
            f"{file} is compressed: load it with torch.load, and save that with torch.save")
    if "byteorder" in records:  # torch before 2.1 did not write it
        require(read_record(ranges, records["byteorder"]) == b"little",
                f"{file} is of a big-endian computer: save it again on a little-endian one")

    pickled = read_record(ranges, records["data.pkl"])
    if b"_rebuild_sparse" in pickled:
        raise NotImplementedError  # torch would look at the values of sparse tensors when it next loads a file
    saved = load_without_values(pickled)
    tensors = {}
    for name, tensor in find_tensors(saved, file).items():
        info = records[f"data/{tensor.untyped_storage().key}"]
        to_last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))  # elements before the last
        first = tensor.itemsize * tensor.storage_offset()  # byte of the record
        end = first + tensor.itemsize * (to_last + 1)
        begin = info.header_offset
        next_begin = begins[bisect.bisect_right(begins, begin)]
        require(begin + RECORD_HEADER + len(info.filename) + end <= next_begin,
                f"{file} is damaged (a tensor is larger than its bytes): get it again")
        storage = (file, begin, first, end)
        shape = tuple(tensor.shape)
        read = partial(read_in_record, folder, *storage, tensor.dtype, shape, tensor.stride())
        tensors[name] = TensorInfo(shape, tensor.dtype, storage, read)
    return tensors, saved


def header_size(header: bytes) -> int:
    """Returns how many bytes of a record stand before its content. header: the first 30 of them."""
    n_name, n_extra = struct.unpack("<HH", header[26:30])
    return RECORD_HEADER + n_name + n_extra


def read_record(ranges: io.BufferedReader, info: zipfile.ZipInfo) -> bytes:
    """Returns the content of a record. zipfile would want its checksum, which torch.save can leave out."""
    ranges.seek(info.header_offset)
    ranges.seek(info.header_offset + header_size(ranges.read(RECORD_HEADER)))
    return ranges.read(info.file_size)


def read_in_record(folder: Folder, file: str, begin: int, first: int, end: int, *dtype_and_shape) -> torch.Tensor:
    """Returns the tensor in the bytes [first, end) of a record. begin: where its header begins in the file."""
    start = begin + header_size(folder.read(file, begin, RECORD_HEADER))
    return read_range(folder, file, start + first, start + end, *dtype_and_shape)


def load_without_values(pickled: bytes) -> dict:
    """Returns what torch.load makes of a pickle, but its tensors have no values, and each storage has its key."""
    def storage_of(saved):
        _, kind, key, _, n = saved  # "storage", its class, key, device, number of elements
        dtype = getattr(kind, "dtype", torch.uint8)  # that of UntypedStorage
        storage = torch.UntypedStorage(n * dtype.itemsize, device="meta")
        storage.key = key
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    unpickler = Unpickler(io.BytesIO(pickled), encoding="utf-8")  # of weights_only=True, which runs no code
    unpickler.persistent_load = storage_of  # what is called where a storage stands, which is not in the pickle
    return unpickler.load()


def find_state_dict(saved: dict) -> dict:
    """Returns the dict of the tensors, which may be inside of another one."""
    for key in STATE_DICTS:
        if isinstance(saved.get(key), dict):
            saved = saved[key]
    return saved


def find_tensors(saved: dict, file: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a state dict by name. Raises CheckpointError if there is none."""
    tensors = {}
    found = []  # what else is there, in words
    for key, value in find_state_dict(saved).items():
        if isinstance(value, torch.Tensor):
            tensors[key] = value
        elif isinstance(value, dict):
            found.append(f"{key} ({', '.join(map(str, value)):.60})")
        else:
            found.append(str(key))
    require(tensors, f"{file} holds {', '.join(found) or 'nothing':.250}, and no weights by their names: save one "
            "state_dict() alone")
    return tensors
