"""The parts of what enters layer 0, against transformers with the same position and segment ids."""

from typing import Any

import pytest
import torch

import minibert
from minibert.analysis import embedding_parts
from minibert.errors import TraceError
from minibert.loading import from_transformers
from minibert.text.tokens import Tokens
from tests.families import hf_model

N = 7
IDS = torch.randint(5, 37, (2, N), generator=torch.Generator().manual_seed(3))
KINDS = [("bert", "BertModel"), ("gpt2", "GPT2Model"), ("roberta", "RobertaModel")]


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_other_positions_give_what_transformers_gives(family: str, kind: str) -> None:
    theirs = hf_model(family, kind)
    model = from_transformers(theirs, task="none")
    backwards = torch.arange(N).flip(0).repeat(2, 1)
    parts = embedding_parts(model, IDS, positions=backwards)
    trace = model.trace(IDS, edit={"embed": parts.embed})
    with torch.no_grad():
        shifted = backwards + model.config.position_offset
        expected = theirs(input_ids=IDS, position_ids=shifted).last_hidden_state
    assert (trace.hidden - expected).abs().max() < 1e-5
    plain = embedding_parts(model, IDS)
    assert torch.equal(plain.embed, model.trace(IDS).embed)
    assert not torch.equal(plain.embed, parts.embed)


def test_other_segments_give_what_transformers_gives() -> None:
    theirs = hf_model("bert", "BertModel")
    model = from_transformers(theirs, task="none")
    segments = torch.tensor([[0, 1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 0, 1, 0]])
    parts = embedding_parts(model, IDS, segments=segments)
    trace = model.trace(IDS, edit={"embed": parts.embed})
    with torch.no_grad():
        expected = theirs(input_ids=IDS, token_type_ids=segments).last_hidden_state
    assert (trace.hidden - expected).abs().max() < 1e-5


def test_the_parts_add_up_and_the_norm_of_the_sum_enters() -> None:
    model = minibert.load("tiny-bert")
    parts = embedding_parts(model, "the horse ran")
    assert parts.position is not None
    assert parts.segment is not None
    summed = parts.word + parts.position + parts.segment
    assert model.body.embed_norm is not None
    assert torch.equal(model.body.embed_norm(summed), parts.embed)


def test_padding_of_roberta_keeps_its_own_row() -> None:
    model = from_transformers(hf_model("roberta", "RobertaModel"), task="none")
    ids = IDS.clone()
    ids[1, 4:] = 1
    tokens = Tokens.from_ids(ids, mask=ids != 1)
    own = torch.arange(N).repeat(2, 1)
    parts, plain = embedding_parts(model, tokens, positions=own), embedding_parts(model, tokens)
    assert torch.equal(parts.embed, plain.embed)


@pytest.mark.parametrize(
    "wrong", [[0] * (N - 1), [0.0] * N, [True] * N, [-1] * N, [9999] * N, "first", [[0], [1, 2]]]
)
@pytest.mark.parametrize("name", ["positions", "segments"])
def test_numbers_that_are_none_of_its_rows_are_refused_by_name(name: str, wrong: Any) -> None:
    model = from_transformers(hf_model("bert", "BertModel"), task="none")
    with pytest.raises(TraceError, match=name):
        embedding_parts(model, IDS[:1], **{name: wrong})


def test_a_model_without_the_table_says_so() -> None:
    llama = minibert.load("tiny-llama")
    with pytest.raises(TraceError, match="positions: tiny-llama has no table of positions"):
        embedding_parts(llama, "the horse", positions=[0, 0])
    with pytest.raises(TraceError, match="segments: tiny-llama does not tell"):
        embedding_parts(llama, "the horse", segments=[0, 0])
    parts = embedding_parts(llama, "the horse")
    assert parts.position is None
    assert parts.segment is None
