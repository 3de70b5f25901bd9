"""Models with a vocabulary head for the analyses that read logits, random and planted."""

from dataclasses import replace
from typing import Any

import torch
from planted_heads import BEFORE, NEXT, TOKEN, TOKENS, Planter, planted_bert, planted_gpt2

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import Sizes, batch, hf_model
from tests.rotary import classes, drawn, theirs

# Every pair of family and class that has one logit a vocabulary entry.
VOCABULARY_CLASSES = [
    ("bert", "BertForMaskedLM"),
    ("bert", "BertLMHeadModel"),
    ("bert", "BertForPreTraining"),
    ("roberta", "RobertaForMaskedLM"),
    ("distilbert", "DistilBertForMaskedLM"),
    ("electra", "ElectraForMaskedLM"),
    ("albert", "AlbertForMaskedLM"),
    ("albert", "AlbertForPreTraining"),
    ("gpt2", "GPT2LMHeadModel"),
]
# Of the families with rotary positions those that differ from one another: parallel; RMSNorm, gated
# and grouped; norms before and after, soft caps and windows; norms of outputs; norms of queries and
# keys; factors of embeddings, scores, stream and logits; a head with a layer of its own, embeddings
# with a norm, a first layer without.
ROTARY_CLASSES = [
    (family, classes.LANGUAGE[family])
    for family in ("gpt_neox", "llama", "gemma2", "olmo2", "qwen3", "granite", "modernbert")
]
SIZES = Sizes()


def both(family: str, name: str, chosen: Sizes = SIZES, dtype: Any = torch.float64) -> Any:
    """The transformers model, ours with its weights, and three sentences for each.

    Rotary models have sizes of their own; of the chosen ones only the seed counts.
    """
    if family in classes.LANGUAGE:
        rotary = theirs.model_of(drawn.plain(family, chosen.seed), name, dtype)
        given = theirs.batch(seed=chosen.seed)
        return rotary, from_transformers(rotary), given, theirs.as_tokens(given)
    model = hf_model(family, name, chosen, dtype)
    inputs = batch(family, segments=chosen.segments, seed=chosen.seed)
    if family in ("roberta", "distilbert", "gpt2"):
        del inputs["token_type_ids"]
    tokens = minibert.Tokens.from_ids(
        inputs["input_ids"],
        mask=inputs["attention_mask"].bool(),
        segments=inputs.get("token_type_ids"),
    )
    return model, from_transformers(model), inputs, tokens


def with_vocabulary(model: Model, task: str, reads: slice) -> Model:
    """The planted model with a head that reads one token's slot of the stream as its logit."""
    headed = Model.from_config(replace(model.config, task=task, tied=False))
    for name, parameter in headed.named_parameters():
        parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    headed.body = model.body
    headed.head.decoder.weight[:, reads] = torch.eye(TOKENS)
    if headed.head.transform is not None:
        headed.head.transform.weight.copy_(torch.eye(model.config.d_model))
    return headed


def previous_token_gpt2() -> Model:
    """Says the token before, which head 0-0 copied."""
    return with_vocabulary(planted_gpt2(), "causal-lm", BEFORE)


def induction_gpt2() -> Model:
    """Says the token that came after this one the last time, which head 1-1 copied."""
    model = planted_gpt2()
    Planter(model, 1, 1, ones=3).copy(TOKEN, NEXT)
    return with_vocabulary(model, "causal-lm", NEXT)


def previous_token_bert() -> Model:
    """Says the token before, which head 0-0 copied far above the rest of the stream.

    Beside it, the mean of the stream is small, which a gelu lets through unevenly.
    """
    model = planted_bert()
    Planter(model, 0, 0, ones=2).copy(TOKEN, BEFORE)
    model.body.layers[0].attention.output.weight.mul_(10)
    return with_vocabulary(model, "masked-lm", BEFORE)


def planted_sequence() -> torch.Tensor:
    """41 different tokens, twice."""
    generator = torch.Generator().manual_seed(3)
    half = 3 + torch.randperm(TOKENS - 3, generator=generator)[:41]
    return torch.cat([half, half])
