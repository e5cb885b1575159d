"""Opens the checkpoint that a user names: a name of models.csv, a local path, or an id of the Hugging Face Hub."""

import csv
import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch

from .checkpoint import Checkpoint, read_files, read_module
from .files import MERGE, SUFFIXES, CheckpointError, Folder, only_checkpoint_errors, pick, read_json, require

# Files that lie beside weights begin like this.
NO_WEIGHTS = ("adapter_", "optim", "scheduler", "scaler", "rng_state", "training_args", "common.pt")
# The weights of a folder are what matches the first of these. Where names are free, only one file may match.
WEIGHTS = (r"model\.safetensors", r"model\.safetensors\.index\.json", r"pytorch_model\.bin",
           r"pytorch_model\.bin\.index\.json", r".*\.safetensors",
           r"ckpt\.pt",  # of nanoGPT and train.py
           r".*\.(pt|pth|ckpt)")

# In the name of a file or folder that one of several processes has written: its number, or how many there are.
PIECE = re.compile(r"(?<![a-z])(consolidated|rank|shard|part|[tpm]p|of|world_size)((?:[._-]?\d+)+)")
# What to do with other files, by a part of their names: the first that matches, and the last one matches all.
WAYS_ON = {
    r"\.onnx":
        "of ONNX take the two initialisers of a layer with the onnx package, "
        "analyze.scores(onnx.numpy_helper.to_array(q), ...(k)), each as (in, out)",
    r"\.gguf":
        "of GGUF, from_pretrained(FOLDER, gguf_file=FILE) of transformers, and then save_pretrained",
    r"\.h5|\.msgpack|\.ckpt\.(data|index|meta)":
        "of TensorFlow or Flax, load with from_tf=True or from_flax=True of transformers 4, and then save_pretrained",
    f"zero_to_fp32|global_step|distcp|{PIECE.pattern}":
        MERGE,
    "":
        "convert it with save_pretrained, or give the path of one file, or of a folder in it",
}


def known_models() -> list[dict[str, str]]:
    """Returns the rows of models.csv."""
    with open(Path(__file__).parent / "models.csv", newline="") as f:
        return list(csv.DictReader(f))


def find_source(name: str) -> str:
    """Returns a path or Hub id. name: one of models.csv, a path or a Hub id. Raises CheckpointError if it is none."""
    if os.path.exists(os.path.expanduser(name)) or "/" in name:
        return name
    ids = {row["name"]: row["hub_id"] for row in known_models()}
    model, at, revision = name.partition("@")
    if model not in ids:
        near = ", ".join(difflib.get_close_matches(model, ids))
        hint = f"; the nearest names are {near}" if near else ""
        raise CheckpointError(f"no model or folder of this name{hint}; a Hub id is org/name")
    return ids[model] + at + revision


@only_checkpoint_errors("the checkpoint")
def open_checkpoint(source) -> Checkpoint:
    """
    Returns the Checkpoint of a module in memory, of a local folder or file, or of a repository of the Hub.

    A folder may hold what save_pretrained writes, a checkpoint of train.py, nanoGPT or nanochat, or the checkpoint-N of
    a Trainer. Raises CheckpointError if there are no weights that can be read.
    """
    if isinstance(source, torch.nn.Module):
        return read_module(source)
    is_name = isinstance(source, str | os.PathLike)
    require(is_name, f"expected a name, a path or a torch.nn.Module, got a {type(source).__name__}")
    source = find_source(str(source))
    folder, name = find_file(source)
    is_adapter = name.startswith("adapter_") or (not name and "adapter_config.json" in folder.names)
    require(not is_adapter, "an adapter, not a model: merge it into its model with PEFT's merge_and_unload(), and save "
            "that with save_pretrained in another folder")
    if not name:
        name = find_weights(folder.names)
        found = ", ".join(folder.names) or "nothing"
        way = f"give one of its folders, as {source}/{folder.models[0]}" if folder.models else way_on(folder.names)
        require(name, f"no model.safetensors or pytorch_model.bin here, but {found:.150}: {way}")
    files, index = all_files(folder, name)
    if len(files) == 1:
        refuse_piece(name, folder.names)
    return read_files(folder, files, index)


