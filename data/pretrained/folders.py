"""
Where the bytes of a checkpoint are: a folder of this machine, or a repository of the Hugging Face Hub, which is read
from the local cache or else by byte ranges over HTTP. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work here, too.
"""

import difflib
import os
import sys
from pathlib import Path
from urllib.parse import quote

import httpx2  # the HTTP client of huggingface_hub
import numpy
import torch
from huggingface_hub import HfApi, ModelInfo, hf_hub_download, hf_hub_url, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff, http_stream_backoff
from tqdm import tqdm

from .. import printable
from . import only_checkpoint_errors, read_table, require

SUFFIXES = ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".index.json"  # what files that can be read end with
WAIT = 10  # seconds without a byte


class Folder:
    def __init__(self, path):
        self.path = Path(path)
        self.called = self.path.resolve().name
        self.names = sorted(os.listdir(path))  # files and folders
        self.bytes_read = []  # for each range that was read; no sum, because several threads can append, but not add

    def local_path(self, file):
        return self.path / file

    def size(self, file):
        return self.local_path(file).stat().st_size

    def read(self, file, start, n):
        """Returns n bytes of a file from `start` on, as a tensor. Raises CheckpointError if the file is too short."""
        data = numpy.fromfile(self.local_path(file), numpy.uint8, n, offset=start)
        require(len(data) == n, f"{file} is cut short: get it again")
        self.bytes_read.append(n)
        return torch.from_numpy(data)


class HubFolder(Folder):
    """A folder of a repository at one commit."""

    def __init__(self, info, inside):
        self.repo, self.commit = info.id, info.sha
        self.inside = self.called = inside  # "", or the path of the folder and "/"
        self.sizes = {file.rfilename.removeprefix(inside): file.size
                      for file in info.siblings if file.rfilename.startswith(inside)}
        self.names = sorted({file.partition("/")[0] for file in self.sizes})
        self.bytes_read = []

    def size(self, file):
        return self.sizes[file]

    def local_path(self, file):
        """Downloads all of a file, unless it is in the cache."""
        return Path(hf_hub_download(self.repo, self.inside + file, revision=self.commit))

    def read(self, file, start, n):
        path = try_to_load_from_cache(self.repo, self.inside + file, revision=self.commit)
        if isinstance(path, str):  # it is there
            return super().read(file, start, n)
        self.bytes_read.append(n)
        url = hf_hub_url(self.repo, self.inside + file, revision=self.commit)
        asked = f"{start}-{start + n - 1}"
        # Compressed by the server, a range would be other bytes. No other host gets the token in build_hf_headers.
        headers = build_hf_headers() | {"Range": f"bytes={asked}", "Accept-Encoding": "identity"}
        if start > 0:
            answer = http_backoff("GET", url, headers=headers, timeout=WAIT)  # asks again if the connection breaks
            self.require_range(answer, file, asked)
        else:  # the first range of a file. A host may send the whole file instead: then hang up after the headers
            with http_stream_backoff("GET", url, headers=headers, timeout=WAIT) as answer:
                self.require_range(answer, file, asked)
                answer.read()
        return torch.frombuffer(bytearray(answer.content), dtype=torch.uint8)

    def require_range(self, answer, file, asked):
        """Raises CheckpointError if an answer, by its headers, is not the range of a file that was asked for."""
        hf_raise_for_status(answer)
        sent = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")[0]
        require(sent == asked, f"{answer.url.host} does not serve byte ranges of {file}: first get it all with: "
                f"hf download {self.repo}")


def find_source(name):
    """Returns the Path of what is on this machine, or else a Hub id: as it is, or of a name in models.csv."""
    path = os.path.expanduser(name)
    if os.path.exists(path):
        return Path(path)
    if "/" in name:
        return name
    ids = {row["name"]: row["hub_id"] for row in read_table("../published/models.csv")}
    model, at, revision = name.partition("@")
    near = ", ".join(difflib.get_close_matches(model, ids)) or "none"
    require(model in ids, f"no model or folder of this name; the nearest names are {near}; a Hub id is org/name")
    return find_source(ids[model] + at + revision)


def open_folder(source):
    """Returns the folder that a Path or a Hub id leads to, and the name of a file in it, if any."""
    if isinstance(source, Path):
        return (Folder(source), "") if source.is_dir() else (Folder(source.parent), source.name)
    where, _, revision = source.partition("@")
    file = ""
    if where.endswith(SUFFIXES):
        where, _, file = where.rpartition("/")
    with only_checkpoint_errors("no file or folder here, and from the Hub it"):
        return open_repository(where, revision), file


def open_repository(where, revision):
    """Returns org/name[/FOLDER] at its commit now, or, without a network, in the local cache."""
    org, name, *folders = where.split("/")
    repo = f"{org}/{name}"
    inside = "".join(f"{folder}/" for folder in folders if folder)
    url = f"{HfApi().endpoint}/api/models/{repo}/revision/{quote(revision or 'main', safe='')}"
    try:
        # as HfApi().model_info, but if the Hub is busy it waits as Retry-After says, and asks again
        answer = http_backoff("GET", url, params={"blobs": True}, headers=build_hf_headers(), timeout=WAIT,
                              retry_on_exceptions=())
        hf_raise_for_status(answer)
        info = ModelInfo(**answer.json())
    except (httpx2.TransportError, OfflineModeIsEnabled):
        tqdm.write(printable(f"{repo}: the Hub is out of reach, so the local cache is read"), file=sys.stderr)
        return Folder(Path(snapshot_download(repo, revision=revision or None, local_files_only=True), inside))
    return HubFolder(info, inside)
