"""The config contract: what becomes of every field that a config.json of a known family may have.

A field is read; or irrelevant, with the reason why no number depends on it; or refused when it is
not what minibert computes. `check_contract` refuses by this table, and a test perturbs every field
that transformers has and compares the numbers. A field that transformers itself does not know in
a family changes nothing there, and nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minibert.errors import CheckpointError

__all__ = ["CONTRACT", "READ", "Judged", "check_contract"]


@dataclass(frozen=True)
class Judged:
    """What is done with one field: "read", "irrelevant" or "refused"."""

    verdict: str
    reason: str = ""
    allowed: tuple[Any, ...] = ()
    """Of a refused field the values that are accepted."""


READ = Judged("read")
_TRAINING = Judged("irrelevant", "of training: dropout and first weights")
_OTHER_HEAD = Judged("irrelevant", "of a task head that is not read (multiple choice)")
_FORM = Judged("irrelevant", "the form of what transformers returns, not its numbers")
_SPEED = Judged("irrelevant", "time or memory, not numbers")
_ABOUT = Judged("irrelevant", "about the file, not the model")
_ONE_WAY = Judged("irrelevant", "the family has no other mode in transformers")

_EVERY = {
    **dict.fromkeys(("model_type", "architectures", "vocab_size", "pad_token_id"), READ),
    **dict.fromkeys(("id2label", "num_labels", "problem_type", "tie_word_embeddings"), READ),
    **dict.fromkeys(("output_hidden_states", "output_attentions", "return_dict"), _FORM),
    **dict.fromkeys(("transformers_version", "_name_or_path"), _ABOUT),
    **dict.fromkeys(("chunk_size_feed_forward", "use_cache"), _SPEED),
    "label2id": Judged("irrelevant", "the inverse of id2label, which is read"),
    "dtype": Judged("irrelevant", "the file says its type; load(dtype=) chooses the model's"),
    "initializer_range": _TRAINING,
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
}
_USUAL_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_CROSS = Judged("refused", "cross attention is not implemented", (False, None))
_BERT = _EVERY | {
    **dict.fromkeys((*_USUAL_SIZES, "max_position_embeddings", "type_vocab_size"), READ),
    **dict.fromkeys(("hidden_act", "layer_norm_eps", "is_decoder"), READ),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), _TRAINING),
    "classifier_dropout": _TRAINING,
    "add_cross_attention": _CROSS,
}
_SUMMARY = ("summary_type", "summary_use_proj", "summary_activation")
CONTRACT: Mapping[str, Mapping[str, Judged]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _BERT),
    "electra": _BERT
    | {"embedding_size": READ}
    | dict.fromkeys((*_SUMMARY, "summary_last_dropout"), _OTHER_HEAD),
    "albert": {k: v for k, v in _BERT.items() if k != "classifier_dropout"}
    | dict.fromkeys(("is_decoder", "add_cross_attention"), _ONE_WAY)
    | {
        "embedding_size": READ,
        "num_hidden_groups": READ,
        "classifier_dropout_prob": _TRAINING,
        "inner_group_num": Judged("refused", "one layer a group is implemented", (1,)),
    },
    "distilbert": _EVERY
    | dict.fromkeys(("dim", "n_layers", "n_heads", "hidden_dim", "activation"), READ)
    | dict.fromkeys((*_USUAL_SIZES[:3], "max_position_embeddings"), READ)
    | dict.fromkeys(("is_decoder", "add_cross_attention"), _ONE_WAY)
    | dict.fromkeys(("dropout", "attention_dropout", "qa_dropout"), _TRAINING)
    | {
        "seq_classif_dropout": _TRAINING,
        "sinusoidal_pos_embds": Judged("irrelevant", "the positions are in the file"),
    },
    "gpt2": _EVERY
    | dict.fromkeys(("n_embd", "n_layer", "n_head", "n_inner", "n_positions"), READ)
    | dict.fromkeys((*_USUAL_SIZES[:3], "max_position_embeddings"), READ)
    | dict.fromkeys(("activation_function", "layer_norm_epsilon", "eos_token_id"), READ)
    | dict.fromkeys(("scale_attn_weights", "scale_attn_by_inverse_layer_idx"), READ)
    | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), _TRAINING)
    | dict.fromkeys((*_SUMMARY, "summary_proj_to_labels", "summary_first_dropout"), _OTHER_HEAD)
    | {
        "is_decoder": _ONE_WAY,
        "add_cross_attention": _CROSS,
        "reorder_and_upcast_attn": Judged(
            "irrelevant", "the order of rounding in float16, not the numbers"
        ),
    },
}


def check_contract(config: Mapping[str, Any], model_type: str) -> None:
    """Raise CheckpointError for the first field that is not what minibert computes."""
    for name, judged in CONTRACT[model_type].items():
        # Compared with their types, because True equals 1.
        allowed = [(type(value), value) for value in judged.allowed]
        if judged.verdict != "refused" or name not in config:
            continue
        if (type(config[name]), config[name]) not in allowed:
            accepted = " or ".join(map(repr, judged.allowed))
            raise CheckpointError(
                f"config.json: {name} is {config[name]!r:.200}, expected {accepted}: "
                f"{judged.reason}."
            )
    own_code = config.get("auto_map")
    if isinstance(own_code, Mapping) and any("Model" in str(name) for name in own_code):
        raise CheckpointError(
            f"config.json: auto_map names code of its own for the model ({own_code!r:.200}), which "
            "minibert does not run. Save the model as one of transformers' own classes."
        )
