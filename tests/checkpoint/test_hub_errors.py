"""hub.py and hub_errors.py: what goes wrong on the way from the Hub, and what is left behind."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hub_client import (  # noqa: F401, the fixtures
    CONFIG,
    NAME,
    WANTED,
    Client,
    holds,
    one_client,
    one_repository,
    served_folder,
)
from hub_server import Fault
from vocabularies import write

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


@pytest.mark.parametrize("revision", [OUT, "/etc", "a..b", "\x1b[31m"])
def test_a_revision_that_is_no_name_is_an_error_before_anything_is_asked(
    hub, client, tmp_path, revision
):
    error = client.fail(cache_dir=str(tmp_path), revision=revision)
    assert "expected the name of a branch" in error
    assert hub.log == []


def test_a_name_or_revision_that_does_not_exist_is_an_error_that_names_it(hub, client, tmp_path):
    options = {"cache_dir": str(tmp_path)}
    assert "no such repository" in client.fail("owner/absent", **options)
    assert f"{NAME} (revision v9): " in client.fail(revision="v9", **options)
    assert "no such revision" in client.fail(revision="v9", **options)
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


def test_damage_is_noticed_where_the_list_has_no_digests(hub, client, tmp_path):
    hub.digests = False
    hub.faults["model.safetensors"] = Fault("corrupt", after=7, times=1)
    assert "arrived with other bytes" in client.fail(cache_dir=str(tmp_path))
    assert holds(client.fetch(cache_dir=str(tmp_path)), hub, *WANTED)


def test_a_download_that_was_cut_goes_on_where_it_stopped(hub, client, tmp_path):
    (hub.folder / NAME / "model.safetensors").write_bytes(os.urandom(LARGE))
    hub.faults["model.safetensors"] = Fault("cut", after=LARGE - 1, times=2)
    # From version 2 on the client goes on by itself, before it does so when asked again.
    folders = [client(cache_dir=str(tmp_path)).get("folder", "") for _ in range(3)]
    assert holds(Path(folders[-1]), hub, *WANTED)
    starts = [int(entry.split("bytes=")[1][:-1]) for entry in hub.log if "bytes=" in entry]
    assert min(starts) >= 10 * 2**20


def test_a_file_cut_short_in_the_cache_is_fetched_anew(hub, client, tmp_path):
    folder = client.fetch(cache_dir=str(tmp_path))
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(50)
    assert holds(client.fetch(cache_dir=str(tmp_path)), hub, *WANTED)


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


def test_a_full_disk_is_an_error_that_names_the_place(hub, tmp_path):
    (hub.folder / NAME / "model.safetensors").write_bytes(bytes(2**20))
    place = tmp_path / "small"
    with Client(hub.url, tmp_path / "home", *mounted("size=512k", place)) as small:
        error = small.fail(cache_dir=str(place))
        assert f"{WANTED[-1]} could not be fetched: No space left on device, in {place}" in error
        assert "no whole copy" in small.fail(cache_dir=str(place), offline=True)


def test_a_cache_that_cannot_be_written_to_is_an_error_that_names_it(hub, tmp_path):
    place = tmp_path / "closed"
    with Client(hub.url, tmp_path / "home", *mounted("ro", place)) as closed:
        assert f"{place} cannot be written to" in closed.fail(cache_dir=str(place))
