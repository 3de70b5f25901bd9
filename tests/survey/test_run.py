"""A survey ends with the same tables, whatever happened on the way."""

import errno
import json
import math
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from attention_pages import packed_in
from command_line import fails
from command_line import run as command_run

import minibert
from minibert.errors import SurveyError
from minibert.survey.documents import Document
from minibert.survey.patterns import patterns
from minibert.survey.run import survey
from minibert.survey.runs import LOCK
from minibert.survey.tables import MANIFEST, PART, Survey
from tests.survey.small_surveys import LONG, contents, run, texts

pytest.importorskip("pyarrow", reason="the tables of a survey need pyarrow")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The survey that nothing disturbed, and its files."""
    folder = tmp_path_factory.mktemp("whole")
    return run(folder), contents(folder)


def killed(folder, moments):
    """Kill a run some windows after it began, or went on."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["minibert.survey.run"])
    process = processes.Process(target=run, args=(folder,))
    process.start()
    part, seen, windows = folder / PART, set(), moments.choice((1, 2))
    if part.exists():
        seen.add(part.stat().st_mtime_ns)
        windows += 1
    while len(seen) < windows and process.is_alive():
        if part.exists():
            seen.add(part.stat().st_mtime_ns)
        time.sleep(0.0005)
    time.sleep(moments.uniform(0, 0.02))
    process.kill()
    process.join()
    assert process.exitcode == -9


def test_three_kills_at_random_moments_leave_the_same_tables(whole, tmp_path):
    (tmp_path / ".part.npz.1.unfinished").write_bytes(b"half")
    moments = random.Random(0)
    for _ in range(3):
        killed(tmp_path, moments)
        with pytest.raises(SurveyError, match="no finished run"):
            Survey.read(tmp_path)
    run(tmp_path)
    assert contents(tmp_path) == whole[1]


def test_an_interrupt_and_a_full_disk_lose_nothing_that_was_measured(whole, tmp_path, monkeypatch):
    def interrupted():
        yield from texts()[:20]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, interrupted())
    kept = contents(tmp_path)[PART]

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(SurveyError, match=r"No space left.*What was done is kept"):
            run(tmp_path)
    assert contents(tmp_path)[PART] == kept
    with monkeypatch.context() as patch:
        patch.setattr("minibert.survey.tables.Survey._tables", lambda self: full(self))
        with pytest.raises(SurveyError, match=r"cannot be written to \(No space left.*is kept"):
            run(tmp_path)
    run(tmp_path)
    assert contents(tmp_path) == whole[1]


def test_a_folder_of_something_else_is_refused_and_can_be_replaced(whole, tmp_path):
    few = texts(12)

    def stopped():
        yield from few
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stopped())
    with pytest.raises(SurveyError, match=r"other options \(measures, offsets\)"):
        run(tmp_path, offsets=(2,))
    for others in (["The boat turned ."] * 12, few[:4]):
        with pytest.raises(SurveyError, match="started with other documents"):
            run(tmp_path, others)
    run(tmp_path, resume=False)
    assert contents(tmp_path) == whole[1]
    # A finished survey of the same is read, and of anything else refused.
    assert run(tmp_path).manifest == whole[0].manifest
    with pytest.raises(SurveyError, match="started with other documents"):
        run(tmp_path, [*texts(), "The boat turned ."])
    with pytest.raises(SurveyError, match=r"other options \(measures, offsets\)"):
        run(tmp_path, offsets=(2,))
    assert contents(tmp_path) == whole[1]
    (tmp_path / MANIFEST).unlink()
    (tmp_path / PART).write_bytes(b"PK\x03\x04")
    with pytest.raises(SurveyError, match=f"{PART}: cannot be read"):
        run(tmp_path)


def test_what_is_read_again_is_the_same_to_the_last_bit(whole, tmp_path):
    made, files = whole
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    again = Survey.read(tmp_path)
    assert again.manifest == made.manifest
    assert again.names == made.names
    for name, numbers in vars(made.sums).items():
        np.testing.assert_array_equal(getattr(again.sums, name), numbers, err_msg=name)
    assert again.examples("to_sep", 1, 2) == made.examples("to_sep", 1, 2)


