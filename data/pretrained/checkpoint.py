"""
Reads chosen tensors of a checkpoint, and nothing else of it.

    checkpoint = open_checkpoint("gpt2")    # a name of models.csv, a Hub id, a folder, a file, or a torch.nn.Module
    for weights in checkpoint.stream([["h.0.attn.c_attn.weight"], ["h.1.attn.c_attn.weight"]]):  # a dict per group

From safetensors it reads the header, and then the bytes of each tensor, on the Hub by ranges over HTTP. A torch.save
file is mapped into memory, and the Hub sends it whole. A pickle that would run code is refused by torch.
"""

import argparse
import json
import math
import pickle
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, NamedTuple

import torch
from tqdm import tqdm

from . import CheckpointError, only_checkpoint_errors, require
from .folders import SUFFIXES, Folder, find_source, open_folder

# The first of these in a folder is read. train.py and nanoGPT write ckpt.pt; an export beside it may be older.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
           "ckpt.pt")
STATE_DICTS = "state_dict", "model", "model_state_dict", "net", "module"  # under which training scripts save weights
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# What torch.compile, FSDP, DDP and activation checkpointing add: module._orig_mod.h.0.q -> h.0.q. submodule.q stays.
WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")
# PIECE: names of files that each process writes for itself, such as rank_0. SHARD: 1-of-2, but not 1-of-1.
PIECE = re.compile(r"(?<![a-z])(consolidated|rank|shard|part|[tpm]p)[._-]?\d")
SHARD = re.compile(r"\d[-_]of[-_](?!0*1\b)\d")
ADAPTER = "an adapter, not a model: merge it with PEFT's merge_and_unload(), and save that elsewhere"
AHEAD = 3  # groups that are read in advance
torch.serialization.add_safe_globals([argparse.Namespace])  # MAE, DeiT and DINO save their arguments


def find_files(folder, name):
    """Returns the files of weights, and {tensor: its file} if there is an index. name: of a file, or "" to find it."""
    # 1) which file? the one that was asked for, or else the first of WEIGHTS
    is_adapter = name.startswith("adapter_") or (not name and "adapter_config.json" in folder.names)
    require(not is_adapter, ADAPTER)
    if not name:
        there = [known for known in WEIGHTS if known in folder.names]
        is_certain = "ckpt.pt" not in there or len(there) == 1
        require(is_certain, f"{' and '.join(there)} may be of two models: give the path of one file")
        name = there[0] if there else ""
    require(name.endswith(SUFFIXES), f"no {', '.join(WEIGHTS)} here, but {', '.join(folder.names):.150}: give the path "
            "of the file of the model, get the index.json of its pieces, or convert it with save_pretrained")

    # 2) is it an index, or listed in one? Then the model is all files of this index
    indexes = [file for file in [name, *folder.names] if file.endswith(".index.json")]
    for file in indexes:
        file_of = read_json(folder, file)["weight_map"]
        if name == file or name in file_of.values():
            return sorted(set(file_of.values())), file_of

    # 3) else it is the whole model, or a piece, by its name. With a config.json, wrong shapes are noticed later
    is_piece = PIECE.search(f"{folder.called}/{name}") and "config.json" not in folder.names
    require(not is_piece and not SHARD.search(name), f"{folder.called}/{name} is a piece by its name: give the folder "
            "of all, with its index.json; merge them with what wrote them; or gather them around score_model")
    return [name], {}


def read_json(folder, file):
    with only_checkpoint_errors(file):
        return dict(json.loads(folder.local_path(file).read_bytes()))


class TensorInfo(NamedTuple):
    shape: tuple
    dtype: torch.dtype | str  # a text if it is not one of DTYPES
    where: tuple  # which bytes hold it: tied weights have the same
    read: Callable  # gives it as it is stored


def in_memory(x, where=()):
    """Returns the TensorInfo of a tensor that is there already, or mapped into memory."""
    return TensorInfo(tuple(x.shape), x.dtype, where, x.detach)


