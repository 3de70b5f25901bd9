"""hub.py: what is fetched, in which order, and what the cache saves; on 127.0.0.1 alone."""

import gzip
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from hub_client import (  # noqa: F401, the fixtures
    CONFIG,
    NAME,
    REPOSITORY,
    TOKENIZER,
    WANTED,
    Client,
    environment,
    holds,
    one_client,
    one_repository,
    served_folder,
)
from hub_server import Fault, Hub
from torch import Tensor
from vocabularies import write

import minibert
from minibert.checkpoint import hub_http
from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from tests.siege.mutations import change_value


def test_the_files_needed_are_fetched_and_no_others_config_first_and_weights_last(
    hub, client, tmp_path
):
    folder = client.fetch(cache_dir=str(tmp_path))
    assert hub.asked_for() == WANTED
    assert holds(folder, hub, *WANTED)
    assert client.stderr.read_text() == "", "a progress bar, and nobody at a terminal to see it"


def test_what_the_cache_holds_is_not_fetched_again(hub, client, tmp_path):
    first = client.fetch(cache_dir=str(tmp_path))
    hub.log.clear()
    assert client.fetch(cache_dir=str(tmp_path)) == first
    assert hub.log == [f"GET /api/models/{NAME}/revision/main"]
    hub.log.clear()
    assert client.fetch(cache_dir=str(tmp_path), offline=True) == first
    assert client.fetch(cache_dir=str(tmp_path), revision=first.name) == first
    assert hub.log == []


def test_the_cache_and_the_switches_of_the_environment_are_used(hub, tmp_path):
    with Client(hub.url, tmp_path) as online:
        folder = online.fetch()
    assert folder.is_relative_to(tmp_path / "hub")
    hub.log.clear()
    with Client(hub.url, tmp_path, HF_HUB_OFFLINE="1") as offline:
        assert offline.fetch() == folder
        assert "it has no whole copy of it" in offline.fail("owner/other")
    assert hub.log == []


def test_a_hub_out_of_reach_is_an_error_and_with_a_whole_cache_a_warning(hub, client, tmp_path):
    folder = client.fetch(cache_dir=str(tmp_path))
    with Client("http://127.0.0.1:9", tmp_path / "home") as away:
        assert "no connection to http://127.0.0.1:9" in away.fail()
        answer = away(cache_dir=str(tmp_path))
    assert answer["folder"] == str(folder)
    assert "no connection" in answer["warnings"][0]


def test_a_new_commit_is_fetched_and_only_what_changed_in_it(hub, client, tmp_path):
    old = client.fetch(cache_dir=str(tmp_path))
    (hub.folder / NAME / "tokenizer.json").write_text("{}")
    hub.log.clear()
    new = client.fetch(cache_dir=str(tmp_path))
    assert new != old
    assert holds(new, hub, *WANTED)
    # Of the others the client asks for the digest, and finds the bytes in its cache.
    assert hub.asked_for() == ["tokenizer.json"]
    assert client.fetch(cache_dir=str(tmp_path), offline=True) == new
    assert client.fetch(cache_dir=str(tmp_path), offline=True, revision=old.name) == old


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files_are_fetched_by_their_index(hub, client, tmp_path, kind):
    root = hub.folder / NAME
    (root / "model.safetensors").unlink()
    stem, _, ending = kind.partition(".")
    shards = [f"{stem}-0000{i}-of-00002.{ending}" for i in (1, 2)]
    for shard in shards:
        (root / shard).write_text(shard)
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    (root / f"{kind}.index.json").write_text(json.dumps(index))
    if kind == "pytorch_model.bin":
        (root / kind).unlink()
    folder = client.fetch(cache_dir=str(tmp_path))
    assert holds(folder, hub, *WANTED[:-1], f"{kind}.index.json", *shards)
    (folder / shards[1]).unlink()
    assert f"it lacks {shards[1]}" in client.fail(cache_dir=str(tmp_path), offline=True)


PAIR = ["vocab.json", "merges.txt"]


@pytest.mark.parametrize(
    ("absent", "expected"),
    [
        (["tokenizer.json"], ["vocab.txt"]),
        (["tokenizer.json", "vocab.txt"], PAIR),
        (["tokenizer.json", "vocab.txt", "merges.txt"], []),
        (["model.safetensors"], ["tokenizer.json"]),
    ],
)
def test_of_vocabularies_and_weights_the_first_kind_there_is_is_fetched(
    hub, client, tmp_path, absent, expected
):
    write(hub.folder / NAME, vocab={"a": 0}, added_tokens={})
    for name in absent:
        (hub.folder / NAME / name).unlink()
    folder = client.fetch(cache_dir=str(tmp_path))
    weights = "pytorch_model.bin" if "model.safetensors" in absent else "model.safetensors"
    settings = [*TOKENIZER[1:], "added_tokens.json"]
    assert holds(folder, hub, "config.json", *expected, *settings, weights)


