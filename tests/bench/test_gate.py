"""The gate: what is declared is allowed, and nothing else comes through."""

import pytest
import torch

from minibert.bench.gate import GateError, Truth, WrongError, failure, require, within

RIGHT = {"logits": torch.linspace(-3, 5, 11), "hidden 0": torch.ones(2, 3)}
EXACT = Truth(RIGHT, absolute=1e-4)
LOSSY = Truth(RIGHT, relative=0.05)


def changed(name, value):
    return {**RIGHT, name: value}


def test_the_largest_error_of_each_kind_is_reported():
    fields = EXACT.check(changed("logits", RIGHT["logits"] + 5e-5))
    assert fields["errors"]["hidden"] == 0
    assert fields["max_error"] == pytest.approx(5e-5, rel=1e-2)
    assert fields["compared"] == 2


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (changed("logits", RIGHT["logits"] + 2e-4), "logits differs by 2.00e-04, allowed 1.00e-04"),
        (changed("logits", RIGHT["logits"] * float("nan")), "logits differs by nan"),
        (changed("hidden 0", torch.ones(3, 2)), r"hidden 0 has shape \(3, 2\), expected \(2, 3\)"),
        (changed("probs 0", torch.ones(2, 3)), "probs 0 has shape .* expected nothing"),
        ({}, "nothing was captured"),
    ],
)
def test_a_wrong_result_does_not_pass(found, message):
    with pytest.raises(WrongError, match=message):
        EXACT.check(found)


def test_a_part_of_the_largest_value_may_be_allowed_and_the_limit_of_a_kind_is_kept():
    found = changed("logits", RIGHT["logits"] + 0.2)
    assert LOSSY.check(found)["max_error"] == pytest.approx(0.2)
    with pytest.raises(WrongError, match="allowed 1"):
        Truth(RIGHT, relative=0.05, limits={"logits": 0.1}).check(found)
    with pytest.raises(WrongError, match=r"allowed 2\.5"):
        LOSSY.check(changed("logits", RIGHT["logits"] + 0.3))


def test_every_name_must_be_there_where_that_is_asked_for():
    found = {"logits": RIGHT["logits"]}
    assert EXACT.check(found)["compared"] == 1
    with pytest.raises(WrongError, match="gave no hidden 0"):
        Truth(RIGHT, absolute=1e-4, complete=True).check(found)


def test_a_truth_without_a_tolerance_is_an_error_of_the_benchmark():
    with pytest.raises(ValueError, match="no tolerance was declared for logits"):
        Truth(RIGHT).check(RIGHT)


def test_nan_is_never_within():
    assert within("z", 1.0, 1.0) == 1.0
    with pytest.raises(WrongError, match="z differs by nan of the largest"):
        within("z", float("nan"), 1.0, of=" of the largest")


@pytest.mark.parametrize(
    ("error", "wrong", "reason"),
    [
        (WrongError("z differs"), True, "z differs"),
        (GateError("not installed"), False, "not installed"),
        (RuntimeError("/opt/some/file.py cannot\n be read"), False, "RuntimeError: <path> cannot"),
    ],
)
def test_a_failure_is_a_reason_without_folders_and_says_whether_it_was_wrong(error, wrong, reason):
    row = failure(error)
    assert (row["ok"], row["wrong"]) == (False, wrong)
    assert row["reason"].startswith(reason)


def test_what_is_not_installed_cannot_be_measured():
    require("torch")
    with pytest.raises(GateError, match="not installed"):
        require("a-package-that-does-not-exist")
