"""The numbers of a run, and which Configs it can be about."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import TrainingError
from minibert.training.recipe import Recipe, check_task
from tests.training.small_runs import bert, gpt2

# What no field of a kind may be, and the fields of the kind.
WRONG = [
    ((0, -1), "steps batch threads log_every save_every"),
    ((0.0, -1.0, math.inf, math.nan), "matrix_rate rate clip"),
    ((-0.5, math.inf, math.nan), "waves weight_decay delimiter matching previous induction"),
    (
        (-0.1, 1.1, math.nan),
        "masked repeated short half cool_down targets_until targets_kept same_text",
    ),
    ((-1,), "warm_up seed"),
    ((2**32,), "seed"),
    ((513,), "threads"),
    ((0.0,), "masked"),
]


def test_the_pace_goes_up_stays_and_goes_down():
    recipe = Recipe(steps=100, warm_up=10, cool_down=0.4)
    pace = [recipe.pace(step) for step in range(100)]
    assert pace[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    assert pace[10:61] == [1.0] * 51
    assert pace[60:] == pytest.approx([(100 - n) / 40 for n in range(60, 100)])
    level = Recipe(steps=7, warm_up=0, cool_down=0.0)
    assert [level.pace(step) for step in range(7)] == [1.0] * 7


@given(st.integers(1, 60), st.integers(0, 80), st.floats(0, 1))
def test_the_pace_is_never_0_and_never_above_1(steps, warm_up, down):
    recipe = Recipe(steps=steps, warm_up=warm_up, cool_down=down)
    assert all(0 < recipe.pace(step) <= 1 for step in range(steps))


@pytest.mark.parametrize(("kept", "expected"), [(0.0, [2, 1, 0, 0]), (0.25, [2, 1.25, 0.5, 0.5])])
def test_what_is_given_to_help_fades_in_a_straight_line(kept, expected):
    recipe = Recipe(steps=100, delimiter=2.0, targets_until=0.2, targets_kept=kept)
    weights = [recipe.targets_at(n).get("delimiter", 0) for n in (0, 10, 20, 99)]
    assert weights == pytest.approx(expected)
    assert Recipe(matching=0.6, targets_until=0.0).targets_at(0) == {}


@pytest.mark.parametrize(
    ("name", "value"), [(n, value) for values, of in WRONG for n in of.split() for value in values]
)
def test_a_number_that_makes_no_sense_is_an_error_naming_it(name, value):
    with pytest.raises(TrainingError, match=f"^{name}={value}: "):
        Recipe(**{name: value})


def test_every_number_is_checked_and_shares_of_the_steps_together():
    checked = {name for _, names in WRONG for name in names.split()}
    assert checked == set(Recipe().to_dict()) - {"bfloat16"}
    with pytest.raises(TrainingError, match=r"short=0\.6 and half=0\.6: .* at most 1"):
        Recipe(short=0.6, half=0.6)


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
def test_a_config_without_an_objective_is_an_error(config, message):
    with pytest.raises(TrainingError, match=message):
        check_task(config)


@pytest.mark.parametrize(
    "config", [gpt2(), bert(), bert("masked-lm"), bert("causal-lm", causal=True)]
)
def test_a_config_with_one_passes(config):
    check_task(config)
