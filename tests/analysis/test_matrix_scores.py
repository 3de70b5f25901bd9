"""The five scores of one attention matrix, against sums written out cell by cell."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.analysis.patterns import (
    delimiter_score,
    duplicate_score,
    induction_score,
    next_score,
    previous_score,
)
from minibert.errors import AttentionError

B, H = 2, 3


def random_probs(n: int, seed: int, *, causal: bool = False) -> torch.Tensor:
    scores = 3 * torch.randn(B, H, n, n, generator=torch.Generator().manual_seed(seed))
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)


def mean_over(cells: list[float]) -> float:
    return float(np.mean(cells)) if cells else float("nan")


def test_a_matrix_with_known_cells_has_known_scores() -> None:
    probs = torch.tensor(
        [
            [0.4, 0.3, 0.2, 0.1],
            [0.5, 0.3, 0.1, 0.1],
            [0.6, 0.2, 0.1, 0.1],
            [0.1, 0.2, 0.7, 0.0],
        ]
    )
    assert previous_score(probs).item() == pytest.approx((0.5 + 0.2 + 0.7) / 3)
    assert next_score(probs).item() == pytest.approx((0.3 + 0.1 + 0.1) / 3)
    assert duplicate_score(probs, length=2).item() == pytest.approx((0.6 + 0.2) / 2)
    assert induction_score(probs, length=2).item() == pytest.approx((0.2 + 0.7) / 2)
    delimiters = torch.tensor([True, False, False, True])
    assert delimiter_score(probs, delimiters).item() == pytest.approx((0.6 + 0.7) / 2)


@settings(max_examples=25)
@given(st.integers(2, 11), st.integers(0, 99), st.data())
def test_neighbour_scores_are_means_over_the_rows_that_count(
    n: int, seed: int, data: st.DataObject
) -> None:
    probs = random_probs(n, seed)
    rows = data.draw(st.lists(st.booleans(), min_size=B * n, max_size=B * n))
    counted = np.array(rows).reshape(B, n)
    for score, step in ((previous_score, -1), (next_score, 1)):
        given_rows = score(probs, rows=torch.from_numpy(counted)[:, None]).numpy()
        of_all = score(probs).numpy()
        for b, h in np.ndindex(B, H):
            cells = {i: probs[b, h, i, i + step].item() for i in range(n) if 0 <= i + step < n}
            wanted = mean_over([cell for i, cell in cells.items() if counted[b, i]])
            assert given_rows[b, h] == pytest.approx(wanted, abs=1e-6, nan_ok=True)
            assert of_all[b, h] == pytest.approx(mean_over(list(cells.values())), abs=1e-6)


@settings(max_examples=25)
@given(st.integers(1, 11), st.integers(0, 99), st.data())
def test_the_delimiter_score_is_the_mean_mass_from_rows_that_count(
    n: int, seed: int, data: st.DataObject
) -> None:
    probs = random_probs(n, seed)
    flags = st.lists(st.booleans(), min_size=B * n, max_size=B * n)
    keys = np.array(data.draw(flags)).reshape(B, n)
    counted = np.array(data.draw(flags)).reshape(B, n)
    delimiters, rows = (torch.from_numpy(table)[:, None] for table in (keys, counted))
    for measured, chosen in (
        (delimiter_score(probs, delimiters), ~keys),
        (delimiter_score(probs, delimiters, rows=rows), counted),
    ):
        for b, h in np.ndindex(B, H):
            masses = [
                sum(probs[b, h, i, j].item() for j in range(n) if keys[b, j])
                for i in range(n)
                if chosen[b, i]
            ]
            assert measured[b, h].item() == pytest.approx(mean_over(masses), abs=1e-6, nan_ok=True)


@settings(max_examples=25)
@given(st.integers(2, 7), st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))
def test_repeat_scores_look_from_the_second_half_at_the_first_occurrence(
    length: int, before: int, behind: int, seed: int
) -> None:
    ids = [100 + p for p in range(before)] + 2 * list(range(length)) + [200] * behind
    probs = random_probs(len(ids), seed)
    for score, step in ((duplicate_score, 0), (induction_score, 1)):
        measured = score(probs, length=length, start=before)
        for b, h in np.ndindex(B, H):
            # By the tokens, not by offsets: where did this token stand before?
            cells = [
                probs[b, h, i, ids.index(ids[i]) + step].item()
                for i in range(before + length, before + 2 * length)
            ]
            assert measured[b, h].item() == pytest.approx(mean_over(cells), abs=1e-6)


def marked_by_transformer_lens(ids: list[int], shift: int) -> np.ndarray[Any, Any]:
    """TransformerLens' detection patterns: 1 at earlier equal tokens, shifted to the right."""
    n = len(ids)
    marks = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            if ids[j] == ids[i] and j + shift <= i:
                marks[i, j + shift] = 1
    return marks


