"""What holds whatever the sizes, the weights and the texts: laws of traces and edits, by family.

Others stand with what they are about: the sum of a logit's attributions in
analysis/test_attribution.py, the cache of generation in test_generate.py, packed batches in
test_packed.py.
"""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minibert.loading import from_transformers
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from tests.families import VOCABULARY, Sizes, hf_model, sizes
from tests.trace.editing import FAMILIES, NAMES, PER_HEAD, close

BOTH = ("scores", "probs")
LIMIT = 1e-6
# The longest text; RoBERTa's positions begin two later.
LONGEST = 17

lengths = st.lists(st.integers(1, LONGEST), min_size=1, max_size=5)
seeds = st.integers(0, 2**20)
family = pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "electra", "albert", "gpt2"]
)


@cache
def model_of(family: str, chosen: Sizes) -> Model:
    return from_transformers(hf_model(family, FAMILIES[family], chosen))


def texts(model: Model, rows: list[int], seed: int, *, width: int | None = None) -> Tokens:
    """Sentences of these lengths; what stands in the padding means something elsewhere."""
    width = max(rows) if width is None else width
    table = []
    for number, _ in enumerate(rows):
        generator = torch.Generator().manual_seed(seed + number)
        table.append(torch.randint(2, VOCABULARY, (2, LONGEST), generator=generator)[:, :width])
    ids, kinds = torch.stack(table).unbind(1)
    mask = torch.arange(width) < torch.tensor(rows)[:, None]
    segments = kinds % max(1, model.config.n_segments)
    return Tokens.from_ids(ids, mask=mask, segments=segments * mask)


def points(trace: Trace, names: list[str] = NAMES) -> list[Any]:
    return ["embed", *[(name, layer) for layer in range(len(trace)) for name in names], "logits"]


def value_at(trace: Trace, point: Any) -> Tensor:
    return getattr(trace, point) if isinstance(point, str) else getattr(trace[point[1]], point[0])


def values(trace: Trace) -> dict[Any, Tensor]:
    """Each quantity, read once: many are computed when they are asked for."""
    return {point: value_at(trace, point) for point in points(trace)}


@family
@settings(max_examples=2)
@given(chosen=sizes, rows=lengths, seed=seeds, data=st.data())
def test_writing_back_what_was_read_changes_nothing(
    family: str, chosen: Sizes, rows: list[int], seed: int, data: st.DataObject
) -> None:
    """Bit for bit against the same path; head_out is summed anew: the next test holds that."""
    model = model_of(family, chosen)
    plain = model.trace(texts(model, rows, seed), keep=BOTH)
    before = values(plain)
    for point in ["embed", *[(name, data.draw(st.integers(0, len(plain) - 1))) for name in NAMES]]:
        same = values(plain.rerun({point: lambda value: value}, keep=BOTH))
        for value in (value_at(plain, point).clone(), plain):
            written = values(plain.rerun({point: value}, keep=BOTH))
            for other, found in written.items():
                assert torch.equal(found, same[other]), (point, other)
                if "head_out" not in point:
                    assert torch.equal(found, before[other]), (point, other)


@settings(max_examples=2)
@given(chosen=sizes, rows=lengths, seed=seeds, data=st.data())
def test_writing_back_what_the_heads_write_is_only_rounded_anew(
    chosen: Sizes, rows: list[int], seed: int, data: st.DataObject
) -> None:
    # In float64: float32 sums that differ in their order are apart by a few 1e-6 in a narrow model.
    model = model_of("gpt2", chosen).double()
    plain = model.trace(texts(model, rows, seed), keep=BOTH)
    point = ("head_out", data.draw(st.integers(0, len(plain) - 1)))
    for value in (value_at(plain, point).clone(), plain):
        written = plain.rerun({point: value}, keep=BOTH)
        for other in points(plain):
            assert close(value_at(written, other), value_at(plain, other), LIMIT), (point, other)


@family
@settings(max_examples=2)
@given(chosen=sizes, rows=lengths, seed=seeds, data=st.data())
def test_zeroing_heads_takes_what_they_write_out_of_the_stream(
    family: str, chosen: Sizes, rows: list[int], seed: int, data: st.DataObject
) -> None:
    model = model_of(family, chosen).double()
    plain = model.trace(texts(model, rows, seed))
    layer = data.draw(st.integers(0, chosen.layers - 1))
    heads = tuple(data.draw(st.sets(st.integers(0, chosen.heads - 1), min_size=1)))
    removed = plain[layer].attn_out - plain[layer].head_out[:, list(heads)].sum(1)
    expected = plain.rerun({("attn_out", layer): removed})
    for name in ("z", "head_out"):
        zeroed = plain.rerun({(name, layer, heads): zero})
        one_by_one = plain.rerun({(name, layer, head): zero for head in heads})
        assert torch.equal(zeroed.logits, one_by_one.logits)
        assert close(zeroed[layer].attn_out, removed, LIMIT)
        assert close(zeroed.logits, expected.logits, LIMIT)


@family
@settings(max_examples=2)
@given(chosen=sizes, rows=lengths, seed=seeds)
def test_patching_everything_of_another_trace_gives_that_trace(
    family: str, chosen: Sizes, rows: list[int], seed: int
) -> None:
    model = model_of(family, chosen)
    trace = model.trace(texts(model, rows, seed))
    source = model.trace(texts(model, rows, seed + 100), keep=BOTH)
    for names in (NAMES, PER_HEAD, ["query", "key", "value"]):
        # Without the streams, it is the embeddings that carry the other text in.
        chosen_points = [p for p in points(source, names) if p != "logits" or names is NAMES]
        patched = trace.rerun(dict.fromkeys(chosen_points, source), keep=BOTH)
        for point in points(source):
            found, expected = value_at(patched, point), value_at(source, point)
            assert close(found, expected, 1e-5), point
            assert names is not NAMES or torch.equal(found, expected), point


@family
@settings(max_examples=2)
@given(chosen=sizes, rows=lengths, seed=seeds, data=st.data())
def test_padding_order_and_size_of_a_batch_change_nothing(
    family: str, chosen: Sizes, rows: list[int], seed: int, data: st.DataObject
) -> None:
    # In float64: what a batch changes beyond rounding; float32 rounds up to a few 1e-6 itself.
    model = model_of(family, chosen).double()
    width = data.draw(st.integers(max(rows), LONGEST))
    order = data.draw(st.permutations(range(len(rows))))
    tokens = texts(model, rows, seed, width=width)
    whole = model.trace(tokens)
    turned = model.trace(
        Tokens.from_ids(tokens.ids[order], mask=tokens.mask[order], segments=tokens.segments[order])
    )
    for row, number in enumerate(order):
        alone, length = model.trace(tokens[number]), rows[number]
        for point in points(alone):
            expected = value_at(alone, point)[0]
            for batch, place in ((whole, number), (turned, row)):
                assert close(cut(value_at(batch, point)[place], point, length), expected, LIMIT)
        assert close(model(tokens[number])[0], whole.logits[number, :length], LIMIT)
        assert close(model.packed(tokens)[number], alone.logits[0], LIMIT)


def cut(value: Tensor, point: Any, length: int) -> Tensor:
    """A sentence's quantity without the rows and columns of padding."""
    if point[0] in BOTH:
        return value[:, :length, :length]
    return value[:, :length] if point[0] in PER_HEAD else value[:length]
