"""Tiles by Hopper's copy unit: the same numbers, and only where it can read the vectors."""

import math

import pytest
import torch

from minibert.kernels.api import attend
from minibert.kernels.call import Call, parse_want

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("triton_device")

WANT = ("entropy", "argmax", ("key_mass", (0,)), "offset_mass")
# Aligned rows of 16 bytes and more, heads narrower than a tile of vectors among them.
LAYOUTS = ("heads apart", "heads beside one another", "a part of the keys", "one sentence")


def vectors(layout: str, device: str, *, d_head: int = 24) -> tuple[torch.Tensor, ...]:
    shape = (1 if layout == "one sentence" else 2, 2, 51, d_head)
    if layout == "heads beside one another":
        shape = (shape[0], shape[2], shape[1], shape[3])
    tensors = torch.randn(3, *shape, device=device).half().unbind()
    if layout == "heads beside one another":
        return tuple(one.transpose(1, 2) for one in tensors)
    if layout == "a part of the keys":
        return tensors[0], *(one[:, :, 8:] for one in tensors[1:])
    return tensors


def tiled(query, key, value, *, causal=False, packed=None, want=WANT):
    """By the kernel that is told to take tiles from the copy unit."""
    from minibert.kernels.fused.forward import forward
    from minibert.kernels.fused.launch import Config

    options = {"scale": 0.2, "causal": causal, "packed": packed}
    want, config = parse_want(want, n_keys=key.shape[2]), Config(16, 16, 4, 1, tma=True)
    return forward(Call.of(query, key, value, want=want, **options), config=config)


def assert_as_eager(found, query, key, value, *, causal=False):
    expected = attend(
        *(one.float() for one in (query, key, value)), scale=0.2, causal=causal, want=WANT
    )
    torch.testing.assert_close(found["z"].float(), expected.z, rtol=0, atol=2e-3)
    torch.testing.assert_close(found["lse"], expected.lse, rtol=0, atol=1e-5)
    for name in ("entropy", "key_mass", "offset_mass"):
        theirs = getattr(expected.statistics, name)
        torch.testing.assert_close(found[name], theirs, rtol=0, atol=2e-5)
    assert torch.equal(found["argmax"], expected.statistics.argmax)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_give_what_loads_give(layout, causal, triton_device):
    from minibert.kernels.fused.launch import Config
    from minibert.kernels.fused.primitives import tiles_of

    torch.manual_seed(0)
    given = vectors(layout, triton_device)
    cut = Config(16, 16, 4, 1, tma=True)
    assert tiles_of(given[1], cut) is not None
    assert tiles_of(given[2], cut) is not None
    assert_as_eager(tiled(*given, causal=causal), *given, causal=causal)


def test_what_they_bring_is_what_is_computed_with(monkeypatch, triton_device):
    from minibert.kernels.fused import forward, primitives

    given = vectors("heads apart", triton_device)
    whole = tiled(*given)["z"]
    tiles_of = primitives.tiles_of
    monkeypatch.setattr(forward, "tiles_of", lambda one, cut: tiles_of(one * 0, cut))
    assert not tiled(*given)["z"].isclose(whole, atol=1e-2).all()


def test_tiles_of_packed_sentences_begin_at_their_first_row(triton_device):
    lengths = (17, 1, 40, 70)
    given = torch.randn(3, 1, 2, sum(lengths), 16, device=triton_device).half().unbind()
    given[2][:, :, 3] = math.nan
    found = tiled(*given, packed=lengths, causal=True)
    parts = zip(*(one.split(lengths, dim=2) for one in given), strict=True)
    outputs = {name: one.split(lengths, dim=2) for name, one in found.items()}
    for number, alone in list(enumerate(parts))[1:]:
        assert_as_eager({n: one[number] for n, one in outputs.items()}, *alone, causal=True)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(lambda: torch.randn(1, 2, 40, 20).half(), id="rows of 40 bytes"),
        pytest.param(lambda: torch.randn(1, 2, 40, 17).half()[..., 1:], id="rows of 34 bytes"),
        pytest.param(
            lambda: torch.randn(2 * 40 * 16 + 4).half()[4:].view(1, 2, 40, 16), id="start"
        ),
        pytest.param(lambda: torch.randn(1, 1, 40, 16).half().expand(1, 2, 40, 16), id="repeated"),
    ],
)
def test_what_the_copy_unit_cannot_read_is_loaded(key, triton_device):
    from minibert.kernels.fused.launch import Config
    from minibert.kernels.fused.primitives import tiles_of

    key = key().to(triton_device) if triton_device == "cpu" else key()
    assert tiles_of(key, Config(16, 16, 4, 1, tma=True)) is None
    key = key.to(triton_device)
    query, value = torch.randn(2, *key.shape, device=triton_device).half().unbind()
    assert_as_eager(tiled(query, key, value), query, key, value)


def test_the_likeliest_configs_are_tried_with_tiles_too_where_they_can_be_read():
    from minibert.kernels.fused.tuning import candidates

    without = candidates("forward", "bf16", 64, "causal plain")
    with_tiles = candidates("forward", "bf16", 64, "causal tma plain")
    assert not any(cut.tma for cut in without)
    assert with_tiles[: len(without)] == without
    assert [cut.tma for cut in with_tiles[len(without) :]] == [True, True]
