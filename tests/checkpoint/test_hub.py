"""hub.py: what is fetched, in which order, and what a refusal says; on 127.0.0.1 alone."""

import errno
import gzip
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants

import minibert
from minibert.checkpoint import hub
from minibert.checkpoint.hub import fetch
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.model import Model
from tests.checkpoint.hub_server import API, FILES, NAME, hub_of, poured, sent_on, sha1

SIZES = {"n_positions": 7, "n_layers": 1, "n_heads": 2, "d_model": 4, "d_mlp": 8, "n_segments": 2}
SMALL = ["generation_config.json", "tokenizer_config.json", "tokenizer.json"]
WANTED = ["config.json", *SMALL, "model.safetensors"]
IDS = torch.tensor([[3, 5, 7]])


@pytest.fixture
def served(tmp_path):
    """A model of two layers' sizes, with files beside it that nobody needs."""
    root = tmp_path / "served"
    Model.from_config(Config("bert", "masked-lm", 13, **SIZES), seed=1).save(root)
    for name in SMALL:
        (root / name).write_text(json.dumps({"own": name}))
    (root / "onnx").mkdir()
    for name in ("README.md", "tf_model.h5", "pytorch_model.bin", "onnx/model.onnx"):
        (root / name).write_bytes(b"not wanted")
    with hub_of(root, tmp_path / "cache") as server:
        yield server


def failed(**options: object) -> str:
    with pytest.raises(CheckpointError) as raised:
        fetch(NAME, **options)
    return str(raised.value)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_files_needed_are_fetched_once_config_first_and_weights_last(served, capfd):
    folder = fetch(NAME)
    assert served.log == [WANTED[0], "the list", *WANTED[1:]]
    assert names(folder) == set(WANTED)
    for name in WANTED:
        assert (folder / name).read_bytes() == (served.folders["main"] / name).read_bytes()
    assert capfd.readouterr().err == "", "a progress bar, and nobody at a terminal to see it"
    served.log.clear()
    assert fetch(NAME) == fetch(NAME, offline=True) == fetch(NAME, revision=folder.name) == folder
    assert served.log == []
    # The Hub is gone, and the cache has all of it.
    served.refusal = 500, ""
    with pytest.warns(UserWarning, match="Using the copy in the cache") as warned:
        assert fetch(NAME) == folder
    assert [len(str(one.message).splitlines()) for one in warned] == [1]
    assert "could not be fetched from" in str(warned[0].message)


def test_each_revision_gives_its_own_weights(served, tmp_path):
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


def test_a_branch_that_moves_meanwhile_is_not_mixed_with_what_it_was(served, tmp_path, monkeypatch):
    (tmp_path / "moved").mkdir()
    files = hub._list

    def moves(*given: str) -> dict[str, Any]:
        found = files(*given)
        served.folders = {"main": tmp_path / "moved", "before": served.folders["main"]}
        return found

    monkeypatch.setattr(hub, "_list", moves)
    assert names(fetch(NAME)) == set(WANTED)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files_are_fetched_by_their_index(served, kind):
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


def test_a_config_that_cannot_be_used_costs_one_file(served):
    (served.folders["main"] / "config.json").write_text('{"model_type": "t5"}')
    assert f"{NAME} (revision main): config.json: model_type 't5'" in failed()
    assert served.log == ["config.json"]


def test_a_repository_without_weights_or_config_is_an_error(served, tmp_path):
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
def test_a_refusal_says_what_to_do(served, refusal, said):
    served.refusal = refusal
    message = failed()
    assert message.startswith(f"{NAME} (revision main): ")
    assert said.replace("ENDPOINT", served.url) in message
    assert "no whole copy of it" in failed(offline=True)


def test_no_network_and_a_broken_download_are_errors_that_leave_nothing_half(served):
    served.cut = "model.safetensors"
    assert "could not be fetched" in failed()
    assert "no whole copy of it" in failed(offline=True)
    served.cut = ""
    assert names(fetch(NAME)) == set(WANTED)


