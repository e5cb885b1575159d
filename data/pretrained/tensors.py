"""
Where every tensor lies in a file of weights, so that nothing else has to be read.

A file of safetensors (https://huggingface.co/docs/safetensors) is 8 bytes, the length of the header as a little-endian
number; the header, JSON: name -> dtype, shape, data_offsets; and the data, to which the offsets refer.

A file of torch.save, such as pytorch_model.bin, is a zip of uncompressed records. PREFIX/data.pkl is the pickled dict,
in which a tensor is its dtype, shape, strides and the key of its storage. PREFIX/data/KEY holds the bytes of a storage.
Files of before torch 1.6, and zips that are laid out in another way, are loaded whole. In both cases torch's restricted
unpickler refuses a pickle that would run code.
"""

import argparse
import io
import json
import math
import re
import zipfile
from dataclasses import dataclass
from typing import NamedTuple

import torch

from data.pretrained.files import CheckpointError, Folder, require

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu}  # for the last two see checkpoint.py
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEAD = 1 << 15  # bytes of the first read of a safetensors file; most headers are shorter
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
ALIGNMENT = 64  # torch begins every record of a zip at a multiple of this
STATE_DICTS = ("state_dict", "model", "model_state_dict", "net", "module")  # under which training scripts save it

torch.serialization.add_safe_globals([argparse.Namespace])  # the options of MAE, DeiT and DINO lie beside their weights


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


class WeightFile(NamedTuple):
    """What one file of weights holds."""

    size: int  # bytes of the file
    tensors: dict[str, TensorInfo]
    saved: dict  # all that torch.save has put into it; {} if it is of safetensors


def read_weight_file(folder: Folder, file: str) -> WeightFile:
    """CheckpointError if the file is damaged, or would run code."""
    if file.endswith(".safetensors"):
        return read_safetensors(folder, file)
    return read_torch(folder, file)


# ---- safetensors -------------------------------------------------------------------------------------------------


def read_safetensors(folder: Folder, file: str) -> WeightFile:
    head, size = folder.read_head(file, HEAD)
    start = 8 + int.from_bytes(head[:8], "little")  # of the data
    require(9 < start <= min(size, MAX_HEADER), f"{file} is cut short or no safetensors: get it again")
    if start > HEAD:
        head, _ = folder.read_head(file, start)
    tensors = {}
    try:
        table = json.loads(head[8:start])
        table.pop("__metadata__", None)
        for name, entry in table.items():
            dtype, shape = entry["dtype"], entry["shape"]
            first, last = entry["data_offsets"]
            if dtype in DTYPES and last - first != math.prod(shape) * DTYPES[dtype].itemsize:
                raise ValueError(f"the bytes of {name!r:.60} do not fit its dtype and shape")
            tensors[name] = TensorInfo(file, dtype, tuple(shape), start + first, start + last)
    except (ValueError, TypeError, KeyError) as e:
        raise CheckpointError(f"{file} has a damaged header ({str(e):.150}): get it again") from e
    # A file that was cut short still begins with its whole header.
    end = max((info.end for info in tensors.values()), default=start)
    require(end == size, f"{file} has {size} bytes, its header says {end}: cut short or damaged, get it again")
    return WeightFile(size, tensors, {})


# ---- torch.save --------------------------------------------------------------------------------------------------


def read_torch(folder: Folder, file: str) -> WeightFile:
    head, size = folder.read_head(file, 64)
    try:
        pickled = read_pickle(folder, file, size) if head.startswith(b"PK\3\4") else None
        if pickled:
            saved, begins = pickled
        else:
            saved = torch.load(folder.fetch(file), map_location="cpu", weights_only=True)
            folder.lengths.append(size)
        tensors = {}
        for name, tensor in state_dict(saved, file).items():
            storage = tensor.untyped_storage()
            begin = begins[storage._checkpoint_offset] if pickled else storage.data_ptr()
            tensors[name] = find_in_storage(file, tensor, begin)
        return WeightFile(size, tensors, saved)
    except (CheckpointError, OSError):
        raise
    except Exception as e:  # zipfile and torch raise more than a dozen kinds, for damaged files and for forbidden ones
        code = re.search(r"GLOBAL (\S+)", str(e))
        why = f"is refused: unpickling it would run {code[1]:.80}" if code else "is damaged, or no PyTorch state dict"
        raise CheckpointError(f"{file} {why}; look for a safetensors version, or save the state_dict() alone") from e


