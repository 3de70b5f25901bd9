"""Collected values: those of traces, whatever interrupts the run."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import fails, run

import minibert
from minibert.errors import SurveyError
from minibert.model import Model
from minibert.survey import runs
from minibert.survey.collecting import PART, Collected, collect
from minibert.survey.documents import Document
from minibert.text.words import Words
from tests.survey.small_surveys import contents

POINTS: list[Any] = [
    ("resid_post", 3),
    ("resid_pre", 0),
    ("mlp_post", 1),
    ("query", 2),
    ("z", 3, 1),
    ("head_out", 0, 2),
    "embed",
]
WORDS = ("The", "boys", "don't", "walk", "\u200b", "away")
TEXTS: list[Any] = [
    "The horse ran away.",
    Words(["A", "boat", "turned"]),
    Document("given", None, WORDS),
    "x",
    "the horse quickly ran away, " * 80,
]
MANY = [f"Text {number}: " + "the horse ran away. " * (number % 7) for number in range(60)]


def of_trace(model: Model, text: Any, point: Any, *pair: str) -> np.ndarray:
    """(position, ...): what a trace of the text alone has."""
    trace = model.trace(text, *pair)
    if isinstance(point, str):
        return getattr(trace, point)[0].numpy()
    value = trace[point[1:] if len(point) == 3 else point[1]].quantity(point[0])[0]
    return value.transpose(0, 1).numpy() if point[0] == "query" else value.numpy()


@pytest.fixture(scope="module", autouse=True)
def small_windows():
    """A collection is saved after each four documents."""
    before, runs.DOCUMENTS = runs.DOCUMENTS, 4
    yield
    runs.DOCUMENTS = before


@pytest.fixture(scope="module")
def bert():
    return minibert.load("tiny-bert")


@pytest.fixture(scope="module")
def whole(bert, tmp_path_factory):
    """MANY, collected without an interruption."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    collect(bert, MANY, POINTS[:2], output=folder, batch_tokens=64)
    return folder


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_values_are_those_of_a_trace_of_each_text_alone(tmp_path, name):
    model = minibert.load(name)
    points = [*POINTS, "logits"]
    both = [
        collect(model, TEXTS, points, output=tmp_path / n, special=n == "in") for n in ("in", "out")
    ]
    for i, text in enumerate(TEXTS[:4]):
        given = Words(text.words) if isinstance(text, Document) else text
        tokens = model.tokenize(given)
        kept = [span is not None for span in tokens.spans[0]]
        for collected, rows in zip(both, (np.ones(len(kept), bool), np.array(kept)), strict=True):
            mine = collected.rows(i)
            assert collected.tokens[mine].tolist() == tokens.ids[0].numpy()[rows].tolist()
            words = [-1 if word is None else word for word in tokens.words[0]]
            assert collected.words[mine].tolist() == np.array(words)[rows].tolist()
            for point in points:
                expected = of_trace(model, given, point)[rows]
                found = collected.values(*([point] if isinstance(point, str) else point))[mine]
                # Sums of many products: their rounding grows with the largest of them.
                scale = max(1, np.abs(expected).max())
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * scale)
    assert np.array_equal(both[0].values("query", 2, 1), both[0].values("query", 2)[:, 1])


def test_a_long_text_is_collected_in_windows_that_have_every_token_once(bert, tmp_path):
    # Smaller passes than the text is long, each of some of its windows.
    collected = collect(bert, TEXTS, POINTS[:1], output=tmp_path / "in", batch_tokens=300)
    rows, limit = collected.rows(4), bert.config.n_positions
    starts = np.flatnonzero(collected.positions[rows] == 0).tolist()
    ends = [*starts[1:], rows.stop - rows.start]
    assert len(starts) > 1
    ids, values = collected.tokens[rows], collected.values("resid_post", 3)[rows]
    for start, end in zip(starts, ends, strict=True):
        assert end - start <= limit
        expected = of_trace(bert, torch.tensor(ids[start:end].astype(np.int64)), POINTS[0])
        np.testing.assert_allclose(values[start:end], expected, rtol=0, atol=1e-5)
    inside = ids[collected.spans[rows][:, 0] >= 0].tolist()
    assert bert.tokenizer is not None
    assert inside == bert.tokenizer.encode(TEXTS[4])