def find_file(source: str) -> tuple[Folder, str]:
    """Returns the folder that a path or a Hub id leads to, and the file in it, or "" if it leads to a folder."""
    path = Path(source).expanduser()
    if not path.exists():
        from .hub import open_repository  # here: a folder does not need it

        where, at, revision = source.partition("@")
        where, _, file = where.rpartition("/") if where.endswith(SUFFIXES) else (where, "", "")
        return open_repository(where + at + revision), file
    above = path.resolve() if path.is_dir() else path.resolve().parent
    refuse_piece(above.name, os.listdir(above.parent))
    if path.is_dir():
        return open_folder(path), ""
    require(path.name.endswith(SUFFIXES), f"no file of weights ({', '.join(SUFFIXES)}): {way_on([path.name])}")
    return Folder(path.parent), path.name


def refuse_piece(name: str, names: Iterable[str]):
    """Raises CheckpointError if a file or folder is a piece of a checkpoint. names: what lies beside it"""
    others = [other for other in names if other != name and PIECE.sub(r"\1", other) == PIECE.sub(r"\1", name)]
    for word, numbers in PIECE.findall(name):
        is_whole = numbers.strip("._-0") in (("", "1") if word in ("of", "world_size", "mp") else ("",))
        require(is_whole and not others, f"{name}{f' beside {others[0]}' if others else ''} is a piece by its name: "
                f"{MERGE}; if it is whole, give it another name")


def open_folder(path: Path) -> Folder:
    """Returns a local Folder or, if it has no weights, the newest checkpoint-N in it, which a Trainer has written."""
    folder = Folder(path)
    checkpoints = [name for name in folder.names if re.fullmatch(r"checkpoint-\d+", name)]
    if not checkpoints or find_weights(folder.names):
        return folder
    newest = max(checkpoints, key=lambda name: int(name.removeprefix("checkpoint-")))
    return Folder(path / newest, f"of {newest}, the newest of {len(checkpoints)} in it")


def find_weights(names: list[str]) -> str | None:
    """Returns the name of the weight file, of a piece of it, or of the index of its pieces. None if it is not clear."""
    others = [name for name in names if not name.startswith(NO_WEIGHTS)]
    for pattern in WEIGHTS:
        found = [name for name in others if re.fullmatch(pattern, name)]
        without_numbers = {re.sub(r"-\d+-of-|^model_\d+\.pt$", "", name) for name in found}
        if len(without_numbers) == 1:  # one file, all pieces of one, or the steps of nanochat
            return found[-1]
    return None


def all_files(folder: Folder, name: str) -> tuple[list[str], dict[str, str]]:
    """Returns all files of a checkpoint that may be in several, and {tensor: its file} as far as an index tells."""
    files = [name]
    index = {}
    piece = re.fullmatch(r"(.*-)(\d+)-of-(\d+)(\.\w+)", name)  # NAME-00001-of-00004.bin
    if name.endswith(".json"):
        index = pick(read_json(folder, name), dict, "weight_map", default={})
        files = sorted(set(index.values()))
    elif piece:
        before, number, n, ending = piece.groups()
        files = [f"{before}{i:0{len(number)}}-of-{n}{ending}" for i in range(1, int(n) + 1)]
    missing = [str(file) for file in files if file not in folder.names]
    require(not missing, f"{', '.join(missing):.100} is not there, and {name} is of {len(files)} files: get them all")
    return files, index


def way_on(names: list[str]) -> str:
    """Returns what to do with files that are no weights we can read."""
    return next(advice for pattern, advice in WAYS_ON.items() if re.search(pattern, " ".join(names)))
