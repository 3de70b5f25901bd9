"""Weights in several files: what an index may say, and how large a file may be."""

import json
import mmap
import sys
from pathlib import Path

import pytest
import torch

import minibert
from minibert.checkpoint.files import _private
from minibert.errors import CheckpointError
from tests.small_checkpoints import saved


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


def test_the_size_that_an_index_gives_is_not_read(tmp_path: Path) -> None:
    expected = saved(tmp_path, "llama", torch.bfloat16)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"metadata": {"total_size": 7}}))
    word = minibert.load(tmp_path).body.word.weight
    assert torch.equal(word, expected["model.embed_tokens.weight"].float())


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
