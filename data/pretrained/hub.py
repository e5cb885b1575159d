"""
Checkpoints of the Hugging Face Hub. Files are read from the local cache, or else by byte ranges over HTTP.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub.
"""

import fnmatch
import math
import posixpath
import re
import threading
from contextlib import contextmanager
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


def retry(call, closed=NEVER):
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


@contextmanager
def one_line(repo: str, asked: str | None):
    """Turn whatever the client raises into an error of one line."""
    try:
        yield
    except (KeyError, TypeError) as e:
        raise CheckpointError(f"{HfApi().endpoint} does not answer as the Hub does: check HF_ENDPOINT") from e
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError) as e:  # RuntimeError: hf_xet's
        raise CheckpointError(explain(e, repo, asked)) from e


def explain(e: Exception, repo: str, asked: str | None) -> str:
    """What went wrong, and what to do."""
    page = f"{HfApi().endpoint}/{repo}"
    answer = getattr(e, "response", None) or getattr(e.__cause__, "response", None)
    status = None if answer is None else answer.status_code
    if isinstance(e, errors.GatedRepoError):  # before RepositoryNotFoundError, which it is too
        return f"gated: ask for access at {page}, then set HF_TOKEN to a token of that account"
    if isinstance(e, errors.RevisionNotFoundError):
        return f"there is no revision {asked}: {page}/tree/main lists its branches and tags"
    if isinstance(e, errors.RepositoryNotFoundError) or status == 401:
        return f"there is no {page}, or it is private and needs a valid HF_TOKEN; nor is there a folder of this name"
    if status == 403:
        return f"HF_TOKEN may not read {page} (403): allow it to read gated repositories, in the settings of the token"
    if status == 429:
        minutes = math.ceil(asked_to_wait(answer.headers) / 60) or 5
        return f"too many requests for the Hub (429): try again in {minutes} min; with HF_TOKEN it allows more"
    if isinstance(e, errors.OfflineModeIsEnabled):
        return "no folder of this name, and not in the local cache: unset HF_HUB_OFFLINE to read it from the Hub"
    spoken_to = e.request if isinstance(e, httpx2.RequestError) else answer
    where = page if spoken_to is None else spoken_to.url.host
    reason = " ".join(f"{type(e).__name__} {e}".split())
    return f"no folder of this name, and {where} cannot be read ({reason:.150}): check the network or HF_ENDPOINT"


class HubFolder(Folder):
    """
    A repository of the Hub at the commit info.sha, or a folder in it. Files that the local cache does not have are read
    by ranges. asked: the branch, tag or commit that the user named.
    """

    def __init__(self, repo: str, asked: str | None, info):
        self.repo, self.asked = repo, asked
        self._files = [file.rfilename for file in info.siblings or ()]  # of all folders
        super().__init__(PurePosixPath(), info.sha)

    def enter(self, inner: str):
        self.path = self.path / inner
        inside = [PurePosixPath(file).relative_to(self.path) for file in self._files
                  if PurePosixPath(file).is_relative_to(self.path)]
        self.names = sorted({path.parts[0] for path in inside})

    def has(self, name: str) -> bool:
        return self._full_name(name) in self._files

    def _full_name(self, name: str) -> str:
        return posixpath.normpath(self.path / name)

    def _cached(self, name: str) -> Path | None:
        path = try_to_load_from_cache(self.repo, self._full_name(name), revision=self.revision)
        return Path(path) if isinstance(path, str) else None

    def fetch(self, name: str) -> Path:
        path = self._cached(name)
        if path is None:
            # The revision and not the commit, so that the cache knows offline which commit it stood for.
            with one_line(self.repo, self.asked):
                path = Path(retry(lambda: hf_hub_download(self.repo, self._full_name(name), revision=self.asked)))
            if not name.endswith(".json"):
                size = path.stat().st_size / 1e9
                self.notes.append(f"{name} downloaded whole, {size:.2f} GB: it is no zip of uncompressed tensors")
        return path

    def read(self, name: str, start: int, view: memoryview) -> int:
        if self._cached(name):
            return super().read(name, start, view)
        with one_line(self.repo, self.asked):
            return retry(lambda: self._get(name, start, view), self._closed)

    def _get(self, name: str, start: int, view: memoryview) -> int:
        """One try of `read`. Only an answer 206 with exactly the bytes that were asked for is accepted."""
        url = hf_hub_url(self.repo, self._full_name(name), revision=self.revision)
        # By its own compression a server would send other bytes. No other host gets the token of build_hf_headers.
        asked = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{start + len(view) - 1}"}
        with get_session().stream("GET", url, headers={**build_hf_headers(), **asked}, timeout=TIMEOUT,
                                  follow_redirects=True) as answer:
            hf_raise_for_status(answer)
            span, _, total = answer.headers.get("Content-Range", "").partition("/")  # bytes 0-63/440473133
            size = int(total) if total.isdecimal() else 0
            n_bytes = min(len(view), size - start)  # fewer at the end of the file
            require(answer.status_code == 206 and span == f"bytes {start}-{start + n_bytes - 1}",
                    f"{answer.url.host} does not serve byte ranges of {name} (status {answer.status_code}, "
                    f"{span or 'no range'}): use another HF_ENDPOINT, or first download it all with: "
                    f"hf download {self.repo}")
            done = 0
            for chunk in answer.iter_raw():
                view[done : done + len(chunk)] = chunk
                done += len(chunk)
            if done != n_bytes:
                raise httpx2.ReadError("cut short", request=answer.request)
        self.count(n_bytes)
        return size