# A chunk of the client is 10 MiB; what comes before a cut is kept by whole chunks.
LARGE = 11 * 2**20


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "t5"}, "'t5' is not a family minibert knows; known are albert"),
        (CONFIG | {"hidden_size": 5}, "2 heads do not divide a width of 5"),
        ([], "expected an object, found list"),
    ],
)
def test_a_config_that_cannot_be_used_costs_one_file(hub, client, tmp_path, config, message):
    write(hub.folder / NAME, config=config)
    error = client.fail(cache_dir=str(tmp_path))
    assert error.startswith(f"{NAME} (revision main): ")
    assert message in error
    assert hub.asked_for() == ["config.json"]


def test_a_repository_without_a_checkpoint_is_an_error_that_says_what_it_holds(
    hub, client, tmp_path
):
    for name in ("model.safetensors", "pytorch_model.bin"):
        (hub.folder / NAME / name).unlink()
    error = client.fail(cache_dir=str(tmp_path))
    assert "no weights of a kind that is read (model.safetensors, " in error
    assert "flax_model.msgpack" in error
    assert "tf_model.h5" in error
    (hub.folder / NAME / "config.json").unlink()
    assert "has no config.json" in client.fail(cache_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["../../../secret.safetensors"], "Nothing outside its folder is read"),
        (["/etc/passwd"], "Nothing outside its folder is read"),
        (["model-1.safetensors"], "has no model-1.safetensors, which its index of weights names"),
    ],
)
def test_an_index_that_names_what_is_not_there_is_an_error(hub, client, tmp_path, names, message):
    (hub.folder / NAME / "model.safetensors").unlink()
    index = {"weight_map": {str(i): name for i, name in enumerate(names)}}
    (hub.folder / NAME / "model.safetensors.index.json").write_text(json.dumps(index))
    assert message in client.fail(cache_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("place", "status", "code", "message"),
    [
        (NAME, 401, "RepoNotFound", "no such repository, or it is private"),
        (NAME, 404, "RepoNotFound", "no such repository, or it is private"),
        (NAME, 403, "GatedRepo", f"is gated. Ask for access at ENDPOINT/{NAME}, then log in"),
        (f"/resolve/{NAME}", 403, "GatedRepo", "config.json could not be fetched: the repo"),
        (NAME, 403, "", "access was refused (403)"),
        (NAME, 500, "", "answered 500. Try again later"),
        (f"/resolve/{NAME}", 503, "", "answered 503. Try again later"),
        (NAME, 418, "", "answered 418"),
        (NAME, 0, "", "did not answer in time"),
    ],
)
def test_a_refusal_is_an_error_that_says_what_to_do(
    hub, client, tmp_path, place, status, code, message
):
    hub.refused[place] = status, code
    error = client.fail(cache_dir=str(tmp_path))
    assert error.startswith(f"{NAME} (revision main): ")
    assert message.replace("ENDPOINT", hub.url) in error
    hub.forget()
    assert holds(client.fetch(cache_dir=str(tmp_path)), hub, *WANTED)


OUT = "../../../../../victim"


@pytest.mark.parametrize("where", ["sha", "X-Repo-Commit", "ETag", "X-Linked-Etag"])
@pytest.mark.parametrize("lie", [OUT, "..", "/victim", "a" * 39, ""])
def test_whatever_a_server_answers_nothing_is_written_outside_of_the_cache(
    hub, client, tmp_path, where, lie
):
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("config.json", *WANTED):
        (victim / name).write_text("as it was")
    cache = tmp_path / "one" / "two" / "cache"
    hub.lies[where] = f'"{lie}"' if "tag" in where.lower() else lie
    answer = client(cache_dir=str(cache))
    allowed = where.endswith("tag") and lie == "a" * 39
    assert ("error" in answer) is not allowed, "an ETag may be any plain name, and nothing else may"
    assert {path.read_text() for path in victim.iterdir()} == {"as it was"}
    assert sorted(path.name for path in tmp_path.iterdir()) in (["one", "victim"], ["victim"])
    assert len(list(victim.iterdir())) == len(WANTED)


