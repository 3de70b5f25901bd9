"""Tensors arrive as they were: numbers, dtype, shape, and the order of the axes in memory."""

import pytest
import torch

from minibert.bench.shared_bytes import SharedBytes, described, room_for
from minibert.errors import MinibertError

SENT = {
    "plain": torch.randn(2, 3, 5, 7),
    "turned": torch.randn(2, 5, 3, 7).transpose(1, 2),
    "narrow": torch.randn(11).bfloat16(),
    "expanded": torch.randn(3, 1).expand(3, 5),
    "flags": torch.tensor([True, False, True]),
    "one": torch.tensor(7),
}


def test_what_one_end_puts_the_other_takes(tmp_path):
    here = SharedBytes.new(tmp_path / "file", room_for(SENT.values()))
    about = here.put(SENT)
    found = SharedBytes(here.path, here.size).take(about)
    shapes = described(about)
    for name, one in SENT.items():
        assert torch.equal(found[name], one)
        assert (shapes[name].shape, shapes[name].dtype) == (one.shape, one.dtype)
    assert found["turned"].stride() == SENT["turned"].stride()


def test_what_does_not_fit_is_described_and_cannot_be_taken(tmp_path):
    here = SharedBytes.new(tmp_path / "file", 64)
    about = here.put({"z": torch.zeros(100)})
    assert described(about)["z"].shape == (100,)
    with pytest.raises(ValueError, match="400 bytes in a file of 64"):
        here.take(about)


@pytest.mark.parametrize(
    "about",
    [
        None,
        7,
        [["z"]],
        [["z", "float7", [1], [0]]],
        [["z", "float32", [-1], [0]]],
        [["z", "float32", [2**63], [0]]],
        [["z", "float32", ["1"], [0]]],
        [["z", "float32", [2, 3], [0, 0]]],
        [[["z"], "float32", [1], [0]]],
    ],
)
def test_a_description_that_is_none_is_a_value_error(about):
    with pytest.raises(ValueError):  # noqa: PT011, the messages are torch's and Python's
        described(about)


def test_a_full_disk_is_one_line_and_no_crash(tmp_path):
    with pytest.raises(MinibertError, match="do not fit into"):
        SharedBytes.new(tmp_path / "file", 2**60)
