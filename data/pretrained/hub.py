"""
Checkpoints of the Hugging Face Hub. Files are read from the local cache, or else by byte ranges over HTTP.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub.
"""

import fnmatch
import math
import posixpath
import re
import threading
from pathlib import Path, PurePosixPath

import httpx2  # the HTTP client of huggingface_hub
from huggingface_hub import HfApi, errors, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, parse_ratelimit_headers

from data.pretrained.files import CheckpointError, Folder, require

TIMEOUT = 10.0  # seconds without a byte
BACKOFF = (0.5, 1.0, 2.0, 4.0)  # seconds between five tries
MAX_PAUSE = 300  # seconds to wait at most if the Hub asks for it; it counts requests in windows of five minutes
PASSING = (408, 429, 500, 502, 503, 504)  # the statuses after which another try may succeed
NEVER = threading.Event()


def retry(call, closed):
    """
    call(), up to five times on a time-out, a broken connection, 429 or 5xx. Waits as long as the server asks, but no
    longer than until `closed` is set: then CheckpointError.
    """
    for wait in BACKOFF:
        try:
            return call()
        except httpx2.TransportError:
            pass
        except errors.HfHubHTTPError as e:
            wait = asked_to_wait(e.response.headers) or wait
            if e.response.status_code not in PASSING or wait > MAX_PAUSE:
                raise
        pause(wait, closed)
        require(not closed.is_set(), "it has been closed")
    return call()


def pause(seconds, closed):  # a function of its own, so that tests need not wait
    closed.wait(seconds)


def asked_to_wait(headers) -> int:
    """Seconds until the next try, by the headers of an answer; 0 if they do not say."""
    limit = parse_ratelimit_headers(headers)
    if limit and not limit.remaining:
        return limit.reset_in_seconds
    after = headers.get("Retry-After", "")
    return int(after) if after.isdecimal() else 0


def ask(call, repo: str, revision: str | None = None, closed=NEVER):
    """call() with `retry`. Whatever it raises becomes an error of one line about a repository, or a revision of it."""
    try:
        return retry(call, closed)
    # KeyError, TypeError: an answer that is not the Hub's. RuntimeError: of hf_xet.
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise CheckpointError(explain(e, repo, revision)) from e


def explain(e: Exception, repo: str, revision: str | None) -> str:
    """What went wrong, and what to do."""
    page = f"{HfApi().endpoint}/{repo}"
    answer = getattr(e, "response", None) or getattr(e.__cause__, "response", None)
    status = None if answer is None else answer.status_code
    if isinstance(e, errors.GatedRepoError):  # before RepositoryNotFoundError, which it is too
        return f"gated: ask for access at {page}, then set HF_TOKEN to a token of that account"
    if isinstance(e, errors.RevisionNotFoundError):
        return f"there is no revision {revision}: {page}/tree/main lists its branches and tags"
    if isinstance(e, errors.RepositoryNotFoundError) or status == 401:
        return f"there is no {page}, or it is private and needs a valid HF_TOKEN; nor is there a folder of this name"
    if status == 403:
        return f"HF_TOKEN may not read {page} (403): allow it to read gated repositories, in the settings of the token"
    if status == 429:
        minutes = math.ceil(asked_to_wait(answer.headers) / 60) or 5
        return f"too many requests for the Hub (429): try again in {minutes} min; with HF_TOKEN it allows more"
    if isinstance(e, errors.OfflineModeIsEnabled):
        return "no folder of this name, and not in the local cache: unset HF_HUB_OFFLINE to read it from the Hub"
    spoken_to = answer or getattr(e, "request", None)  # the Hub, or the host that has its files
    where = spoken_to.url.host if spoken_to else page
    reason = " ".join(f"{type(e).__name__} {e}".split())
    return f"no folder of this name, and {where} cannot be read ({reason:.150}): check the network or HF_ENDPOINT"


