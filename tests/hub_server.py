"""A Hub on 127.0.0.1 that serves folders as huggingface.co does, and can fail in its ways.

`Hub(folder)` serves every `folder/owner/name` as a repository with the branch main, and other
folders as further branches where `branches` says so. A request for a large file is sent on to a
second port, as the real Hub sends it to its content network.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".h5", ".msgpack")


@dataclass
class Fault:
    """What happens to the body of a file: "stall", "cut" or "corrupt" after so many bytes."""

    kind: str
    after: int
    times: float = float("inf")


@dataclass
class Hub:
    """The repositories, what goes wrong, and what was asked for."""

    folder: Path
    faults: dict[str, Fault] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Repository, or its "/api/", to a status and an X-Error-Code."""
    digests: bool = True
    """Whether the list of files says what the files' digests are."""
    log: list[str] = field(default_factory=list)
    lies: dict[str, str] = field(default_factory=dict)
    """What is answered instead: "sha", or the name of a header."""
    branches: dict[str, str] = field(default_factory=dict)
    """A revision of any repository to the folder, as "owner/other", that is served in its place."""
    instead: dict[str, "Callable[[BaseHTTPRequestHandler], None]"] = field(default_factory=dict)
    """What answers, in the place of everything else, what is asked for below a path."""
    spoil: "Callable[[dict], object]" = lambda listing: None
    """Changes the list of a repository's files before it is sent."""
    hosts: set[str] = field(default_factory=set)
    """The names by which this server was asked, with the port."""
    trusting: set[str] = field(default_factory=set)
    """Those of them that a token was sent to."""
    port: int = 0
    """Of the first server; any free one when 0."""
    url: str = ""
    content_url: str = ""
    closed: threading.Event = field(default_factory=threading.Event)

    def files(self, repository: str) -> dict[str, Path]:
        root = self.folder / repository
        found = (path for path in sorted(root.rglob("*")) if path.is_file())
        return {str(path.relative_to(root)): path for path in found}

    def commit(self, repository: str) -> str:
        listed = [f"{name} {blob_id(path)}" for name, path in self.files(repository).items()]
        return hashlib.sha1("\n".join(listed).encode()).hexdigest()

    def at(self, repository: str, revision: str) -> tuple[str, str]:
        """The folder that is served for a revision, and the revision that it is there."""
        for branch, folder in self.branches.items():
            if revision in (branch, self.commit(folder)):
                return folder, "main"
        return repository, revision

    def asked_for(self) -> list[str]:
        """The files whose bodies were asked for, in order."""
        paths = [entry.split()[1] for entry in self.log if entry.startswith("GET ")]
        return [path.rpartition("/")[2] for path in paths if not path.startswith("/api/")]

    def forget(self) -> None:
        """Serves everything rightly again, with an empty log."""
        self.faults.clear()
        self.refused.clear()
        self.log.clear()
        self.lies.clear()
        self.instead.clear()
        self.spoil = lambda listing: None
        self.hosts.clear()
        self.trusting.clear()
        self.digests = True

    @contextmanager
    def running(self) -> Iterator["Hub"]:
        servers = [ThreadingHTTPServer(("127.0.0.1", p), _handler(self)) for p in (self.port, 0)]
        self.url, self.content_url = (f"http://127.0.0.1:{s.server_port}" for s in servers)
        threads = [threading.Thread(target=s.serve_forever, args=(0.05,)) for s in servers]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.closed.set()
            for server, thread in zip(servers, threads, strict=True):
                server.shutdown()
                thread.join()
                server.socket.close()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listed(name: str, path: Path, *, digests: bool) -> dict[str, object]:
    """A file as /api/models/...?blobs=true lists it."""
    size = path.stat().st_size
    if not digests:
        return {"rfilename": name}
    entry = {"rfilename": name, "size": size, "blobId": blob_id(path)}
    if name.endswith(LARGE):
        entry["lfs"] = {"sha256": sha256(path), "size": size, "pointerSize": 134}
    return entry


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        byte_range = self.headers.get("Range", "")
        self.hub.log.append(f"{self.command} {path} {byte_range}".strip())
        self.hub.hosts.add(self.headers["Host"])
        if "Authorization" in self.headers:
            self.hub.trusting.add(self.headers["Host"])
        for place, answer in self.hub.instead.items():
            if path.startswith(place):
                return answer(self)
        if path.startswith("/api/models/"):
            self._list(*_split(path.removeprefix("/api/models/"), "/revision/"))
        elif path.startswith("/content/"):
            self._send_file(self.hub.folder / path.removeprefix("/content/"))
        elif "/resolve/" in path:
            self._resolve(*_split(path.removeprefix("/"), "/resolve/"))
        else:
            self._answer(404, {})

    def _refuse(self, repository: str, revision: str, *, place: str) -> bool:
        """Answers for a repository or revision that is not to be had."""
        hub = self.hub
        status, code = hub.refused.get(place, hub.refused.get(repository, (200, "")))
        if status == 200 and not hub.files(repository):
            # To a stranger, what is private and what is not there look the same.
            status, code = 401, "RepoNotFound"
        elif status == 200 and revision not in ("main", hub.commit(repository)):
            status, code = 404, "RevisionNotFound"
        if status == 200:
            return False
        if status == 0:
            hub.closed.wait(30)
            self.close_connection = True
        else:
            self._answer(status, {"X-Error-Code": code} if code else {})
        return True

    def _list(self, repository: str, revision: str) -> None:
        repository, revision = self.hub.at(repository, revision)
        if self._refuse(repository, revision, place=f"/api/{repository}"):
            return
        files = self.hub.files(repository)
        about = {
            "id": repository,
            "sha": self.hub.lies.get("sha", self.hub.commit(repository)),
            "siblings": [
                listed(name, path, digests=self.hub.digests) for name, path in files.items()
            ],
        }
        self.hub.spoil(about)
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(about).encode())

    def _resolve(self, repository: str, rest: str) -> None:
        revision, _, name = rest.partition("/")
        repository, revision = self.hub.at(repository, revision)
        if self._refuse(repository, revision, place=f"/resolve/{repository}"):
            return
        commit = {"X-Repo-Commit": self.hub.commit(repository)}
        path = self.hub.files(repository).get(name)
        if path is None:
            self._answer(404, {**commit, "X-Error-Code": "EntryNotFound"})
        elif name.endswith(LARGE):
            linked = {
                "X-Linked-Etag": f'"{sha256(path)}"',
                "X-Linked-Size": str(path.stat().st_size),
                "Location": f"{self.hub.content_url}/content/{repository}/{name}",
            }
            self._answer(302, commit | linked)
        else:
            self._send_file(path, {**commit, "ETag": f'"{blob_id(path)}"'})

    def _send_file(self, path: Path, headers: dict[str, str] | None = None) -> None:
        content = path.read_bytes()
        headers = {"Accept-Ranges": "bytes", **(headers or {})}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        status = 206 if start else 200
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        fault = self.hub.faults.get(path.name) if self.command == "GET" else None
        if fault is None or fault.times <= 0 or fault.after < start:
            return self._answer(status, headers, content[start:])
        fault.times -= 1
        if fault.kind == "corrupt":
            damaged = content[: fault.after] + b"?" + content[fault.after + 1 :]
            return self._answer(status, headers, damaged[start:])
        self._answer(status, headers, content[start:], cut=fault.after - start)
        if fault.kind == "stall":
            self.hub.closed.wait(30)
        self.close_connection = True
        return None

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes = b"", *, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, self.hub.lies.get(name, value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            try:
                self.wfile.write(body[:cut])
            except OSError:
                # The client gave up first.
                self.close_connection = True


def _split(path: str, word: str) -> tuple[str, str]:
    repository, _, rest = path.partition(word)
    return repository, rest or "main"