def test_without_a_network_one_request_is_tried_and_its_error_says_what_to_do(
    served, monkeypatch, caplog
):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    assert failed().endswith("or try again later; what was fetched whole is kept.")
    assert "Retry" not in caplog.text


def test_a_process_killed_while_it_fetches_leaves_nothing_half(served, tmp_path):
    half, cache, stop = threading.Event(), tmp_path / "cache", threading.Event()
    path = served.folders["main"] / "model.safetensors"
    whole = path.read_bytes()

    def stops(handler: BaseHTTPRequestHandler) -> None:
        about = {"X_Repo_Commit": commit}
        about |= {"ETag": hashlib.sha256(whole).hexdigest(), "Content_Length": str(len(whole))}
        poured(pieces(), **about)(handler)

    def pieces() -> Iterator[bytes]:
        yield whole[: len(whole) // 2]
        half.set()
        stop.wait(60)

    commit = sha1(str(served.folders["main"]))
    served.instead[f"{FILES}/{commit}/model.safetensors"] = stops
    again = {
        "HF_ENDPOINT": served.url,
        "HF_HUB_CACHE": str(cache),
        "PYTHONPATH": ":".join(sys.path),
    }
    program = f"from minibert.checkpoint.hub import fetch\nfetch({NAME!r})"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=os.environ | again) as process:
        assert half.wait(60)
        process.kill()
    stop.set()
    served.instead.clear()
    assert "no whole copy of it" in failed(offline=True)
    assert (fetch(NAME) / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot be written to"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be written to"),
        (ValueError("too large. Install `hf_xet` with `pip`"), "by `hf download`"),
    ],
)
def test_what_the_client_throws_says_what_to_do(served, monkeypatch, error, said):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(hub, "hf_hub_download", fails)
    assert said in failed()


def test_a_name_or_revision_that_is_none_is_an_error_and_is_not_asked_for(served):
    for revision in ("../../victim", "/etc", "a..b", "\x1b[31m"):
        assert "expected a branch" in failed(revision=revision)
    for name in ("a/b/c", "owner--tiny", "-tiny", "tiny.git", ""):
        with pytest.raises(CheckpointError, match="is neither a folder nor a Hub id"):
            fetch(name)
    assert served.log == []
    with pytest.raises(CheckpointError, match="no such repository"):
        fetch("owner/absent")


OUT = "../../../../../victim"


@pytest.mark.parametrize("header", ["X-Repo-Commit", "ETag", "X-Linked-Etag"])
@pytest.mark.parametrize("lie", [OUT, "..", "/victim", "a" * 39])
def test_whatever_a_server_answers_nothing_is_written_outside_of_the_cache(
    served, tmp_path, header, lie
):
    served.lies[header] = lie
    before = names(tmp_path)
    cache = tmp_path / "one" / "two" / "cache"
    with pytest.raises(CheckpointError, match=r"the server names |differs from the repository"):
        fetch(NAME, cache_dir=cache)
    assert {name for name in names(tmp_path) if not name.startswith("one/two/cache/")} == before


@pytest.mark.parametrize(
    "change", [{"size": "176"}, {"rfilename": 5}, {"lfs": []}, {"blobId": 7}, {"size": -1}]
)
def test_an_entry_of_another_type_is_named(served, change):
    served.spoil = lambda listing: listing["siblings"][0].update(change)
    error = failed()
    assert "the list of its files has the entry {" in error
    assert repr(change).strip("{}") in error


def test_bytes_with_another_digest_are_refused_and_deleted(served, tmp_path):
    forged = served.folders["main"] / "model.safetensors"
    honest = forged.read_bytes()
    for place in ("model.safetensors", "config.json"):
        served.spoil = lambda listing, place=place: [
            one.update(blobId="0" * 40) for one in listing["siblings"] if one["rfilename"] == place
        ]
        assert f"{place} differs from the repository's file" in failed()
    served.spoil = lambda listing: None
    assert (fetch(NAME) / "model.safetensors").read_bytes() == honest
    # A list without digests: what the server calls a file by is compared as well.
    served.spoil = lambda listing: [one.pop("blobId") for one in listing["siblings"]]
    served.lies["ETag"] = "0" * 64
    assert "differs from the repository's file" in failed(cache_dir=tmp_path / "other")