def open_repository(repo: str, asked: str | None) -> Folder:
    """A repository at the commit that `asked` stands for now. If the Hub cannot be reached, the local cache."""
    with one_line(repo, asked):
        try:
            info = retry(lambda: HfApi().model_info(repo, revision=asked, timeout=TIMEOUT, expand=["sha", "siblings"]))
            return HubFolder(repo, asked, info)
        except (httpx2.HTTPError, errors.OfflineModeIsEnabled) as e:
            cached = try_to_load_from_cache(repo, "config.json", revision=asked)
            answer = getattr(e, "response", None)
            refused = answer is not None and answer.status_code < 500  # the Hub is there, and says no
            if refused or not isinstance(cached, str):
                raise
            path = Path(cached).parent
            folder = Folder(path, path.name)
            folder.notes.append("read from the local cache, the Hub being out of reach")
            return folder


def list_revisions(repo: str) -> list[str]:
    """The names of the branches and tags of a repository, as the Hub orders them."""
    with one_line(repo, None):
        refs = ask(f"{HfApi().endpoint}/api/models/{repo}/refs").json()
        return [ref["name"] for ref in refs["branches"] + refs["tags"]]


def list_repos(pattern: str) -> list[str]:
    """The repositories of one organisation that match a pattern, org/name-step_*k, as the Hub orders them."""
    author, _, name = pattern.partition("/")
    literal = re.split(r"[*?[]", name)[0]  # the Hub looks for a part of the name, and knows no patterns
    require(name and not re.search(r"[*?[]", author),
            f"{pattern} needs an organisation's name before the pattern: org/name-*")
    with one_line(pattern, None):
        answer = ask(f"{HfApi().endpoint}/api/models", dict(author=author, search=literal))
        found = [model["id"] for model in answer.json()]
        while "next" in answer.links:  # it answers in pages
            answer = ask(answer.links["next"]["url"])
            found += [model["id"] for model in answer.json()]
    matching = fnmatch.filter(found, pattern)
    require(matching, f"no repository that can be seen from here matches {pattern}")
    return matching


def ask(url: str, params: dict | None = None):
    """The Hub's answer. HfApi's list_repo_refs and list_models have no time-out: they would wait for ever."""
    def once():
        answer = get_session().get(url, params=params, headers=build_hf_headers(), timeout=TIMEOUT)
        hf_raise_for_status(answer)
        return answer

    return retry(once)