@only_checkpoint_errors("a tensor")
def read_float(name, info):
    """Returns a tensor in its own dtype, and if FSDP2 has spread it over processes, in one piece."""
    require(info.dtype in DTYPES.values(), f"{name} is {info.dtype}: use a checkpoint in {', '.join(DTYPES)}; "
            "FP8: multiply the weights by their scales first")  # they are no weights before that
    tensor = info.read()
    require(not tensor.is_meta, f"{name} is on the meta device: load the model without offloading it")
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def read_safetensors(folder, file):
    """Returns {name: TensorInfo} for a file, and nothing else. Refuses what the library would not read either."""
    # the file: 8 bytes that hold the length of the header, the header in JSON, and the data
    start = 8 + int.from_bytes(folder.read(file, 0, 8).numpy(), "little")  # where the data begins
    require(start <= min(folder.size(file), 100_000_000), f"{file} is cut short, or no safetensors: get it again")
    header = json.loads(folder.read(file, 8, start - 8).numpy().tobytes())
    header.pop("__metadata__", None)

    # tensors have to lie one behind the other. If a name is in the header twice, JSON keeps one, and there is a hole
    tensors = {}
    end = 0  # where the tensor before this one ends
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = DTYPES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"])
        first, last = entry["data_offsets"]
        n_bytes = last - first
        is_whole = isinstance(dtype, str) or n_bytes == math.prod(shape) * dtype.itemsize
        require(first == end and is_whole, f"{file} is damaged at {name}: get it again")
        end = last

        # subtle: without these defaults every tensor would read the bytes of the last one
        def read(first=first, n_bytes=n_bytes, dtype=dtype, shape=shape):
            return folder.read(file, start + first, n_bytes).view(dtype).reshape(shape)

        tensors[name] = TensorInfo(shape, dtype, (file, first, last), read)
    require(start + end == folder.size(file), f"{file} is cut short or damaged: get it again")
    return tensors, {}, []


def read_torch(folder, file):
    """Returns {name: TensorInfo} for a file of torch.save, the config in it, if any, and which models are left out."""
    # map it into memory, so that only the wanted tensors are read. Files from before torch 1.6 are no zip: read all
    path = folder.local_path(file)
    can_be_mapped = False
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            can_be_mapped = all(record.compress_type == zipfile.ZIP_STORED for record in zipped.infolist())
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=can_be_mapped)
    except pickle.UnpicklingError as e:  # torch's own words advise to let it run
        raise CheckpointError(f"{file} would run code, or it is damaged: save the state_dict() alone") from e

    # find the weights: {"model": {"module": weights}, "epoch": 3}, say, holds them two levels deep
    state, left_out = saved, []
    for key in STATE_DICTS:
        if isinstance(state.get(key), dict):
            left_out += [str(other) for other in state if other != key and holds_weights(state[other])]
            state = state[key]
    tensors = {}
    for name, x in state.items():
        if isinstance(x, torch.Tensor):
            where = (x.data_ptr(), x.numel()) if x.layout == torch.strided else id(x)
            tensors[name] = in_memory(x, where)
    require(tensors, f"{file} holds {', '.join(map(str, state)):.250}, and no weights: save the state_dict() alone")
    folder.bytes_read.append(folder.size(file))
    return tensors, config_of_training(saved), left_out


def holds_weights(value):
    """Returns whether something in a file may be a model: a dict with weights, not with states of random generators."""
    return isinstance(value, dict) and any(torch.is_tensor(x) and x.dtype in DTYPES.values() for x in value.values())


def config_of_training(saved):
    """Returns the config in a checkpoint that nanoGPT or train.py wrote, else {}. saved: all that is in it."""
    if isinstance(saved.get("model_args"), dict):
        return {**saved["model_args"], "model_type": "nanogpt"}
    if isinstance(saved.get("config"), dict) and "causal" in saved["config"]:
        return {**saved["config"], "model_type": "train.py-checkpoint",
                "num_attention_heads_per_layer": saved.get("n_heads")}  # None: the checkpoint is older
    return {}


