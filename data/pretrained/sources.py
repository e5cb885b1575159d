"""
A checkpoint from what a user writes: a name of models.csv, a local path, or an id of the Hugging Face Hub.

    with open_checkpoint(find_source("gpt2")) as checkpoint: ...
"""

import csv
import difflib
import os
import re
from pathlib import Path

from data.pretrained.checkpoint import Checkpoint
from data.pretrained.files import CheckpointError, Folder, require


def known_models() -> list[dict[str, str]]:
    """The rows of models.csv."""
    with open(Path(__file__).parent / "models.csv", newline="") as f:
        return list(csv.DictReader(f))


def find_source(name: str) -> str:
    """A name of models.csv, a local path, or a Hub id -> what open_checkpoint takes."""
    ids = {row["name"]: row["hub_id"] for row in known_models()}
    if Path(name).exists() or "/" in name:
        return name
    if name not in ids:
        near = ", ".join(difflib.get_close_matches(name, ids, n=3, cutoff=0.0))
        raise CheckpointError(f"no model or folder of this name; the nearest names are {near}, a Hub id is org/name")
    return ids[name]


def open_checkpoint(source: str, revision: str | None = None) -> Checkpoint:
    """Opens a folder, a .safetensors or .bin file with config.json beside it, or the Hub's org/name[@revision]."""
    path = os.path.expanduser(source)
    if os.path.exists(path):
        require(not revision, f"{source} is local, where there is no revision {revision}")
        return open_local(source, path)
    repo, _, tail = source.partition("@")
    require(is_hub_id(repo),
            f"there is no file or folder {source!r}, and a Hub id looks like org/name or org/name@revision")
    from data.pretrained.hub import open_repository  # here, so that local files need no Hub client
    return Checkpoint(open_repository(source, repo, revision or tail or None))


def open_local(source: str, path: str) -> Checkpoint:
    folder, only = (path, "") if os.path.isdir(path) else os.path.split(path)
    require(only.endswith((".safetensors", ".bin")) or not only, f"{source} is no folder, .safetensors or .bin file")
    try:
        names = sorted(os.listdir(folder or "."))
        return Checkpoint(Folder(source, Path(folder), names), only)
    except OSError as e:
        raise CheckpointError(f"cannot read {source} ({e.strerror or e})") from e


def is_hub_id(repo: str) -> bool:
    """name or org/name; -- and .. are forbidden there, and what ends like a weight file was meant as a path."""
    if not re.fullmatch(r"\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", repo, re.ASCII):
        return False
    return not re.search(r"--|\.\.|\.(safetensors|bin)$", repo)
