"""
Reads checkpoints of the Hugging Face Hub, from the local cache or else by byte ranges over HTTP. When and how often a
request is tried again is left to huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub.
"""

import contextlib
from pathlib import Path

import httpx2  # the HTTP client of huggingface_hub
from huggingface_hub import HfApi, errors, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff, http_stream_backoff, logging

from .files import CheckpointError, Folder, only_checkpoint_errors, require

TIMEOUT = 10.0  # seconds without a byte
logging.set_verbosity_error()  # or it would tell of every try


@contextlib.contextmanager
def hub_errors():
    """Turns an error of the Hub, or of the way there, into a CheckpointError with what huggingface_hub says."""
    try:
        yield
    except (httpx2.HTTPError, OSError, ValueError) as e:
        reason = " ".join(f"{type(e).__name__}: {e}".split())
        raise CheckpointError(f"no file or folder of this name, and the Hub cannot be read ({reason:.350})") from e


class HubFolder(Folder):
    """A repository of the Hub at the commit of info. Files that the local cache does not have are read by ranges."""

    def __init__(self, info):
        self.repo = info.id
        self.commit = info.sha
        self.sizes = {file.rfilename: file.size for file in info.siblings}
        self.names = sorted(name for name in self.sizes if "/" not in name)
        self.note = ""
        self.lengths = []
        self.in_ranges = set()  # files of which the host serves ranges

    def fetch(self, name: str) -> Path:
        with hub_errors():
            return Path(hf_hub_download(self.repo, name, revision=self.commit))

    def size(self, name: str) -> int:
        return self.sizes[name]

    def fill(self, piece: memoryview, name: str, start: int) -> int:
        if try_to_load_from_cache(self.repo, name, revision=self.commit):
            return super().fill(piece, name, start)
        # By its own compression a server would send other bytes. No other host gets the token of build_hf_headers.
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        url = hf_hub_url(self.repo, name, revision=self.commit)
        options = dict(follow_redirects=True, timeout=TIMEOUT)
        with hub_errors():
            if name not in self.in_ranges:  # else a host without ranges would send all of the file
                with http_stream_backoff("GET", url, headers=headers | {"Range": "bytes=0-0"}, **options) as answer:
                    hf_raise_for_status(answer)
                    require(answer.status_code == 206, f"{answer.url.host} does not serve byte ranges of {name}: use "
                            f"another HF_ENDPOINT, or first download it all with: hf download {self.repo}")
                self.in_ranges.add(name)
                self.lengths.append(1)
            headers["Range"] = f"bytes={start}-{start + len(piece) - 1}"
            answer = http_backoff("GET", url, headers=headers, **options)
            hf_raise_for_status(answer)
        n_read = len(answer.content)
        piece[:n_read] = answer.content
        return n_read


def open_repository(repo: str, revision: str | None) -> Folder:
    """Returns a repository at the commit of its branch or tag now or, without a network, from the local cache."""
    with hub_errors():
        try:
            return HubFolder(HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT))
        except (httpx2.TransportError, errors.OfflineModeIsEnabled):
            cached = try_to_load_from_cache(repo, "config.json", revision=revision)
            if not isinstance(cached, str):
                raise
            return Folder(Path(cached).parent, "read from the local cache, because the Hub is out of reach")


@only_checkpoint_errors("what the Hub answers")
def list_revisions(repo: str) -> list[str]:
    """Returns the names of the branches and tags of a repository, as the Hub orders them."""
    url = f"{HfApi().endpoint}/api/models/{repo}/refs"
    with hub_errors():
        answer = http_backoff("GET", url, headers=build_hf_headers(), timeout=TIMEOUT)  # list_repo_refs has no time-out
        hf_raise_for_status(answer)
        refs = answer.json()
        return [ref["name"] for ref in refs["branches"] + refs["tags"]]
