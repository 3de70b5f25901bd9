"""The rules for tile sizes."""

import pytest
import torch

pytest.importorskip("triton")

from minibert.kernels.fused import tuning


@pytest.mark.parametrize(
    ("capability", "word"),
    [((8, 0), "ampere"), ((8, 9), "ampere"), ((9, 0), ""), ((10, 0), "blackwell")],
)
def test_gpus_that_multiply_otherwise_than_hopper_choose_among_other_tiles(
    capability: tuple[int, int], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: Hopper's tiles spilled up to 776 bytes a thread on Ampere."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert tuning.generation(torch.device("cuda")) == word
    hopper, here = (
        tuning.candidates("backward keys", "bf16", 128, f"causal{told}")[0]
        for told in ("", f" {word}")
    )
    assert (here.block_n < hopper.block_n) == (word == "ampere")