def test_texts_and_words_are_read_back_and_pieces_averaged(bert, tmp_path):
    pair = Document("pair", "The horse ran", None, "The boys walk away")
    split = Document("split", None, WORDS, ("the", "old-horse", "\u200b", "ran"))
    collect(bert, [*TEXTS, pair, split], POINTS, output=tmp_path / "out")
    collected = Collected.read(tmp_path / "out")
    assert len(collected) == 7
    assert collected.text(1) == Document("1", None, ("A", "boat", "turned"))
    assert [collected.text(i) for i in (2, 5, -1)] == [TEXTS[2], pair, split]
    values, numbers = collected.values("resid_post", 3), collected.words
    rows = range(collected.starts[2], collected.starts[3])
    means = collected.word_means(2, "resid_post", 3)
    assert means.shape == (len(WORDS), 128)
    assert np.isnan(means[4]).all()
    for word in (0, 1, 2, 3, 5):
        pieces = [values[row] for row in rows if numbers[row] == word]
        np.testing.assert_allclose(means[word], np.mean(pieces, 0), atol=1e-6)
    second = collected.word_means(5, "query", 2, 1, segment=1)
    expected = of_trace(bert, pair.text, ("query", 2), "The boys walk away")[5:-1, 1]
    np.testing.assert_allclose(second, expected, atol=1e-5)
    # A word that gave no token has a row all the same.
    words = collected.word_means(6, "resid_post", 3, segment=1)
    assert np.isnan(words).all(-1).tolist() == [False, False, True, False]


def texts_kept(folder: Path) -> int:
    """The texts that an unfinished run has written."""
    part = folder / PART
    return int(json.loads(str(np.load(part)["told"]))["texts"]) if part.exists() else 0


@pytest.mark.parametrize("stop", [1, 23])
def test_an_interrupted_run_resumes_with_the_same_bytes(bert, whole, tmp_path, stop):
    def interrupted() -> Iterator[str]:
        yield from MANY[:stop]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(bert, interrupted(), POINTS[:2], output=tmp_path, batch_tokens=64)
    assert texts_kept(tmp_path) == stop // 4 * 4
    if stop > 4:
        with pytest.raises(SurveyError, match="not finished; run the same command again"):
            Collected.read(tmp_path)
    collect(bert, iter(MANY), POINTS[:2], output=tmp_path, batch_tokens=64)
    assert contents(tmp_path) == contents(whole)
    # A finished collection is not computed again.
    collect(bert, MANY, POINTS[:2], output=tmp_path, batch_tokens=64)
    assert contents(tmp_path) == contents(whole)


