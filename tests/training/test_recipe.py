"""The numbers of a run, and which Configs it can be about."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import TrainingError
from minibert.training.recipe import Recipe, check_task
from tests.training.small_runs import bert, gpt2

COUNTS = ("steps", "batch", "threads", "log_every", "save_every")
POSITIVE = ("matrix_rate", "rate", "clip")
NOT_NEGATIVE = ("waves", "weight_decay", "delimiter", "matching", "previous", "induction")
SHARES = (
    "masked",
    "repeated",
    "short",
    "half",
    "cool_down",
    "targets_until",
    "targets_kept",
    "same_text",
)


class TestPace:
    def test_it_goes_up_stays_and_goes_down(self) -> None:
        recipe = Recipe(steps=100, warm_up=10, cool_down=0.4)
        pace = [recipe.pace(step) for step in range(100)]
        assert pace[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
        assert pace[10:61] == [1.0] * 51
        assert pace[60:] == pytest.approx([(100 - n) / 40 for n in range(60, 100)])

    @given(st.integers(1, 60), st.integers(0, 80), st.floats(0, 1))
    def test_it_is_never_0_and_never_above_1(self, steps: int, warm_up: int, down: float) -> None:
        recipe = Recipe(steps=steps, warm_up=warm_up, cool_down=down)
        assert all(0 < recipe.pace(step) <= 1 for step in range(steps))

    def test_without_warm_up_and_cool_down_it_is_level(self) -> None:
        recipe = Recipe(steps=7, warm_up=0, cool_down=0.0)
        assert [recipe.pace(step) for step in range(7)] == [1.0] * 7


def test_what_is_given_to_help_fades_in_a_straight_line() -> None:
    recipe = Recipe(steps=100, delimiter=2.0, targets_until=0.2)
    weights = [recipe.targets_at(n).get("delimiter", 0) for n in (0, 10, 20, 99)]
    assert weights == pytest.approx([2, 1, 0, 0])
    assert Recipe(matching=0.6, targets_until=0.0).targets_at(0) == {}


def test_a_part_of_the_help_can_stay() -> None:
    recipe = Recipe(steps=100, delimiter=2.0, targets_until=0.2, targets_kept=0.25)
    weights = [recipe.targets_at(n)["delimiter"] for n in (0, 10, 20, 99)]
    assert weights == pytest.approx([2, 1.25, 0.5, 0.5])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in COUNTS for value in (0, -1)),
        *((name, value) for name in POSITIVE for value in (0.0, -1.0, math.inf, math.nan)),
        *((name, value) for name in NOT_NEGATIVE for value in (-0.5, math.inf, math.nan)),
        *((name, value) for name in SHARES for value in (-0.1, 1.1, math.nan)),
        ("warm_up", -1),
        ("seed", -1),
        ("seed", 2**32),
        ("masked", 0.0),
    ],
)
def test_a_number_that_makes_no_sense_is_an_error_naming_it(name: str, value: Any) -> None:
    with pytest.raises(TrainingError, match=f"^{name}={value}: "):
        Recipe(**{name: value})


def test_every_number_is_checked() -> None:
    checked = {*COUNTS, *POSITIVE, *NOT_NEGATIVE, *SHARES, "warm_up", "seed"}
    assert checked == set(Recipe().to_dict()) - {"bfloat16"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (bert("sequence-classification", labels=("a", "b")), "cannot be trained here"),
        (bert(family="electra", task="pre-training"), "'pre-training' cannot be trained here"),
        (bert("masked-lm", causal=True), "expected causal=False"),
        (bert("causal-lm"), "expected causal=True"),
        (gpt2(causal=False), "expected causal=True"),
        (bert(n_segments=1), "two segments; .* n_segments=1"),
        (bert(pooler=False), "needs a pooler .* pooler=False"),
        (gpt2(n_positions=15), "15 positions are too few"),
    ],
)
def test_a_config_without_an_objective_is_an_error(config: Any, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        check_task(config)


@pytest.mark.parametrize(
    "config", [gpt2(), bert(), bert("masked-lm"), bert("causal-lm", causal=True)]
)
def test_a_config_with_one_passes(config: Any) -> None:
    check_task(config)