def test_a_name_or_revision_that_is_none_or_does_not_exist_is_an_error(hub, client, tmp_path):
    options = {"cache_dir": str(tmp_path)}
    for revision in (OUT, "/etc", "a..b", "\x1b[31m"):
        error = client.fail(revision=revision, **options)
        assert "expected the name of a branch" in error
    assert hub.log == [], "it was asked for"
    assert "no such repository" in client.fail("owner/absent", **options)
    error = client.fail(revision="v9", **options)
    assert error.startswith(f"{NAME} (revision v9): ")
    assert "no such revision" in error
    for name in ("a/b/c", "owner--tiny", "-tiny", "tiny.git", ""):
        assert f"{name!r} is neither a folder nor a Hub id" in client.fail(name, **options)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("model.safetensors", "cut"),
        ("model.safetensors", "stall"),
        ("model.safetensors", "corrupt"),
        ("tokenizer.json", "cut"),
        ("config.json", "corrupt"),
    ],
)
def test_a_broken_download_is_an_error_that_leaves_nothing_to_be_taken_for_whole(
    hub, client, tmp_path, file, kind
):
    options = {"cache_dir": str(tmp_path)}
    hub.faults[file] = Fault(kind, after=5)
    reason = {
        "cut": "the connection broke",
        "stall": "in time",
        "corrupt": "other bytes",
    }
    error = client.fail(**options)
    assert error.startswith(f"{NAME} (revision main): {file} ")
    assert reason[kind] in error
    assert "Load it again" in error
    assert not [path for path in tmp_path.rglob(file) if path.exists()]
    assert "no whole copy" in client.fail(**options, offline=True)
    hub.forget()
    assert holds(client.fetch(**options), hub, *WANTED)


def test_damage_is_noticed_without_digests_and_a_cut_file_in_the_cache_is_fetched_anew(
    hub, client, tmp_path
):
    options = {"cache_dir": str(tmp_path)}
    hub.digests = False
    hub.faults["model.safetensors"] = Fault("corrupt", after=7, times=1)
    assert "arrived with other bytes" in client.fail(**options)
    folder = client.fetch(**options)
    assert holds(folder, hub, *WANTED)
    hub.digests = True
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(50)
    assert holds(client.fetch(**options), hub, *WANTED)


def test_a_download_that_was_cut_goes_on_where_it_stopped(hub, client, tmp_path):
    (hub.folder / NAME / "model.safetensors").write_bytes(os.urandom(LARGE))
    hub.faults["model.safetensors"] = Fault("cut", after=LARGE - 1, times=2)
    # From version 2 on the client goes on by itself, before it does so when asked again.
    folders = [client(cache_dir=str(tmp_path)).get("folder", "") for _ in range(3)]
    assert holds(Path(folders[-1]), hub, *WANTED)
    starts = [int(entry.split("bytes=")[1][:-1]) for entry in hub.log if "bytes=" in entry]
    assert min(starts) >= 10 * 2**20


def test_a_process_killed_while_it_fetches_leaves_nothing_half_done(hub, client, tmp_path):
    hub.faults["model.safetensors"] = Fault("stall", after=500)
    with Client(hub.url, tmp_path / "home", HF_HUB_DOWNLOAD_TIMEOUT="30") as killed:
        killed.send(cache_dir=str(tmp_path))
        while "model.safetensors" not in hub.asked_for():
            assert killed.alive(), killed.stderr.read_text()
            time.sleep(0.05)
    assert "no whole copy" in client.fail(cache_dir=str(tmp_path), offline=True)
    hub.forget()
    assert holds(client.fetch(cache_dir=str(tmp_path)), hub, *WANTED)


def mounted(options: str, place: Path) -> list[str]:
    """What puts a small file system there, for one process only, before a command."""
    place.mkdir()
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    script = f"mount -t tmpfs -o {options} tmpfs '{place}' && exec \"$@\""
    if not shutil.which("unshare") or subprocess.run([*prefix, script, "sh", "true"]).returncode:
        pytest.skip("this machine lets nobody mount a file system for a test")
    return [*prefix, script, "sh"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("size=512k", f"{WANTED[-1]} could not be fetched: No space left on device, in PLACE"),
        ("ro", "PLACE cannot be written to"),
    ],
)
def test_a_cache_without_room_is_an_error_that_names_it(hub, tmp_path, options, said):
    (hub.folder / NAME / "model.safetensors").write_bytes(bytes(2**20))
    place = tmp_path / "small"
    with Client(hub.url, tmp_path / "home", *mounted(options, place)) as client:
        assert said.replace("PLACE", str(place)) in client.fail(cache_dir=str(place))
        assert "no whole copy" in client.fail(cache_dir=str(place), offline=True)


