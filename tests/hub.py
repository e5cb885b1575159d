"""A stand-in for the Hugging Face Hub on 127.0.0.1 that the installed huggingface_hub client talks to, with faults.

    from tests.hub import hub  # the fixture; HF_HOME lies in tmp_path

    def test_x(hub):
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": path_or_bytes})   # -> its commit
        hub.add("org/name", {...}, branch="step1000")       # another branch with files of its own; tag= makes a tag
        hub.fail("model.safetensors", "cut", times=2)       # the next two ranges of that file end in the middle
        ...
        assert hub.sent("model.safetensors") < 1000         # bytes of it that went out
        assert all("authorization" not in r.headers for r in hub.log if r.host == "cdn")

Like the Hub it answers /api/models/ID[/revision/REV], /api/models/ID/refs, /api/models?author=ORG&search=WORD in pages
of two, and /ID/resolve/REV/FILE, and redirects weight files to a second host, the CDN, where it serves byte ranges. A
dataset is a repository whose name begins with datasets/, as in its addresses; of these it also answers ID/tree/REV.
Faults, for one file (or "api") at the host that sends its bytes:
  a status (503, 429, 403, ...), with headers if wanted: Retry_After=7;
  cut, reset, stall: half the body, then the end of the connection, its reset, or nothing;
  whole: the file with status 200; unranged: no Content-Range.
hub.forbidden is a file that no token may read.
"""

import hashlib
import json
import os
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode

import pytest

import data.pretrained.hub

WEIGHTS = (".safetensors", ".bin")
ID = r"((?:datasets/)?[^/]+(?:/[^/]+)?)"


@dataclass
class Repo:
    files: dict[str, dict[str, bytes | Path]] = field(default_factory=dict)  # of each commit
    branches: dict[str, str] = field(default_factory=dict)  # name -> commit
    tags: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    allowed: str | None = None  # the token that may read it


