"""files.py: every kind of weight file, and every way in which one can be broken."""

import json
import mmap
import os
import pickle
import struct
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

import minibert
from minibert.checkpoint.files import Entry, _private, open_checkpoint, open_state_dict
from minibert.errors import CheckpointError
from tests.small_checkpoints import saved

WHOLE = "model.safetensors"


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


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("kind", ["safetensors", "zip", "old"])
def test_what_was_saved_is_what_is_read(tmp_path, kind, dtype):
    expected = tensors(dtype)
    if kind == "safetensors":
        save_file(expected, tmp_path / WHOLE, metadata={"format": "pt"})
    else:
        path = tmp_path / "pytorch_model.bin"
        torch.save(expected, path, _use_new_zipfile_serialization=kind == "zip")
    assert same(open_checkpoint(tmp_path), expected)


def test_safetensors_are_views_of_the_file_and_the_file_is_never_written(tmp_path):
    expected = tensors()
    save_file(expected, tmp_path / WHOLE)
    before = (tmp_path / WHOLE).read_bytes()
    entry = open_checkpoint(tmp_path)["a.weight"]
    assert entry.load().data_ptr() == entry.load().data_ptr(), "a copy was made"
    entry.load().zero_()
    assert (tmp_path / WHOLE).read_bytes() == before
    assert same(open_checkpoint(tmp_path), expected)


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
        assert same(open_checkpoint(tmp_path), values)


