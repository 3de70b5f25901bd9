"""Dropout in training stands where transformers has it, with the shares of config.json.

Random bits cannot be compared, so both sides get the same stand-in for torch's dropout: what would
be dropped with a share p is multiplied by 1 + p. Every share is another number.
"""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import minibert
from minibert.errors import CheckpointError
from minibert.layers.config import Dropout
from minibert.layers.dropout import of_layer

IDS = torch.tensor([[5, 7, 11, 13, 17]])
SIZES = {"vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
INNER = {"intermediate_size": 14, "max_position_embeddings": 9}
BERT = {"hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.17}
CLASSES: dict[str, dict[str, Any]] = {
    "Bert": SIZES | INNER | BERT | {"classifier_dropout": 0.23},
    "Roberta": SIZES | INNER | BERT | {"classifier_dropout": 0.23},
    "Electra": SIZES | INNER | BERT | {"embedding_size": 10},
    "Albert": SIZES | INNER | BERT | {"embedding_size": 10, "classifier_dropout_prob": 0.23},
    "DistilBert": {
        "vocab_size": 23, "dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 14,
        "max_position_embeddings": 9, "dropout": 0.11, "attention_dropout": 0.17,
        "seq_classif_dropout": 0.23, "qa_dropout": 0.29,
    },
    "GPT2": {
        "vocab_size": 23, "n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 9,
        "embd_pdrop": 0.11, "resid_pdrop": 0.17, "attn_pdrop": 0.23, "classifier_dropout": 0.29,
    },
    "GPTNeoX": SIZES | {"hidden_size": 16} | INNER | {
        "hidden_dropout": 0.11, "attention_dropout": 0.17, "classifier_dropout": 0.23,
    },
    "ModernBert": SIZES | INNER | {
        "embedding_dropout": 0.11, "attention_dropout": 0.17, "mlp_dropout": 0.23,
        "classifier_dropout": 0.29, "global_attn_every_n_layers": 1,
    },
    "Llama": SIZES | INNER | {"attention_dropout": 0.17},
}  # fmt: skip
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def grown(value: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return value * (1 + p) if training else value


def theirs(name: str, head: str) -> Any:
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{name}Config")(
        **CLASSES[name], **ends, num_labels=2 if "Question" in head else 3
    )
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}{head}")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.4)
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", CLASSES)
def test_training_drops_where_transformers_does(name, head, monkeypatch):
    other = theirs(name, head)
    ours = minibert.load(other)
    still = ours(IDS)
    monkeypatch.setattr(torch.nn.functional, "dropout", grown)
    found = other.train()(IDS)
    expected = found.logits if "logits" in found else torch.stack(tuple(found.values()), -1)
    logits = ours.train()(IDS)
    assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)
    # Far above the tolerance, so that a place without its dropout is seen.
    assert (logits - still).abs().max() > 0.01
    assert torch.allclose(ours.eval()(IDS), still, atol=1e-6)


def test_traces_predictions_and_other_models_never_drop():
    model = minibert.load(theirs("Bert", HEADS[0]))
    trace, logits = model.trace(IDS), model(IDS)
    model.train()
    again = model.trace(IDS)
    assert torch.equal(again.logits.detach(), trace.logits)
    assert torch.equal(again[1].probs.detach(), trace[1].probs)
    torch.manual_seed(0)
    first = model(IDS)
    assert not torch.equal(first, model(IDS))
    torch.manual_seed(0)
    assert torch.equal(first, model(IDS))
    assert torch.equal(model.eval()(IDS).detach(), logits)


def test_a_share_of_the_numbers_becomes_0_and_the_others_grow():
    change = of_layer(Dropout(mlp_out=0.25))
    assert set(change) == {"mlp_out"}
    torch.manual_seed(1)
    found = change["mlp_out"](torch.ones(20000))
    assert abs(float((found == 0).float().mean()) - 0.25) < 0.02
    assert torch.allclose(found[found != 0], torch.tensor(4 / 3))


@pytest.mark.parametrize("name", CLASSES)
def test_the_shares_are_written_back(name, tmp_path):
    model = minibert.load(theirs(name, HEADS[1]))
    again = minibert.load(model.save(tmp_path))
    assert again.dropout == model.dropout != Dropout()
    model.dropout = Dropout()
    assert minibert.load(model.save(tmp_path)).dropout == Dropout()


def test_shares_that_are_none_and_have_no_place_are_errors(tmp_path):
    model = minibert.load(theirs("Llama", HEADS[0]))
    for wrong in (1.0, -0.1, True, "a", None):
        with pytest.raises(CheckpointError, match="from 0 to below 1"):
            Dropout(embed=wrong)
    with pytest.raises(CheckpointError, match="expected Dropout"):
        model.dropout = 0.1
    model.dropout = Dropout(embed=0.1)
    with pytest.raises(CheckpointError, match="no place"):
        model.save(tmp_path)
    model = minibert.load(theirs("Bert", HEADS[0]))
    model.dropout = Dropout(attn_out=0.1, mlp_out=0.2)
    with pytest.raises(CheckpointError, match="one share"):
        model.save(tmp_path)
    assert not list(tmp_path.iterdir())