@dataclass
class Request:
    host: str  # "hub" or "cdn"
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    file: str = ""
    status: int = 0  # -1: stalled, and the client stayed
    sent: int = 0  # bytes of body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.request_log = Request(self.server.host, self.command, self.path, headers)
        self.server.hub.log.append(self.request_log)
        path, _, query = self.path.partition("?")
        if path == "/api/models":
            self.search(dict(parse_qsl(query)))
        elif refs := re.fullmatch(f"/api/models/{ID}/refs", path):
            self.refs(unquote(refs[1]))
        elif tree := re.fullmatch(f"/api/{ID}/tree/([^/]+)/?(.*)", path):
            self.tree(*map(unquote, tree.groups()))
        elif api := re.fullmatch(f"/api/(?:models/)?{ID}(?:/revision/(.+))?", path):
            self.api(api[1], api[2] and unquote(api[2]))
        elif file := re.fullmatch(f"/{ID}/resolve/([^/]+)/(.+)", path):  # a "/" of a branch is quoted
            self.resolve(*map(unquote, file.groups()))
        else:
            self.answer(404)

    do_HEAD = do_GET

    def answer(self, status: int, headers: dict | None = None, body: bytes = b""):
        self.request_log.status = status
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.send(body)

    def send(self, body: bytes):
        self.request_log.sent += len(body)  # before the bytes leave: a test may ask as soon as the last one is there
        try:
            self.wfile.write(body)
        except OSError:  # the client has hung up
            self.request_log.sent -= len(body)
            raise

    def refuse(self, status: int, code: str):
        self.answer(status, {"X-Error-Code": code, "X-Error-Message": code}, b'{"error": "%s"}' % code.encode())

    def find(self, name: str, revision: str | None) -> tuple[Repo, str] | None:
        """The repository and the commit, or None when the refusal has been sent."""
        repo, token = self.server.hub.repos.get(name), self.headers.get("Authorization")
        if repo is None:
            return self.refuse(404 if token else 401, "RepoNotFound")
        commit = (repo.branches | repo.tags).get(revision or "main", revision)
        if commit not in repo.files:
            return self.refuse(404, "RevisionNotFound")
        return repo, commit

    def fails(self) -> bool:
        """Whether there was a fault of the api, which has been answered."""
        kind, headers = self.server.hub.fault("api") or ("", {})
        if kind == "stall":
            self.server.hub.stopped.wait(20)
        elif kind:
            self.answer(kind, headers, b"{}")
        return bool(kind)

    def api(self, name: str, revision: str | None):
        if self.fails():
            return
        if found := self.find(name, revision):
            repo, commit = found
            self.answer_json({"id": name, "sha": commit, "siblings": [{"rfilename": n} for n in repo.files[commit]]})

    def tree(self, name: str, revision: str, below: str):
        if found := self.find(name, revision):
            files = found[0].files[found[1]]
            self.answer_json([{"type": "file", "path": n, "size": len(files[n]), "oid": "0" * 40}
                              for n in files if n.startswith(below)])

    def refs(self, name: str):
        if self.fails():
            return
        repo = self.server.hub.repos.get(name)
        if repo is None:
            return self.refuse(401, "RepoNotFound")
        kinds = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags), "converts": ("convert", {})}
        self.answer_json({kind: [{"name": ref, "ref": f"refs/{folder}/{ref}", "targetCommit": commit}
                                 for ref, commit in refs.items()] for kind, (folder, refs) in kinds.items()})

    def search(self, query: dict[str, str]):
        if self.fails():
            return
        found = [name for name in self.server.hub.repos
                 if query.get("search", "").lower() in name.lower() and name.startswith(query.get("author", ""))]
        first = int(query.get("cursor", 0))
        more = {}
        if first + 2 < len(found):
            asked = urlencode(query | {"cursor": first + 2})
            more["Link"] = f'<{self.server.hub.url}/api/models?{asked}>; rel="next"'
        self.answer_json([{"id": name, "_id": name} for name in found[first : first + 2]], more)

    def answer_json(self, content, headers: dict | None = None):
        self.answer(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(content).encode())

    def resolve(self, name: str, revision: str, file: str):
        self.request_log.file = file
        if not (found := self.find(name, revision)):
            return
        repo, commit = found
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server.host == "hub" and repo.gated and (not token or token != repo.allowed):
            return self.refuse(403 if token else 401, "GatedRepo")
        if file == self.server.hub.forbidden:
            return self.answer(403, {"X-Error-Message": "Please enable access to public gated repositories"})
        if file not in repo.files[commit]:
            return self.refuse(404, "EntryNotFound")
        data = repo.files[commit][file]
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        headers = {"ETag": f'"{hashlib.sha1(f"{commit}{file}".encode()).hexdigest()}"', "X-Repo-Commit": commit}
        if self.server.host == "hub" and file.endswith(WEIGHTS):
            headers |= {"X-Linked-Size": size, "X-Linked-ETag": headers["ETag"]}
            return self.answer(302, {**headers, "Location": self.server.hub.cdn_url + self.path})
        if self.command == "HEAD":
            return self.answer(200, {**headers, "Content-Length": size})
        self.serve(data, size, headers, self.server.hub.fault(file))

    def serve(self, data: bytes | Path, size: int, headers: dict, fault: tuple | None):
        """Send a file, or the range of it that is asked for, with a fault if there is one."""
        kind, extra = fault or ("", {})
        if isinstance(kind, int):
            return self.answer(kind, extra)
        status, start, end = 200, 0, size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and kind != "whole":
            status, start, end = 206, int(asked[1]), min(size, int(asked[2] or size) + 1)
            if start >= size:
                return self.answer(416, {"Content-Range": f"bytes */{size}"})
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        if kind == "unranged":
            del headers["Content-Range"]
        self.request_log.status = status
        self.send_response(status)
        for name, value in {**headers, "Content-Length": end - start}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if kind in ("cut", "reset", "stall"):
            self.body(data, start, start + (end - start) // 2)
            self.break_off(kind)
        else:
            self.body(data, start, end)

    def break_off(self, kind: str):
        """How an answer goes on after half of its body."""
        self.close_connection = True
        if kind == "stall" and not self.server.hub.stopped.wait(20):
            self.request_log.status = -1  # the client should have left
        if kind == "reset":
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def body(self, data: bytes | Path, start: int, end: int):
        if isinstance(data, bytes):
            return self.send(data[start:end])
        with open(data, "rb") as f:
            f.seek(start)
            for a in range(start, end, 1 << 18):
                self.send(f.read(min(1 << 18, end - a)))


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # the client has hung up
        pass


@dataclass
class Hub:
    repos: dict[str, Repo] = field(default_factory=dict)
    log: list[Request] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds that the client would have waited between its tries
    forbidden: str = ""

    def __post_init__(self):
        self.faults, self.lock, self.stopped = [], threading.Lock(), threading.Event()
        self.servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
        for server, server.host in zip(self.servers, ("hub", "cdn")):
            server.hub = self
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url, self.cdn_url = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def close(self):
        self.stopped.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: dict[str, bytes | Path], branch: str = "main", tag: str = "", gated: bool = False,
            allowed: str | None = None, commit: str = "") -> str:
        """A commit with these files, to which the branch points, or the tag; -> the commit."""
        repo = self.repos.setdefault(name, Repo())
        repo.gated, repo.allowed = gated, allowed
        commit = commit or hashlib.sha1(f"{name}{branch}{tag}{len(self.log)}{sorted(files)}".encode()).hexdigest()
        repo.files[commit] = files
        refs = repo.tags if tag else repo.branches
        refs[tag or branch] = commit
        return commit

    def fail(self, file: str, kind: str | int, times: int = 1, **headers):
        self.faults += [(file, (kind, {name.replace("_", "-"): value for name, value in headers.items()}))] * times

    def fault(self, file: str) -> tuple | None:
        with self.lock:
            i = next((i for i, (name, _) in enumerate(self.faults) if name == file), None)
            return None if i is None else self.faults.pop(i)[1]

    def sent(self, file: str) -> int:
        return sum(request.sent for request in self.log if request.file == file)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A running Hub; the client of this process, and of those it starts, talks to it and caches under tmp_path."""
    from huggingface_hub import close_session, constants
    hub, home = Hub(), tmp_path / "hf"
    for name, value in {
        "ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "tokens"), "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_TELEMETRY": True,
    }.items():
        monkeypatch.setattr(constants, name, value)  # read from the environment once, when the client was imported
    for name in [name for name in os.environ if name.startswith("HF_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(data.pretrained.hub, "pause", hub.waits.append)
    close_session()  # its connections lead to the server of another test
    yield hub
    close_session()
    hub.close()
