"""Choosing the next token: transformers' processors, the distribution drawn from, the limits."""

import math
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from minibert.answers.generate import Sampling, draw, keep_top_k, keep_top_p
from minibert.errors import MinibertError

BATCH, VOCABULARY = 3, 41


def logits(seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(BATCH, VOCABULARY, generator=generator, dtype=torch.float64)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@given(seed=st.integers(0, 99), k=st.integers(1, 50))
def test_top_k_keeps_what_transformers_keeps(seed: int, k: int) -> None:
    row = logits(seed).round()  # Rounded, so that some are equal.
    assert torch.equal(keep_top_k(row, k), TopKLogitsWarper(k)(None, row))


@given(
    seed=st.integers(0, 99),
    p=st.floats(0.01, 0.99),
    spread=st.sampled_from([0.1, 3.0, 20.0]),
    decimals=st.sampled_from([0, 1, 9]),
)
def test_top_p_keeps_what_transformers_keeps(
    seed: int, p: float, spread: float, decimals: int
) -> None:
    row = logits(seed, spread).round(decimals=decimals)  # Rounded, so that some are equal.
    assert torch.equal(keep_top_p(row, p), TopPLogitsWarper(p)(None, row))


@given(
    seed=st.integers(0, 999),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.3, 3.0]),
    k=st.none() | st.integers(1, 50),
    p=st.none() | st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9]) | st.floats(0.01, 0.99),
    spread=st.sampled_from([0.0, 0.3, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_of_equal_logits_the_ones_of_transformers_can_be_drawn(
    seed: int,
    temperature: float,
    k: int | None,
    p: float | None,
    spread: float,
    dtype: torch.dtype,
) -> None:
    row = logits(seed, spread).round(decimals=1).to(dtype)
    # transformers' generate makes float32 of all logits before its processors.
    scores = TemperatureLogitsWarper(temperature)(None, row.float())
    scores = scores if k is None else TopKLogitsWarper(k)(None, scores)
    scores = scores if p is None else TopPLogitsWarper(p)(None, scores)
    assert torch.equal(Sampling(temperature, k, p).probs(row) > 0, scores.isfinite())


@given(
    seed=st.integers(0, 99),
    temperature=st.floats(0.1, 5),
    k=st.integers(1, 50),
    p=st.floats(0.01, 0.99),
)
def test_the_three_together_give_transformers_probabilities(
    seed: int, temperature: float, k: int, p: float
) -> None:
    row = logits(seed)
    scores = TopKLogitsWarper(k)(None, TemperatureLogitsWarper(temperature)(None, row))
    expected = TopPLogitsWarper(p)(None, scores).softmax(-1)
    probs = Sampling(temperature, k, p).probs(row)
    assert (probs - expected).abs().max() <= 1e-12


def test_the_nucleus_is_the_smallest_that_reaches_p() -> None:
    row = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=torch.float64).log()
    for p, kept in [(0.4, [1]), (0.6, [1, 3]), (0.8, [1, 2, 3]), (0.95, [0, 1, 2, 3])]:
        assert keep_top_p(row, p).isfinite().nonzero()[:, 0].tolist() == kept


def test_a_batch_is_cut_row_by_row() -> None:
    row = logits()
    for cut in (lambda x: keep_top_k(x, 5), lambda x: keep_top_p(x, 0.7)):
        assert torch.equal(cut(row), torch.stack([cut(one) for one in row]))


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-4])
def test_at_low_temperature_only_the_largest_is_left(temperature: float) -> None:
    probs = Sampling(temperature).probs(logits())
    assert torch.equal(probs.argmax(-1), logits().argmax(-1))
    assert probs.amax(-1).tolist() == [1.0] * BATCH
    assert Sampling(temperature).choose(logits(), generators(0, 1, 2)) == (
        logits().argmax(-1).tolist()
    )


def test_draws_come_as_often_as_their_probability_says() -> None:
    probs = torch.tensor([[0.0, 0.2, 0.0, 0.5, 0.3, 0.0]], dtype=torch.float64)
    (generator,) = generators(7)
    drawn = [int(draw(probs, [generator])) for _ in range(5000)]
    counts = torch.bincount(torch.tensor(drawn), minlength=6)
    assert counts[probs[0] == 0].sum() == 0
    # Six standard deviations of a binomial.
    spread = 6 * (5000 * probs[0] * (1 - probs[0])).sqrt()
    assert ((counts - 5000 * probs[0]).abs() <= spread).all()


def test_a_row_is_drawn_with_its_own_generator() -> None:
    probs = logits().softmax(-1)
    together = draw(probs, generators(11, 13, 17))
    for i, seed in enumerate((11, 13, 17)):
        assert draw(probs[i : i + 1], generators(seed)) == together[i]
    assert torch.equal(draw(probs, generators(11, 13, 17)), together)


def test_logits_are_left_as_they_are() -> None:
    row = logits()
    Sampling(0.7, 5, 0.5).probs(row)
    assert torch.equal(row, logits())


@pytest.mark.parametrize("temperature", [10**30, 1e300])
def test_at_a_temperature_without_end_all_tokens_are_equal(temperature: float | int) -> None:
    probs = Sampling(temperature).probs(logits())
    assert torch.equal(probs, torch.full_like(probs, 1 / VOCABULARY))


@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor(0.5), np.ones((2, 3)), "1", 1j])
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_what_is_no_number_is_an_error(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(MinibertError, match=rf"(?s){name}=.*: expected"):
        Sampling(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 10**400}, "temperature=1000"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": -3}, "top_k=-3"),
        ({"top_k": True}, "top_k=True"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_p": math.nan}, "top_p=nan"),
    ],
)
def test_a_setting_out_of_range_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MinibertError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_logits_are_an_error(broken: float, temperature: float) -> None:
    row = logits()
    row[1, 5] = broken
    with pytest.raises(MinibertError, match="NaN or infinity"):
        Sampling(temperature).choose(row, generators(0, 1, 2))
