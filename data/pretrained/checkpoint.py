"""
Reads chosen tensors of a checkpoint, and nothing else of it.

    checkpoint = open_checkpoint("openai-community/gpt2")  # of sources.py
    for weights in checkpoint.stream([["h.0.attn.c_attn.weight"], ["h.1.attn.c_attn.weight"]]):  # a dict per group

Weights in eight bits (F8_E4M3) lie beside their scales: weight = scale * stored number. Of NAME.weight the scale is
NAME.weight_scale_inv (DeepSeek V3, Qwen3-FP8, MiniMax-M2, Devstral-Small-2; "inv", but it multiplies, says DeepSeek),
or NAME.weight_scale (compressed-tensors).
"""

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import NamedTuple

import torch
from tqdm import tqdm

from .files import Folder, only_checkpoint_errors, pick, read_config, require
from .formats import DTYPES, TensorInfo, dtype_of, read_safetensors, read_torch

# Threads of multiprocessing, because those of concurrent.futures are waited for at the end of the program: on a slow
# connection Ctrl-C would take its time-out.
N_READERS = 8
AHEAD = 3  # groups that are read in advance
PLAIN_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SCALE_SUFFIXES = ("weight_scale_inv", "weight_scale")
FP8_BLOCK = [128, 128]  # rows and columns that share a scale, if config.json has no weight_block_size
# Parts of names that are added by torch.compile, FSDP, DDP and checkpointing of activations.
WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")


class Checkpoint(NamedTuple):
    """An open checkpoint in a folder, in a repository of the Hub, or in memory."""

    config: dict  # its config.json, or what a training script has in its place (files.py)
    tensors: dict[str, TensorInfo]  # by their names in a plain model
    n_params: int  # the number of elements of the floating-point tensors
    folder: Folder | None = None  # None: it is in memory
    size: int = 0  # bytes of all files of weights

    @property
    def notes(self) -> list[str]:
        """What the user should know: how much was read so far, and the note of the folder."""
        if self.folder is None:
            return ["in memory"]
        n_read = sum(self.folder.lengths)
        read = "all" if n_read >= self.size else tqdm.format_sizeof(n_read, "B")
        notes = [f"read {read} of {tqdm.format_sizeof(self.size, 'B')}"]
        if self.folder.note:
            notes.append(self.folder.note)
        return notes

    def stream(self, groups: Sequence[Sequence[str]]) -> Iterator[dict[str, torch.Tensor]]:
        """Yields the tensors of each group, {name: tensor}, while threads read the next. Raises CheckpointError."""
        if self.folder is None:  # one after the other, because processes that share a tensor have to gather it together
            for group in groups:
                yield finite({name: self.read(name) for name in group})
            return
        ahead = deque()  # the groups that are being read
        with ThreadPool(N_READERS) as pool:
            for group in groups:
                ahead.append({name: pool.apply_async(self.read, [name]) for name in group})
                if len(ahead) > AHEAD:
                    yield finite({name: result.get() for name, result in ahead.popleft().items()})
            while ahead:
                yield finite({name: result.get() for name, result in ahead.popleft().items()})

    @only_checkpoint_errors("its file of weights")
    def read(self, name: str) -> torch.Tensor:
        """Returns a tensor in its own dtype. Raises CheckpointError if it is of integers."""
        info = self.tensors[name]
        require(info.dtype in PLAIN_DTYPES, f"{name!r} is {info.dtype}, use a checkpoint in F64, F32, F16, BF16, or "
                "F8_E4M3 with a scale")
        return info.read()


