"""A stand-in for the Hugging Face Hub on 127.0.0.1 that the installed huggingface_hub client talks to.

    def test_x(hub):  # the fixture; HF_HOME lies in tmp_path
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": data})   # -> its commit
        ...
        assert hub.sent("model.safetensors") < 1000         # bytes of it that went out

Like the Hub it answers /api/models/ID[/revision/REV] and /ID/resolve/REV/FILE. It redirects weight files to a second
host, the CDN, where it serves byte ranges: itself by another name. A dataset is a repository whose name begins with
datasets/, as in its addresses; for these it also answers ID/tree/REV. With hub.ranges = False every file is sent whole.
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


class Refused(Exception):
    """The status and the error code of an answer without content."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every answer waits 40 ms for the client to confirm its headers

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.hub = self.server.hub
        path = self.path.partition("?")[0]
        file = "api" if path.startswith("/api/") else unquote(re.sub(".*/resolve/[^/]+/", "", path))
        headers = {name.lower(): value for name, value in self.headers.items()}
        host = "cdn" if headers["host"].startswith("localhost") else "hub"
        self.entry = SimpleNamespace(host=host, path=self.path, headers=headers, file=file, sent=0)
        self.hub.log.append(self.entry)
        try:
            status, headers, body = self.route(path)
        except Refused as e:
            status, code = e.args
            headers, body = {"X-Error-Code": code}, b""
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            for start in range(0, len(body), 2**16):
                part = body[start : start + 2**16]
                self.entry.sent += len(part)  # before the bytes leave: a test may ask as soon as the last one is there
                self.wfile.write(part)  # OSError: the client has hung up

    do_HEAD = do_GET

    # What is asked for: each returns status, headers and body of the answer.

    def route(self, path: str) -> tuple[int, dict, bytes]:
        for pattern, method in ROUTES.items():
            if found := re.fullmatch(pattern, path):
                return method(self, *[unquote(part or "") for part in found.groups()])
        raise Refused(404, "")

    def find(self, name: str, revision: str) -> tuple[SimpleNamespace, str]:
        """-> the repository and the commit."""
        repo = self.hub.repos.get(name)
        if repo is None:
            raise Refused(404, "RepoNotFound")
        commit = repo.branches.get(revision or "main", revision)
        return repo, commit

    def info(self, name: str, revision: str):
        if self.hub.busy:
            return 429, {"Retry-After": self.hub.busy.pop()}, b""
        repo, commit = self.find(name, revision)
        siblings = [{"rfilename": file, "size": len(content)} for file, content in repo.files[commit].items()]
        return in_json({"id": name, "sha": commit, "siblings": siblings})

    def tree(self, name: str, revision: str, below: str):
        repo, commit = self.find(name, revision)
        return in_json([{"type": "file", "path": file, "size": len(content), "oid": "0" * 40}
                        for file, content in repo.files[commit].items() if file.startswith(below)])

    def resolve(self, name: str, revision: str, file: str):
        repo, commit = self.find(name, revision)
        token = self.entry.headers.get("authorization", "").removeprefix("Bearer ")
        if self.entry.host == "hub" and repo.gated not in ("", token):
            raise Refused(401, "GatedRepo")
        if file not in repo.files[commit]:
            raise Refused(404, "EntryNotFound")
        content = repo.files[commit][file]
        size, etag = len(content), f'"{digest(commit, file)}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit}
        if self.entry.host == "hub" and file.endswith((".safetensors", ".bin")):
            linked = {"X-Linked-Size": size, "X-Linked-ETag": etag, "Location": self.hub.cdn_url + self.path}
            return 302, headers | linked, b""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.entry.headers.get("range", ""))
        if not asked or not self.hub.ranges:
            return 200, headers, content
        start, end = int(asked[1]) + self.hub.shift, min(size, int(asked[2]) + 1)
        return 206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}, content[start:end]


ROUTES = {  # the first that matches
    f"/api/{ID}/tree/([^/]+)/?(.*)": Handler.tree,
    f"/api/(?:models/)?{ID}(?:/revision/(.+))?": Handler.info,
    f"/{ID}/resolve/([^/]+)/(.+)": Handler.resolve,  # a "/" of a branch is quoted
}


def digest(*parts) -> str:
    return hashlib.sha1(repr(parts).encode()).hexdigest()


def in_json(content) -> tuple[int, dict, bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


class Hub:
    def __init__(self):
        self.repos: dict[str, SimpleNamespace] = {}
        self.log: list[SimpleNamespace] = []  # requests, with the bytes of body that were sent
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

    def add(self, name: str, files: dict[str, bytes], branch: str = "main", gated: str = "", commit: str = "") -> str:
        """A commit with these files, to which the branch points; -> the commit. gated: needs this token."""
        repo = self.repos.setdefault(name, SimpleNamespace(gated=gated, files={}, branches={}))
        commit = commit or digest(name, branch, sorted(files))
        repo.files[commit] = files
        repo.branches[branch] = commit
        return commit

    def sent(self, file: str) -> int:
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
