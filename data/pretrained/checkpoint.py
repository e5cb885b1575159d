"""
Chosen tensors of a checkpoint and nothing else: a file tells where each of its tensors lies, and their bytes are read.

    with open_checkpoint("openai-community/gpt2") as checkpoint:  # of sources.py
        for weights in checkpoint.stream([["h.0.attn.c_attn.weight"], ["h.1.attn.c_attn.weight"]]):  # a dict per group

A pytorch_model.bin tells so only inside a pickle: it is opened whole.
"""

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import torch

from data.pretrained.files import DTYPES, CheckpointError, Folder, read_json, require
from data.pretrained.safetensors_header import read_header
from data.pretrained.torch_zip import load_whole

N_READERS = 8  # ranges in flight
PIECE = 1 << 24  # bytes of a range at most: one big tensor keeps every reader busy, and a retry loses little
AHEAD = 1 << 27  # bytes read ahead of the arithmetic (one group at least)


class Checkpoint(AbstractContextManager):
    """
    An open checkpoint in a folder, or in what looks like one: a repository of the Hub.

    config: its config.json. tensors: a TensorInfo by name. n_params: elements of the floating-point tensors. size:
    bytes of the weight files. source, revision, note and bytes_read are those of the folder.
    """

    def __init__(self, folder: Folder, only: str = ""):
        """only: the one file to read, whatever else the folder holds."""
        self.source, self.revision = folder.source, folder.revision
        self._folder = folder
        self._pool = ThreadPoolExecutor(N_READERS)
        try:
            require("config.json" in folder.names,
                    f"{self.source} has no config.json, the layout of its weights: put it there")
            self.config = read_json(folder.fetch("config.json"))
            self.size, self.tensors = self._find_tensors(only)
        except BaseException:
            self.__exit__()
            raise
        self.n_params = count_params(self.tensors.values())

    def __exit__(self, *_):
        self._folder.close()
        self._pool.shutdown(cancel_futures=True)

    @property
    def note(self) -> str:
        return self._folder.note

    @property
    def bytes_read(self) -> int:
        return self._folder.bytes_read

    def _find_tensors(self, only: str):
        """-> bytes of the weight files, {name: TensorInfo}."""
        files, index = ([only], None) if only else find_weight_files(self._folder)
        tables = dict(zip(files, self._pool.map(self._read_table, files)))  # {file: (its size, its tensors)}
        size = sum(file_size for file_size, _ in tables.values())
        if index is None:
            return size, tables[files[0]][1]
        tensors = {}
        for name, file in index.items():
            _, found = tables[file]
            require(name in found, f"{self.source}/{file} lacks {name!r:.60}, which the index names: get both")
            tensors[name] = found[name]
        return size, tensors

    def _read_table(self, file: str):
        if file.endswith(".bin"):
            return load_whole(self._folder, file)
        return read_header(self._folder, file)

    def stream(self, groups: Sequence[Sequence[str]], zeros: bool = False) -> Iterator[dict[str, torch.Tensor]]:
        """
        The tensors of each group, in order and in their own dtype, while the next groups are being read. One that holds
        NaN or infinity is refused; so is one of zeros alone, which has no score, unless `zeros` (biases may be such).
        """
        sizes = []  # bytes of each group
        for group in groups:
            for name in group:
                self._check_readable(name)
            sizes.append(sum(self.tensors[name].end - self.tensors[name].start for name in group))
        reading = deque()  # {name: (tensor, what fills it)} of each group that is under way
        begun = 0  # groups whose reading has begun
        for i in range(len(groups)):
            while begun < len(groups) and (begun < i + 2 or sum(sizes[i : begun + 1]) <= AHEAD):
                reading.append({name: self._start(name) for name in groups[begun]})
                begun += 1
            group = {}
            for name, (tensor, futures) in reading.popleft().items():
                for future in futures:
                    future.result()  # waits, and raises what went wrong in the thread
                self._check_values(name, tensor, zeros)
                group[name] = tensor
            yield group

    def _check_readable(self, name: str):
        require(name in self.tensors, f"{self.source} has no tensor {name!r}")
        dtype = self.tensors[name].dtype
        require(dtype in DTYPES, f"{self.source}: {name!r} is {dtype}, use a checkpoint in {', '.join(DTYPES)}")

    def _start(self, name: str) -> tuple[torch.Tensor, list[Future]]:
        """-> a tensor without its values yet, and the reading of its pieces, after which it has them."""
        info = self.tensors[name]
        if info.loaded is not None:
            return info.loaded, []
        data = torch.empty(info.end - info.start, dtype=torch.uint8)
        view = memoryview(data.numpy())
        futures = []
        for first in range(0, len(view), PIECE):
            piece = view[first : first + PIECE]
            futures.append(self._pool.submit(self._folder.read_exactly, info.file, info.start + first, piece))
        return data.view(DTYPES[info.dtype]).reshape(info.shape), futures

    def _check_values(self, name: str, tensor: torch.Tensor, zeros: bool):
        if not tensor.numel():
            return
        low, high = map(float, tensor.aminmax())  # one pass, and NaN wins
        require(math.isfinite(low) and math.isfinite(high), f"{self.source}: {name!r} holds NaN or infinity")
        require(zeros or low != 0 or high != 0, f"{self.source}: {name!r} is all zeros and has no score")


def find_weight_files(folder: Folder) -> tuple[list[str], dict[str, str] | None]:
    """The weight files of a folder, and the index (tensor -> file) if they are shards of one checkpoint."""
    wanted = ["model.safetensors", "model.safetensors.index.json"]
    lone = [n for n in folder.names if n.endswith(".safetensors") and "/" not in n and not n.startswith("adapter_")]
    if len(lone) == 1:  # under a name of its own
        wanted += lone
    wanted += ["pytorch_model.bin", "pytorch_model.bin.index.json"]
    name = next((n for n in wanted if n in folder.names), None)
    if name is None:
        weights = [n for n in folder.names if re.search(r"\.(safetensors|bin|gguf|h5|msgpack|onnx|ckpt|pth?|npz)\b", n)]
        where = f"{folder.source} ({folder.note})" if folder.note else folder.source
        raise CheckpointError(f"{where} has no model.safetensors or pytorch_model.bin (found "
                              f"{', '.join(weights[:5]) or 'no'} weights): convert it with save_pretrained, or give the "
                              "path of one file")
    if not name.endswith(".json"):
        return [name], None
    index = read_json(folder.fetch(name)).get("weight_map")
    require(isinstance(index, dict) and index and all(isinstance(file, str) for file in index.values()),
            f"{folder.source}: {name} has no weight_map, get it again")
    files = sorted(set(index.values()))
    missing = [file for file in files if file not in folder.names]
    require(not missing, f"{folder.source} lacks {', '.join(missing):.100}, which {name} names: get it again")
    return files, index


def count_params(tensors) -> int:
    """Elements of the floating-point tensors; tied weights, which are the same bytes of a .bin, count once."""
    floats = [t for t in tensors if t.dtype.startswith(("F", "BF"))]
    placed = {(t.file, t.start, t.end): math.prod(t.shape) for t in floats}
    return sum(placed.values())
