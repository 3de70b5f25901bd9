"""What `check` says to right answers, to each known mistake, and to what is not an answer."""

import contextlib
import math
import re

import pytest
import torch
from live import exercise_numbers as page

import minibert
from minibert.course import check, exercises
from minibert.course.answers import Choice, Heads, Numbers, floats
from minibert.course.check import EXERCISES
from minibert.course.texts import BOYS, COPIED, ORDER, PAIRS
from minibert.errors import MinibertError
from minibert.languages import _patterns, strings
from scripts.course import COURSE, UNITS

SOLUTIONS = (COURSE / "solutions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXERCISES)
def test_every_known_mistake_is_wrong_and_named(name):
    wrong = list(EXERCISES[name].wrong_answers())
    assert wrong
    for answer, said in wrong:
        verdict = check(name, answer)
        assert not verdict.right, answer
        # In a whole layer, two slips of its parts may be one and the same.
        named = [other for _, other in wrong] if name == "8-run" else [said]
        assert any(other in verdict.said for other in named), said
        assert said.strip()


@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_is_never_told_to_who_is_wrong(name):
    exercise = EXERCISES[name]
    if isinstance(exercise, Numbers):
        truth = floats(exercise.known())
        for far in (1e6, -1e6):
            said = check(name, [far] * len(truth)).said
            shown = f"{truth[0]:.4g}"
            if float(shown).is_integer():
                continue
            assert not re.search(rf"(?<![\d.]){re.escape(shown)}(?![\d.])", said), said


@pytest.mark.parametrize("name", EXERCISES)
def test_dots_and_none_give_the_question_back_and_what_is_no_answer_is_refused_or_wrong(name):
    for nothing in (..., None):
        verdict = check(name, nothing)
        assert not verdict
        assert exercises()[name] in verdict.said
        assert "No guess yet" in verdict.said
    for wrong in ("much", object(), True, math.nan, [], {}, "9-9", torch.tensor([math.inf])):
        with contextlib.suppress(MinibertError):
            assert not check(name, wrong).right


def test_an_unknown_exercise_is_named_with_those_that_exist():
    with pytest.raises(
        MinibertError, match=r"'9-x' is not an exercise of the course; there are 0-wo"
    ):
        check("9-x", 1)
    with pytest.raises(MinibertError, match="not an exercise"):
        check(["1-average"], 1)


def test_numbers_of_every_kind_are_numbers():
    for right in (7, 7.0, "7", torch.tensor(7), torch.tensor([7.0])):
        assert check("1-tokens", right), right
    for heads in ("0-1", (0, 1), ["0-1"], {(0, 1)}):
        verdict = check("3-previous", heads)
        assert verdict.right == check("3-previous", "0-1").right


def test_a_set_of_heads_says_what_is_too_many_and_what_is_missing():
    exercise = EXERCISES["5-induction"]
    assert isinstance(exercise, Heads)
    truth = sorted(exercise.heads())
    assert len(truth) > 1
    assert check("5-induction", truth)
    assert f"{len(truth) - 1} more" in check("5-induction", truth[:1]).said
    other = next(head for head, _ in exercise.wrong_answers())
    assert f"Head {other}" in check("5-induction", [*truth, other]).said


def test_between_a_slip_and_the_truth_the_nearer_one_counts():
    exercise = Numbers("?", lambda: 1.0, 0.5, "", "Think.", lambda: {"No.": 0.0})
    assert exercise.judge(0.6)
    assert exercise.judge(0.4).said == "Not yet. It is more than 0.4. Think."
    assert exercise.judge(0).said == "Not yet. No."


@pytest.mark.parametrize("name", [n for n, one in EXERCISES.items() if isinstance(one, Numbers)])
def test_slips_that_any_exercise_invites_are_named(name):
    """Sign, per cent, the rest and the order, written with two to four digits."""
    exercise = EXERCISES[name]
    assert isinstance(exercise, Numbers)
    truth = floats(exercise.known())
    slips = {"sign": [-one for one in truth]}
    if all(0.05 < one < 1 for one in truth):
        slips["per cent"] = [100 * one for one in truth]
    if len(truth) > 1 and len(set(truth)) > 1:
        slips["order|weight of|scores"] = [*truth[1:], truth[0]]
    elif 0.02 < truth[0] < 0.4 and exercise.between is not None:
        slips["rest|no weight"] = [1 - truth[0]]
    for said, guess in slips.items():
        for digits in (2, 3, 4):
            verdict = check(name, [float(f"{one:.{digits}g}") for one in guess])
            assert verdict.right or re.search(said, verdict.said), (guess, verdict)
    for factor in (2, 0.5, 3, 1 / 4, 10, 0.01):
        verdict = check(name, [factor * one for one in truth])
        assert verdict.right or not re.search(r"is (less|more)( than [-\d]|\.)", verdict.said), (
            factor,
            verdict,
        )


def test_what_is_read_off_beside_the_number_is_named():
    trace = minibert.load("tiny-bert").trace(BOYS)
    table = trace[0, 1].probs[0]
    for said, near in (
        ("Row and column", table[2, 3]),
        ("layer comes first", trace[1, 0].probs[0, 3, 2]),
        ("over the four heads", trace[0].probs[0, :, 3, 2].mean()),
    ):
        assert said in check("0-weight", near).said


@pytest.mark.parametrize("name", ["3-previous", "3-neurons", "5-head", "5-induction"])
def test_heads_counted_from_1_or_with_the_layer_last_are_named(name):
    exercise = EXERCISES[name]
    assert isinstance(exercise, Heads)
    truth = [tuple(map(int, head.split("-"))) for head in exercise.heads()]
    if all(max(head) < 3 for head in truth):
        said = check(name, [f"{layer + 1}-{head + 1}" for layer, head in truth]).said
        assert "counted from 0" in said
    turned = {f"{head}-{layer}" for layer, head in truth}
    if turned != exercise.heads():
        assert "layer comes first" in check(name, turned).said


def test_the_exercises_agree_with_those_of_the_live_page():
    """The numbers of tests/live/exercise_numbers.py, which was written for the page."""
    model = minibert.load("tiny-bert")
    one = page.one_weight(model)
    for name, key in (("score", "score"), ("weight", "weight"), ("unscaled", "unscaled")):
        assert check(f"2-{name}", one[key])
    order = page.word_order(model, [ORDER, ORDER])
    assert check("3-equal", order["previous equal"])
    use = page.attention_is_not_use(model, BOYS)
    assert check("4-resting", use["weight"])
    assert check("4-value", use["value sep"] / use["value others"])
    assert check("4-off", use["late off"])
    pairs = page.agreement(model)
    assert check("5-right", pairs["right"])
    assert check("5-hidden", pairs["hidden"])
    assert check("5-head", max(pairs["heads"], key=pairs["heads"].get))
    copied = page.copying(minibert.load("tiny-gpt2"))
    assert check("5-copies", copied["all"])
    assert (len(PAIRS), len(COPIED)) == (pairs["pairs"], 100)


def test_the_scale_is_what_drawn_vectors_have():
    one, other = torch.randn(2, 50_000, 64)
    assert check("2-variance", (one * other).sum(-1).std())


def test_each_exercise_stands_on_its_unit_s_page_and_in_the_solutions():
    pages = {path.stem[0]: path.read_text(encoding="utf-8") for path in UNITS}
    assert sorted(pages) == list("012345678")
    for name, text in exercises().items():
        page_text = pages[name[0]]
        assert f"### Exercise {name}\n" in page_text
        assert re.search(rf'check\("{name}", (\.\.\.|\w+)\)', page_text)
        assert f"(solutions.md#{name})" in page_text
        assert f"### {name}\n" in SOLUTIONS
        assert text.split()[0] in page_text
    named = {name for one in pages.values() for name in re.findall(r"### Exercise ([\w-]+)", one)}
    assert named == set(exercises())


def test_every_solution_is_right():
    """The printed verdicts; tests/course/test_pages.py holds that they are printed."""
    printed = re.findall(r'solve\("([\w-]+)".*?```text\n(.*?)\n', SOLUTIONS, re.DOTALL)
    assert [name for name, _ in printed] == list(dict.fromkeys(name for name, _ in printed))
    assert {name for name, _ in printed} == set(exercises())
    assert all(said.startswith("Right") for _, said in printed)


# Numbers, names of heads and of words: the same in every language.
SAME = re.compile(r"[\d.,+−e -]*|\d-\d|\[SEP\]|was|were|is|are")


@pytest.mark.slow
def test_every_question_and_answer_has_its_german_and_nothing_is_left_over():
    texts, used = strings("de", "course"), set()

    def german(text):
        if SAME.fullmatch(text) or text in texts:
            used.add(text)
            return True
        for english, pattern in _patterns(tuple(texts)):
            if found := pattern.fullmatch(text):
                used.add(english)
                return all(map(german, found.groups()))
        return False

    for name, exercise in EXERCISES.items():
        said = [exercise.asks, getattr(exercise, "means", ""), getattr(exercise, "hint", "")]
        said += [(getattr(exercise, "between", None) or ("", "", ""))[2]]
        if not name.startswith("8-"):
            said += [one for _, one in exercise.wrong_answers()]
        if isinstance(exercise, Choice):
            said.append(exercise.said(exercise.right()))
        assert [one for one in said if one and not german(one)] == [], name
    # What is said of any number.
    for name in ("1-average", "1-softmax", "2-weight", "5-right", "6-count"):
        truth = torch.tensor(floats(EXERCISES[name].known()))
        for given in wrong_numbers(truth):
            said = check(name, given.tolist()).said
            assert german(said), said
    check_all = [check("1-average").said, check("8-split", lambda x, n_heads: None).said]
    assert all(german(line) for said in check_all for line in said.split("\n"))
    assert german(check("1-average", [1.6, 0.9, 1.1, 0.7]).said)
    assert german(check("0-word", "were").said)
    assert texts.keys() - used == set()


def wrong_numbers(truth):
    """What the same slips make of any right numbers, and others."""
    yield from (-truth, 100 * truth, truth.flip(0), 1 - truth, truth + 1, truth + 2, 1 / truth)
    yield from (truth / truth.sum(), truth / len(truth), truth / truth.max())
    yield from (2 * truth, truth / 2, 10 * truth, 0 * truth, truth + 0.3, truth - 0.3)
    yield from (torch.cat([-truth[:1], truth[1:]]), torch.cat([truth, truth]), 1.3 * truth)


def test_a_verdict_is_said_in_german():
    assert check("1-average", language="de").said.endswith("einen an die Stelle der Punkte.")
    verdict = check("1-average", [5, 3, 3, 2], language="de")
    assert not verdict
    assert verdict.said.startswith("Noch nicht. Das ist die Summe der Vektoren: ")
    right = check("1-average", [1.6, 0.9, 1.1, 0.7], language="de")
    assert right
    assert right.said.startswith("Richtig: 1.6, 0.9, 1.1, 0.7. Jede Zahl")
    with pytest.raises(MinibertError, match="expected one of en, de"):
        check("1-average", language="nl")
