"""Random models with a vocabulary head, for the analyses that read logits."""

from typing import Any

import torch

import minibert
from minibert.model import from_transformers
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
