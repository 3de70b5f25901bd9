"""Statistics over a corpus: everyone gives the same numbers, and who does not has no speed."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import corpus_statistics as benchmark
from benchmarks.corpus_statistics import ONE_BY_ONE, OURS, PLAIN, SORTED, Corpus
from minibert.bench import clock

CORPUS = Corpus(((5, 7, 11, 13, 17), (19, 23), (29, 31, 37, 41, 43, 47, 53), (59, 61, 67)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(**sizes, intermediate_size=40, vocab_size=97)
    path = tmp_path_factory.mktemp("model")
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of everyone, and of one that takes columns for rows."""

    def transposed(corpus: Corpus) -> Any:
        for number, found in benchmark.reference(folder)(corpus):
            yield number, found | {"received": found["received"].flip(-1)}

    def forgetful(corpus: Corpus) -> Any:
        yield from list(benchmark.reference(folder)(corpus))[1:]

    contenders = {**benchmark.passes(folder), "transposed": transposed, "forgetful": forgetful}
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "MOST_CALLS", 1)
        return benchmark.measure(CORPUS, contenders, benchmark.reference(folder), 1)


@pytest.mark.parametrize("name", [PLAIN, OURS, ONE_BY_ONE, SORTED])
def test_who_is_right_has_tokens_a_second(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert row["ok"], row
    assert row["tokens"] == 17
    assert row["tokens_per_second"] == pytest.approx(17 / row["median_ms"] * 1e3, rel=1e-2)


def test_other_numbers_and_a_text_left_out_have_no_speed(rows: dict[str, dict[str, Any]]) -> None:
    assert "received 0 differs by" in rows["transposed"]["reason"]
    assert "gave no" in rows["forgetful"]["reason"]
    assert "median_ms" not in {**rows["transposed"], **rows["forgetful"]}


def test_the_statistics_of_a_matrix_counted_by_hand() -> None:
    found = benchmark.of_probs(np.array([[[1.0, 0.0], [0.25, 0.75]]]))
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    np.testing.assert_allclose(found["entropy"], [[0, entropy]])
    np.testing.assert_allclose(found["received"], [[1.25, 0.75]])
    np.testing.assert_allclose(found["offset_mass"], [[[0, 1, 0], [0.25, 0.75, 0]]])


def test_batches_hold_every_text_once_and_mark_what_is_real() -> None:
    for by_length in (False, True):
        batches = list(CORPUS.batches(3, by_length=by_length))
        assert sorted(number for numbers, _, _ in batches for number in numbers) == [0, 1, 2, 3]
        for numbers, ids, mask in batches:
            for row, number in enumerate(numbers):
                assert tuple(ids[row][mask[row]].tolist()) == CORPUS.texts[number]
    assert [numbers for numbers, _, _ in CORPUS.batches(3, by_length=True)] == [[1, 3, 0], [2]]


def test_a_target_is_times_the_tokens_a_second() -> None:
    times = {PLAIN: 8.5, OURS: 10.0, ONE_BY_ONE: 17.0}
    rows = {
        name: {"ok": True, "median_ms": ms, "implementation": name} for name, ms in times.items()
    }
    found = benchmark.with_targets(rows)
    assert found[1]["targets"] == {
        PLAIN: {"times": 0.85, "least": 0.85},
        ONE_BY_ONE: {"times": 1.7, "least": 1.75},
    }
    assert not benchmark.met(found)
    rows[OURS]["median_ms"] = 9.0
    assert benchmark.met(benchmark.with_targets(rows))


def test_means_do_not_grow_with_the_corpus(folder: Path) -> None:
    with torch.no_grad():
        run = partial(benchmark.means, benchmark.reference(folder))
        assert {name: one.shape for name, one in run(CORPUS).items()} == {
            "entropy": (2, 3),
            "received": (2, 3),
            "offset_mass": (2, 3, 3),
        }