def test_a_file_cut_anywhere_is_an_error(tmp_path):
    whole = save(tensors())
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    for length in {*range(12), *range(12, len(whole), 13), header_end - 1, header_end}:
        (tmp_path / WHOLE).write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole"):
            open_checkpoint(tmp_path)
    (tmp_path / WHOLE).write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="cut short or damaged; download or save it again"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        raw({"a": about()}, bytes(8), size=2**63),
        raw({"a": about()}, bytes(8), size=2**40),
        raw({"a": about()}, bytes(8), size=5),
        raw({"a": about()}, bytes(8), size=0),
        raw({"a": about()}, bytes(9)),
        raw({"a": about()}, bytes(7)),
        raw({"a": about(), "b": about(offsets=(4, 12))}, bytes(12)),
        raw({"a": about(), "b": about(offsets=(0, 8))}, bytes(8)),
        raw({"a": about(), "b": about(offsets=(12, 20))}, bytes(20)),
        raw({"a": about(offsets=(8, 0))}, bytes(8)),
        raw({"a": about(offsets=(-8, 0))}, bytes(8)),
        raw({"a": about(offsets=(0, 2**64))}, bytes(8)),
        raw({"a": about(shape=(3,))}, bytes(8)),
        raw({"a": about(shape=(2**62, 2**62))}, bytes(8)),
        raw({"a": about(shape=(-2,))}, bytes(8)),
        raw({"a": about("F64")}, bytes(8)),
        raw({"a": about("F31")}, bytes(8)),
        raw({"a": {"dtype": "F32"}}, bytes(8)),
        raw({"a": about()} | {"__metadata__": 3}, bytes(8)),
        raw(b'{"a": 1', bytes(8)),
        raw(b"\xff\xfe", bytes(8)),
        raw([], bytes(8)),
        b"<!DOCTYPE html><html>The login page of a hotel.</html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 133466304\n",
    ],
)
def test_a_header_that_does_not_fit_its_file_is_an_error(tmp_path, content):
    (tmp_path / WHOLE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors file"):
        open_checkpoint(tmp_path)


def test_a_number_type_that_is_not_read_is_an_error_that_names_the_tensor(tmp_path):
    (tmp_path / WHOLE).write_bytes(raw({"odd": about("F8_E4M3", (8,))}, bytes(8)))
    with safe_open(tmp_path / WHOLE, framework="pt") as file:
        assert file.keys() == ["odd"], "safetensors itself finds nothing wrong"
    with pytest.raises(CheckpointError, match="odd has the type F8_E4M3"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files_are_read_by_their_index(tmp_path, kind):
    expected = tensors()
    stem, _, ending = kind.partition(".")
    names = [f"{stem}-0000{i}-of-00002.{ending}" for i in (1, 2)]
    parts = [dict(list(expected.items())[:1]), dict(list(expected.items())[1:])]
    for name, part in zip(names, parts, strict=True):
        write = save_file if ending == "safetensors" else torch.save
        write(part, tmp_path / name)
    index = {"weight_map": {key: names[key != "a.weight"] for key in expected}}
    (tmp_path / f"{kind}.index.json").write_text(json.dumps(index))
    assert same(open_checkpoint(tmp_path), expected)
    (tmp_path / names[1]).unlink()
    with pytest.raises(CheckpointError, match=rf"not there: {names[1]}\. Download"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": ["b"]}}',
        '{"weight_map": {"a": "../secret.safetensors"}}',
        '{"weight_map": {"a": "SECRET"}}',
        '{"weight_map": {"a": "sub/secret.safetensors"}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": ""}}',
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


def test_the_first_kind_of_weights_is_read_and_the_others_are_not_looked_at(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    (tmp_path / "model.safetensors.index.json").write_bytes(b"not an index")
    expected = tensors()
    save_file(expected, tmp_path / WHOLE)
    assert same(open_checkpoint(tmp_path), expected)


def test_a_folder_without_weights_is_an_error_that_says_what_was_looked_for(tmp_path):
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(CheckpointError, match=r"no weights; looked for model\.safetensors, "):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", [WHOLE, "pytorch_model.bin"])
def test_a_folder_where_a_file_should_be_is_an_error(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=rf"{name}: cannot be read"):
        open_checkpoint(tmp_path)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("kind", ["zip", "old"])
def test_a_pickle_that_wants_to_run_code_is_an_error_and_does_not_run_it(tmp_path, kind):
    trace = tmp_path / "trace"
    path = tmp_path / "pytorch_model.bin"
    state = tensors() | {"evil": Payload(trace)}
    torch.save(state, path, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(CheckpointError, match=r"more than tensors: it asks for \w+\.mkdir\."):
        open_checkpoint(tmp_path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the payload was harmless, so nothing was shown"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pickle.dumps, "more than tensors: it asks for posix.mkdir"),
        (lambda _: b"<!DOCTYPE html>", "not a whole torch file"),
        (lambda _: b"", "not a whole torch file"),
    ],
)
def test_what_torch_did_not_save_is_an_error_and_runs_nothing(tmp_path, kind, message):
    trace = tmp_path / "trace"
    (tmp_path / "pytorch_model.bin").write_bytes(kind({"evil": Payload(trace)}))
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: .*{message}"):
        open_checkpoint(tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_cut_anywhere_is_an_error(tmp_path, zipped):
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 5 if zipped else 1), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            open_checkpoint(tmp_path)


def test_a_state_dict_inside_a_training_checkpoint_is_found(tmp_path):
    expected = tensors()
    torch.save({"state_dict": expected, "epoch": 3}, tmp_path / "pytorch_model.bin")
    assert same(open_checkpoint(tmp_path), expected)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.ones(2), {1: torch.ones(2)}])
def test_a_pickle_of_something_else_is_an_error(tmp_path, content):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="expected a dictionary of tensors, a state dict"):
        open_checkpoint(tmp_path)


def test_the_tensors_of_a_live_model_are_shared():
    weight = torch.nn.Parameter(torch.randn(3, 5))
    entry = open_state_dict({"weight": weight})["weight"]
    assert entry.load().data_ptr() == weight.data_ptr()
    assert not entry.load().requires_grad


def test_a_file_that_may_not_be_read_is_not_called_missing(tmp_path, monkeypatch):
    save_file(tensors(), tmp_path / WHOLE)

    def refuse(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    # A mode without read permission stops nobody who runs the tests as root.
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError, match="Permission denied"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("broken", ["missing", "elsewhere", "unnamed"])
def test_an_index_that_does_not_fit_its_files_is_an_error(broken: str, tmp_path: Path) -> None:
    saved(tmp_path, "llama", torch.bfloat16)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    named = index["weight_map"]
    files = sorted(set(named.values()))
    first = next(name for name, file in named.items() if file == files[0])
    if broken == "missing":
        (tmp_path / files[1]).unlink()
        match = rf"not there: {files[1]}\. Download"
    elif broken == "elsewhere":
        named[first] = files[1]
        match = rf"{files[0]}: it holds other tensors than .* {first} for one"
    else:
        del named[first]
        match = rf"{files[0]}: it holds other tensors than .* {first} for one"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=match):
        minibert.load(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has holes and reserves")
def test_a_file_larger_than_the_memory_can_be_mapped(tmp_path: Path) -> None:
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
