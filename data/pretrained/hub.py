"""
Checkpoints of the Hugging Face Hub. Files are read from the local cache, or else by byte ranges over HTTP. When and how
often a request is tried again is left to huggingface_hub; here are the words of the errors that users meet.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub.
"""

import contextlib
import re
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import httpx2  # the HTTP client of huggingface_hub
from huggingface_hub import HfApi, errors, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff, http_stream_backoff, logging

from data.pretrained.files import CheckpointError, Folder, require

TIMEOUT = 10.0  # seconds without a byte
# Five, with pauses that huggingface_hub makes.
TRIES = dict(timeout=TIMEOUT, max_retries=4, base_wait_time=0.5)
logging.set_verbosity_error()  # or it would tell of every try


@contextlib.contextmanager
def hub_errors(repo: str, revision: str | None = None):
    """Whatever is raised in the block becomes an error of one line about the repository."""
    try:
        yield
    # KeyError, TypeError: an answer that is not the Hub's. RuntimeError: of hf_xet.
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise CheckpointError(explain(e, repo, revision)) from e


def explain(e: Exception, repo: str, revision: str | None) -> str:
    """What went wrong, and what to do."""
    page = f"{HfApi().endpoint}/{repo}"
    answer = getattr(e, "response", None) or getattr(e.__cause__, "response", None)
    if isinstance(e, errors.GatedRepoError):  # before RepositoryNotFoundError, which it is too
        return f"gated: ask for access at {page}, then set HF_TOKEN to a token of that account"
    if isinstance(e, errors.RevisionNotFoundError):
        return f"there is no revision {revision}: {page}/tree/main lists its branches and tags"
    if isinstance(e, errors.RepositoryNotFoundError) or (answer is not None and answer.status_code == 401):
        return f"there is no {page}, or it is private and needs a valid HF_TOKEN; nor is there a folder of this name"
    if isinstance(e, errors.OfflineModeIsEnabled):
        return "no folder of this name, and not in the local cache: unset HF_HUB_OFFLINE to read it from the Hub"
    spoken_to = answer or getattr(e, "request", None)  # the Hub, or the host that has its files
    where = spoken_to.url.host if spoken_to else page
    # Of 403 and 429 the client says what to do.
    reason = " ".join(f"{type(e).__name__} {e}".split())
    return f"no folder of this name, and {where} cannot be read ({reason:.200}): check the network or HF_ENDPOINT"


class HubFolder(Folder):
    """
    A repository of the Hub at the commit info["sha"], or a folder in it. Files that the local cache does not have are
    read by ranges. asked: the branch, tag or commit that the user named.
    """

    def __init__(self, repo: str, asked: str | None, info: dict):
        super().__init__(PurePosixPath(), info["sha"])
        self.repo = repo
        self.asked = asked
        # Of all its folders.
        self._files = [PurePosixPath(file["rfilename"]) for file in info.get("siblings", ())]
        self._in_ranges = set()  # files of which the host serves ranges

    @property
    def names(self) -> list[str]:
        inside = [file.relative_to(self.path) for file in self._files if file.is_relative_to(self.path)]
        return sorted({path.parts[0] for path in inside})

    def _full_name(self, name: str) -> str:
        return str(self.path / name)

    def _cached(self, name: str) -> str | None:
        path = try_to_load_from_cache(self.repo, self._full_name(name), revision=self.revision)
        return path if isinstance(path, str) else None  # or it is known that there is no such file

    def fetch(self, name: str) -> Path:
        with hub_errors(self.repo, self.asked):
            # The revision and not the commit, so that the cache knows offline which commit it stood for.
            path = self._cached(name) or hf_hub_download(self.repo, self._full_name(name), revision=self.asked)
        return Path(path)

    def read(self, name: str, start: int, view: memoryview) -> int:
        if self._cached(name):
            return super().read(name, start, view)
        with hub_errors(self.repo, self.asked):
            return self._get(name, start, view)

    def _get(self, name: str, start: int, view: memoryview) -> int:
        url = hf_hub_url(self.repo, self._full_name(name), revision=self.revision)
        # By its own compression a server would send other bytes. No other host gets the token of build_hf_headers.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        options = dict(TRIES, follow_redirects=True)
        if name not in self._in_ranges:  # else the whole file would come, and be waited for
            with http_stream_backoff("GET", url, headers=headers | {"Range": "bytes=0-0"}, **options) as answer:
                hf_raise_for_status(answer)
                require(answer.status_code == 206, f"{answer.url.host} does not serve byte ranges of {name}: use "
                        f"another HF_ENDPOINT, or first download it all with: hf download {self.repo}")
            self._in_ranges.add(name)
            self.lengths.append(1)
        headers["Range"] = f"bytes={start}-{start + len(view) - 1}"
        answer = http_backoff("GET", url, headers=headers, **options)
        hf_raise_for_status(answer)
        size = int(re.fullmatch(rf"bytes {start}-\d+/(\d+)", answer.headers["Content-Range"])[1])
        n_bytes = min(len(view), size - start)  # fewer at the end of the file
        view[:n_bytes] = answer.content  # ValueError if it has another length
        self.lengths.append(n_bytes)
        return size


def open_repository(repo: str, asked: str | None) -> Folder:
    """A repository at the commit that `asked` stands for now. If the Hub cannot be reached, the local cache."""
    address = f"/{repo}/revision/{quote(asked, safe='')}" if asked else f"/{repo}"
    try:
        with hub_errors(repo, asked):
            return HubFolder(repo, asked, get(address, dict(expand=["sha", "siblings"])))
    except CheckpointError as e:
        cached = try_to_load_from_cache(repo, "config.json", revision=asked)
        answer = getattr(e.__cause__, "response", None)
        refused = answer is not None and answer.status_code < 500  # the Hub is there, and says no
        if refused or not isinstance(cached, str):
            raise
        path = Path(cached).parent
        folder = Folder(path, path.name)
        folder.notes.append("read from the local cache, because the Hub is out of reach")
        return folder


def list_revisions(repo: str) -> list[str]:
    """The names of the branches and tags of a repository, as the Hub orders them."""
    with hub_errors(repo):
        refs = get(f"/{repo}/refs")
        return [ref["name"] for ref in refs["branches"] + refs["tags"]]


def get(address: str, params: dict | None = None):
    """The Hub's answer about models."""
    # HfApi's own functions have no time-out or no retries: they would wait for ever.
    url = f"{HfApi().endpoint}/api/models{address}"
    answer = http_backoff("GET", url, params=params, headers=build_hf_headers(), **TRIES)
    hf_raise_for_status(answer)
    return answer.json()