def test_means_intervals_and_examples_follow_from_the_documents(whole):
    made, _ = whole
    model, name = minibert.load(), "to_previous"
    each = []
    for text in texts():
        if len(text.split()) < 20:
            probs = model.trace(text).stack("probs")[:, 0].double()
            each.append((probs.diagonal(-1, 2, 3).sum(-1) / probs.shape[-1]).numpy())
    short = survey(model, [text for text in texts() if len(text.split()) < 20])
    assert short.count(name) == len(each) == 51
    mean, error = np.mean(each, 0), np.std(each, 0, ddof=1) / len(each) ** 0.5
    np.testing.assert_allclose(short.table(name), mean, atol=1e-6)
    # Student's quantile of 50 degrees of freedom.
    expected = np.stack([mean - 2.0086 * error, mean + 2.0086 * error], -1)
    np.testing.assert_allclose(short.interval(name), expected, atol=1e-5)
    best = short.examples(name, 0, 1)
    scores = sorted((one[0, 1] for one in each), reverse=True)[:3]
    assert [one.score for one in best] == pytest.approx(scores, abs=1e-6)
    # A long document counts once, with all the rows of its windows.
    assert made.count(name) == 60
    windows = math.ceil(LONG / (model.config.n_positions - 2))
    assert windows > 1
    assert made.manifest["corpus"]["segments"] == 51 + 9 * windows
    rows = made.sums.rows[made.names.index(name)]
    assert (rows == made.manifest["corpus"]["tokens"]).all()
    with pytest.raises(SurveyError, match="measure 'to_nothing': not here"):
        made.table("to_nothing")


def test_a_pair_is_two_texts_and_one_too_long_is_cut_and_counted():
    model, texts = minibert.load(), ("The horse ran .", "A horse turned .")
    words = (("the", "old-horse", "ran"), ("a", "boat"))
    for given, whole in (
        (texts, Document("a", texts[0], None, texts[1])),
        (tuple(map(minibert.Words, words)), Document("a", None, *words)),
    ):
        found, expected = survey(model, [given]), survey(model, [whole])
        for name, numbers in vars(expected.sums).items():
            np.testing.assert_array_equal(getattr(found.sums, name), numbers, err_msg=name)
        trace = model.trace(*whole.contents)
        probs = trace.stack("probs")[:, 0].double().numpy()
        inside = np.array([span is not None for span in trace.tokens.spans[0]])
        second = trace.tokens.segments[0].numpy().astype(bool)
        one, two = (np.flatnonzero(inside & text) for text in (~second, second))
        other = probs[..., one, :][..., two].sum((-2, -1)) + probs[..., two, :][..., one].sum(
            (-2, -1)
        )
        np.testing.assert_allclose(found.table("to_other_text"), other / inside.sum(), atol=1e-6)
    long = survey(model, [Document("c", "horse " * 150, None, "boat " * 150)])
    assert long.manifest["corpus"]["pairs_cut"] == 1
    assert long.manifest["corpus"]["tokens"] == model.config.n_positions