class HubFolder(Folder):
    """
    A repository of the Hub at the commit info.sha, or a folder in it. Files that the local cache does not have are read
    by ranges. asked: the branch, tag or commit that the user named.
    """

    def __init__(self, repo: str, asked: str | None, info):
        super().__init__(PurePosixPath(), info.sha)
        self.repo = repo
        self.asked = asked
        self._files = [PurePosixPath(file.rfilename) for file in info.siblings or ()]  # of all folders

    @property
    def names(self) -> list[str]:
        inside = [file.relative_to(self.path) for file in self._files if file.is_relative_to(self.path)]
        return sorted({path.parts[0] for path in inside})

    def has(self, name: str) -> bool:
        return PurePosixPath(self._full_name(name)) in self._files

    def _full_name(self, name: str) -> str:
        return posixpath.normpath(self.path / name)

    def _ask(self, call):
        return ask(call, self.repo, self.asked, self.closed)

    def _cached(self, name: str) -> str | None:
        path = try_to_load_from_cache(self.repo, self._full_name(name), revision=self.revision)
        return path if isinstance(path, str) else None  # or it is known that there is no such file

    def fetch(self, name: str) -> Path:
        path = self._cached(name)
        if path is None:
            # The revision and not the commit, so that the cache knows offline which commit it stood for.
            path = self._ask(lambda: hf_hub_download(self.repo, self._full_name(name), revision=self.asked))
        return Path(path)

    def read(self, name: str, start: int, view: memoryview) -> int:
        if self._cached(name):
            return super().read(name, start, view)
        return self._ask(lambda: self._get(name, start, view))

    def _get(self, name: str, start: int, view: memoryview) -> int:
        """One try of `read`. Only exactly the bytes that were asked for are accepted."""
        url = hf_hub_url(self.repo, self._full_name(name), revision=self.revision)
        # By its own compression a server would send other bytes. No other host gets the token of build_hf_headers.
        headers = build_hf_headers()
        headers["Accept-Encoding"] = "identity"
        headers["Range"] = f"bytes={start}-{start + len(view) - 1}"
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True) as answer:
            hf_raise_for_status(answer)
            span = re.fullmatch(rf"bytes {start}-\d+/(\d+)", answer.headers.get("Content-Range", ""))
            require(span, f"{answer.url.host} does not serve byte ranges of {name}: use another HF_ENDPOINT, or first "
                    f"download it all with: hf download {self.repo}")
            body = answer.read()
        size = int(span[1])
        n_bytes = min(len(view), size - start)  # fewer at the end of the file
        view[:n_bytes] = body  # ValueError if it has another length
        self.lengths.append(n_bytes)
        return size


def open_repository(repo: str, asked: str | None) -> Folder:
    """A repository at the commit that `asked` stands for now. If the Hub cannot be reached, the local cache."""
    def get_info():
        return HfApi().model_info(repo, revision=asked, timeout=TIMEOUT, expand=["sha", "siblings"])

    try:
        return HubFolder(repo, asked, ask(get_info, repo, asked))
    except CheckpointError as e:
        cached = try_to_load_from_cache(repo, "config.json", revision=asked)
        answer = getattr(e.__cause__, "response", None)
        refused = answer is not None and answer.status_code < 500  # the Hub is there, and says no
        if refused or not isinstance(cached, str):
            raise
        path = Path(cached).parent
        folder = Folder(path, path.name)
        folder.notes.append("read from the local cache, the Hub being out of reach")
        return folder


def list_revisions(repo: str) -> list[str]:
    """The names of the branches and tags of a repository, as the Hub orders them."""

    def names():
        refs = get(f"{HfApi().endpoint}/api/models/{repo}/refs").json()
        return [ref["name"] for ref in refs["branches"] + refs["tags"]]

    return ask(names, repo)


def list_repos(pattern: str) -> list[str]:
    """The repositories of one organisation that match a pattern, org/name-step_*k, as the Hub orders them."""
    author, _, name = pattern.partition("/")
    literal = re.split(r"[*?[]", name)[0]  # the Hub looks for a part of the name, and knows no patterns
    require(name and not re.search(r"[*?[]", author),
            f"{pattern} needs an organisation's name before the pattern: org/name-*")

    def ids():
        answer = get(f"{HfApi().endpoint}/api/models", dict(author=author, search=literal))
        models = answer.json()
        while "next" in answer.links:  # it answers in pages
            answer = get(answer.links["next"]["url"])
            models += answer.json()
        return [model["id"] for model in models]

    matching = fnmatch.filter(ask(ids, pattern), pattern)
    require(matching, f"no repository that can be seen from here matches {pattern}")
    return matching


def get(url: str, params: dict | None = None):
    """The Hub's answer. HfApi's list_repo_refs and list_models have no time-out: they would wait for ever."""
    answer = get_session().get(url, params=params, headers=build_hf_headers(), timeout=TIMEOUT)
    hf_raise_for_status(answer)
    return answer
