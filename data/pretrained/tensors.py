"""
Where every tensor lies in a file of weights, so that nothing else has to be read.

A file of safetensors (https://huggingface.co/docs/safetensors) is 8 bytes, the length of the header as a little-endian
number; the header, JSON: name -> dtype, shape, data_offsets; and the data, to which the offsets refer.

A file of torch.save, such as pytorch_model.bin, is a zip. Under FakeTensorMode torch.load reads its directory and its
pickle, and gives tensors without values whose storage says where its bytes begin. Files of before torch 1.6, and
compressed zips, are loaded whole. In both cases torch's restricted unpickler refuses a pickle that would run code.
"""

import argparse
import bisect
import json
import math
import re
import zipfile
from dataclasses import dataclass
from typing import NamedTuple

import torch
from fsspec.spec import AbstractBufferedFile

from data.pretrained.files import CheckpointError, Folder, in_background, require

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn}  # for the last see checkpoint.py
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEAD = 1 << 15  # bytes of the first read of a safetensors file; most headers are shorter
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
BLOCK = 1 << 14  # bytes in a block of a zip
MAX_EXPANSION = 20  # times that a compressed file may grow: weights hardly shrink, and bombs grow a thousandfold
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
            dtype, shape = entry["dtype"], tuple(map(whole, entry["shape"]))
            first, last = map(whole, entry["data_offsets"])
            if dtype in DTYPES and last - first != math.prod(shape) * DTYPES[dtype].itemsize:
                raise ValueError(f"the bytes of {name!r:.60} do not fit its dtype and shape")
            tensors[name] = TensorInfo(file, str(dtype), shape, start + first, start + last)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise CheckpointError(f"{file} has a damaged header ({str(e):.150}): get it again") from e
    # A file that was cut short still begins with its whole header.
    end = max((info.end for info in tensors.values()), default=start)
    require(end == size, f"{file} has {size} bytes, its header says {end}: cut short or damaged, get it again")
    return WeightFile(size, tensors, {})


def whole(number) -> int:
    """A size or an offset of a header. ValueError: it is none."""
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r:.60} is no size or offset")
    return number


# ---- torch.save --------------------------------------------------------------------------------------------------


class Ranges(AbstractBufferedFile):
    """A file of a Folder with seek and read, as zipfile and torch want it, in blocks that are kept."""

    def __init__(self, folder: Folder, file: str, size: int):
        self.folder = folder
        super().__init__(None, file, "rb", BLOCK, cache_type="blockcache", cache_options={"maxblocks": None}, size=size)

    def _fetch_range(self, start, end):
        data = bytearray(min(end, self.size) - start)  # the last block may be shorter
        self.folder.read_exactly(self.path, start, memoryview(data))
        return bytes(data)

    def keep(self, number):
        """Read a block, if it has not been read."""
        self.cache._fetch(number * BLOCK, number * BLOCK + 1)


def read_torch(folder: Folder, file: str) -> WeightFile:
    head, size = folder.read_head(file, 64)
    is_zip = head.startswith(b"PK\3\4")
    # A pickle begins with the number of its protocol.
    require(is_zip or head.startswith(b"\x80"), f"{file} is damaged, or no PyTorch state dict: get it again. (The .bin "
            "of llama2.c is its own: its export.py with --version -1 writes a folder of Hugging Face)")
    try:
        records = read_directory(folder, file, size) if is_zip else None
        if records:
            saved = load_fake(records)
        else:
            saved = torch.load(folder.fetch(file), map_location="cpu", weights_only=True)
            folder.lengths.append(size)
        tensors = {}
        for name, tensor in state_dict(saved, file).items():
            tensors[name] = find_bytes(file, tensor, records)
        return WeightFile(size, tensors, saved)
    except (CheckpointError, OSError):
        raise
    except Exception as e:  # zipfile and torch raise more than a dozen kinds, for damaged files and for forbidden ones
        code = re.search(r"GLOBAL (\S+)", str(e))
        why = f"is refused: unpickling it would run {code[1]:.80}" if code else "is damaged, or no PyTorch state dict"
        raise CheckpointError(f"{file} {why}; look for a safetensors version, or save the state_dict() alone") from e


class Records(NamedTuple):
    """The records of a zip, in the order of the file."""

    file: Ranges
    begins: list[int]  # of each its header, then the bytes
    sizes: list[int]  # of the bytes
    ends: list[int]  # where the next one begins


def read_directory(folder: Folder, file: str, size: int) -> Records | None:
    """None if some records are compressed."""
    ranges = Ranges(folder, file, size)
    with zipfile.ZipFile(ranges) as zipped:
        infos = sorted(zipped.infolist(), key=lambda info: info.header_offset)
        end = zipped.start_dir
    sizes = [info.file_size for info in infos]
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        require(sum(sizes) < MAX_EXPANSION * size, f"{file} is compressed, and would grow from {size} to {sum(sizes)} "
                "bytes, as no weights do: get it again")
        return None
    begins = [info.header_offset for info in infos]
    if not any(info.filename.endswith("/.format_version") for info in infos):
        # By an older torch. For these files torch reads the header of every record, one after the other.
        headers = [in_background(ranges.keep, number) for number in {begin // BLOCK for begin in begins}]
        for header in headers:
            header.result()
    return Records(ranges, begins, sizes, [*begins[1:], end])


def load_fake(records: Records) -> dict:
    """What was saved. Its tensors have a dtype, a shape, strides, and a storage with a place, but no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # here, because it takes a second to import

    records.file.seek(0)
    with FakeTensorMode():
        return torch.load(records.file, map_location="cpu", weights_only=True)


def find_bytes(file: str, tensor: torch.Tensor, records: Records | None) -> TensorInfo:
    """Where the bytes of a tensor are: in the file, or in memory if this has been read whole."""
    dtype = NAMES.get(tensor.dtype, str(tensor.dtype))
    storage = tensor.untyped_storage()
    begin = storage._checkpoint_offset if records else storage.data_ptr()
    first = last = begin + tensor.itemsize * tensor.storage_offset()
    if tensor.numel():
        steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.stride())]  # to the last element
        last += tensor.itemsize * (1 + sum(steps))
    if records:
        inside = bisect.bisect_right(records.begins, begin) - 1  # the record that the storage is in
        size = records.sizes[inside]
        require(storage.nbytes() <= size and begin + size <= records.ends[inside],
                f"{file} is damaged (a tensor is larger than its bytes): get it again")
    loaded = None if records else tensor.detach()
    return TensorInfo(file, dtype, tuple(tensor.shape), first, last, tensor.stride(), loaded)


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
