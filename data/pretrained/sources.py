"""
A checkpoint from what a user writes: a name of models.csv, a local path, or an id of the Hugging Face Hub.

    with open_checkpoint(find_source("gpt2")) as checkpoint: ...
"""

import csv
import difflib
import os
import re
from pathlib import Path
from urllib.parse import unquote

from data.pretrained.checkpoint import Checkpoint
from data.pretrained.contents import SUFFIXES, enter_model
from data.pretrained.files import CheckpointError, Folder, require


def known_models() -> list[dict[str, str]]:
    """The rows of models.csv."""
    with open(Path(__file__).parent / "models.csv", newline="") as f:
        return list(csv.DictReader(f))


def find_source(name: str) -> str:
    """A name of models.csv, a local path, a Hub id or the address of its page -> what open_checkpoint takes."""
    name = without_address(name)
    if os.path.exists(os.path.expanduser(name)) or "/" in name:
        return name
    ids = {row["name"]: row["hub_id"] for row in known_models()}
    model, at, revision = name.partition("@")
    if model not in ids:
        near = ", ".join(difflib.get_close_matches(model, ids, n=3, cutoff=0.0))
        raise CheckpointError(f"no model or folder of this name; the nearest names are {near}, a Hub id is org/name")
    return ids[model] + at + revision


def without_address(source: str) -> str:
    """https://huggingface.co/org/name/tree/v1 -> org/name@v1. A path or an id stays, without spaces around it."""
    if os.path.exists(os.path.expanduser(source)):
        return source
    source = source.strip()
    mirror = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    hosts = [re.escape(mirror)] if mirror else []
    hosts.append(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)")
    address = re.match(f"({'|'.join(hosts)})/", source)
    if address is None:
        return source
    place = re.split("[?#]", source[address.end() :])[0]  # org/name/tree/v1/and/more, or name/tree/v1 of old models
    page = re.fullmatch(r"(?P<repo>[^/]+(/[^/]+)?)/(tree|blob|resolve|raw|blame|commits?)/(?P<revision>[^/]+).*", place)
    if page:
        return f"{page['repo']}@{unquote(page['revision'])}"
    return "/".join(place.strip("/").split("/")[:2])


def open_checkpoint(source: str, revision: str | None = None) -> Checkpoint:
    """
    Open a folder, a weight file (safetensors, or written by torch.save), or org/name[@revision] of the Hub.

    A folder may hold what save_pretrained writes, a checkpoint of nanoGPT or nanochat, the checkpoint-N of a Trainer,
    or the 0_Transformer of sentence-transformers.
    """
    source = without_address(source)
    path = os.path.expanduser(source)
    if os.path.exists(path):
        require(not revision, f"this is local, where there is no revision {revision}")
        return open_local(source, path)
    repo, _, tail = source.partition("@")
    require(is_hub_id(repo), "there is no file or folder of this name, and a Hub id is org/name or org/name@revision")
    from data.pretrained.hub import open_repository  # here, so that local files need no Hub client
    folder = open_repository(repo, revision or tail or None)
    enter_model(folder)
    return Checkpoint(source, folder)


def open_local(source: str, path: str) -> Checkpoint:
    if os.path.isdir(path):
        parent, only = path, ""
    else:
        parent, only = os.path.split(path)
        require(only.endswith(SUFFIXES), f"no folder, and no file of weights ({', '.join(SUFFIXES)})")
    try:
        folder = Folder(Path(parent), sorted(os.listdir(parent or ".")))
        if not only:
            enter_model(folder)
    except OSError as e:
        raise CheckpointError(f"cannot read it ({e.strerror or e})") from e
    return Checkpoint(source, folder, only)


def is_hub_id(repo: str) -> bool:
    """Whether it is name or org/name without -- and .., and does not end like a weight file, which is a path."""
    if not re.fullmatch(r"\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", repo, re.ASCII):
        return False
    return not re.search(r"--|\.\.", repo) and not repo.endswith(SUFFIXES)
