"""
Reads repositories of the Hugging Face Hub, from the local cache or else by byte ranges over HTTP.
HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub.
"""

import logging
import sys
import time
from pathlib import Path
from urllib.parse import quote

import httpx2  # the HTTP client of huggingface_hub
import torch
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff, http_stream_backoff
from tqdm import tqdm

from ..names import printable

OPTIONS = dict(follow_redirects=True, timeout=10)  # seconds without a byte


class FirstWait(logging.Filter):
    """Of all that huggingface_hub says of its tries, lets through once that a host asks to wait."""

    n_waits = 0

    def filter(self, record):
        is_wait = record.getMessage().startswith("Rate limited")
        self.n_waits += is_wait
        return is_wait and self.n_waits == 1


class HubFolder:
    """A folder of a repository at one commit. As checkpoint.Folder."""

    def __init__(self, repo, inside, commit, sizes):
        self.repo, self.inside, self.commit = repo, inside, commit  # inside: "", or the path of the folder and "/"
        self.sizes = {file.removeprefix(inside): size for file, size in sizes.items() if file.startswith(inside)}
        self.names = sorted({file.partition("/")[0] for file in self.sizes})
        self.note = ""
        self.lengths = []

    def has(self, file):
        return file in self.sizes

    def size(self, file):
        return self.sizes[file]

    def is_cached(self, file):
        return isinstance(try_to_load_from_cache(self.repo, self.inside + file, revision=self.commit), str)

    def whole(self, file):
        """Returns the path of a whole file, which is downloaded if the cache does not have it."""
        if not file.endswith((".json", ".safetensors")) and not self.is_cached(file):
            size = tqdm.format_sizeof(self.size(file), "B")
            tqdm.write(printable(f"{self.repo}: {file} comes as a whole, {size}"), file=sys.stderr)
        return Path(hf_hub_download(self.repo, self.inside + file, revision=self.commit))

    def read(self, file, start, n):
        """Returns n bytes of a file from `start` on, as a tensor, or fewer if the file ends."""
        if self.is_cached(file):
            with open(self.whole(file), "rb") as f:
                f.seek(start)
                data = bytearray(f.read(n))
        else:
            data = self.ask(file, start, n)
        self.lengths.append(len(data))
        return torch.frombuffer(data, dtype=torch.uint8)

    def ask(self, file, start, n):
        """Returns the bytes of such a range from the host. Raises ValueError if it sends another one."""
        url = hf_hub_url(self.repo, self.inside + file, revision=self.commit)
        asked = f"bytes={start}-{start + n - 1}"
        # By its own compression a server would send other bytes. No other host gets the token of build_hf_headers.
        headers = build_hf_headers() | {"Range": asked, "Accept-Encoding": "identity"}
        for wait in 1, 2, 4, 8, None:  # seconds, if the connection ends in the middle
            try:
                with http_stream_backoff("GET", url, headers=headers, retry_on_exceptions=(), **OPTIONS) as answer:
                    hf_raise_for_status(answer)
                    # Before its content comes, because a host without ranges sends the whole file.
                    sent = answer.headers.get("Content-Range", "").partition("/")[0].replace(" ", "=")
                    if answer.status_code != 206 or sent != asked:
                        raise ValueError(f"{answer.url.host} does not serve byte ranges of {file}: use another "
                                         f"HF_ENDPOINT, or first download it all with: hf download {self.repo}")
                    return bytearray(answer.read())
            except httpx2.TransportError:
                if not wait:
                    raise
                time.sleep(wait)


def open_repository(where, revision):
    """Returns org/name[/FOLDER] at its commit now, a HubFolder; or, without a network, its path in the local cache."""
    logging.getLogger("huggingface_hub.utils._http").filters = [FirstWait()]
    org, name, *folders = where.split("/")
    inside = "".join(f"{folder}/" for folder in folders if folder)
    url = f"{HfApi().endpoint}/api/models/{org}/{name}/revision/{quote(revision or 'main', safe='')}?blobs=true"
    try:
        answer = http_backoff("GET", url, headers=build_hf_headers(), **OPTIONS)
    except (httpx2.TransportError, OfflineModeIsEnabled):
        return Path(snapshot_download(f"{org}/{name}", revision=revision or None, local_files_only=True)) / inside
    hf_raise_for_status(answer)
    info = answer.json()
    return HubFolder(info["id"], inside, info["sha"], {file["rfilename"]: file["size"] for file in info["siblings"]})