def find_in_storage(file: str, tensor: torch.Tensor, begin: int) -> TensorInfo:
    """begin: of the storage of the tensor, in the file or in memory."""
    first = last = begin + tensor.itemsize * tensor.storage_offset()
    if tensor.numel():
        steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.stride())]  # to the last element
        last += tensor.itemsize * (1 + sum(steps))
    dtype = NAMES.get(tensor.dtype, str(tensor.dtype))
    loaded = None if tensor.is_meta else tensor.detach()
    return TensorInfo(file, dtype, tuple(tensor.shape), first, last, tensor.stride(), loaded)


class Ranges(io.RawIOBase):
    """A file of a Folder with seek and read, as zipfile wants it. Each read is a range of bytes."""

    def __init__(self, folder: Folder, file: str, size: int):
        self.folder, self.file = folder, file
        self.size = size
        self.position = 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = origin + offset
        return self.position

    def readinto(self, buffer):
        n_bytes = max(0, min(len(buffer), self.size - self.position))
        self.folder.read_exactly(self.file, self.position, memoryview(buffer)[:n_bytes])
        self.position += n_bytes
        return n_bytes


def read_pickle(folder: Folder, file: str, size: int) -> tuple[dict, dict[int, int]] | None:
    """
    -> the saved object, whose tensors are on the meta device and have no values; and {_checkpoint_offset of a storage:
    where its bytes begin}. None if the zip is laid out in another way than torch's.

    torch reads a zip in memory that has the same data.pkl and the same records, but all of them empty. To a storage on
    the meta device it gives a _checkpoint_offset, the place of its bytes in this zip. This finds the record.
    """
    with zipfile.ZipFile(io.BufferedReader(Ranges(folder, file, size), HEAD)) as zipped:
        record_begins = find_records(zipped)
        if record_begins is None:
            return None
        prefix = zipped.namelist()[0].partition("/")[0]
        data_pkl = zipped.read(f"{prefix}/data.pkl")  # and compares its checksum
    small = io.BytesIO()
    begins = {}
    with zipfile.ZipFile(small, "w") as empty:
        empty.writestr("archive/data.pkl", data_pkl)
        empty.writestr("archive/version", "3")
        for name, begin in record_begins.items():
            if name.startswith("data/"):
                empty.writestr(f"archive/{name}", b"")
                begins[small.tell()] = begin  # where the bytes of an empty record would be
    small.seek(0)
    return torch.load(small, map_location="meta", weights_only=True), begins


def find_records(zipped: zipfile.ZipFile) -> dict[str, int] | None:
    """
    {name of a record: where its bytes begin}; None if the zip is laid out in another way than torch's.

    A record is a local header, its name, padding, the bytes, and a descriptor. The directory does not have the length
    of the padding, and to read every local header would take as many requests. So we count back from the next record.
    """
    infos = sorted(zipped.infolist(), key=lambda info: info.header_offset)
    next_headers = [info.header_offset for info in infos[1:]] + [zipped.start_dir]
    begins = {}
    for info, next_header in zip(infos, next_headers):
        n_descriptor = 24 if max(info.file_size, info.header_offset) >= 0xFFFFFFFF else 16  # bytes
        begin = next_header - n_descriptor - info.file_size
        aligned = begin % ALIGNMENT == 0 and begin > info.header_offset
        if info.file_size and (not aligned or info.compress_type != zipfile.ZIP_STORED):
            return None
        begins[info.filename.partition("/")[2]] = begin
    return begins


def state_dict(saved: dict, file: str) -> dict[str, torch.Tensor]:
    """The tensors by name, which may be inside of another dict. Sparse ones are left out."""
    for key in STATE_DICTS:
        if isinstance(saved.get(key), dict):
            saved = saved[key]
    tensors = {name: tensor for name, tensor in saved.items()
               if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided}
    found = ", ".join(map(str, saved)) or "nothing"
    require(tensors, f"{file} holds {found:.100}, and no weights by their names: save one state_dict() alone")
    return tensors
