"""Folders with damage, Hubs and workers that lie: refused in good form, or read rightly.

A damaged file may still be a right one. Then the weights must be what safetensors' or torch's own
reader finds, and the model's answers numbers, or −inf, a probability of 0. What a Hub that lies
sends is refused, or has the bytes of the repository. What a worker sends to the judge of kernels is
read or refused. As a program the file goes on for
`--minutes` with fresh seeds in processes of its own, so that a case that ends one is a failure
with its seed.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

import minibert
from minibert.bench.worker import Channel
from minibert.checkpoint.files import open_checkpoint
from minibert.checkpoint.hub import fetch
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.untrusted import shared_trials
from tests.checkpoint.hub_server import API, FILES, NAME, Hub, hub_of, sent_on
from tests.checkpoint.small_families import hf_model as rotary_model
from tests.families import CLASSES, Sizes, hf_model
from tests.rotary.classes import LANGUAGE
from tests.vocabularies import word_piece

SAFE, PICKLE, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"
TEXTS = ["The quick brown fox", "\u202e\x1b[31m ½ 我", "a [MASK] b", " "]
HOSTILE: list[Any] = [
    None, True, 0, -1, 1, 7, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x",
    "\x1b[31mred\x1b[0m", "../../x", "/dev/zero", "\ud800", "a\0b", "9" * 5000, "y" * 100_000, [],
    {}, [[]], {"0": "a", "5": "b"}, {"\x1b]0;title\x07": 1}, "gelu", "gpt2", "[UNK]", "##",
]  # fmt: skip
#: A small BERT in each kind of file and with a tokenizer that is tried out first, and every family.
NAMES = ("whole", "old", "shards", "tried", *CLASSES, *LANGUAGE)
#: What is damaged or lies, and its share of the cases.
TARGETS = {"Hub": 3, "judge": 2, "weights": 5, "pickle": 2, "config": 4, "tokenizer": 4}
IDS = torch.tensor([[3, 5, 7, 11]])
KINDS = ("FIFO", "folder", "/dev/zero", "/proc/self/mem", "loop", "sparse")

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("ignore:.*which is a guess"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return honest_folders(tmp_path_factory.mktemp("honest"))


def honest_folders(root: Path) -> list[Path]:
    """One small model in each kind of file, with vocab.txt or tokenizer.json; and every family."""
    tokenizer = Tokenizer.from_folder(word_piece(root))
    sizes = {"n_positions": 31, "n_layers": 2, "n_heads": 2, "d_model": 8, "d_mlp": 12}
    config = Config("bert", "masked-lm", tokenizer.vocab_size, **sizes, n_segments=2, pad_id=0)
    Model.from_config(config, tokenizer=tokenizer).save(root / "whole")
    for name in ("old", "shards", "tried"):
        shutil.copytree(root / "whole", root / name)
    described = json.loads((root / "tried" / "tokenizer.json").read_text())
    parts = [{"type": "Nmt"}, described["normalizer"]]
    described["normalizer"] = {"type": "Sequence", "normalizers": parts}
    (root / "tried" / "tokenizer.json").write_text(json.dumps(described))
    for name in ("old", "shards"):
        (root / name / "tokenizer.json").unlink()
        shutil.copy(root / "vocab.txt", root / name)
        (root / name / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    tensors = load_file(root / "whole" / SAFE)
    (root / "old" / SAFE).unlink()
    torch.save(tensors, root / "old" / PICKLE)
    in_shards(root / "shards")
    small = Sizes(layers=2, heads=2)
    for family, names in CLASSES.items():
        name = next(n for n in names if n.endswith(("ForMaskedLM", "LMHeadModel")))
        hf_model(family, name, small).save_pretrained(root / family)
    for family, name in LANGUAGE.items():
        rotary_model(family, name).save_pretrained(root / family)
    return [root / name for name in NAMES]


def in_shards(folder: Path, *, extra: dict[str, torch.Tensor] | None = None) -> None:
    names = sorted(tensors := load_file(folder / SAFE))
    parts = [names[::2], names[1::2]]
    for number, part in enumerate(parts):
        held = {name: tensors[name] for name in part} | (extra or {} if number else {})
        save_file(held, folder / f"{number}.safetensors")
    places = {name: f"{number}.safetensors" for number, part in enumerate(parts) for name in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    (folder / SAFE).unlink()


def put(path: Path, kind: str) -> None:
    """Something that is not an honest file, in place of one."""
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        path.symlink_to(path.name if kind == "loop" else kind)


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def text(name: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(content)


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        found = load_file(folder / SAFE)
        change(found)
        save_file(found, folder / SAFE)

    return rewrite


def fake_layers(folder: Path) -> None:
    """Sixty thousand layers of tensors without numbers."""
    content = (folder / SAFE).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    end = len(content) - 8 - size
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    name = "bert.encoder.layer.{}.output.dense.bias"
    about = json.loads(content[8 : 8 + size])
    header = json.dumps(about | {name.format(n): empty for n in range(2, 60_000)}).encode()
    (folder / SAFE).write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    config(num_hidden_layers=60_000)(folder)


# The library panics when it splits a text with it.
NOBODY = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    },
}
MANY = "{" + ",".join(f'"{i}":"{i}"' for i in range(10**6)) + "}"
KNOWN: dict[str, Callable[[Path], Any]] = {
    **{
        f"{kind} as {name}": lambda folder, kind=kind, name=name: put(folder / name, kind)
        for kind in KINDS
        for name in ("config.json", SAFE, "tokenizer.json")
    },
    "epsilon of 400 digits": config(layer_norm_eps=10**400),
    "epsilon of 5,000 digits": text("config.json", '{"layer_norm_eps": 1' + "0" * 5000 + "}"),
    "label key of 5,000 digits": config(id2label={"9" * 5000: "a"}),
    "a million labels": config(num_labels=10**9),
    "config value of 50 MB": config(model_type="x" * 50_000_000),
    "escapes in a config value": config(model_type="\x1b]0;title\x07\x1b[31m"),
    "deep config": text("config.json", "[" * 200_000),
    "60,000 fake layers": fake_layers,
    "index of a million shards": lambda folder: (
        (folder / SAFE).unlink(),
        (folder / INDEX).write_text(f'{{"weight_map": {MANY}}}'),
    ),
    "tensor that no index names": lambda folder: in_shards(folder, extra={"more": torch.ones(2)}),
    "escapes in a tensor name": tensors(lambda t: t.update({"\x1b[31mred": torch.ones(2)})),
    "tensor name of 1 MB": tensors(lambda t: t.update({"n" * 2**20: torch.ones(2)})),
    "header of 2**40 bytes": lambda folder: (folder / SAFE).write_bytes(
        struct.pack("<Q", 2**40) + b"{}"
    ),
    "huge weights": tensors(lambda t: [one.fill_(3e38) for one in t.values()]),
    "template that names nobody": text("tokenizer.json", json.dumps(NOBODY)),
    "unigram without entries": text(
        "tokenizer.json", '{"version":"1.0","model":{"type":"Unigram","unk_id":0,"vocab":[]}}'
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_hostile_folder_is_refused_in_good_form(name, folders, tmp_path):
    folder = shutil.copytree(folders[0], tmp_path / "folder")
    KNOWN[name](folder)
    assert judged(folder) == "refused"


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_a_damaged_folder_is_refused_in_good_form_or_read_as_it_stands(first, folders, tmp_path):
    with hub_of(folders[0], tmp_path) as hub, shared_trials():
        found = {drawn(seed, folders, tmp_path, hub) for seed in range(first, first + 60)}
    assert {target for target, _ in found} == set(TARGETS)
    assert {became for _, became in found} == {"refused", "read"}


def drawn(seed: int, folders: list[Path], place: Path, hub: Hub) -> tuple[str, str]:
    """The target that the seed draws, and what became of its damage or its lie."""
    random, mine = Random(seed), place / str(seed)
    target = random.choices(list(TARGETS), list(TARGETS.values()))[0]
    try:
        if target == "Hub":
            return target, fetched(random, folders[0], mine, hub)
        if target == "judge":
            return target, answered(random)
        paths = [path for folder in folders for path in sorted(folder.iterdir())]
        path = random.choice([path for path in paths if target_of(path) == target])
        damaged = shutil.copytree(path.parent, mine) / path.name
        done = random.choice((change_bytes, change_json))(damaged, random)
        return target, judged(mine, f"seed {seed}, {path.parent.name}/{path.name}: {done}")
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def target_of(path: Path) -> str:
    if path.suffix == ".bin":
        return "pickle"
    if "safetensors" in path.name:
        return "weights"
    return "config" if path.name in ("config.json", "generation_config.json") else "tokenizer"


def fetched(random: Random, honest: Path, place: Path, hub: Hub) -> str:
    """What became of a repository of a Hub that lies once."""
    cache, done = place / "one" / "two" / "cache", random.choice(LIES)
    hub.be_honest()
    done(hub, random, honest)
    try:
        folder = fetch(NAME, cache_dir=cache)
    except minibert.CheckpointError as error:
        check_form(error)
        return "refused"
    except BaseException as error:
        raise AssertionError(f"{place}, {done.__name__}: {error!r:.300}") from error
    finally:
        outside = {path for path in place.rglob("*") if not path.is_relative_to(cache)}
        assert outside <= {cache.parent, cache.parent.parent}, (place, done.__name__)
    for path in folder.iterdir():
        assert path.read_bytes() == (honest / path.name).read_bytes(), (place, done.__name__)
    return "read"


def answered(random: Random) -> str:
    """What became of a worker's message to the judge with damage."""
    judge, worker = socket.socketpair()
    with judge, worker:
        Channel(worker).send({"id": 3, "ms": 0.5}, {"z": torch.ones(2, 3), "n": torch.arange(3)})
        sent = judge.recv(2**16)
        size = 4 + int.from_bytes(sent[:4], "big")
        message, done = json.loads(sent[4:size]), "bytes"
        kinds = [str(one)[6:] for one in vars(torch).values() if isinstance(one, torch.dtype)]
        if random.random() < 0.3:
            sent = changed_bytes(sent, random)
        else:
            if random.random() < 0.3:
                done = message["tensors"][0][1] = random.choice(kinds)
            else:
                done = change_value(message, random)
            text = json.dumps(message).encode()[: 2**16]
            sent = len(text).to_bytes(4, "big") + text + sent[size:]
        worker.sendall(sent)
        worker.shutdown(socket.SHUT_WR)
        try:
            Channel(judge).receive(most=2**20, seconds=5)
        # What `WorkerProcess` takes for an answer that is none.
        except (OSError, EOFError, ValueError, TypeError, RecursionError):
            return "refused"
        except BaseException as error:
            raise AssertionError(f"{done}: {error!r:.300}") from error
    return "read"


