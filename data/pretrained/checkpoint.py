"""
Reads chosen tensors of a checkpoint. A file tells where each of its tensors lies, so nothing else has to be read.

    with open_checkpoint("openai-community/gpt2") as checkpoint:  # of sources.py
        for weights in checkpoint.stream([["h.0.attn.c_attn.weight"], ["h.1.attn.c_attn.weight"]]):  # a dict per group

safetensors_header.py and torch_zip.py find out where the tensors lie.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from data.pretrained.contents import read_config, weight_files
from data.pretrained.files import DTYPES, Folder, TensorInfo, WeightFile, require
from data.pretrained.fp8 import BLOCK, SCALE_DTYPES, attach_scales, dequantise
from data.pretrained.safetensors_header import read_header
from data.pretrained.torch_zip import read_torch

N_READERS = 8  # ranges in flight
PIECE = 1 << 24  # bytes in a range at most, so that a big tensor is read by all readers, and a retry loses little
AHEAD = 1 << 27  # bytes that are read in advance (at least one group)
PLAIN_DTYPES = ("F64", "F32", "F16", "BF16")  # weights in these are read as they are; FP8 is scaled


class PendingTensor(NamedTuple):
    """A tensor that is being read. It has its values when the futures are done."""

    tensor: torch.Tensor
    futures: list[Future]
    scale: "PendingTensor | None"  # by which an FP8 tensor has to be multiplied


class Checkpoint(AbstractContextManager):
    """
    An open checkpoint in a local folder or in a repository of the Hub.

    source: its name, as the user wrote it
    revision: the commit that is read; None if it is local
    config: its config.json, or what nanoGPT and nanochat have instead
    tensors: name -> TensorInfo
    n_params: the number of elements of the floating-point tensors
    size, bytes_read: bytes of all weight files, and how many of them were read so far
    note: what the user should know, or ""
    """

    def __init__(self, source: str, folder: Folder, only: str = ""):
        """only: read this one file and ignore the others."""
        self.source, self.revision = source, folder.revision
        self._folder = folder
        self._pool = ThreadPoolExecutor(N_READERS)
        try:
            self._open(only)
        except BaseException:
            self.__exit__()
            raise
        self.n_params = count_params(self.tensors.values())

    def _open(self, only: str):
        if only:
            files, index = [only], None
        else:
            files, index = weight_files(self._folder)
        config = read_config(self._folder, files[0])
        found = dict(zip(files, self._pool.map(self._read_weight_file, files)))  # file -> WeightFile
        if config is None:
            model_args = found[files[0]].model_args
            require(model_args is not None, "no config.json, which tells the layout of the weights: put it beside them")
            config = {**model_args, "model_type": "nanogpt"}
        self.config = config
        self.size = sum(file.size for file in found.values())
        if index is None:
            tensors = found[files[0]].tensors
        else:
            tensors = {}
            for name, file in index.items():
                require(name in found[file].tensors, f"{file} lacks {name!r:.60}, which the index names: get both")
                tensors[name] = found[file].tensors[name]
        self.tensors = attach_scales(tensors)

    def _read_weight_file(self, file: str) -> WeightFile:
        if file.endswith(".safetensors"):
            return read_header(self._folder, file)
        return read_torch(self._folder, file)

    def __exit__(self, *_):
        self._folder.close()
        self._pool.shutdown(cancel_futures=True)

    @property
    def note(self) -> str:
        return ", ".join(self._folder.notes)

    @property
    def bytes_read(self) -> int:
        return sum(self._folder.bytes_read_of.values())

    def stream(self, groups: Sequence[Sequence[str]], zeros: bool = False) -> Iterator[dict[str, torch.Tensor]]:
        """
        Yield the tensors of each group as {name: tensor}, in their own dtype (FP8 becomes float32). Threads read the
        next groups meanwhile.

        A tensor with NaN or infinity is refused. So is a tensor of zeros, which has no score, unless `zeros` allows it.
        """
        sizes = []  # bytes of each group
        for group in groups:
            for name in group:
                self._check_readable(name)
            sizes.append(sum(self.tensors[name].n_bytes for name in group))
        queue = deque()  # {name: PendingTensor} for each group that is being read
        begun = 0  # the number of groups whose reading has begun
        for i in range(len(groups)):
            # Begin group i and the next one, and more groups as long as all of them together have at most AHEAD bytes.
            while begun < len(groups) and (begun < i + 2 or sum(sizes[i : begun + 1]) <= AHEAD):
                queue.append({name: self._start(self.tensors[name]) for name in groups[begun]})
                begun += 1
            group = {}
            for name, pending in queue.popleft().items():
                group[name] = self._finish(name, pending)
                self._check_values(name, group[name], zeros)
            yield group

    def _check_readable(self, name: str):
        require(name in self.tensors, f"no tensor {name!r}")
        info = self.tensors[name]
        if info.scale is None:
            require(info.dtype in PLAIN_DTYPES, f"{name!r} is {info.dtype}, use a checkpoint in "
                    f"{', '.join(PLAIN_DTYPES)}, or F8_E4M3 with a scale")
        else:
            require(info.scale.dtype in SCALE_DTYPES, f"the scale of {name!r} is {info.scale.dtype}, "
                    f"expected one of {', '.join(SCALE_DTYPES)}")

    def _start(self, info: TensorInfo) -> PendingTensor:
        scale = None if info.scale is None else self._start(info.scale)
        if info.loaded is not None:
            return PendingTensor(info.loaded, [], scale)
        data = torch.empty(info.end - info.start, dtype=torch.uint8)
        view = memoryview(data.numpy())
        futures = []
        for first in range(0, len(view), PIECE):
            piece = view[first : first + PIECE]
            futures.append(self._pool.submit(self._folder.read_exactly, info.file, info.start + first, piece))
        tensor = data.view(DTYPES[info.dtype])
        if info.stride is None:
            tensor = tensor.reshape(info.shape)
        else:  # transposed, or some columns of a wider tensor
            tensor = tensor.as_strided(info.shape, info.stride)
        return PendingTensor(tensor, futures, scale)

    def _finish(self, name: str, pending: PendingTensor) -> torch.Tensor:
        for future in pending.futures:
            future.result()  # waits, and raises what went wrong in the thread
        if pending.scale is None:
            return pending.tensor
        scale = self._finish(name, pending.scale)
        return dequantise(pending.tensor, scale, self._fp8_block(), name)

    def _fp8_block(self) -> list[int]:
        """The size (rows, columns) of the blocks of an FP8 weight that share one scale."""
        how = self.config.get("quantization_config")
        block = how.get("weight_block_size") if isinstance(how, dict) else None
        if block is None:
            return BLOCK
        require(isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block),
                f"weight_block_size is {block!r:.60} in config.json, expected two numbers")
        return block

    def _check_values(self, name: str, tensor: torch.Tensor, zeros: bool):
        if not tensor.numel():
            return
        low, high = [x.item() for x in tensor.aminmax()]  # NaN if there is any
        require(math.isfinite(low) and math.isfinite(high), f"{name!r} holds NaN or infinity")
        require(zeros or low != 0 or high != 0, f"{name!r} is all zeros and has no score")


def count_params(tensors) -> int:
    """The number of elements of the floating-point tensors. Tied weights, the same bytes of a .bin, count once."""
    size_at = {}  # place -> elements
    for info in tensors:
        if info.dtype.startswith(("F", "BF")):
            size_at[info.file, info.start, info.end] = math.prod(info.shape)
    return sum(size_at.values())
