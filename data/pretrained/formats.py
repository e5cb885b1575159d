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
from collections.abc import Mapping
from multiprocessing.pool import ThreadPool
from typing import NamedTuple

import torch
from fsspec.spec import AbstractBufferedFile

from data.pretrained.files import CheckpointError, Folder, only_checkpoint_errors, require

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEAD = 1 << 15  # bytes of the first read of a safetensors file; most headers are shorter
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
BLOCK = 1 << 14  # bytes in a block of a zip
# The headers of an older zip are read at the same time, in threads of multiprocessing: those of concurrent.futures are
# waited for at the end of the program, so that on a slow connection Ctrl-C would take its time-out.
N_READERS = 8
# Under which training scripts save the weights.
STATE_DICTS = ("state_dict", "model", "model_state_dict", "net", "module")

# Parts of names that torch.compile, FSDP, DDP and checkpointing of activations add.
WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")

# The options of MAE, DeiT and DINO lie beside their weights; TransformerEngine's _extra_state is made of bytes.
torch.serialization.add_safe_globals([argparse.Namespace, io.BytesIO])


class TensorInfo(NamedTuple):
    """Where a tensor lies: in the bytes [start, end) of `file`, or of memory if the whole file has been read."""

    file: str
    dtype: str  # as safetensors writes it: F32, BF16, ...
    shape: tuple[int, ...]
    start: int
    end: int
    stride: tuple[int, ...] | None = None  # in elements; None: contiguous
    loaded: torch.Tensor | None = None  # the tensor itself, if the whole file has been read
    scale: "TensorInfo | None" = None  # by which an F8_E4M3 tensor has to be multiplied


class WeightFile(NamedTuple):
    """What one file of weights holds."""

    size: int  # bytes of the file
    tensors: dict[str, TensorInfo]
    saved: dict  # all that torch.save has put into it; {} if it is of safetensors


def name_of(dtype: torch.dtype) -> str:
    return NAMES.get(dtype, str(dtype))


def without_wrappers(tensors: Mapping) -> dict:
    """The same tensors by their names in a plain model, without the _extra_state of TransformerEngine."""
    names = {name: WRAPPERS.sub("", name) for name in tensors if not name.endswith("_extra_state")}
    is_clear = len(set(names.values())) == len(names)
    return {plain if is_clear else name: tensors[name] for name, plain in names.items()}


# ---- safetensors -----------------------------------------------------------------------------------------------


def read_safetensors(folder: Folder, file: str) -> WeightFile:
    """CheckpointError if the file is damaged."""
    head, size = folder.read_head(file, HEAD)
    start = 8 + int.from_bytes(head[:8], "little")  # of the data
    require(9 < start <= min(size, MAX_HEADER), f"{file} is cut short or no safetensors: get it again")
    if start > HEAD:
        head, _ = folder.read_head(file, start)
    with only_checkpoint_errors(f"the header of {file}"):
        table = json.loads(head[8:start])
        table.pop("__metadata__", None)
        tensors = {name: read_entry(file, start, **entry) for name, entry in table.items()}
    # A file that was cut short still begins with its whole header.
    end = max((info.end for info in tensors.values()), default=start)
    require(end == size, f"{file} has {size} bytes, its header says {end}: cut short or damaged, get it again")
    return WeightFile(size, tensors, {})


def read_entry(file: str, start: int, dtype: str, shape: list, data_offsets: list) -> TensorInfo:
    """A tensor, from its words in the header. ValueError, TypeError: they make no sense."""
    first, last = data_offsets
    if not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
        raise ValueError(f"shape {shape}, offsets {data_offsets}")
    if dtype in DTYPES and last - first != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"{last - first} bytes for {shape} of {dtype}")
    return TensorInfo(file, str(dtype), tuple(shape), start + first, start + last)


# ---- torch.save --------------------------------------------------------------------------------------------------


class Ranges(AbstractBufferedFile):
    """A file of a Folder with seek and read, as zipfile and torch want it, in blocks that are kept."""

    def __init__(self, folder: Folder, file: str, size: int):
        self.folder = folder
        kept = dict(cache_type="blockcache", cache_options={"maxblocks": None})
        super().__init__(None, file, "rb", BLOCK, size=size, **kept)

    def _fetch_range(self, start, end):
        data = bytearray(min(end, self.size) - start)  # the last block may be shorter
        self.folder.read_exactly(self.path, start, memoryview(data))
        return bytes(data)

    def keep(self, number):
        """Read a block, if it has not been read."""
        self.cache._fetch(number * BLOCK, number * BLOCK + 1)