def spoiled_list(hub: Hub, random: Random, honest: Path) -> None:
    seed = random.random()

    def spoil(listing: dict[str, Any]) -> None:
        again = Random(seed)
        change_value(again.choice((listing, *listing["siblings"])), again)

    hub.spoil = spoil


def forged_digest(hub: Hub, random: Random, honest: Path) -> None:
    place, forged = random.randrange(3), random.randbytes(random.choice((20, 32))).hex()
    about = random.choice(({"blobId": forged}, {"lfs": {"sha256": forged}}))
    hub.spoil = lambda listing: listing["siblings"][place % len(listing["siblings"])].update(about)


def damaged_file(hub: Hub, random: Random, honest: Path) -> None:
    name = random.choice(sorted(path.name for path in honest.iterdir()))
    hub.damaged[name] = changed_bytes((honest / name).read_bytes(), random)
    if random.random() < 0.5:
        hub.lies["ETag"] = hashlib.sha256(hub.damaged[name]).hexdigest()


def strange_header(hub: Hub, random: Random, honest: Path) -> None:
    name = random.choice(("X-Repo-Commit", "ETag", "X-Linked-Etag", "X-Linked-Size", "Location"))
    value = str(random.choice((OUT, "..", "a" * 39, *HOSTILE)))[:60_000]
    hub.lies[name] = value.encode("latin-1", "replace").decode("latin-1")


