"""A pytorch_model.bin, opened by torch's restricted unpickler: it refuses whatever would run code."""

import pickle
import re
import struct

import torch

from data.pretrained.files import DTYPES, CheckpointError, Folder, TensorInfo

# What a damaged file makes of torch's unpickler, which checks little.
DAMAGE = (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError,
          AssertionError, ArithmeticError, MemoryError, struct.error)


def load_whole(folder: Folder, file: str) -> tuple[int, dict[str, TensorInfo]]:
    """-> the size of the file, its tensors by name, each of them loaded."""
    path, tensors = folder.fetch(file), {}
    try:
        with open(path, "rb") as f:
            zipped = f.read(4) == b"PK\3\4"  # files older than torch 1.6 are not, and cannot be mapped
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        for name, tensor in state.items():
            if isinstance(tensor, torch.Tensor) and tensor.nbytes <= tensor.untyped_storage().nbytes():
                start = tensor.data_ptr()
                tensors[name] = TensorInfo(file, dtype_name(tensor.dtype), tuple(tensor.shape), start,
                                           start + tensor.nbytes, tensor.detach())
    except DAMAGE as e:
        code = re.search(r"GLOBAL (\S+)", str(e))
        why = f"is refused: unpickling it would run {code[1]}" if code else "is damaged, or no PyTorch state dict"
        raise CheckpointError(f"{path} {why}; look for a safetensors version") from e
    size = path.stat().st_size
    folder.count(size)
    return size, tensors


def dtype_name(dtype: torch.dtype) -> str:
    """As safetensors writes it: torch.bfloat16 is BF16."""
    for name, known in DTYPES.items():
        if dtype == known:
            return name
    return str(dtype).removeprefix("torch.").upper()