HOLD = """
import sys, pathlib
from minibert.survey.runs import folder_locked
with folder_locked(pathlib.Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


def test_another_process_is_kept_out_until_it_ends_or_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        (tmp_path / "run" / ".rows.5.unfinished").touch()
        with (
            pytest.raises(SurveyError, match="/run: another process is writing into this"),
            runs.folder_locked(tmp_path / "run"),
        ):
            raise AssertionError
        other.kill()
    with runs.folder_locked(tmp_path / "run"):
        assert [path.name for path in (tmp_path / "run").iterdir()] == [runs.LOCK]


def test_a_full_disk_is_an_error_and_what_is_complete_is_kept(bert, whole, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Room for some pieces and not for the whole of an array.
    limit = (whole / "resid_post-3.npy").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(SurveyError, match=r"written to \(File too large\).*is kept"):
            collect(bert, MANY, POINTS[:2], output=tmp_path, batch_tokens=64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert texts_kept(tmp_path) == len(MANY)
    collect(bert, MANY, POINTS[:2], output=tmp_path, batch_tokens=64)
    assert contents(tmp_path) == contents(whole)


def test_other_texts_options_and_files_are_refused(bert, whole, tmp_path):
    options: dict[str, Any] = {"output": whole, "batch_tokens": 64}
    before = contents(whole)
    for texts in (MANY[:-1], [*MANY, "more"], [*MANY[:5], "other", *MANY[6:]], MANY[::-1]):
        with pytest.raises(SurveyError, match="started with other documents"):
            collect(bert, texts, POINTS[:2], **options)
    with pytest.raises(SurveyError, match=r"other options \(special\)"):
        collect(bert, MANY, POINTS[:2], special=False, **options)
    with pytest.raises(SurveyError, match=r"other options \(points\)"):
        collect(bert, MANY, ["embed"], **options)
    assert contents(whole) == before
    again = tmp_path / "again"
    collect(bert, MANY[:3], ["embed"], output=again)
    collect(bert, MANY, POINTS[:2], output=again, batch_tokens=64, resume=False)
    assert contents(again) == before
    (again / "embed.npy").write_bytes(b"")
    (again / "resid_post-3.npy").write_bytes((again / "resid_pre-0.npy").read_bytes()[:-4])
    with pytest.raises(SurveyError, match=r"resid_post-3.npy"):
        Collected.read(again)


@pytest.mark.parametrize(
    ("points", "options", "reason"),
    [
        ([], {}, "expected at least one"),
        ([("probs", 1)], {}, "'probs', 1. cannot be collected; expected .*resid_post"),
        (["pooled"], {}, "'pooled' cannot be collected; expected"),
        ([("mlp_gate", 1)], {}, "cannot be collected. mlp_gate: the MLP of bert has no gate"),
        ([("mlp_output_norm_scale", 1)], {}, "bert has no such norm; there are attention_norm"),
        ([("resid_post",)], {}, r"of resid_post expected \(name, layer\)"),
        ([("resid_post", 1, 2)], {}, r"expected \(name, layer\)"),
        ([("z", 1, 4)], {}, "head 4"),
        ([("z", 9)], {}, "layer 9"),
        ([("z", 1), ["z", 1]], {}, "z-1 is named twice"),
        (["embed"], {"dtype": "bfloat16"}, "expected float32, float16, float64"),
        (["embed"], {"batch_tokens": 0}, "batch_tokens=0"),
        (["embed"], {"on_error": "x"}, "expected raise, skip"),
    ],
)
def test_what_cannot_be_collected_is_refused_before_the_folder_is_made(
    bert, tmp_path, points, options, reason
):
    with pytest.raises(SurveyError, match=reason):
        collect(bert, MANY, points, output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_logits_of_a_whole_text_are_no_tokens(tmp_path):
    with pytest.raises(SurveyError, match=r"logits of .* belong to a whole text"):
        collect(minibert.load("tiny-bert-sentiment"), MANY, ["logits"], output=tmp_path / "out")


def test_texts_without_tokens_are_named_and_skipped_or_refused(bert, tmp_path):
    texts = ["good", "", Document("long", "x", None, "y " * 999), Words(["\u200b"]), "fine", " "]
    with pytest.raises(SurveyError, match=r"^1: the text is empty"):
        collect(bert, texts, ["embed"], output=tmp_path / "a")
    with pytest.raises(SurveyError, match=r"^text 1 is a int"):
        collect(bert, iter(["good", 5]), ["embed"], output=tmp_path / "b")
    collected = collect(bert, texts, ["embed"], output=tmp_path / "c", on_error="skip")
    assert [collected.text(i).text for i in range(len(collected))] == ["good", "fine"]
    counts = collected.manifest["counts"]
    assert (counts["documents"], counts["n_skipped"]) == (6, 4)
    assert [place for place, _ in counts["skipped"]] == ["1", "long", "3", "5"]
    with pytest.raises(SurveyError, match="No text has a token"):
        collect(bert, [""], ["embed"], output=tmp_path / "d", on_error="skip")


def test_types_are_kept_and_what_does_not_fit_is_refused(tmp_path):
    model = minibert.load("tiny-bert")
    half = collect(model, ["good"], ["embed"], output=tmp_path / "a", dtype="float16")
    assert half.values("embed").dtype == np.float16
    with torch.no_grad():
        model.body.layers[3].mlp.down.weight.mul_(1e6)
    with pytest.raises(SurveyError, match=r"mlp_out-3: a value of .* does not fit float16"):
        collect(model, ["good"], [("mlp_out", 3)], output=tmp_path / "b", dtype="float16")


def test_the_command_collects_resumes_and_says_what_was_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good words\n\nb\xff\n\nfine\n")
    out = tmp_path / "out"
    start = ["collect", str(tmp_path / "a.txt"), "-o", str(out), "-p"]
    command = [*start, "resid_post:3", "-p", "z:3:-1"]
    fails(run(*command), "a.txt, line 3: byte 0xff is not UTF-8")
    skipping = [*command, "--on-error", "skip", "--shortest", "5"]
    for extra in ([], ["--restart"], []):
        result = run(*skipping, *extra)
        assert result.exit_code == 0, result.output
        assert f"{out}: 1 texts, 4 tokens" in result.stdout
        assert "z-3-3.npy  (4, 32)" in result.stdout
        assert "1 documents could not be read" in result.stderr
        assert "1 documents shorter than --shortest" in result.stderr
    assert Collected.read(out).text(0) == Document("a.txt:1", "good words")
    fails(run(*skipping, "--no-special"), r"other options \(special\).*--restart")
    fails(run(*start, "probs:1", "--on-error", "skip"), "cannot be collected")
