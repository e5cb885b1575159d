"""
Reads repositories of the Hugging Face Hub, from the local cache or else by byte ranges over HTTP.
HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub.
"""

import sys
from pathlib import Path

import httpx2  # the HTTP client of huggingface_hub
import numpy
import torch
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff
from tqdm import tqdm

from ..names import printable, require
from .checkpoint import Folder

WAIT = 10  # seconds without a byte


class HubFolder(Folder):
    """A folder of a repository at one commit."""

    def __init__(self, info, inside):
        self.repo, self.commit = info.id, info.sha
        self.inside = self.called = inside  # "", or the path of the folder and "/"
        files = [file for file in info.siblings if file.rfilename.startswith(inside)]
        self.sizes = {file.rfilename.removeprefix(inside): file.size for file in files}
        self.names = sorted({file.partition("/")[0] for file in self.sizes})
        self.lengths = []

    def size(self, file):
        return self.sizes[file]

    def is_cached(self, file):
        return isinstance(try_to_load_from_cache(self.repo, self.inside + file, revision=self.commit), str)

    def whole(self, file):
        return Path(hf_hub_download(self.repo, self.inside + file, revision=self.commit))

    def read(self, file, start, n):
        if self.is_cached(file):
            return super().read(file, start, n)
        self.lengths.append(n)
        url = hf_hub_url(self.repo, self.inside + file, revision=self.commit)
        asked = f"{start}-{start + n - 1}"
        # By its own compression a server would send other bytes. No other host gets the token of build_hf_headers.
        headers = build_hf_headers() | {"Range": f"bytes={asked}", "Accept-Encoding": "identity"}
        answer = http_backoff("GET", url, headers=headers, timeout=WAIT)  # asks again if the connection breaks
        hf_raise_for_status(answer)
        sent = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")[0]
        require(sent == asked, f"{answer.url.host} does not serve byte ranges of {file}: first get it all with: "
                f"hf download {self.repo}")
        return torch.from_numpy(numpy.frombuffer(bytearray(answer.content), numpy.uint8))


def open_repository(where, revision):
    """Returns org/name[/FOLDER] at its commit now, or, without a network, in the local cache."""
    org, name, *folders = where.split("/")
    repo = f"{org}/{name}"
    inside = "".join(f"{folder}/" for folder in folders if folder)
    try:
        info = HfApi().model_info(repo, revision=revision or None, files_metadata=True, timeout=WAIT)
    except (httpx2.TransportError, OfflineModeIsEnabled):
        tqdm.write(printable(f"{repo}: the Hub is out of reach, so the local cache is read"), file=sys.stderr)
        return Folder(Path(snapshot_download(repo, revision=revision or None, local_files_only=True), inside))
    return HubFolder(info, inside)
