"""Checkpoints of the Hugging Face Hub: files in the local cache are read there, the others by byte ranges over HTTP.

Honours HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE, as huggingface_hub does.
"""

import os
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2  # the HTTP client of huggingface_hub
from huggingface_hub import HfApi, errors, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, parse_ratelimit_headers

from data.pretrained.checkpoint import Checkpoint, CheckpointError, need

TIMEOUT = 10.0  # seconds without a byte
DEADLINE = 600.0  # seconds for a range of 16 MiB
BACKOFF = (0.5, 1.0, 2.0, 4.0)  # seconds between five tries
MAX_PAUSE = 300  # seconds to wait when the Hub says so; it counts requests in windows of five minutes
pause = time.sleep


def retry(call):
    """call(), five times at most on a time-out, a reset, a cut body, 429 or 5xx; waits as long as the server asks."""
    for wait in (*BACKOFF, None):
        try:
            return call()
        except httpx2.TransportError:
            if wait is None:
                raise
        except errors.HfHubHTTPError as e:
            if wait is None or e.response.status_code not in (408, 429, 500, 502, 503, 504):
                raise
            headers, limit = e.response.headers, parse_ratelimit_headers(e.response.headers)
            if headers.get("Retry-After", "").isdecimal():
                wait = int(headers["Retry-After"])
            elif limit and not limit.remaining:
                wait = limit.reset_in_seconds
            if wait > MAX_PAUSE:
                raise
        pause(wait)


@contextmanager
def one_line(repo: str, asked: str | None):
    """Makes one line of whatever the client raises."""
    page = f"{HfApi().endpoint}/{repo}"
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RuntimeError) as e:  # RuntimeError: hf_xet's
        answer = getattr(e, "response", None)
        if isinstance(e, errors.GatedRepoError):
            told = f"{repo} is gated: ask for access at {page}, then set HF_TOKEN to a token of that account"
        elif isinstance(e, errors.RevisionNotFoundError):
            told = f"{repo} has no revision {asked}: {page}/tree/main lists its branches and tags"
        elif isinstance(e, errors.RepositoryNotFoundError) or answer is not None and answer.status_code == 401:
            told = f"there is no {page}, or it is private and needs a valid HF_TOKEN; nor is there a folder {repo} here"
        elif isinstance(e, errors.OfflineModeIsEnabled):
            told = f"{repo} is not in the local cache: unset HF_HUB_OFFLINE to read it from the Hub"
        else:
            asked_of = e.request if isinstance(e, httpx2.RequestError) else answer
            where = asked_of.url.host if asked_of is not None else page
            reason = " ".join(f"{type(e).__name__} {e}".split())
            told = f"cannot read {repo} from {where} ({reason:.150}): check the network or HF_ENDPOINT"
        raise CheckpointError(told) from e


class HubCheckpoint(Checkpoint):
    """A checkpoint of the Hub at the commit `info.sha`."""

    def __init__(self, source: str, repo: str, asked: str | None, info):
        self._repo, self._asked, self._downloaded = repo, asked, []
        self._headers = {**build_hf_headers(), "Accept-Encoding": "identity"}  # other hosts get no token
        super().__init__(source, None, [file.rfilename for file in info.siblings or ()], info.sha)
        if any(name.endswith(".bin") for name in self._downloaded):
            self.note = f"only pytorch_model.bin exists: downloaded whole, {self.size / 1e9:.2f} GB"

    def _cached(self, name: str) -> Path | None:
        path = try_to_load_from_cache(self._repo, name, revision=self.revision)
        return Path(path) if isinstance(path, str) else None

    def _fetch(self, name: str) -> Path:
        if path := self._cached(name):
            return path
        self._downloaded.append(name)
        ask = dict(revision=self._asked, etag_timeout=TIMEOUT)  # as asked: the cache then knows its commit offline
        path = Path(retry(lambda: hf_hub_download(self._repo, name, **ask)))
        need(self.revision in path.parts, f"{self._repo} has changed while it was opened: run again")
        return path

    def _read(self, file: str, start: int, view: memoryview) -> int:
        if self._cached(file):
            return super()._read(file, start, view)
        with one_line(self._repo, self._asked):
            return retry(lambda: self._get(file, start, view))

    def _get(self, file: str, start: int, view: memoryview) -> int:
        """One try of `_read`: nothing but a 206 with exactly the bytes asked for is accepted."""
        need(not self._closed, f"{self.source} has been closed")
        url = httpx2.URL(hf_hub_url(self._repo, file, revision=self.revision))
        headers = {**self._headers, "Range": f"bytes={start}-{start + len(view) - 1}"}
        deadline = time.monotonic() + DEADLINE
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True) as r:
            if r.status_code in (401, 403, 404, 410) and r.url.netloc != url.netloc:
                raise httpx2.ReadError(f"its signed URL has expired ({r.status_code})", request=r.request)
            hf_raise_for_status(r)
            span, _, total = r.headers.get("Content-Range", "").partition("/")
            size, done = int(total) if total.isdecimal() else 0, 0
            n = min(len(view), size - start)
            need(r.status_code == 206 and span == f"bytes {start}-{start + n - 1}"
                 and r.headers.get("Content-Length", str(n)) == str(n)
                 and r.headers.get("Content-Encoding", "identity") == "identity",
                 f"{r.url.host} does not serve byte ranges of {file} (status {r.status_code}, {span or 'no range'}): "
                 f"use another HF_ENDPOINT, or first download it all with: hf download {self._repo}")
            for chunk in r.iter_raw():
                done += len(chunk)
                if self._closed or done > n or time.monotonic() > deadline:
                    raise httpx2.ReadTimeout("stalled", request=r.request)
                view[done - len(chunk) : done] = chunk
                self._count(len(chunk))
            if done < n:
                raise httpx2.ReadError("cut short", request=r.request)
            return size


def open_hub(source: str, repo: str, asked: str | None) -> Checkpoint:
    """The checkpoint of a repository, pinned to the commit that `asked` stands for now; from the cache when offline."""
    ask = dict(revision=asked, timeout=TIMEOUT, expand=["sha", "siblings"])
    with one_line(repo, asked):
        try:
            info = retry(lambda: HfApi().model_info(repo, **ask))
        except (httpx2.HTTPError, errors.OfflineModeIsEnabled) as e:
            cached = try_to_load_from_cache(repo, "config.json", revision=asked)
            if not isinstance(cached, str) or getattr(e, "response", None) is not None and e.response.status_code < 500:
                raise
        except (KeyError, TypeError) as e:
            raise CheckpointError(f"{HfApi().endpoint} does not answer as the Hub does: check HF_ENDPOINT") from e
        else:
            return HubCheckpoint(source, repo, asked, info)
        folder, told = Path(cached).parent, "read from the local cache, the Hub being out of reach"
        opened = Checkpoint(f"{source} ({told})", folder, sorted(os.listdir(folder)), folder.name)
        opened.source, opened.note = source, told
        return opened
