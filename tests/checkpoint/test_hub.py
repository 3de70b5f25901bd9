"""hub.py: what is fetched, in which order, and what a refusal says; on 127.0.0.1 alone.

The server answers as huggingface.co does: the head of a file says its commit and its ETag.
"""

import errno
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from huggingface_hub import constants

import minibert
from minibert.checkpoint import hub
from minibert.checkpoint.hub import fetch
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.model import Model

NAME = "owner/tiny"
SIZES = {"n_positions": 7, "n_layers": 1, "n_heads": 2, "d_model": 4, "d_mlp": 8, "n_segments": 2}
SMALL = ["generation_config.json", "tokenizer_config.json", "tokenizer.json"]
WANTED = ["config.json", *SMALL, "model.safetensors"]
IDS = torch.tensor([[3, 5, 7]])


class Hub(ThreadingHTTPServer):
    """Serves `folders[revision]` as a branch of one repository, or refuses with a status."""

    def __init__(self, main: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folders = {"main": main}
        self.log: list[str] = []
        self.refusal: tuple[int, str] | None = None
        self.cut = ""
        self.url = f"http://127.0.0.1:{self.server_port}"

    def at(self, revision: str) -> tuple[str, Path | None]:
        """The commit of a branch or commit, and its folder."""
        commits = {name: sha1(str(path)) for name, path in self.folders.items()}
        found = (n for n, commit in commits.items() if revision in (n, commit))
        name = next(found, None)
        return commits.get(name or "", ""), self.folders.get(name or "")


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        tree = path.startswith(f"api/models/{NAME}/tree/")
        known = tree or path.startswith(f"{NAME}/resolve/")
        place = path.split("/tree/" if tree else "/resolve/")[1] if known else ""
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
            listed = [
                {
                    "type": "file",
                    "path": str(p.relative_to(folder)),
                    "size": p.stat().st_size,
                    "oid": sha1(p.name),
                }
                for p in files
            ]
            self.answer(200, body=json.dumps(listed).encode(), commit=commit)
        elif not (folder / name).is_file():
            self.answer(404, "EntryNotFound", commit=commit)
        else:
            body = (folder / name).read_bytes()
            self.answer(200, body=body, commit=commit, cut=name == self.server.cut)

    def answer(
        self, status: int, code: str = "", *, body: bytes = b"", commit: str = "", cut: bool = False
    ) -> None:
        self.send_response(status)
        about = {"X-Error-Code": code, "X-Repo-Commit": commit}
        about |= {"Content-Length": str(len(body)), "ETag": hashlib.sha256(body).hexdigest()}
        for name, value in about.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut or self.close_connection


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A model of two layers' sizes, with files beside it that nobody needs."""
    root = tmp_path / "served"
    Model.from_config(Config("bert", "masked-lm", 13, **SIZES), seed=1).save(root)
    for name in SMALL:
        (root / name).write_text(json.dumps({"own": name}))
    (root / "onnx").mkdir()
    for name in ("README.md", "tf_model.h5", "pytorch_model.bin", "onnx/model.onnx"):
        (root / name).write_bytes(b"not wanted")
    server = Hub(root)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    # Between its tries the client waits for seconds, which here would help nobody.
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def failed(**options: object) -> str:
    with pytest.raises(CheckpointError) as raised:
        fetch(NAME, **options)
    return str(raised.value)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_files_needed_are_fetched_once_config_first_and_weights_last(
    served: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = fetch(NAME)
    assert served.log == [WANTED[0], "the list", *WANTED[1:]]
    assert names(folder) == set(WANTED)
    for name in WANTED:
        assert (folder / name).read_bytes() == (served.folders["main"] / name).read_bytes()
    assert capfd.readouterr().err == "", "a progress bar, and nobody at a terminal to see it"
    served.log.clear()
    assert fetch(NAME) == fetch(NAME, offline=True) == fetch(NAME, revision=folder.name) == folder
    # The Hub is gone, and the cache has all of it.
    served.refusal = 500, ""
    assert fetch(NAME) == folder
    assert served.log == []


def test_each_revision_gives_its_own_weights(served: Hub, tmp_path: Path) -> None:
    for name in SMALL:
        (served.folders["main"] / name).unlink()
    first = minibert.load(served.folders["main"], task="none")(IDS)
    other = Model.from_config(Config("bert", "masked-lm", 13, **SIZES), seed=2)
    other.save(tmp_path / "step")
    served.folders["step1"] = tmp_path / "step"
    for revision in (None, "step1"):
        found = minibert.load(NAME, revision=revision, task="none")(IDS)
        assert torch.equal(found, first) == (revision is None)
    assert torch.equal(minibert.load(NAME, revision="step1")(IDS), other(IDS))


def test_a_branch_that_moves_meanwhile_is_not_mixed_with_what_it_was(
    served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moved").mkdir()
    files = hub.HfApi.list_repo_files

    def moves(*given: object, **options: object) -> list[str]:
        found = files(*given, **options)
        served.folders = {"main": tmp_path / "moved", "before": served.folders["main"]}
        return found

    monkeypatch.setattr(hub.HfApi, "list_repo_files", moves)
    assert names(fetch(NAME)) == set(WANTED)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files_are_fetched_by_their_index(served: Hub, kind: str) -> None:
    root, shards = served.folders["main"], [f"{i}-{kind}" for i in (1, 2)]
    for name in ("model.safetensors", "pytorch_model.bin"):
        (root / name).unlink()
    for shard in shards:
        (root / shard).write_text(shard)
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    (root / f"{kind}.index.json").write_text(json.dumps(index))
    folder = fetch(NAME)
    assert names(folder) == {*WANTED[:-1], f"{kind}.index.json", *shards}
    (folder / shards[1]).unlink()
    assert "no whole copy of it" in failed(offline=True)
    assert fetch(NAME) == folder
    assert (folder / shards[1]).is_file()


def test_a_config_that_cannot_be_used_costs_one_file(served: Hub) -> None:
    (served.folders["main"] / "config.json").write_text('{"model_type": "t5"}')
    assert f"{NAME} (revision main): config.json: model_type 't5'" in failed()
    assert served.log == ["config.json"]


def test_a_repository_without_weights_or_config_is_an_error(served: Hub, tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        (served.folders["main"] / name).unlink()
    assert "no weights of a kind that is read (model.safetensors, " in failed()
    (served.folders["main"] / "config.json").unlink()
    assert "a file is not there" in failed(cache_dir=tmp_path / "other")


REFUSALS = [
    ((401, "RepoNotFound"), "has no such repository, or it is private"),
    ((403, "GatedRepo"), f"is gated. Ask for access at ENDPOINT/{NAME}, then log in"),
    ((403, ""), r"access was refused (403); log in with"),
    ((503, ""), "could not be fetched from ENDPOINT"),
    ((404, "RevisionNotFound"), "has no such revision. Give one of its branches"),
]


@pytest.mark.parametrize(("refusal", "said"), REFUSALS)
def test_a_refusal_says_what_to_do(served: Hub, refusal: tuple[int, str], said: str) -> None:
    served.refusal = refusal
    message = failed()
    assert message.startswith(f"{NAME} (revision main): ")
    assert said.replace("ENDPOINT", served.url) in message
    assert "no whole copy of it" in failed(offline=True)


def test_no_network_and_a_broken_download_are_errors_that_leave_nothing_half(served: Hub) -> None:
    served.cut = "model.safetensors"
    assert "could not be fetched" in failed()
    assert "no whole copy of it" in failed(offline=True)
    served.cut = ""
    assert names(fetch(NAME)) == set(WANTED)


def test_a_hub_that_nobody_answers_for_is_unreachable(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", nowhere)
    with pytest.raises(hub.UnreachableError, match="Check the network and HF_ENDPOINT"):
        fetch(NAME)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot be written to"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be written to"),
        (ValueError("too large. Install `hf_xet` with `pip`"), "Install the package hf_xet"),
    ],
)
def test_what_the_client_throws_says_what_to_do(
    served: Hub, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(hub, "hf_hub_download", fails)
    assert said in failed()


def test_a_name_or_revision_that_is_none_is_an_error_and_is_not_asked_for(served: Hub) -> None:
    for revision in ("../../victim", "/etc", "a..b", "\x1b[31m"):
        assert "expected the name of a branch" in failed(revision=revision)
    for name in ("a/b/c", "owner--tiny", "-tiny", "tiny.git", ""):
        with pytest.raises(CheckpointError, match="is neither a folder nor a Hub id"):
            fetch(name)
    assert served.log == []
    with pytest.raises(CheckpointError, match="no such repository"):
        fetch("owner/absent")
