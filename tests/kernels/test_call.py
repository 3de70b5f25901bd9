"""Which keys a query may attend to, against the definition spelled out in loops."""

import pytest
import torch

from minibert.kernels.allowed_keys import AllowedKeys

LENGTHS, POSITIONS = (5, 2, 7), 7


def token_mask(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(POSITIONS) < torch.tensor(lengths)[:, None]


def by_definition(lengths: tuple[int, ...], causal: bool) -> torch.Tensor:
    """A query sees a real token that is not in its future."""
    return torch.tensor(
        [
            [
                [
                    [key < length and (not causal or key <= query) for key in range(POSITIONS)]
                    for query in range(POSITIONS)
                ]
            ]
            for length in lengths
        ]
    )


def allowed_keys(lengths: tuple[int, ...], causal: bool) -> AllowedKeys:
    ids = torch.zeros(len(lengths), POSITIONS, dtype=torch.long)
    return AllowedKeys.of(token_mask(lengths), causal=causal, ids=ids)


@pytest.mark.parametrize("causal", [False, True])
def test_the_full_mask_is_the_definition(causal: bool) -> None:
    for lengths in (LENGTHS, (7, 7), (1,)):
        full = allowed_keys(lengths, causal).full()
        assert full.dtype == torch.bool
        assert torch.equal(full, by_definition(lengths, causal))


@pytest.mark.parametrize("causal", [False, True])
def test_rows_are_the_rows_of_the_full_mask(causal: bool) -> None:
    allowed = allowed_keys(LENGTHS, causal)
    for queries in (slice(None), slice(2, 5), slice(-3, None), slice(None, None, 2), slice(4, 4)):
        rows, expected = allowed.rows(queries), allowed.full()[:, :, queries]
        assert rows is not None
        assert torch.equal(rows.expand(expected.shape), expected)


def test_nothing_hidden_is_no_mask_at_all() -> None:
    ids = torch.zeros(2, POSITIONS, dtype=torch.long)
    for mask in (None, token_mask((7, 7))):
        allowed = AllowedKeys.of(mask, causal=False, ids=ids)
        assert allowed.rows() is None
        assert allowed.full().all()
        assert allowed.full().shape == (2, 1, POSITIONS, POSITIONS)


def test_a_causal_mask_is_not_repeated_for_each_sentence() -> None:
    rows = allowed_keys((7, 7, 7), True).rows()
    assert rows is not None
    assert rows.shape == (1, 1, POSITIONS, POSITIONS)
