"""Sweeps over many pairs of texts: each gets what it gets alone, and the result is the mean."""

from typing import Any

import pytest
import torch
from text_pairs import CLEAN, CORRUPT, HEADS, LAYERS, RIGHT, WRONG, batch, model
from torch import Tensor

from minibert.analysis import (
    ablate_heads,
    answer_probability,
    attribution_patching,
    logit_difference,
    patch_head_positions,
    patch_heads,
    patch_positions,
    path_patching,
    phrase_positions,
)
from minibert.errors import EditError, TokenizationError
from minibert.layers.config import Config
from minibert.loading import load
from minibert.model import Model
from minibert.trace.edit import replace, zero


def by_hand(made: Model, sentence: int, edits: list[dict[Any, Any]]) -> Tensor:
    """The difference of this sentence's answers, one whole pass after the other."""
    right, wrong = RIGHT[sentence], WRONG[sentence]
    logits = [made.trace(CLEAN[sentence], edit=edit).logits[0, -1] for edit in edits]
    return torch.stack([row[right] - row[wrong] for row in logits])


def test_each_sentence_has_its_own_answers() -> None:
    made, metric = model(), logit_difference(RIGHT, WRONG)
    trace = made.trace(batch(CLEAN))
    expected = torch.cat([by_hand(made, n, [{}]) for n in range(3)])
    assert torch.allclose(metric(trace), expected, atol=1e-12)
    assert torch.allclose(
        metric(made(batch(CLEAN)), lengths=list(map(len, CLEAN))), expected, atol=1e-12
    )
    assert torch.allclose(trace.rerun_each([{}], metric)[0], expected, atol=1e-12)
    probabilities = answer_probability(RIGHT)(trace)
    rows = [made.trace(CLEAN[n]).logits[0, -1].softmax(-1)[RIGHT[n]] for n in range(3)]
    assert torch.allclose(probabilities, torch.stack(rows), atol=1e-12)


def test_as_many_answers_as_sentences_are_needed() -> None:
    trace = model().trace(batch(CLEAN))
    with pytest.raises(EditError, match="2 answers for 3 sentences"):
        logit_difference(RIGHT[:2], 4)(trace)
    with pytest.raises(EditError, match="2 answers for 3 sentences"):
        trace.rerun_each([{}], logit_difference(RIGHT[:2], 4))
    with pytest.raises(TokenizationError, match="right=True"):
        logit_difference([True, 2, 3], 4)
    with pytest.raises(TokenizationError, match="41"):
        logit_difference([1, 2, 41], 4)(trace)


def test_heads_patched_over_pairs_of_several_lengths_are_the_mean_of_the_pairs() -> None:
    made = model()
    sweep = patch_heads(
        made.trace(batch(CLEAN)), made.trace(batch(CORRUPT)), logit_difference(RIGHT, WRONG)
    )
    heads = [(n, h) for n in range(LAYERS) for h in range(HEADS)]
    tables = []
    for n in range(3):
        source = made.trace(CORRUPT[n])
        alone = by_hand(made, n, [{("z", *head): replace(source)} for head in heads])
        assert torch.allclose(sweep.values[:, n].flatten(), alone, atol=1e-12)
        tables.append(alone)
    together = torch.stack(tables)
    clean = torch.cat([by_hand(made, n, [{}]) for n in range(3)])
    assert torch.allclose(sweep.mean.flatten(), (together - clean[:, None]).mean(0), atol=1e-12)
    assert torch.allclose(sweep.clean, clean, atol=1e-12)
    error = (together - clean[:, None]).std(0) / 3**0.5
    assert torch.allclose(sweep.standard_error.flatten(), error, atol=1e-12)


def test_ablation_over_texts_is_their_mean_and_one_text_has_no_error() -> None:
    made = model()
    sweep = ablate_heads(made.trace(batch(CLEAN)), logit_difference(RIGHT, WRONG))
    alone = [by_hand(made, n, [{("z", 1, 1): zero}])[0] for n in range(3)]
    assert torch.allclose(sweep.values[1, :, 1], torch.stack(alone), atol=1e-12)
    with pytest.raises(EditError, match="no standard error"):
        _ = ablate_heads(made.trace(CLEAN[0]), logit_difference(1, 2)).standard_error


def test_named_places_are_patched_at_each_sentences_own_positions() -> None:
    made = model()
    places = {"changed": [[1, 3], 0, [1, 3]], "end": -1}
    sweep = patch_positions(
        made.trace(batch(CLEAN)),
        made.trace(batch(CORRUPT)),
        logit_difference(RIGHT, WRONG),
        aligned=places,
    )
    assert sweep.labels["place"] == ("changed", "end")
    for n, where in enumerate([[1, 3], [0], [1, 3]]):
        source = made.trace(CORRUPT[n])
        for column, at in ((0, where), (1, [-1])):
            edits = [
                {("resid_post", layer): replace(source, positions=at)} for layer in range(LAYERS)
            ]
            found = sweep.values[:, n, column]
            assert torch.allclose(found, by_hand(made, n, edits), atol=1e-12)
    assert torch.allclose(sweep.recovered[-1, 1], torch.tensor(1.0).double(), atol=1e-9)


