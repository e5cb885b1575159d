"""
A stand-in for the Hugging Face Hub on 127.0.0.1 that the installed huggingface_hub client talks to.

    def test_x(hub):  # the fixture; HF_HOME lies in tmp_path
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": data})   # -> its commit
        ...
        assert hub.sent("model.safetensors") < 1000         # bytes of it that went out

Like the Hub it redirects weight files to a second host, the CDN, where it serves byte ranges: itself by another name. A
dataset is a repository whose name begins with datasets/. With hub.ranges = False every file is sent whole.
"""

import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

ID = r"((?:datasets/)?[^/]+(?:/[^/]+)?)"
ROUTES = {  # what is asked for, of a repository, a revision and a file: the first that matches
    "tree": f"/api/{ID}/tree/([^/]+)/?(.*)",
    "info": f"/api/(?:models/)?{ID}(?:/revision/(.+))?()",
    "file": f"/{ID}/resolve/([^/]+)/(.+)",  # a "/" of a branch is quoted
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every answer waits 40 ms for the client to confirm its headers

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.partition("?")[0]
        file = "api" if path.startswith("/api/") else unquote(re.sub(".*/resolve/[^/]+/", "", path))
        headers = {name.lower(): value for name, value in self.headers.items()}
        host = "cdn" if headers["host"].startswith("localhost") else "hub"
        request = SimpleNamespace(host=host, path=self.path, headers=headers, file=file, sent=0)
        self.server.hub.log.append(request)

        status, headers, body = answer(self.server.hub, request, path)
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            for start in range(0, len(body), 2**16):
                part = body[start : start + 2**16]
                request.sent += len(part)  # before the bytes leave: a test may ask as soon as the last one is there
                self.wfile.write(part)  # OSError: the client has hung up

    do_HEAD = do_GET


def answer(hub, request, path):
    """Returns status, headers and body."""
    # what is asked for?
    matches = {kind: re.fullmatch(pattern, path) for kind, pattern in ROUTES.items()}
    kind = next(filter(matches.get, matches), None)
    if kind is None:
        return refused(404, "")
    if kind == "info" and hub.busy:
        return 429, {"Retry-After": hub.busy.pop()}, b""
    name, revision, file = [unquote(part or "") for part in matches[kind].groups()]
    if name not in hub.repos:
        return refused(404, "RepoNotFound")
    repo = hub.repos[name]
    commit = repo.branches.get(revision or "main", revision)
    files = repo.files[commit]

    # a list of files
    if kind == "info":
        siblings = [{"rfilename": file, "size": len(content)} for file, content in files.items()]
        return in_json({"id": name, "sha": commit, "siblings": siblings})
    if kind == "tree":
        return in_json([{"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                        for path, content in files.items() if path.startswith(file)])

    # a file, or a range of it; or the address of weights
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if request.host == "hub" and repo.gated not in ("", token):
        return refused(401, "GatedRepo")
    if file not in files:
        return refused(404, "EntryNotFound")
    content = files[file]
    size, etag = len(content), f'"{digest(commit, file)}"'
    headers = {"ETag": etag, "X-Repo-Commit": commit}
    if request.host == "hub" and file.endswith((".safetensors", ".bin")):
        linked = {"X-Linked-Size": size, "X-Linked-ETag": etag, "Location": hub.cdn_url + request.path}
        return 302, headers | linked, b""
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if not asked or not hub.ranges:
        return 200, headers, content
    start, end = int(asked[1]) + hub.shift, min(size, int(asked[2]) + 1)
    return 206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}, content[start:end]


def refused(status, code):
    return status, {"X-Error-Code": code}, b""


def digest(*parts):
    return hashlib.sha1(repr(parts).encode()).hexdigest()


def in_json(content):
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


class Hub:
    def __init__(self):
        self.repos = {}
        self.log = []  # requests, with the bytes of body that were sent
        self.ranges = True
        self.shift = 0  # by how many bytes every range begins later than was asked for
        self.busy = []  # the seconds to wait that it answers at first, if it is asked for a repository
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.hub = self
        self.server.handle_error = lambda *_: None  # a client that hangs up
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url, self.cdn_url = (f"http://{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost"))

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def add(self, name, files, branch="main", gated="", commit=""):
        """A commit with these files, to which the branch points; -> the commit. gated: needs this token."""
        repo = self.repos.setdefault(name, SimpleNamespace(gated=gated, files={}, branches={}))
        commit = commit or digest(name, branch, sorted(files))
        repo.files[commit] = files
        repo.branches[branch] = commit
        return commit

    def sent(self, file):
        return sum(request.sent for request in self.log if request.file == file)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A running Hub; the client of this process, and of those it starts, talks to it and caches under tmp_path."""
    from huggingface_hub import close_session, constants

    hub, home = Hub(), tmp_path / "hf"
    for name in [name for name in os.environ if name.startswith("HF_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {  # read from the environment once, when the client was imported
        "ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "tokens"), "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_TELEMETRY": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    close_session()  # its connections lead to the server of another test
    yield hub
    close_session()
    hub.close()