STEPS = {"main": "lab/pythia", "step1000": "lab/pythia-1000", "step2000": "lab/pythia-2000"}
IDS = torch.tensor([[3, 5, 7, 11]])


@pytest.fixture
def trained(tmp_path: Path) -> dict[str, Tensor]:
    """What each of three checkpoints answers, whose folders lie under hub/."""
    sizes = {"n_positions": 9, "n_layers": 2, "n_heads": 2, "d_model": 16, "d_mlp": 20}
    choices = {"causal": True, "tied": False, "rotary": Rotary(2)}
    config = Config("gpt_neox", "causal-lm", 23, **sizes, **choices)
    models = {step: Model.from_config(config, seed=seed) for seed, step in enumerate(STEPS)}
    for step, model in models.items():
        model.save(tmp_path / "hub" / STEPS[step])
    return {step: model(IDS) for step, model in models.items()}


def test_each_revision_gives_its_own_weights_and_is_kept_in_the_cache(
    trained: dict[str, Tensor], tmp_path: Path
) -> None:
    hub = Hub(tmp_path / "hub", branches={k: v for k, v in STEPS.items() if k != "main"})
    options = {"cache_dir": str(tmp_path / "cache")}
    with hub.running(), Client(hub.url, tmp_path / "home") as client:
        for step, answer in trained.items():
            revision = {} if step == "main" else {"revision": step}
            folder = client.fetch("lab/pythia", **options, **revision)
            assert torch.equal(minibert.load(folder)(IDS), answer), step
        hub.log.clear()
        again = client.fetch("lab/pythia", **options, revision="step1000", offline=True)
        assert torch.equal(minibert.load(again)(IDS), trained["step1000"])
        assert hub.log == []
        assert "step7" in client.fail("lab/pythia", **options, revision="step7")
    assert not torch.equal(trained["step1000"], trained["step2000"])


def test_a_listing_of_whatever_form_is_read_or_refused_by_name(hub, client, tmp_path):
    whole = {path.name: path.read_bytes() for path in (hub.folder / NAME).glob("*.*")}
    refused = 0
    for seed in range(50):
        random = Random(seed)
        done: list[str] = []

        def spoil(listing: dict, random: Random = random, done: list[str] = done) -> None:
            done.append(change_value(random.choice((listing, *listing["siblings"])), random))

        hub.spoil = spoil
        answer = client(cache_dir=str(tmp_path / str(seed)))
        if "error" in answer:
            refused += 1
            assert answer["error"].startswith(f"{NAME} (revision main)"), done
            assert "from the client" not in answer["error"], (done, answer)
        else:
            found = {p.name: p.read_bytes() for p in Path(answer["folder"]).iterdir()}
            assert found.items() <= whole.items(), done
    assert 5 < refused < 45


@pytest.mark.parametrize(
    "change",
    [
        {"size": "176"},
        {"rfilename": 5},
        {"lfs": []},
        {"blobId": 7},
        {"size": -1},
        {"lfs": {"sha256": 1}},
    ],
)
def test_an_entry_of_another_type_is_named(hub, client, tmp_path, change):
    hub.spoil = lambda listing: listing["siblings"][0].update(change)
    error = client.fail(cache_dir=str(tmp_path))
    assert "the list of its files has the entry {" in error
    assert repr(change).strip("{}") in error
    assert hub.asked_for() == []


