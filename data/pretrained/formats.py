"""
Where each tensor lies in a file of weights, so that nothing else has to be read.

A file of safetensors (https://huggingface.co/docs/safetensors) is 8 bytes, the length of the header as a little-endian
number; the header, JSON: name -> dtype, shape, data_offsets; and the data, to which the offsets refer.

A file of torch.save, such as pytorch_model.bin, is a zip. Under FakeTensorMode torch.load reads its directory and its
pickle, and gives tensors without values whose storage says where its bytes begin. Files of before torch 1.6 are loaded
whole. In both cases torch's restricted unpickler refuses a pickle that would run code.
"""

import argparse
import bisect
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import NamedTuple

import torch
from fsspec.spec import AbstractBufferedFile

from data.pretrained.files import CheckpointError, Folder, only_checkpoint_errors, require

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn}
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
BLOCK = 1 << 14  # bytes in a block of a zip
# The headers of an older zip are read at the same time, in threads of multiprocessing: those of concurrent.futures are
# waited for at the end of the program, so that on a slow connection Ctrl-C would take its time-out.
N_READERS = 8
# The keys under which training scripts save the weights.
STATE_DICTS = ("state_dict", "model", "model_state_dict", "net", "module")

# Parts of names that are added by torch.compile, FSDP, DDP and checkpointing of activations.
WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")

# The options of MAE, DeiT and DINO lie beside their weights; TransformerEngine's _extra_state is made of bytes.
torch.serialization.add_safe_globals([argparse.Namespace, io.BytesIO])


class TensorInfo(NamedTuple):
    """A tensor of a checkpoint, which is read when it is needed."""

    shape: tuple[int, ...]
    dtype: torch.dtype | str  # a text of safetensors if it is not one of DTYPES
    place: tuple  # where it lies. Tied weights, which are the same bytes, have the same
    read: Callable[[], torch.Tensor]  # gives it as it is stored


def without_wrappers(tensors: Mapping) -> dict:
    """Returns the tensors by their names in a plain model, without the _extra_state of TransformerEngine."""
    return {WRAPPERS.sub("", name): tensor for name, tensor in tensors.items() if not name.endswith("_extra_state")}


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
        header = json.loads(folder.read(file, 8, n_bytes))
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            dtype = DTYPES.get(entry["dtype"], entry["dtype"])
            shape = tuple(entry["shape"])
            first, end = entry["data_offsets"]
            if dtype in DTYPES.values() and end - first != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{end - first} bytes for {shape} of {dtype}")
            place = (file, start + first, start + end)
            tensors[name] = TensorInfo(shape, dtype, place, partial(read_range, folder, *place, dtype, shape))
    # A file that was cut short still begins with its whole header.
    end = max((info.place[-1] for info in tensors.values()), default=start)
    require(end == size, f"{file} has {size} bytes, its header says {end}: cut short or damaged, get it again")
    return tensors, {}


# ---- torch.save --------------------------------------------------------------------------------------------------


class Ranges(AbstractBufferedFile):
    """A file of a Folder with seek and read, as zipfile and torch want it. The blocks that were read are kept."""

    def __init__(self, folder: Folder, file: str):
        self.folder = folder
        kept = dict(cache_type="blockcache", cache_options={"maxblocks": None})
        super().__init__(None, file, "rb", BLOCK, size=folder.size(file), **kept)

    def _fetch_range(self, start, end):
        return bytes(self.folder.read(self.path, start, min(end, self.size) - start))  # the last block may be shorter

    def keep(self, number):
        """Reads a block, if it has not been read."""
        self.cache._fetch(number * BLOCK, number * BLOCK + 1)


def read_torch(folder: Folder, file: str) -> tuple[dict[str, TensorInfo], dict]:
    """Returns the tensors of a file by name, and all that is in it. Raises CheckpointError if it would run code."""
    try:
        if folder.read(file, 0, 2) == b"PK":
            return read_zip(folder, file)
        saved = torch.load(folder.fetch(file), map_location="cpu", weights_only=True)
        folder.lengths.append(folder.size(file))
        tensors = {}
        for name, tensor in state_dict(saved, file).items():
            place = (file, tensor.data_ptr(), tensor.numel())
            tensors[name] = TensorInfo(tuple(tensor.shape), tensor.dtype, place, tensor.detach)
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
    from torch._subclasses.fake_tensor import FakeTensorMode  # here, because it takes a second to import

    ranges = Ranges(folder, file)
    records = find_records(ranges)
    ranges.seek(0)
    with FakeTensorMode():  # tensors without values, whose storage has a place
        saved = torch.load(ranges, map_location="cpu", weights_only=True)
    tensors = {}
    for name, tensor in state_dict(saved, file).items():
        storage = tensor.untyped_storage()
        begin = storage._checkpoint_offset  # in the file
        next_record = records[bisect.bisect_right(records, begin)]
        require(begin + storage.nbytes() <= next_record,
                f"{file} is damaged, or compressed (a tensor is larger than its bytes): get it again")
        to_last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))  # elements before the last
        first = begin + tensor.itemsize * tensor.storage_offset()
        place = (file, first, first + tensor.itemsize * (to_last + 1))
        shape = tuple(tensor.shape)
        read = partial(read_range, folder, *place, tensor.dtype, shape, tensor.stride())
        tensors[name] = TensorInfo(shape, tensor.dtype, place, read)
    return tensors, saved


def find_records(ranges: Ranges) -> list[int]:
    """Returns where each record of a zip begins, with its header, and where the last one ends."""
    with zipfile.ZipFile(ranges) as zipped:
        infos = zipped.infolist()
        end = zipped.start_dir
    require(not any(info.filename.endswith("/constants.pkl") for info in infos),
            f"{ranges.path} is of TorchScript: save torch.jit.load(FILE).state_dict() with torch.save")
    begins = sorted(info.header_offset for info in infos)
    if not any(info.filename.endswith("/.format_version") for info in infos):
        # An older torch wrote it. For such files torch reads the header of every record, one after the other.
        with ThreadPool(N_READERS) as pool:
            pool.map(ranges.keep, {begin // BLOCK for begin in begins})
    return [*begins, end]


def state_dict(saved: dict, file: str) -> dict[str, torch.Tensor]:
    """Returns the tensors by name, which may be inside of another dict. Sparse ones are left out."""
    for key in STATE_DICTS:
        if isinstance(saved.get(key), dict):
            saved = saved[key]
    tensors = {}
    found = []  # what else is there, in words
    for key, value in saved.items():
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            tensors[key] = value
        elif isinstance(value, dict):
            found.append(f"{key} ({', '.join(map(str, value)):.60})")
        else:
            found.append(str(key))
    require(tensors, f"{file} holds {', '.join(found) or 'nothing':.250}, and no weights by their names: save one "
            "state_dict() alone")
    return tensors