def read_torch(folder: Folder, file: str) -> WeightFile:
    """CheckpointError if the file is damaged, or would run code."""
    head, size = folder.read_head(file, 64)
    is_zip = head.startswith(b"PK\3\4")
    # A pickle begins with the number of its protocol.
    require(is_zip or head.startswith(b"\x80"), f"{file} is damaged, or no PyTorch state dict: get it again. (The .bin "
            "of llama2.c is its own: its export.py with --version -1 writes a folder of Hugging Face)")
    try:
        if is_zip:
            # Here, because it takes a second to import.
            from torch._subclasses.fake_tensor import FakeTensorMode

            ranges = Ranges(folder, file, size)
            begins = find_records(ranges)
            ranges.seek(0)
            with FakeTensorMode():  # tensors without values, whose storage has a place
                saved = torch.load(ranges, map_location="cpu", weights_only=True)
        else:
            begins = None
            saved = torch.load(folder.fetch(file), map_location="cpu", weights_only=True)
            folder.lengths.append(size)
        tensors = {}
        for name, tensor in state_dict(saved, file).items():
            tensors[name] = find_bytes(file, tensor, begins)
        return WeightFile(size, tensors, saved)
    except (CheckpointError, OSError):
        raise
    except Exception as e:  # zipfile and torch raise more than a dozen kinds, for damaged files and for forbidden ones
        code = re.search(r"GLOBAL (\S+)", str(e))
        why = f"is refused: unpickling it would run {code[1]:.80}" if code else "is damaged, or no PyTorch state dict"
        how = "look for a safetensors version, or save the state_dict() alone"
        if "torchao" in why:
            why, how = "holds quantised weights of torchao", "score the model that it was made from"
        raise CheckpointError(f"{file} {why}; {how}") from e


def find_records(ranges: Ranges) -> list[int]:
    """Where each record of a zip begins, its header and then its bytes; and where the last one ends."""
    with zipfile.ZipFile(ranges) as zipped:
        infos = zipped.infolist()
        end = zipped.start_dir
    require(not any(info.filename.endswith("/constants.pkl") for info in infos),
            f"{ranges.path} is of TorchScript: save torch.jit.load(FILE).state_dict() with torch.save")
    require(all(info.compress_type == zipfile.ZIP_STORED for info in infos),
            f"{ranges.path} is compressed: load it with torch, and save it again")
    begins = sorted(info.header_offset for info in infos)
    if not any(info.filename.endswith("/.format_version") for info in infos):
        # By an older torch. For these files torch reads the header of every record, one after the other.
        with ThreadPool(N_READERS) as pool:
            pool.map(ranges.keep, {begin // BLOCK for begin in begins})
    return [*begins, end]


def find_bytes(file: str, tensor: torch.Tensor, begins: list[int] | None) -> TensorInfo:
    """Where a tensor lies in the file, whose records begin there; or in memory, if it has been read whole."""
    storage = tensor.untyped_storage()
    begin = storage.data_ptr() if begins is None else storage._checkpoint_offset
    first = last = begin + tensor.itemsize * tensor.storage_offset()
    if tensor.numel():
        steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.stride())]  # to the last element
        last += tensor.itemsize * (1 + sum(steps))
    if begins is not None:
        next_record = begins[bisect.bisect_right(begins, begin)]
        require(begin + storage.nbytes() <= next_record,
                f"{file} is damaged (a tensor is larger than its bytes): get it again")
    dtype, shape = name_of(tensor.dtype), tuple(tensor.shape)
    loaded = tensor.detach() if begins is None else None
    return TensorInfo(file, dtype, shape, first, last, tensor.stride(), loaded)


def state_dict(saved: dict, file: str) -> dict[str, torch.Tensor]:
    """The tensors by name, which may be inside of another dict. Sparse ones are left out."""
    for key in STATE_DICTS:
        if isinstance(saved.get(key), dict):
            saved = saved[key]
    tensors = {name: tensor for name, tensor in saved.items()
               if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided}
    found = ", ".join(map(str, saved)) or "nothing"
    inside = "".join(f" Under {key} are {', '.join(map(str, value)):.60}." for key, value in saved.items()
                     if isinstance(value, dict) and value)
    require(tensors, f"{file} holds {found:.100}, and no weights by their names: save one state_dict() alone."
            f"{inside:.200}")
    return tensors
