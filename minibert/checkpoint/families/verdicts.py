"""What becomes of one field of a config.json, and the verdicts that several families share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Judged:
    """What is done with one field: "read", "irrelevant" or "refused"."""

    verdict: str
    reason: str = ""
    allowed: tuple[Any, ...] = ()
    """Of a refused field the values that are accepted."""


READ = Judged("read")
TRAINING = Judged("irrelevant", "of training: dropout and first weights")
OTHER_HEAD = Judged("irrelevant", "of a task head that is not read (multiple choice)")
SPEED = Judged("irrelevant", "time or memory, not numbers")
ONE_WAY = Judged("irrelevant", "the family has no other mode in transformers")
CROSS = Judged("refused", "cross attention is not implemented", (False, None))
HEAD_WIDTH = Judged("refused", "the family's heads are hidden_size / num_attention_heads", (None,))
WHOLE_HEAD = Judged("refused", "the family turns whole heads", (1.0, 1, None))
# Of families that are causal and nothing else.
DECODER: Mapping[str, Judged] = {
    **dict.fromkeys(("is_decoder", "add_cross_attention"), ONE_WAY),
    "is_causal": Judged("refused", "attention to later tokens is not implemented", (True,)),
}
_FORM = Judged("irrelevant", "the form of what transformers returns, not its numbers")
_ABOUT = Judged("irrelevant", "about the file, not the model")

SUMMARY = ("summary_type", "summary_use_proj", "summary_activation")
EVERY: Mapping[str, Judged] = {
    **dict.fromkeys(("model_type", "architectures"), READ),
    **dict.fromkeys(("id2label", "num_labels", "problem_type"), READ),
    **dict.fromkeys(("output_hidden_states", "output_attentions", "return_dict"), _FORM),
    **dict.fromkeys(("transformers_version", "_name_or_path"), _ABOUT),
    **dict.fromkeys(("chunk_size_feed_forward", "use_cache"), SPEED),
    "label2id": Judged("irrelevant", "the inverse of id2label, which is read"),
    "dtype": Judged("irrelevant", "the file says its type; load(dtype=) chooses the model's"),
    "initializer_range": TRAINING,
    "bos_token_id": Judged("irrelevant", "the tokenizer says how a text begins"),
    "eos_token_id": Judged("irrelevant", "the family does not generate"),
    "is_encoder_decoder": Judged("refused", "two models in one are not implemented", (False,)),
    # No fields of today's classes any more, but they did change what a model computes.
    "pruned_heads": Judged("refused", "pruned heads are not implemented", ({}, None)),
    "quantization_config": Judged(
        "refused",
        "quantised weights are not read; take the checkpoint they were made from",
        (None,),
    ),
    "position_embedding_type": Judged(
        "refused", "relative positions are not implemented", ("absolute", None)
    ),
    "per_layer_config": Judged("refused", "all layers have one set of choices", ({}, None)),
}