def sent_elsewhere(hub: Hub, random: Random, honest: Path) -> None:
    url = random.choice((hub.url.replace("127.0.0.1", "localhost"), "file:", "ftp://127.0.0.1"))
    hub.instead[random.choice((API, FILES))] = sent_on(f"{url}/x", X_Repo_Commit="0" * 40)


def strange_answer(hub: Hub, random: Random, honest: Path) -> None:
    status = random.choice((200, 204, 206, 304, 401, 403, 404, 416, 500))
    body = random.choice((b"", b"[]", b"{}", b"[" * 5000, random.randbytes(99)))
    code = random.choice(("", "EntryNotFound", "GatedRepo", "\x1b[31m"))
    hub.instead[random.choice((API, FILES))] = lambda handler: handler.answer(
        status, code, body=body, commit="0" * 40, etag="0" * 40
    )


OUT = "../../../../../victim"
LIES = (spoiled_list, forged_digest, damaged_file, strange_header, sent_elsewhere, strange_answer)


def judged(folder: Path, done: str = "") -> str:
    """What became of it, once the promise is kept: short and printable errors, right weights."""
    try:
        model = minibert.load(folder)
        compare_weights(folder)
        if model.tokenizer is None:
            assert bool((model(IDS) < torch.inf).all()), done
            return "read"
        for line in TEXTS:
            try:
                tokens = model.tokenize(line)
                assert bool((model(tokens) < torch.inf).all()), done
                assert model.tokenizer is not None
                model.tokenizer.decode(tokens.ids[0])
            except minibert.TokenizationError as error:
                check_form(error)
                if "panic" in str(error).lower() or "SpecialToken" in str(error):
                    return "refused"
    except minibert.MinibertError as error:
        check_form(error)
        return "refused"
    except BaseException as error:
        raise AssertionError(f"{done}: {type(error).__name__} {error!s:.300}") from error
    return "read"


