"""
Reads chosen tensors of a checkpoint, and nothing else of it.

    with open_checkpoint("openai-community/gpt2") as checkpoint:  # of sources.py
        for weights in checkpoint.stream([["h.0.attn.c_attn.weight"], ["h.1.attn.c_attn.weight"]]):  # a dict per group

Weights in eight bits (F8_E4M3) lie beside their scales: weight = scale * stored number. Of NAME.weight the scale is
NAME.weight_scale_inv (DeepSeek V3, Qwen3-FP8, MiniMax-M2, Devstral-Small-2; "inv", but it multiplies, says DeepSeek),
or NAME.weight_scale (compressed-tensors).
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from multiprocessing.pool import ThreadPool

import torch
from tqdm import tqdm

from data.pretrained.files import Folder, only_checkpoint_errors, read_config, require
from data.pretrained.formats import (DTYPES, N_READERS, TensorInfo, name_of, read_safetensors, read_torch,
                                     without_wrappers)

AHEAD = 3  # groups that are read in advance
PLAIN_DTYPES = ("F64", "F32", "F16", "BF16")  # weights in these are read as they are; FP8 is scaled
SCALE_SUFFIXES = ("weight_scale_inv", "weight_scale")
FP8_BLOCK = [128, 128]  # rows and columns that share a scale, if config.json has no weight_block_size


class Checkpoint(AbstractContextManager):
    """
    An open checkpoint in a local folder or in a repository of the Hub.

    revision: the commit that is read; None if it is local
    config: its config.json, or what a training script has in its place (files.py)
    tensors: name -> TensorInfo
    n_params: the number of elements of the floating-point tensors
    size, bytes_read: bytes of all weight files, and how many of them were read so far
    notes: how much was read so far, and what else the user should know
    """

    def __init__(self, folder: Folder, files: list[str], index: Mapping[str, str]):
        """files: those of the weights, several if they are shards. index: in which of them a tensor is, if known."""
        self.revision = folder.revision
        self._folder = folder
        read_file = read_safetensors if files[0].endswith(".safetensors") else read_torch
        with ThreadPool(N_READERS) as pool:
            found = pool.starmap(read_file, [(folder, file) for file in files])
        self.config = read_config(folder, files[0], found[0].saved)
        self.size = sum(file.size for file in found)
        tensors = {}
        for file in found:
            for name, info in file.tensors.items():
                if index.get(name, info.file) == info.file:  # else it is an old copy
                    require(name not in tensors, f"{name} is in {info.file} and in another file: remove one of them")
                    tensors[name] = info
        missing = [name for name in index if name not in tensors]
        require(not missing, f"{', '.join(missing):.100} is not in the file that the index names: get both again")
        self.tensors = attach_scales(without_wrappers(tensors))
        # Tied weights, the same bytes of a .bin, count once.
        n_params_at = {(info.file, info.start, info.end): math.prod(info.shape)
                       for info in self.tensors.values() if info.dtype.startswith(("F", "BF"))}
        self.n_params = sum(n_params_at.values())

    def __exit__(self, *_):
        self._folder.closed.set()  # or the threads would go on to the end of a large tensor

    @property
    def notes(self) -> list[str]:
        n_bytes = "all" if self.bytes_read >= self.size else tqdm.format_sizeof(self.bytes_read, "B")
        return [f"read {n_bytes} of {tqdm.format_sizeof(self.size, 'B')}", *self._folder.notes]

    @property
    def bytes_read(self) -> int:
        return sum(self._folder.lengths)

    def stream(self, groups: Sequence[Sequence[str]]) -> Iterator[dict[str, torch.Tensor]]:
        """
        Yield the tensors of each group as {name: tensor}, in their own dtype (FP8 becomes float32). Threads read the
        next groups meanwhile.

        A tensor with NaN or infinity is refused.
        """
        with ThreadPool(N_READERS) as pool:
            # A group is started when it is asked for.
            started = ({name: pool.apply_async(self._read, [name]) for name in group} for group in groups)
            ahead = deque(islice(started, AHEAD))
            while ahead:
                ahead.extend(islice(started, 1))  # is read while the oldest group is used
                yield {name: result.get() for name, result in ahead.popleft().items()}

    @only_checkpoint_errors("its file of weights")
    def _read(self, name: str) -> torch.Tensor:
        info = self.tensors[name]
        require(info.dtype in PLAIN_DTYPES or info.scale, f"{name!r} is {info.dtype}, use a checkpoint in "
                f"{', '.join(PLAIN_DTYPES)}, or F8_E4M3 with a scale")
        tensor = self._read_stored(info)
        if info.scale:
            require(info.scale.dtype in DTYPES, f"{name!r} has a scale of {info.scale.dtype}, expected floats")
            how = self.config.get("quantization_config") or {}
            block = how.get("weight_block_size") or FP8_BLOCK
            tensor = dequantise(tensor, self._read_stored(info.scale), block, name)
        if tensor.numel():
            ends = torch.stack(tensor.aminmax())  # NaN if there is any
            require(ends.isfinite().all(), f"{name!r} holds NaN or infinity")
        return tensor

    def _read_stored(self, info: TensorInfo) -> torch.Tensor:
        if info.loaded is not None:
            return info.loaded
        data = torch.empty(info.end - info.start, dtype=torch.uint8)
        self._folder.read_exactly(info.file, info.start, memoryview(data.numpy()))
        tensor = data.view(DTYPES[info.dtype])
        if info.stride is None:
            return tensor.reshape(info.shape)
        return tensor.as_strided(info.shape, info.stride)  # transposed, or some columns of a wider tensor


class ModuleInMemory(Checkpoint):
    """A model in memory, whose tensors are there already."""

    notes = ["in memory"]

    def __init__(self, module: torch.nn.Module):
        while not hasattr(module, "config") and isinstance(getattr(module, "module", None), torch.nn.Module):
            module = module.module  # DDP
        config = getattr(module, "config", None)
        self.config = config.to_dict() if hasattr(config, "to_dict") else {}
        state = without_wrappers(module.state_dict())
        once = without_wrappers(dict([*module.named_parameters(), *module.named_buffers()]))  # each tied weight
        self.tensors = {}
        for name in [name for name in state if name in once]:
            weight = state[name]
            require(not weight.is_meta, "its weights are on the meta device")
            self.tensors[name] = TensorInfo("", name_of(weight.dtype), tuple(weight.shape), 0, 0, loaded=weight)
        self.n_params = sum(weight.numel() for weight in module.parameters())

    def stream(self, groups: Sequence[Sequence[str]]) -> Iterator[dict[str, torch.Tensor]]:
        """The same, one tensor after the other, because processes that share one have to gather it together."""
        for group in groups:
            yield {name: self._read(name) for name in group}

    def _read_stored(self, info: TensorInfo) -> torch.Tensor:
        weight = info.loaded.detach()
        return weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # sharded by FSDP2

    def __exit__(self, *_):
        pass


# ---- eight bits --------------------------------------------------------------------------------------------------


def attach_scales(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The same tensors, but every scale is now the `scale` of its weight, and no tensor of its own."""
    attached = dict(tensors)
    for name, info in tensors.items():
        if info.dtype == "F8_E4M3" and name.endswith(".weight"):
            for suffix in SCALE_SUFFIXES:
                scale = name.removesuffix("weight") + suffix
                if scale in attached:
                    attached[name] = info._replace(scale=attached.pop(scale))
    return attached


def dequantise(weight: torch.Tensor, scale: torch.Tensor, block: list[int], name: str) -> torch.Tensor:
    """
    weight (m, n) -> float32 (m, n). scale: one number; or (m,) or (m, 1), a number for each row; or a number for each
    block (rows, columns) of the weight. The last block in a row or column may be smaller.
    """
    weight, scale = weight.float(), scale.float()
    if scale.numel() == 1:
        return weight * scale.reshape(())
    require(weight.ndim == 2, f"{name!r} {tuple(weight.shape)} is in FP8 and no matrix")
    m, n = weight.shape
    rows, columns = block
    if scale.shape in ((m,), (m, 1)):
        return weight * scale.reshape(m, 1)
    require(scale.shape == (math.ceil(m / rows), math.ceil(n / columns)),
            f"{name!r} {tuple(weight.shape)} has a scale of shape {tuple(scale.shape)}, expected one number, "
            f"one a row, or one a block of {rows} x {columns}")
    scale = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)  # (m, n), or larger
    return weight * scale[:m, :n]