def test_places_that_are_not_there_are_errors() -> None:
    trace, metric = model().trace(batch(CLEAN)), logit_difference(1, 2)
    for wrong, message in (
        ({}, "places by name"),
        ({"end": None}, "found None"),
        ({"end": [1, 2]}, "2 entries for 3"),
        ({"end": 3}, "sentence 1"),
        ({"end": [[], 0, 0]}, "at least one"),
    ):
        with pytest.raises(EditError, match=message):
            patch_positions(trace, trace, metric, aligned=wrong)
    with pytest.raises(EditError, match="another token in each"):
        patch_head_positions(trace, trace, metric)


@pytest.mark.parametrize("name", ["z", "query", "key", "value"])
def test_every_head_at_every_token_equals_one_patched_pass_after_the_other(name: str) -> None:
    made, metric = model(), logit_difference(RIGHT[0], WRONG[0])
    source = made.trace(CORRUPT[0])
    sweep = patch_head_positions(made.trace(CLEAN[0]), source, metric, name=name, layers=[0, 2])
    assert sweep.labels["layer"] == [0, 2]
    assert sweep.axes == ("layer", "batch", "head", "position")
    edits = [
        {(name, layer, head): replace(source, positions=place)}
        for layer in (0, 2)
        for head in range(HEADS)
        for place in range(5)
    ]
    assert torch.allclose(sweep.values.flatten(), by_hand(made, 0, edits), atol=1e-12)


def test_the_means_of_paths_and_estimates_are_over_the_pairs() -> None:
    made, metric = model(), logit_difference(RIGHT, WRONG)
    clean, corrupt = made.trace(batch(CLEAN)), made.trace(batch(CORRUPT))
    paths = path_patching(clean, corrupt, metric, receivers=[("key", 2, 1)])
    estimates = attribution_patching(clean, corrupt, metric)["z"]
    for n in range(3):
        pair = made.trace(CLEAN[n]), made.trace(CORRUPT[n])
        own = logit_difference(RIGHT[n], WRONG[n])
        alone = path_patching(*pair, own, receivers=[("key", 2, 1)])
        assert torch.allclose(paths.change[:2, n], alone.change[:2, 0], atol=1e-12)
        single = attribution_patching(*pair, own)["z"].total[:, 0]
        assert torch.allclose(estimates.total[:, n], single, atol=1e-12)
    assert torch.allclose(paths.mean, paths.change.mean(1), equal_nan=True)
    assert torch.allclose(estimates.mean, estimates.total.mean(1))
    way = (paths.patched - paths.clean).mean()
    assert torch.allclose(paths.recovered * way, paths.mean, equal_nan=True)


def test_estimates_of_every_head_and_position_at_128_tokens_cost_three_forward_passes() -> None:
    """GPT-2's shape in layers and heads, narrower: the number of passes does not know widths."""
    config = Config(
        family="gpt2",
        task="causal-lm",
        vocab_size=97,
        n_positions=128,
        n_layers=12,
        n_heads=12,
        d_model=24,
        d_mlp=29,
        causal=True,
    )
    made, passes = Model.from_config(config), [0] * 12
    for number, layer in enumerate(made.body.layers):

        def count(*_: Any, number: int = number) -> None:
            passes[number] += 1

        layer.register_forward_hook(count)
    ids = torch.randint(97, (2, 128), generator=torch.Generator().manual_seed(0))
    clean, corrupt = made.trace(ids[:1]), made.trace(ids[1:])
    found = attribution_patching(clean, corrupt, logit_difference(5, 11))["z"]
    assert found.values.shape == (12, 1, 12, 128)
    # Of the last layer only the last token reaches the metric.
    assert bool((found.values[:-1] != 0).all())
    assert bool((found.values[-1, ..., -1] != 0).all())
    # The two texts and once more with a graph, each layer as often: at most four was asked.
    assert passes == [3] * 12


def test_a_phrase_is_found_by_its_characters() -> None:
    bert, gpt2 = load("tiny-bert"), load("tiny-gpt2")
    trace = bert.trace("the horse quickly ran", "a quickly turning boat")
    [places] = phrase_positions(trace, "Quickly")
    words = [trace.tokens.words[0][n] for n in places]
    assert words == [2] * len(places)
    assert max(places) < trace.tokens.strings[0].index("[SEP]")
    trace = gpt2.trace([" river window summer", " summer horse"])
    first, second = phrase_positions(trace, ["window summer", "summer"])
    assert "".join(trace.tokens.strings[0][n] for n in first) == " window summer"
    assert "".join(trace.tokens.strings[1][n] for n in second) == " summer"
    for wrong in ("letter", ["summer"], "", 3):
        with pytest.raises((EditError, TypeError)):
            phrase_positions(trace, wrong)  # type: ignore[arg-type]
    with pytest.raises(EditError, match="positions instead"):
        phrase_positions(gpt2.trace([3, 4]), "horse")