def check_form(error: minibert.MinibertError) -> None:
    message, shown = str(error), "".join(traceback.format_exception(error))
    assert len(message.encode()) < 2048
    assert all(c.isprintable() or c == "\n" for c in message + shown)
    assert len(shown) < 20_000


def compare_weights(folder: Path) -> None:
    ours = {name: entry.load() for name, entry in open_checkpoint(folder).items()}
    theirs: dict[str, torch.Tensor] = {}
    if (folder / PICKLE).exists():
        theirs = torch.load(folder / PICKLE, weights_only=True)
    else:
        for path in [folder / SAFE] if (folder / SAFE).exists() else folder.glob("*.safetensors"):
            theirs |= load_file(path)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def change_bytes(path: Path, random: Random) -> str:
    path.write_bytes(changed_bytes(path.read_bytes(), random))
    return "bytes"


def changed_bytes(given: bytes, random: Random) -> bytes:
    """Flip, set, cut, repeat, insert or drop bytes."""
    content = bytearray(given)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        place = random.randrange(len(content) or 1)
        kind = random.choice(("flip", "set", "cut", "repeat", "insert", "drop"))
        if kind == "flip" and content:
            content[place] ^= 1 << random.randrange(8)
        elif kind == "set" and content:
            content[place] = random.choice((0, 0xFF, 0x22, 0x7B, random.randrange(256)))
        elif kind == "cut":
            del content[place:]
        elif kind == "repeat":
            content[place:place] = content[place : place + random.randrange(1, 64)]
        elif kind == "insert":
            content[place:place] = random.randbytes(random.randrange(1, 16))
        else:
            del content[place : place + random.randrange(1, 64)]
    return bytes(content)


