"""
Reads checkpoints of the Hugging Face Hub, from the local cache or else by byte ranges over HTTP. When and how often a
request is tried again is left to huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub.
"""

import contextlib
from pathlib import Path
from urllib.parse import quote

import httpx2  # the HTTP client of huggingface_hub
from huggingface_hub import HfApi, errors, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff, http_stream_backoff, logging

from .files import SUFFIXES, CheckpointError, Folder, only_checkpoint_errors, require

TIMEOUT = 10.0  # seconds without a byte
OUT_OF_REACH = httpx2.TransportError, errors.OfflineModeIsEnabled
WHAT_IT_IS = {  # the first kind of an error that fits
    errors.GatedRepoError: "gated: log in at {hub}/{repo}, click on 'Agree and access repository', and put a token of "
                           "yours (Settings, Access Tokens) into the variable HF_TOKEN",
    errors.RepositoryNotFoundError: "no file or folder of this name, and no public repository of the Hub (a private "
                                    "one needs HF_TOKEN)",
    errors.RevisionNotFoundError: "{repo} has no branch, tag or commit of this name",
    OUT_OF_REACH: "the Hub is out of reach, and there is no file or folder of this name here",
    Exception: "the Hub does not give it",
}
logging.set_verbosity_error()  # or it would tell of every try


@contextlib.contextmanager
def hub_errors(repo: str):
    """Turns an error of the Hub, or of the way there, into a CheckpointError that says first what it is."""
    try:
        yield
    except (httpx2.HTTPError, OSError, ValueError) as e:
        told = next(told for kind, told in WHAT_IT_IS.items() if isinstance(e, kind))
        reason = " ".join(f"{type(e).__name__}: {e}".split())
        raise CheckpointError(f"{told.format(repo=repo, hub=HfApi().endpoint)} ({reason:.200})") from e


def ask(repo: str, what: str) -> dict:
    """Returns what the Hub's API says of a repository."""
    with hub_errors(repo):
        url = f"{HfApi().endpoint}/api/models/{repo}{what}"
        answer = http_backoff("GET", url, headers=build_hf_headers(), follow_redirects=True, timeout=TIMEOUT)
        hf_raise_for_status(answer)
        return answer.json()


class HubFolder(Folder):
    """A folder of a repository of the Hub at one commit. What the local cache does not have is read by ranges."""

    def __init__(self, repo: str, inside: str, commit: str, sizes: dict[str, int]):
        self.repo = repo
        self.inside = inside  # "", or the path of the folder and "/"
        self.commit = commit
        self.sizes = {name.removeprefix(inside): size for name, size in sizes.items() if name.startswith(inside)}
        self.names = sorted({name.partition("/")[0] for name in self.sizes})
        self.models = sorted({name.partition("/")[0] for name in self.sizes if "/" in name and name.endswith(SUFFIXES)})
        self.note = ""
        self.lengths = []
        self.in_ranges = set()  # files of which the host serves ranges

    def fetch(self, name: str) -> Path:
        with hub_errors(self.repo):
            return Path(hf_hub_download(self.repo, self.inside + name, revision=self.commit))

    def size(self, name: str) -> int:
        return self.sizes[name]

    def fill(self, piece: memoryview, name: str, start: int) -> int:
        path = self.inside + name
        if try_to_load_from_cache(self.repo, path, revision=self.commit):
            return super().fill(piece, name, start)
        # By its own compression a server would send other bytes. No other host gets the token of build_hf_headers.
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        url = hf_hub_url(self.repo, path, revision=self.commit)
        options = dict(follow_redirects=True, timeout=TIMEOUT)
        with hub_errors(self.repo):
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


@only_checkpoint_errors("what the Hub answers")
def open_repository(source: str) -> Folder:
    """Returns org/name[/FOLDER][@REVISION] at its commit now or, without a network, from the local cache."""
    where, _, revision = source.partition("@")
    org, name, *folders = where.split("/")
    require(org.strip(".") and name, "no file or folder of this name; a Hub id is org/name")
    repo = f"{org}/{name}"
    inside = "".join(f"{folder}/" for folder in folders if folder)
    try:
        info = ask(repo, f"/revision/{quote(revision or 'main', safe='')}?blobs=true")
    except CheckpointError as e:
        cached = try_to_load_from_cache(repo, f"{inside}config.json", revision=revision or None)
        if not isinstance(e.__cause__, OUT_OF_REACH) or not isinstance(cached, str):
            raise
        folder = Folder(Path(cached).parent, "read from the local cache, because the Hub is out of reach")
        has_weights = any(name.endswith(SUFFIXES) for name in folder.names)
        require(has_weights, f"the Hub is out of reach, and the local cache has {', '.join(folder.names):.100} alone")
        return folder
    sizes = {file["rfilename"]: file["size"] for file in info["siblings"]}
    return HubFolder(info["id"], inside, info["sha"], sizes)


@only_checkpoint_errors("what the Hub answers")
def list_revisions(repo: str) -> list[str]:
    """Returns the names of the branches and tags of a repository, as the Hub orders them."""
    refs = ask(repo, "/refs")
    return [ref["name"] for ref in refs["branches"] + refs["tags"]]