def test_documents_without_tokens_stop_the_survey_or_are_counted():
    given = ["The horse ran .", Document("blank", " "), "A boat turned ."]
    with pytest.raises(SurveyError, match=r'blank: the text gives no token.*on_error="skip"'):
        survey(minibert.load(), given)
    found = survey(minibert.load(), given, on_error="skip")
    assert found.manifest["corpus"]["documents"] == 2
    left_out = found.manifest["corpus"]["without_tokens"]
    assert left_out["count"] == 1
    assert left_out["first"][0][0] == "blank"
    with pytest.raises(SurveyError, match=r"can be measured\. blank: the text"):
        survey(minibert.load(), given[1:2], on_error="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0: expected a whole number from 1"),
        ({"longest": 4}, "longest=4: expected a whole number from 8"),
        ({"longest": 4096}, "longest=4096: expected from 8 to "),
        ({"offsets": (1.5,)}, r"offsets=\(1.5,\): expected whole numbers"),
        ({"tokens": "the"}, "tokens='the': expected several texts"),
        ({"tokens": ("horseboat",)}, "token 'horseboat': not in the vocabulary of tiny-bert"),
        ({"measures": ("to_nothing",)}, "measure to_nothing: not known here"),
        ({"on_error": "ignore"}, "on_error='ignore': expected"),
    ],
)
def test_options_that_cannot_be_are_errors_before_a_document_is_read(options, message, monkeypatch):
    def never():
        raise AssertionError("was read")
        yield

    # The annotations are checked in tests alone: a user meets these messages.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

    with pytest.raises(SurveyError, match=message):
        survey(minibert.load(), never(), **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("the river", "documents is one str; give a list"),
        (["the river", None], "text 1 is a NoneType"),
        ([("the river", minibert.Words(["a"]))], "text 0 is a tuple"),
        ([b"the river"], "text 0 is a bytes"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(given, message):
    with pytest.raises(SurveyError, match=message):
        survey(minibert.load("tiny-gpt2"), given)


LINES = (
    "the horse quickly ran away and the dog slowly walked home",
    "the boat turned in the sea and the sea was blue and cold",
    "the rabbit slept under the old tree while the cat looked at it",
    "the girl read a long book and the boy drew a small house",
    "this line is behind the limit and nothing of it is measured",
    "nor of this one",
)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(map(pair, LINES[::2], LINES[1::2])))
    return path


def pair(first: str, second: str) -> str:
    return json.dumps({"a": first, "b": second}) + "\n"


PAIRS = ("--field", "a", "--pair-field", "b")


def header_in(path: Path) -> dict[str, Any]:
    return dict(json.loads(packed_in(path.read_text(), "header")))


def test_the_report_is_about_the_documents_that_were_surveyed_and_made_again(corpus, tmp_path):
    folder = tmp_path / "survey"
    options = (*PAIRS, "--limit", "2", "--pattern-documents", "1", "-o", str(folder))
    command = ("survey", str(corpus), *options)
    done = command_run(*command)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"The report: {(folder / 'report.html').as_uri()}"
    header = header_in(folder / "report.html")
    assert header["title"] == "tiny-bert"
    assert {one["documents"] for one in header["measures"]} <= {0, 1, 2}
    pairs = {"corpus.jsonl:1", "corpus.jsonl:2"}
    # Sequences that come twice are the other examples.
    ids = {one for one in header["documents"] if not one.startswith("drawn sequence ")}
    assert ids == pairs
    # All examples of so small a corpus have a page.
    assert header["notes"] == []
    linked = {header["documents"][number] for number, *_ in header["links"]}
    assert linked == pairs
    shown = header_in(folder / "examples.html")["examples"]
    assert [one["texts"] for one in shown[:1]] == [list(LINES[:2])]
    same = next(one for one in header["patterns"] if one["name"] == "same_word_other_sentence")
    assert same["documents"] == 1
    named = patterns(minibert.load(), [Document("corpus.jsonl:1", LINES[0], pair=LINES[1])])
    written = json.loads((folder / "patterns.json").read_text())
    assert written == json.loads(json.dumps(named.to_dict()))
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert first.keys() - {LOCK} == {
        "distance_profile.parquet", "examples.html", "examples.parquet", "manifest.json",
        "measures.parquet", "patterns.json", "report.html",
    }  # fmt: skip
    for name in ("report.html", "examples.html", "patterns.json"):
        (folder / name).unlink()
    again = command_run(*command)
    assert again.exit_code == 0, again.output
    assert again.stdout.endswith(f"The report: {(folder / 'report.html').as_uri()}\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    # Neither other documents nor another model can be shown as what was surveyed.
    corpus.write_text("".join(map(pair, LINES[1::2], LINES[::2])))
    fails(command_run(*command), "The run in this folder started with other documents")
    fails(command_run(*command, "--model", "tiny-gpt2"), "belongs to a run with another model")


def test_the_tables_can_be_had_alone(corpus, tmp_path):
    done = command_run(
        "survey", str(corpus), "--field", "a", "--no-report", "-o", str(tmp_path / "s")
    )
    assert done.exit_code == 0, done.output
    assert not list((tmp_path / "s").glob("*.html"))