def drips() -> Iterator[bytes]:
    while True:
        yield b" "
        threading.Event().wait(0.1)


def endless(sent: list[int]) -> Iterator[bytes]:
    while True:
        sent[0] += 2**16
        yield b"[" * 2**16


HEAD = {"X_Repo_Commit": "0" * 40, "ETag": "abc"}
LONG = HEAD | {"Content_Length": str(2**34)}


@pytest.mark.parametrize("place", [API, FILES])
def test_an_answer_is_bounded_in_bytes_in_time_and_not_decompressed(served, monkeypatch, place):
    sent = [0]
    served.instead[place] = poured(endless(sent), **LONG)
    assert "bytes came" in failed()
    # What the buffers between the two hold comes on top of what was read.
    assert sent[0] < 2**22 + 2**24
    served.instead[place] = poured([gzip.compress(bytes(2**26))], Content_Encoding="gzip", **HEAD)
    assert "the answer came compressed" in failed()
    monkeypatch.setattr(hub, "PATIENCE", 1 - 2**22 / hub.LEAST_RATE)
    served.instead[place] = poured(drips(), **LONG)
    began = time.monotonic()
    assert "bytes a second came" in failed()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("place", [API, FILES, "xet"])
def test_content_comes_from_hosts_that_somebody_chose_and_the_token_goes_to_the_endpoint(
    served, monkeypatch, place
):
    # The same server by another name, which would take the request.
    endpoint = f"127.0.0.1:{served.server_port}"
    other = f"localhost:{served.server_port}"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    if place == "xet":
        served.lies = {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"http://{other}/token"}
        fetch(NAME)
        assert served.hosts == {(endpoint, True)}
        return
    content = (served.folders["main"] / "model.safetensors").read_bytes()
    commit, etag = sha1(str(served.folders["main"])), hashlib.sha256(content).hexdigest()
    about = {"X_Repo_Commit": commit, "X_Linked_Etag": etag, "X_Linked_Size": str(len(content))}
    asked = place if place == API else f"{FILES}/{commit}/model.safetensors"
    served.instead[asked] = sent_on(f"http://{other}/x", **about)
    assert "redirects to http://localhost, which was not requested" in failed()
    assert served.hosts == {(endpoint, True)}
    monkeypatch.setenv("MINIBERT_HUB_HOSTS", "example.org, localhost")
    served.instead["x"] = poured([content], Content_Length=str(len(content)))
    if place == API:
        assert "cannot be read as JSON" in failed()
    else:
        assert (fetch(NAME) / "model.safetensors").read_bytes() == content
    assert served.hosts == {(endpoint, True), (other, False)}


@pytest.mark.parametrize(
    ("endpoint", "url", "goes", "with_token"),
    [
        ("https://huggingface.co", "https://huggingface.co/a", True, True),
        ("https://huggingface.co", "https://cdn-lfs.hf.co/a", True, False),
        ("https://huggingface.co", "http://huggingface.co/a", False, False),
        ("https://huggingface.co", "https://huggingface.co.example.org/a", False, False),
        ("https://huggingface.co", "https://huggingface.co@example.org/a", False, False),
        ("https://huggingface.co", "https://nothf.co/a", False, False),
        ("https://mirror.org", "https://mirror.org:8443/a", True, False),
        ("https://mirror.org", "https://files.mirror.org/a", True, False),
        ("https://mirror.org", "https://cdn-lfs.hf.co/a", True, False),
        ("https://mirror.org", "https://169.254.169.254/a", False, False),
        ("http://mirror.org", "file://mirror.org/a", False, False),
    ],
)
def test_hosts_of_the_endpoint_and_of_the_hub_are_asked_and_the_token_is_the_endpoints(
    monkeypatch, endpoint, url, goes, with_token
):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    request = SimpleNamespace(url=url, headers={"authorization": "Bearer hf_secret"})
    with nullcontext() if goes else pytest.raises(CheckpointError, match="was not requested"):
        with hub.asking("here", 9):
            hub._check_request(request)
        assert ("authorization" in request.headers) is with_token
