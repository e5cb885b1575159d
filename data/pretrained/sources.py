"""
A checkpoint from what a user writes: a name of models.csv, a local path, or an id of the Hugging Face Hub.

    with open_checkpoint("gpt2") as checkpoint: ...
"""

import csv
import difflib
import os
import re
from pathlib import Path

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from data.pretrained.checkpoint import Checkpoint, ModuleInMemory
from data.pretrained.files import CheckpointError, Folder, only_checkpoint_errors, pick, read_json, require
from data.pretrained.hub import open_repository

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")  # of the files that can be read; all but the first by torch
# Files that lie beside weights begin like this.
NO_WEIGHTS = ("adapter_", "optim", "scheduler", "scaler", "rng_state", "training_args", "common.pt")
NANOCHAT = r"model_\d+\.pt"
# The weights of a folder are what matches the first of these. Of names of one's own there may only be one.
WEIGHTS = (r"model\.safetensors", r"model\.safetensors\.index\.json", r"pytorch_model\.bin",
           r"pytorch_model\.bin\.index\.json", r".*\.safetensors",
           r"ckpt\.pt",  # of nanoGPT and train.py
           NANOCHAT, r".*\.(pt|pth|ckpt)")


def known_models() -> list[dict[str, str]]:
    """The rows of models.csv."""
    with open(Path(__file__).parent / "models.csv", newline="") as f:
        return list(csv.DictReader(f))


# ---- what the user means -----------------------------------------------------------------------------------------


def find_source(name: str) -> str:
    """A name of models.csv, a local path or a Hub id -> a path or a Hub id."""
    if os.path.exists(os.path.expanduser(name)) or "/" in name:
        return name
    ids = {row["name"]: row["hub_id"] for row in known_models()}
    model, at, revision = name.partition("@")
    if model not in ids:
        near = ", ".join(difflib.get_close_matches(model, ids))
        hint = f"; the nearest names are {near}" if near else ""
        raise CheckpointError(f"no model or folder of this name{hint}; a Hub id is org/name")
    return ids[model] + at + revision


def is_hub_id(repo: str) -> bool:
    """Whether it can be one, and does not end like a weight file, which is a path."""
    try:
        validate_repo_id(repo)
    except HFValidationError:
        return False
    return not repo.endswith(SUFFIXES)


@only_checkpoint_errors("the checkpoint")
def open_checkpoint(source) -> Checkpoint:
    """
    Open a module in memory, or what find_source takes: a folder, a file of weights (safetensors, or by torch.save), or
    a repository of the Hub.

    A folder may hold what save_pretrained writes, a checkpoint of train.py, nanoGPT or nanochat, or the checkpoint-N of
    a Trainer.
    """
    if isinstance(source, torch.nn.Module):
        return ModuleInMemory(source)
    source = find_source(str(source))
    path = os.path.expanduser(source)
    if os.path.isfile(path):
        path, file = os.path.split(path)
        require(file.endswith(SUFFIXES), f"no file of weights ({', '.join(SUFFIXES)}){what_to_do([file])}")
        folder = Folder(Path(path).resolve())
        return Checkpoint(folder, all_pieces([file], folder.names), {})
    if os.path.isdir(path):
        folder = Folder(Path(path).resolve())
    else:
        repo, _, revision = source.partition("@")
        require(not os.path.lexists(path), "it is a broken link, or neither a file nor a folder")
        require(is_hub_id(repo), "there is no file or folder of this name, and a Hub id is org/name[@revision]")
        folder = open_repository(repo, revision or None)
    enter_model(folder)
    return Checkpoint(folder, *weight_files(folder))


# ---- what is in a folder -----------------------------------------------------------------------------------------


def enter_model(folder: Folder):
    """If the folder has no weights, go into its newest checkpoint-N, which a Trainer has written."""
    steps = {int(name.removeprefix("checkpoint-")): name
             for name in folder.names if re.fullmatch(r"checkpoint-\d+", name)}
    if steps and not choose_weights(folder.names):
        newest = steps[max(steps)]
        folder.path /= newest
        folder.notes.append(f"of {newest}, the newest of {len(steps)} in it")


def choose_weights(names: list[str]) -> str | None:
    """The name of the weight file, or of the index of several weight files; None if there is neither."""
    others = [name for name in names if not name.startswith(NO_WEIGHTS)]
    for pattern in WEIGHTS:
        found = [name for name in others if re.fullmatch(pattern, name)]
        is_one = len(found) == 1 or len({re.sub(r"-\d+-of-", "-of-", name) for name in found}) == 1
        if is_one or (found and pattern == NANOCHAT):
            return found[-1]  # the last step: all names have the same number of digits
    return None


def all_pieces(files: list[str], names: list[str]) -> list[str]:
    """The files; or if the first is a piece, as NAME-00001-of-00004.bin, all. CheckpointError: one is missing."""
    piece = re.fullmatch(r"(.*-)(\d+)-of-(\d+)(\.\w+)", files[0])
    if not piece:
        return files
    before, number, n, ending = piece.groups()
    pieces = [f"{before}{i:0{len(number)}}-of-{n}{ending}" for i in range(1, int(n) + 1)]
    missing = [name for name in pieces if name not in names]
    require(not missing,
            f"{', '.join(missing):.100} is not there, and {files[0]} is one of {int(n)} files: get them all")
    return pieces


def weight_files(folder: Folder) -> tuple[list[str], dict[str, str]]:
    """The files of the weights, several if they are pieces of one checkpoint; and in which of them each tensor is."""
    if "adapter_config.json" in folder.names:
        base = pick(read_json(folder, "adapter_config.json"), "base_model_name_or_path", str, "its model")
        raise CheckpointError(f"an adapter, not a model: merge it into {base:.100} with PEFT's merge_and_unload(), and "
                              "save that with save_pretrained")
    name = choose_weights(folder.names)
    if not name:
        where = "".join(f" ({note})" for note in folder.notes)
        raise CheckpointError(f"no model.safetensors or pytorch_model.bin here{where}, but "
                              f"{', '.join(folder.names) or 'nothing':.150}{what_to_do(folder.names)}")
    if not name.endswith(".json"):
        return all_pieces([name], folder.names), {}
    index = read_json(folder, name).get("weight_map")  # tensor -> file
    require(isinstance(index, dict) and index and all(isinstance(file, str) for file in index.values()),
            f"{name} has no weight_map of names, get it again")
    files = sorted(set(index.values()))
    missing = [file for file in files if file not in folder.names]
    require(not missing, f"{', '.join(missing):.100}, which {name} names, is not there: get it again")
    return files, index


def what_to_do(names: list[str]) -> str:
    """With files that are no weights we can read."""
    text = " ".join(names)
    if ".onnx" in text:
        return (": of ONNX take the two initialisers of a layer with the onnx package, "
                "analyze.scores(onnx.numpy_helper.to_array(q), ...(k)), each as (in, out)")
    if ".gguf" in text:
        return ": of GGUF, from_pretrained(FOLDER, gguf_file=FILE) of transformers, and then save_pretrained"
    if re.search("zero_to_fp32|global_step|mp_rank|distcp", text):
        return ": pieces of DeepSpeed, FSDP or Megatron have to be put together first, by the program that made them"
    return ": convert it with save_pretrained, or give the path of one file"