def test_repeat_scores_are_those_of_transformer_lens_up_to_the_rows_counted() -> None:
    # Its head detector divides the marked mass by the mass of all rows, here twice as many.
    length = 13
    ids = 2 * list(range(length))
    probs = random_probs(len(ids), 5, causal=True)
    for score, shift in ((duplicate_score, 0), (induction_score, 1)):
        marks = torch.from_numpy(marked_by_transformer_lens(ids, shift))
        theirs = (probs * marks).sum((-2, -1)) / probs.sum((-2, -1))
        torch.testing.assert_close(score(probs, length=length).double(), 2 * theirs)


def test_the_induction_score_is_arenas_diagonal_without_its_row_of_the_first_half() -> None:
    length = 13
    probs = random_probs(2 * length, 7, causal=True)
    diagonal = probs.diagonal(-length + 1, dim1=-2, dim2=-1)
    assert diagonal.shape[-1] == length + 1
    torch.testing.assert_close(induction_score(probs, length=length), diagonal[..., 1:].mean(-1))


def test_delimiter_scores_are_those_of_clark_et_al() -> None:
    # Their code sums the mass on [SEP] from everything that is no [SEP], divided by n - 2.
    n, seps = 11, [4, 10]
    probs = random_probs(n, 3)
    delimiters = torch.zeros(n, dtype=torch.bool)
    delimiters[seps] = True
    to_sep = probs[..., seps].sum((-2, -1)) - probs[..., seps, :][..., seps].sum((-2, -1))
    torch.testing.assert_close(delimiter_score(probs, delimiters), to_sep / (n - 2))


def test_what_stands_in_rows_that_do_not_count_never_matters() -> None:
    n = 5
    probs = random_probs(n, 1)
    rows = torch.tensor([False, True, True, False, False])
    delimiters = torch.tensor([True, False, False, False, True])
    spoilt = probs.clone()
    spoilt[..., [0, 3, 4], :] = torch.nan
    for score in (
        lambda p: previous_score(p, rows=rows),
        lambda p: next_score(p, rows=rows),
        lambda p: delimiter_score(p, delimiters, rows=rows),
    ):
        assert torch.equal(score(spoilt), score(probs))


def test_half_precision_is_summed_in_single_precision() -> None:
    n = 1031
    probs = torch.zeros(n, n, dtype=torch.bfloat16)
    probs[torch.arange(1, n), torch.arange(n - 1)] = 0.5
    assert previous_score(probs).dtype == torch.float32
    assert previous_score(probs).item() == pytest.approx(0.5, abs=1e-6)
    everywhere = torch.full((n, n), 2.0**-10, dtype=torch.bfloat16)
    delimiters = torch.arange(n) > 0
    assert delimiter_score(everywhere, delimiters).item() == pytest.approx(1030 / 1024, abs=1e-6)


def test_a_matrix_that_is_not_square_is_refused() -> None:
    probs = torch.rand(2, 3, 5)
    for score in (
        previous_score,
        next_score,
        lambda p: duplicate_score(p, length=2),
        lambda p: delimiter_score(p, torch.ones(5, dtype=torch.bool)),
    ):
        with pytest.raises(AttentionError, match=r"\(2, 3, 5\).*as many keys as queries"):
            score(probs)


@pytest.mark.parametrize(("length", "start"), [(1, 0), (4, 0), (3, 2), (2, -1)])
def test_halves_that_do_not_fit_are_refused(length: int, start: int) -> None:
    probs = torch.rand(7, 7)
    for score in (duplicate_score, induction_score):
        with pytest.raises(AttentionError, match=f"start={start}, length={length}.*7 rows"):
            score(probs, length=length, start=start)