def poured(pieces: Iterable[bytes], **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
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


def drips() -> Iterator[bytes]:
    while True:
        yield b" "
        time.sleep(0.1)


def endless(sent: list[int]) -> Iterator[bytes]:
    while True:
        sent[0] += 2**16
        yield b"[" * 2**16


COMMITTED = {"X_Repo_Commit": "0" * 40, "ETag": '"abc"'}


@pytest.mark.parametrize("place", [f"/api/models/{NAME}", f"/{NAME}/resolve"])
def test_an_answer_without_an_end_is_cut_off(hub, client, tmp_path, place):
    sent = [0]
    hub.instead[place] = poured(endless(sent), Content_Length=str(2**34), **COMMITTED)
    assert "is longer than the" in client.fail(cache_dir=str(tmp_path))
    # What the buffers between the two hold comes on top of what was read.
    assert sent[0] < 2**22 + 2**24


def test_a_file_that_comes_by_xet_alone_is_refused(hub, client, tmp_path):
    length = str(2**40)
    hub.instead[f"/{NAME}/resolve"] = poured(endless([0]), Content_Length=length, **COMMITTED)
    assert "larger than the Hub sends without Xet" in client.fail(cache_dir=str(tmp_path))


def test_an_answer_is_not_decompressed(hub, client, tmp_path):
    bomb = gzip.compress(bytes(2**26))
    hub.instead["/api/"] = poured([bomb], Content_Encoding="gzip")
    assert "the answer is compressed" in client.fail(cache_dir=str(tmp_path))


@pytest.mark.parametrize("place", [f"/api/models/{NAME}", f"/{NAME}/resolve"])
def test_an_answer_that_drips_is_given_up(hub, tmp_path, place):
    hub.instead[place] = poured(drips(), Content_Length=str(2**40), **COMMITTED)
    with Client(hub.url, tmp_path / "home", PATIENCE="-255") as client:
        began = time.monotonic()
        assert "bytes a second came" in client.fail(cache_dir=str(tmp_path / "cache"))
    assert time.monotonic() - began < 30


def test_a_file_of_no_known_length_is_refused_where_nothing_bounds_it(hub, client, tmp_path):
    hub.digests = False
    path = f"/{NAME}/resolve/{hub.commit(NAME)}/model.safetensors"
    hub.instead[path] = poured(endless([0]), **COMMITTED | {"X_Repo_Commit": hub.commit(NAME)})
    assert "does not say how long" in client.fail(cache_dir=str(tmp_path))


def sent_on(
    url: str, status: int = 302, **headers: str
) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in ({"Location": url, "Content-Length": "0"} | headers).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


@pytest.mark.parametrize("where", ["listing", "file", "content", "xet"])
@pytest.mark.parametrize("status", [302, 308])
def test_no_request_goes_to_a_host_that_nobody_chose(hub, tmp_path, where, status):
    # The same server by another name, which would take the request.
    elsewhere = hub.url.replace("127.0.0.1", "localhost")
    target = f"{elsewhere}/content/{NAME}/model.safetensors"
    if where == "listing":
        hub.instead["/api/"] = sent_on(f"{elsewhere}/x", status)
    elif where == "file":
        hub.instead[f"/{NAME}/resolve"] = sent_on(f"{elsewhere}/x", status, **COMMITTED)
    elif where == "content":
        hub.lies["Location"] = target
    else:
        xet = {"X_Xet_Hash": "0" * 64, "X_Xet_Refresh_Route": f"{elsewhere}/token"}
        hub.instead[f"/{NAME}/resolve"] = poured([b"{}"], Content_Length="2", **COMMITTED | xet)
    secret = {"HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "0"}
    with Client(hub.url, tmp_path / "home", **secret) as client:
        error = client.fail(cache_dir=str(tmp_path / "cache"))
    # The client may find out by itself that the others are not the files of the list.
    assert where in ("file", "xet") or "sends on to http://localhost, which was not asked" in error
    endpoint = hub.url.removeprefix("http://")
    assert hub.hosts == hub.trusting == {endpoint}


def test_a_host_that_somebody_chose_is_asked_without_the_token(hub, tmp_path):
    elsewhere = hub.content_url.replace("127.0.0.1", "localhost")
    hub.lies["Location"] = f"{elsewhere}/content/{NAME}/model.safetensors"
    options = {"HF_TOKEN": "hf_secret", "MINIBERT_HUB_HOSTS": "example.org, localhost"}
    with Client(hub.url, tmp_path / "home", **options) as client:
        assert holds(client.fetch(cache_dir=str(tmp_path / "cache")), hub, *WANTED)
    assert elsewhere.removeprefix("http://") in hub.hosts
    assert hub.trusting == {hub.url.removeprefix("http://")}


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
    monkeypatch, tmp_path, endpoint, url, goes, with_token
):
    monkeypatch.setattr(hub_http.constants, "ENDPOINT", endpoint)
    request = SimpleNamespace(url=url, headers={"authorization": "Bearer hf_secret"})
    with nullcontext() if goes else pytest.raises(CheckpointError, match="was not asked"):
        with hub_http.asking(NAME, "here", tmp_path, 9):
            hub_http._check_request(request)
        assert ("authorization" in request.headers) is with_token