def plain_names(tensors):
    """Returns the tensors by their names in a plain model."""
    plain = {}
    for name, tensor in tensors.items():
        its_name = WRAPPERS.sub("", name)
        require(its_name not in plain, f"{name} and another tensor are both called {its_name} in the plain model")
        plain[its_name] = tensor
    return plain


class Checkpoint(NamedTuple):
    config: dict  # its config.json, or what a training script has in its place
    tensors: dict  # {name in a plain model: TensorInfo}
    n_params: int  # how many elements the floating-point tensors have; tied ones count once
    folder: Folder | None = None  # None: it is in memory
    files: list = []  # names of those that hold its weights
    left_out: list = []  # what other models are in these files

    @property
    def note(self):
        """In words, how much was read so far."""
        if self.folder is None:
            return "in memory"
        n_read, size = sum(self.folder.bytes_read), sum(map(self.folder.size, self.files))
        where = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files"
        return f"read {tqdm.format_sizeof(n_read, 'B')} of {tqdm.format_sizeof(size, 'B')} in {where}"

    def stream(self, groups):
        """Yields the tensors of each group, {name: tensor}, while threads read the next. Raises CheckpointError."""
        if self.folder is None:  # one after the other: processes that share a tensor have to gather it together
            for group in groups:
                yield {name: read_float(repr(name), self.tensors[name]) for name in group}
            return
        ahead = []  # the groups that are being read
        with ThreadPoolExecutor(8) as pool:
            for group in [*groups, *AHEAD * [[]]]:  # empty ones at the end push the last ones out
                ahead.append({name: pool.submit(read_float, repr(name), self.tensors[name]) for name in group})
                if len(ahead) > AHEAD:
                    yield {name: tensor.result() for name, tensor in ahead.pop(0).items()}


@only_checkpoint_errors("the checkpoint")
def open_checkpoint(source):
    """Returns the Checkpoint that a module in memory, a folder, a file, or a name on the Hub stands for."""
    if isinstance(source, torch.nn.Module):
        return read_module(source)

    # read what the files say about their tensors, eight files at a time
    folder, name = open_folder(find_source(str(source)))
    files, file_of = find_files(folder, name)
    read_file = read_safetensors if files[0].endswith(".safetensors") else read_torch
    with ThreadPoolExecutor(8) as pool:
        contents = dict(zip(files, pool.map(lambda file: read_file(folder, file), files)))

    # if there is an index, it says which file has a tensor, because others may have old copies
    tensors, config, left_out = contents[files[0]]
    if file_of:
        tensors = {tensor: contents[file][0][tensor] for tensor, file in file_of.items()}
        for in_file, *_ in contents.values():
            unlisted = sorted(in_file.keys() - file_of.keys())
            require(not unlisted, f"the index.json does not list {unlisted[:1]} of its files: save the model again")
    if not config and "config.json" in folder.names:
        config = read_json(folder, "config.json")

    # count parameters. Tied weights are the same bytes, so they have one key
    sizes = {info.where: math.prod(info.shape) for info in tensors.values() if info.dtype in DTYPES.values()}
    return Checkpoint(config, plain_names(tensors), sum(sizes.values()), folder, files, left_out)


def read_module(module):
    """Returns the Checkpoint for a model in memory, whose tensors are there already."""
    while not hasattr(module, "config") and isinstance(getattr(module, "module", None), torch.nn.Module):
        module = module.module  # DDP
    require(not hasattr(module, "peft_config"), ADAPTER)
    config = getattr(module, "config", None)
    config = config.to_dict() if hasattr(config, "to_dict") else {}
    weights = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())  # tied: all names
    tensors = {name: in_memory(weight) for name, weight in plain_names(weights).items()}
    return Checkpoint(config, tensors, sum(weight.numel() for weight in module.parameters()))
