"""A server on 127.0.0.1 that answers as huggingface.co does, or lies as a test tells it to.

The head of a file says its commit and its ETag.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http

NAME = "owner/tiny"
API, FILES = f"api/models/{NAME}", f"{NAME}/resolve"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Hub(ThreadingHTTPServer):
    """Serves `folders[revision]` as a branch of one repository, or refuses with a status."""

    def __init__(self, main: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folders = {"main": main}
        self.log: list[str] = []
        self.hosts: set[tuple[str, bool]] = set()
        """The names by which it was asked, and whether with a token."""
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.be_honest()

    def be_honest(self) -> None:
        """Answer as the Hub does from now on."""
        self.refusal: tuple[int, str] | None = None
        self.cut = ""
        self.damaged: dict[str, bytes] = {}
        """The content of files, whose length is said and whose digest is not."""
        self.lies: dict[str, str] = {}
        """Headers that are answered instead."""
        self.instead: dict[str, Answer] = {}
        """What answers, in place of everything else, what is asked for below a path."""
        self.spoil: Callable[[dict[str, Any]], object] = lambda listing: None

    def at(self, revision: str) -> tuple[str, Path | None]:
        """The commit of a branch or commit, and its folder."""
        commits = {name: sha1(str(path)) for name, path in self.folders.items()}
        found = (n for n, commit in commits.items() if revision in (n, commit))
        name = next(found, None)
        return commits.get(name or "", ""), self.folders.get(name or "")


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def entry(path: Path, folder: Path) -> dict[str, Any]:
    """A file as a list of a repository's files has it."""
    content, name = path.read_bytes(), str(path.relative_to(folder))
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"rfilename": name, "size": len(content), "blobId": blob}


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        self.server.hosts.add((self.headers["Host"], "Authorization" in self.headers))
        for place, answer in self.server.instead.items():
            if path.startswith(place):
                return answer(self)
        tree = path.startswith(f"{API}/revision/")
        known = tree or path.startswith(f"{NAME}/resolve/")
        place = path.split("/revision/" if tree else "/resolve/")[1] if known else ""
        revision, _, name = place.partition("/")
        if self.command == "GET":
            self.server.log.append("the list" if tree else name)
        commit, folder = self.server.at(revision)
        if self.server.refusal is not None:
            self.answer(*self.server.refusal)
        elif not known:
            self.answer(401, "RepoNotFound")
        elif folder is None:
            self.answer(404, "RevisionNotFound")
        elif tree:
            files = [p for p in folder.rglob("*") if p.is_file()]
            listed = {"siblings": [entry(p, folder) for p in files]}
            self.server.spoil(listed)
            self.answer(200, body=json.dumps(listed).encode(), commit=commit)
        elif not (folder / name).is_file():
            self.answer(404, "EntryNotFound", commit=commit)
        else:
            body = (folder / name).read_bytes()
            etag = hashlib.sha256(body).hexdigest()
            body = self.server.damaged.get(name, body)
            self.answer(200, body=body, commit=commit, etag=etag, cut=name == self.server.cut)
        return None

    def answer(
        self,
        status: int,
        code: str = "",
        *,
        body: bytes = b"",
        commit: str = "",
        etag: str = "",
        cut: bool = False,
    ) -> None:
        self.send_response(status)
        about = {"X-Error-Code": code, "X-Repo-Commit": commit, "ETag": etag}
        about |= {"Content-Length": str(len(body))} | self.server.lies
        for name, value in about.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut or self.close_connection


def poured(pieces: Iterable[bytes], **headers: str) -> Answer:
    """An answer of these pieces, until the client has had enough."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.close_connection = True
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        with suppress(OSError):
            if handler.command == "GET":
                for piece in pieces:
                    handler.wfile.write(piece)

    return answer


def sent_on(url: str, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        for name, value in ({"Location": url, "Content-Length": "0"} | headers).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


@contextmanager
def hub_of(folder: Path, cache: Path) -> Iterator[Hub]:
    """A server of the folder, which the client asks from now on, with its cache at that path."""
    server = Hub(folder)
    files = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    # Between its tries the client waits for seconds, which here would help nobody.
    at_once = SimpleNamespace(sleep=lambda seconds: None)
    with (
        mock.patch.multiple(
            constants,
            ENDPOINT=server.url,
            HUGGINGFACE_CO_URL_TEMPLATE=files,
            HF_HUB_CACHE=str(cache),
        ),
        mock.patch.object(file_download, "time", at_once),
        mock.patch.object(_http, "time", at_once),
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