@only_checkpoint_errors("its file of weights")
def finite(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns tensors by their names. Raises CheckpointError if one of them holds NaN or infinity."""
    # Not in the threads that read: torch would use more threads in each of them, and hold up the scores.
    for name, tensor in tensors.items():
        ends = torch.stack(tensor.aminmax())  # NaN if there is any
        require(ends.isfinite().all(), f"{name!r} holds NaN or infinity")
    return tensors


def read_files(folder: Folder, files: list[str], index: Mapping[str, str]) -> Checkpoint:
    """Returns the Checkpoint in these files, pieces if they are several. index: {tensor: its file}, if known."""
    read_file = read_safetensors if files[0].endswith(".safetensors") else read_torch
    with ThreadPool(N_READERS) as pool:
        found = pool.map(partial(read_file, folder), files)
    tensors_of_files, saved = zip(*found)
    tensors = {}
    for file, tensors_of_file in zip(files, tensors_of_files):
        for name, info in tensors_of_file.items():
            if index.get(name, file) == file:  # else it is an old copy
                require(name not in tensors, f"{name} is in {file} and in another file: remove one of them")
                tensors[name] = info
    missing = [name for name in index if name not in tensors]
    require(not missing, f"{', '.join(missing):.100} is not in the file that the index names: get both again")

    config = read_config(folder, files[0], saved[0])
    tensors = with_scales(without_wrappers(tensors), config)
    # Tied weights, which are the same bytes, count once.
    sizes = {info.storage: math.prod(info.shape) for info in tensors.values() if info.dtype in DTYPES.values()}
    n_bytes = sum(folder.size(file) for file in files)
    return Checkpoint(config, tensors, sum(sizes.values()), folder, n_bytes)


def without_wrappers(tensors: Mapping) -> dict:
    """Returns the tensors by their names in a plain model, without the _extra_state of TransformerEngine."""
    plain = {}
    for name, tensor in tensors.items():
        if not name.endswith("_extra_state"):
            its_name = WRAPPERS.sub("", name)
            require(its_name not in plain, f"{name} and another tensor are both called {its_name} in the plain model: "
                                           "save one of them alone")
            plain[its_name] = tensor
    return plain


def read_module(module: torch.nn.Module) -> Checkpoint:
    """Returns the Checkpoint of a model in memory, whose tensors are there already."""
    while not hasattr(module, "config") and isinstance(getattr(module, "module", None), torch.nn.Module):
        module = module.module  # DDP
    config = getattr(module, "config", None)
    config = config.to_dict() if hasattr(config, "to_dict") else {}
    # Weights that are tied have all of their names, as in a state_dict.
    weights = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    tensors = {}
    for name, weight in without_wrappers(weights).items():
        require(not torch.nn.parameter.is_lazy(weight), f"{name} is not made yet: run the model once")
        tensors[name] = TensorInfo(tuple(weight.shape), dtype_of(weight), (), partial(whole, weight))
    n_params = sum(weight.numel() for weight in module.parameters())
    return Checkpoint(config, tensors, n_params)


def whole(weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight, from all processes if FSDP2 has spread it over several."""
    require(not weight.is_meta, "its weights are on the meta device: load them into memory first")
    weight = weight.detach()
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


# ---- eight bits --------------------------------------------------------------------------------------------------


def with_scales(tensors: Mapping[str, TensorInfo], config: dict) -> dict[str, TensorInfo]:
    """Returns the tensors without the scales of FP8, and with the weights that have a scale as float32."""
    block = pick(pick(config, dict, "quantization_config", default={}), list, "weight_block_size", default=FP8_BLOCK)
    scaled = dict(tensors)
    for name, info in tensors.items():
        if info.dtype == torch.float8_e4m3fn and name.endswith(".weight"):
            for suffix in SCALE_SUFFIXES:
                scale = scaled.pop(name.removesuffix("weight") + suffix, None)
                if scale:
                    read = partial(dequantise, name, info, scale, block)
                    scaled[name] = info._replace(dtype=torch.float32, read=read)
    return scaled


def dequantise(name: str, info: TensorInfo, scale: TensorInfo, block: list[int]) -> torch.Tensor:
    """
    Returns a weight (m, n) in float32. Raises CheckpointError if the scale does not fit.

    scale: one number; or (m,) or (m, 1), a number for each row; or a number for each block (rows, columns) of the
    weight. The last block in a row or column may be smaller.
    """
    require(scale.dtype in DTYPES.values(), f"{name!r} has a scale of {scale.dtype}, expected floats")
    weight, factors = info.read().float(), scale.read().float()
    m, n = weight.shape
    rows, columns = block
    if factors.numel() == 1 or factors.shape in ((m,), (m, 1)):
        return weight * factors.reshape(-1, 1)
    require(factors.shape == (math.ceil(m / rows), math.ceil(n / columns)),
            f"{name!r} {info.shape} has a scale of shape {scale.shape}, expected one number, one a row, or one a block "
            f"of {rows} x {columns}")
    factors = factors.repeat_interleave(rows, 0).repeat_interleave(columns, 1)  # (m, n), or larger
    return weight * factors[:m, :n]


def __getattr__(name):  # until this file is the one reader
    from . import files, sources

    return getattr(files if name == "CheckpointError" else sources, name)
