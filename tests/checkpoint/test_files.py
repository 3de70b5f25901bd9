"""files.py: every kind of weight file, and every way in which one can be broken."""

import json
import mmap
import os
import pickle
import random
import struct
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from minibert import untrusted
from minibert.checkpoint import files
from minibert.checkpoint.files import Entry, _private, open_checkpoint
from minibert.errors import CheckpointError

WHOLE, PICKLE = "model.safetensors", "pytorch_model.bin"


@pytest.fixture(autouse=True)
def untried(monkeypatch):
    """Nothing starts a process, which takes a second; the last test is about that."""
    monkeypatch.setattr(files, "tried_out", lambda *_, **__: "")


def tensors(dtype=torch.float32):
    return {
        "a.weight": torch.randn(3, 5).to(dtype),
        "b.bias": torch.randn(7).to(dtype),
        "scale": torch.randn(()).to(dtype),
        "none": torch.empty(0, 11).to(dtype),
    }


def raw(header: object, data: bytes = b"", *, size: int | None = None) -> bytes:
    """A safetensors file with that header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def about(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def same(entries: dict[str, Entry], expected: dict[str, torch.Tensor]) -> bool:
    """True when names, types, shapes and every bit agree."""
    return entries.keys() == expected.keys() and all(
        entry.dtype == expected[name].dtype
        and entry.shape == tuple(expected[name].shape)
        and torch.equal(entry.load(), expected[name])
        for name, entry in entries.items()
    )


def write(path: Path, content: object, kind: str) -> None:
    """Saves it as "safetensors", or by torch as "zip" or "old"."""
    if kind == "safetensors":
        save_file(content, path, metadata={"format": "pt"})
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")


def open_error(folder: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(folder)
    return str(raised.value)


KINDS = {"safetensors": WHOLE, "zip": PICKLE, "old": PICKLE}
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "bool")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_is_what_is_read_and_cut_anywhere_it_is_an_error(tmp_path, kind):
    path = tmp_path / KINDS[kind]
    for dtype in DTYPES:
        expected = tensors(getattr(torch, dtype))
        write(path, expected, kind)
        assert same(open_checkpoint(tmp_path), expected)
    write(path, tensors(), kind)
    whole = path.read_bytes()
    header_end = 8 + struct.unpack("<Q", whole[:8])[0] if kind == "safetensors" else 12
    step = {"safetensors": 13, "zip": 7, "old": 2}[kind]
    for length in {*range(12), *range(12, len(whole), step), header_end, len(whole) - 1}:
        path.write_bytes(whole[:length])
        assert f"{path.name}: " in open_error(tmp_path)
    assert "cut short or damaged; download or save it again" in open_error(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_several_files_are_read_by_an_index_that_fits_them(tmp_path, kind):
    expected, (stem, _, ending) = tensors(), KINDS[kind].partition(".")
    names = [f"{stem}-0000{i}-of-00002.{ending}" for i in (1, 2)]
    parts = [dict(list(expected.items())[:1]), dict(list(expected.items())[1:])]
    for name, part in zip(names, parts, strict=True):
        write(tmp_path / name, part, kind)
    path, places = tmp_path / f"{KINDS[kind]}.index.json", {k: names[k > "b"] for k in expected}

    def index(**changes: str) -> None:
        said = {name: file for name, file in (places | changes).items() if file}
        path.write_text(json.dumps({"weight_map": said}))

    index()
    assert same(open_checkpoint(tmp_path), expected)
    for name, file in {"a.weight": names[1], "b.bias": ""}.items():
        index(**{name: file})
        assert "its tensors are not those of" in open_error(tmp_path)
        assert f"{name}, for example" in open_error(tmp_path)
    index()
    (tmp_path / names[1]).unlink()
    assert f"not there: {names[1]}. Download" in open_error(tmp_path)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("kind", ["zip", "old", "plain", "page", "nothing"])
def test_what_is_more_than_tensors_is_an_error_and_does_not_run(tmp_path, kind):
    trace, path = tmp_path / "trace", tmp_path / PICKLE
    state = tensors() | {"evil": Payload(trace)}
    others = {"plain": pickle.dumps(state["evil"]), "page": b"<!DOCTYPE html>", "nothing": b""}
    if kind in others:
        path.write_bytes(others[kind])
    else:
        write(path, state, kind)
    said = "this pickle holds more than tensors" if kind != "nothing" else "not a whole torch file"
    assert said in open_error(tmp_path)
    assert kind not in KINDS or "it asks for posix.mkdir." in open_error(tmp_path)
    assert "weights_only" not in open_error(tmp_path), "torch's advice to run it"
    assert not trace.exists()
    if kind in KINDS:
        torch.load(path, weights_only=False)
        assert trace.exists(), "the payload was harmless, so nothing was shown"


def test_tensors_that_do_not_lie_on_a_boundary_are_read(tmp_path):
    values = {
        "a": torch.randn(3),
        "b": torch.randn(5, dtype=torch.float64),
        "none": torch.empty(0, 7, dtype=torch.float64),
    }
    data = b"".join(tensor.numpy().tobytes() for tensor in values.values())
    header = {
        "a": about(shape=(3,), offsets=(0, 12)),
        "b": about("F64", (5,), (12, 52)),
        "none": about("F64", (0, 7), (52, 52)),
    }
    for padding in range(8):
        text = json.dumps(header).encode() + b" " * padding
        (tmp_path / WHOLE).write_bytes(raw(text, data))
        entries = open_checkpoint(tmp_path)
        assert same(entries, values)
        # Some processors read a number only from a multiple of its size.
        for entry in entries.values():
            assert entry.load().data_ptr() % entry.dtype.itemsize == 0


@pytest.mark.parametrize(
    "content",
    [
        raw({"a": about()}, bytes(8), size=2**63),
        raw({"a": about()}, bytes(7)),
        raw({"a": about(), "b": about(offsets=(4, 12))}, bytes(12)),
        raw({"a": about(shape=(2**62, 2**62))}, bytes(8)),
        b"<!DOCTYPE html><html>The login page of a hotel.</html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 133466304\n",
    ],
)
def test_a_header_that_does_not_fit_its_file_is_an_error(tmp_path, content):
    (tmp_path / WHOLE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        "",
        "{}",
        '{"weight_map": {"a": ["b"]}}',
        '{"weight_map": {"a": "../secret.safetensors"}}',
        '{"weight_map": {"a": "SECRET"}}',
        '{"weight_map": {"a": "sub/secret.safetensors"}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": "a\\u0000b"}}',
    ],
)
def test_an_index_that_is_none_or_leads_out_of_its_folder_is_an_error(tmp_path, index):
    secret = tmp_path / "secret.safetensors"
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for path in (secret, folder / "sub" / secret.name):
        save_file(tensors(), path)
    text = index.replace("SECRET", str(secret))
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: "):
        open_checkpoint(folder)


def quantised(tensor: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, quantised, lambda one: one.to("meta")])
def test_a_tensor_of_another_kind_is_an_error(tmp_path, change):
    torch.save(tensors() | {"odd": change(torch.ones(2, 3))}, tmp_path / PICKLE)
    assert "odd" in open_error(tmp_path)


def test_an_archive_with_a_flipped_bit_or_compressed_is_an_error(tmp_path):
    path, expected = (
        tmp_path / PICKLE,
        {"a": torch.randn(2, 3), "b": torch.arange(12).view(3, 4).t()},
    )
    torch.save({"state_dict": expected, "epoch": 3}, path)
    assert same(open_checkpoint(tmp_path), expected)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    # torch itself would map the compressed bytes as numbers.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    assert "it is compressed" in open_error(tmp_path)
    numbers = whole.index(expected["a"].numpy().tobytes())
    called_a_folder = whole.index(b"PK\1\2", numbers) + 38
    for place in (numbers, called_a_folder, *random.choices(range(len(whole)), k=100)):
        flipped = bytearray(whole)
        flipped[place] ^= 16
        path.write_bytes(flipped)
        with suppress(CheckpointError):
            assert same(open_checkpoint(tmp_path), expected)
            assert place not in (numbers, called_a_folder)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.ones(2), {1: torch.ones(2)}])
def test_a_pickle_of_something_else_is_an_error(tmp_path, content):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="expected a dictionary of tensors, a state dict"):
        open_checkpoint(tmp_path)


def test_a_file_that_may_not_be_read_is_not_called_missing(tmp_path, monkeypatch):
    save_file(tensors(), tmp_path / WHOLE)

    def refuse(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    # A mode without read permission stops nobody who runs the tests as root.
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError, match="Permission denied"):
        open_checkpoint(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has holes and reserves")
def test_a_file_larger_than_the_memory_can_be_mapped(tmp_path):
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("this system reserves memory for every mapping")
    size = 2**40
    with (tmp_path / "large").open("wb+") as file:
        file.truncate(size)
        file.seek(size - 1)
        file.write(b"x")
        file.flush()
        mapped = _private(file.fileno())
        assert mapped[size - 1 :] == b"x"
        with pytest.raises(OSError, match="annot allocate memory"):
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def test_a_pickle_made_to_take_time_without_end_takes_none_here(tmp_path, monkeypatch):
    # The key of a dictionary: a pair of one pair twice, forty deep. Its hash takes 2**40 steps.
    pairs = b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(40))
    (tmp_path / PICKLE).write_bytes(b"\x80\x02})q\x00" + pairs + b"Ns.")
    monkeypatch.setattr(files, "tried_out", untrusted.tried_out)
    monkeypatch.setattr(untrusted, "_SECONDS", 3)
    assert "(a process that read it " in open_error(tmp_path)