def change_json(path: Path, random: Random) -> str:
    """A change of one of JSON's values; in safetensors of the header's."""
    content, rest = path.read_bytes(), b""
    if path.suffix == ".safetensors":
        size = struct.unpack("<Q", content[:8])[0]
        content, rest = content[8 : 8 + size], content[8 + size :]
    try:
        value = json.loads(content)
    except ValueError:
        return change_bytes(path, random)
    done = change_value(value, random)
    header = json.dumps(value).encode("utf-8", "surrogatepass")
    size_of_it = struct.pack("<Q", len(header)) if path.suffix == ".safetensors" else b""
    path.write_bytes(size_of_it + header + rest)
    return done


def change_value(value: Any, random: Random) -> str:
    """Change one value somewhere in parsed JSON; what was done."""
    container, where = value, "."
    while True:
        keys = list(container) if isinstance(container, dict) else range(len(container))
        if not keys:
            return "nothing to change"
        key = random.choice(list(keys))
        inner, where = container[key], f"{where}{str(key)[:40]}."
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.2:
            break
        container = inner
    kind = random.choice(("value", "value", "value", "drop", "nest", "swap"))
    if kind == "value":
        container[key] = deepcopy(random.choice(HOSTILE))
    elif kind == "drop":
        del container[key]
    elif kind == "nest":
        for _ in range(random.choice((1, 70, 400))):
            inner = [inner]
        container[key] = inner
    else:
        other = random.choice(list(keys))
        container[key], container[other] = container[other], container[key]
    return f"{kind} at {where}"


# Of one process; and longer than they take on a busy machine.
_CASES, _SECONDS = 2000, 2400.0
_PROCESSES = 2


def siege(minutes: float, first: int) -> int:
    """Cases from the seed `first` on, for so many minutes; the number of failures, each printed."""
    ends = time.monotonic() + 60 * minutes
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # In memory, where there is such a place: most of a case would be the making of files.
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as base, ThreadPoolExecutor(_PROCESSES) as threads:
        honest_folders(Path(base))
        starts = [first + n * 10**8 for n in range(_PROCESSES)]
        said = list(threads.map(lambda start: besiege(base, start, ends), starts))
    lines = [line.split() for each in said for line in each]
    for target in TARGETS:
        own = [line for line in lines if line[0] == target]
        read, seconds = sum(line[1] == "read" for line in own), sum(float(line[2]) for line in own)
        print(f"{target}: {len(own)} cases, {read} read, {seconds:.0f} s")
    failures = sum(line[0] == "failed" for line in lines)
    cases = len(lines)
    print(f"{cases} cases, {failures} failures; {cases / minutes / 60:.1f} cases a second")
    return failures


def besiege(base: str, first: int, ends: float) -> list[str]:
    """A line of each case from a seed on, one process after the other."""
    command = [sys.executable, "-m", "tests.test_hostile_files", "--in", base, "--seed"]
    lines: list[str] = []
    while time.monotonic() < ends:
        seed = str(first + len(lines))
        try:
            done = subprocess.run(
                [*command, seed, "--minutes", f"{(ends - time.monotonic()) / 60}"],
                capture_output=True,
                timeout=_SECONDS,
            )
            said, status = done.stdout, done.returncode
            failure = f"ended with {status}: {done.stderr[-800:]!r}" if status else ""
        except subprocess.TimeoutExpired as late:
            said, failure = late.stdout or b"", f"no answer in {_SECONDS} s"
        lines += said.decode().splitlines()
        print(f"seed {first + len(lines)} {failure or 'next'}", flush=True)
        if failure:
            lines.append("failed")
    return lines


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--minutes", type=float, default=30)
    asked.add_argument("--seed", type=int, default=time.time_ns() // 10**6 % 10**9 * 1000)
    asked.add_argument("--in", dest="base", type=Path, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.base is None:
        return min(siege(given.minutes, given.seed), 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folders = [given.base / name for name in NAMES]
    ends = time.monotonic() + 60 * given.minutes
    with (
        tempfile.TemporaryDirectory(dir=given.base) as place,
        hub_of(folders[0], Path(place) / "cache") as hub,
        shared_trials(),
    ):
        for seed in range(given.seed, given.seed + _CASES):
            if (start := time.monotonic()) > ends:
                break
            target, became = drawn(seed, folders, Path(place), hub)
            print(target, became, f"{time.monotonic() - start:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
