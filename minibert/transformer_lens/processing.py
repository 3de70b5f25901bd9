"""A model with the same predictions and weights that are easier to read: folded and centred.

What TransformerLens' `from_pretrained` does to weights, as a transform of minibert's model. The
logits stay what they were up to rounding, but for center_unembed, which takes the same number from
all logits of a position. Formulas: TransformerLens' "weight processing" notes; Elhage et al. 2021.
"""

from dataclasses import dataclass, fields, replace
from typing import cast

import torch
from torch import nn

from minibert.errors import CheckpointError
from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.norms import LayerNorm, Norm, RMSNorm, scale_of
from minibert.model import Model
from minibert.transformer_lens.even_factors import bias_of, make_factors_even

__all__ = ["Processing", "processed"]


@dataclass(frozen=True)
class Processing:
    """Which transforms. None means: where the model allows it, as TransformerLens does.

    fold_ln                 the weight and bias of a norm in front of a linear layer go into it
    center_writing_weights  what is written into the stream has mean 0 over d_model
    center_unembed          W_U and b_U have mean 0 over the vocabulary
    fold_value_biases       b_V goes into b_O, since the rows of attention sum to 1
    refactor_factored_attn_matrices   W_Q and W_K of a head have orthogonal columns of the same
                            norms, W_O orthonormal rows
    """

    fold_ln: bool | None = None
    center_writing_weights: bool | None = None
    center_unembed: bool | None = None
    fold_value_biases: bool | None = None
    refactor_factored_attn_matrices: bool = False

    def checked(self, config: Config) -> "Processing":
        """The same with every None decided. Raises CheckpointError for what cannot be done."""
        unfit = _unfit(config)
        decided = {}
        for field in fields(self):
            wanted = getattr(self, field.name)
            if wanted and field.name in unfit:
                raise CheckpointError(
                    f"{field.name}=True on {config.model_type}: {unfit[field.name]}. Leave it out, "
                    f"or pass {field.name}=False."
                )
            decided[field.name] = field.name not in unfit if wanted is None else wanted
        return Processing(**decided)

    @property
    def any(self) -> bool:
        """True where something is to be done."""
        return any(getattr(self, field.name) for field in fields(self))


def _unfit(config: Config) -> dict[str, str]:
    """Why a transform would change what the model predicts."""
    found = {}
    if config.norm == "rms":
        found["center_writing_weights"] = "an RMSNorm does not take the mean away"
    if config.norm_place not in ("before", "both"):
        found["fold_ln"] = "no norm stands in front of a linear layer"
    if config.logit_soft_cap is not None:
        found["center_unembed"] = "the logits go through a soft cap, which is not linear"
    if config.norm_place != "before":
        found["fold_value_biases"] = "a norm stands behind W_O"
    if config.rotary is not None:
        found["refactor_factored_attn_matrices"] = "queries and keys are rotated after W_Q and W_K"
    if config.n_kv_heads != config.n_heads:
        found["refactor_factored_attn_matrices"] = "several heads share their keys and values"
    return found


@torch.no_grad()
def processed(model: Model, processing: Processing) -> Model:
    """A copy of the model with these transforms; the model itself is left as it is."""
    wanted = processing.checked(model.config)
    copy = _copy(model)
    if wanted.fold_ln:
        _fold_norms(copy)
    if wanted.center_writing_weights:
        _center_writing(copy)
    if wanted.center_unembed:
        decoder = _decoder(copy)
        decoder.weight.sub_(decoder.weight.mean(0))
        bias_of(decoder).sub_(bias_of(decoder).mean())
    if wanted.fold_value_biases:
        for layer in copy.body.layers:
            attention = layer.attention
            of_heads = bias_of(attention.value).unflatten(0, (-1, attention.d_head))
            of_heads = of_heads.repeat_interleave(attention.group, 0)
            bias_of(attention.output).add_(attention.output.weight @ of_heads.flatten())
            bias_of(attention.value).zero_()
    if wanted.refactor_factored_attn_matrices:
        for layer in copy.body.layers:
            make_factors_even(layer.attention)
    return copy


def _copy(model: Model) -> Model:
    """The same model with weights of its own, untied, and a bias wherever one may be needed."""
    config = replace(model.config, tied=False, query_bias=True, output_bias=True, mlp_bias=True)
    with torch.device("meta"):
        copy = Model(config, tokenizer=model.tokenizer, name=model.name)
        size, width = _decoder(model).weight.shape
        cast(nn.Module, copy.head).decoder = Linear(width, size, bias=True)
    # A tied weight has two names there.
    known = dict(model.named_parameters(remove_duplicate=False))
    word = model.body.word.weight
    copy.to_empty(device=word.device).to(word.dtype)
    for name, parameter in copy.named_parameters():
        if name in known:
            parameter.copy_(known[name])
        else:
            parameter.zero_()
    copy.impl = model.impl
    return copy


def _fold_norms(model: Model) -> None:
    for layer in model.body.layers:
        attention, mlp = layer.attention, layer.mlp
        _fold(layer.attention_norm, attention.query, attention.key, attention.value)
        _fold(layer.mlp_norm, mlp.up, mlp.gate)
    _fold(model.body.final_norm, _decoder(model))


def _fold(norm: Norm | None, *linears: Linear | None) -> None:
    """The norm's weight and bias go into the linear layers that read it.

    What a LayerNorm gives has mean 0, so the mean of a row of the weights, which reads the mean,
    can be taken away.
    """
    if norm is None:
        return
    for linear in linears:
        if linear is None:
            continue
        if isinstance(norm, LayerNorm) and norm.bias is not None:
            bias_of(linear).add_(linear.weight @ norm.bias)
        linear.weight.mul_(scale_of(norm))
        if isinstance(norm, LayerNorm):
            linear.weight.sub_(linear.weight.mean(1, keepdim=True))
    norm.weight.fill_(0.0 if isinstance(norm, RMSNorm) and norm.plus_one else 1.0)
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        norm.bias.zero_()


def _center_writing(model: Model) -> None:
    body = model.body
    for table in (body.word, body.position):
        if table is not None:
            table.weight.sub_(table.weight.mean(1, keepdim=True))
    for layer in body.layers:
        for linear in (layer.attention.output, layer.mlp.down):
            linear.weight.sub_(linear.weight.mean(0))
            bias_of(linear).sub_(bias_of(linear).mean())


def _decoder(model: Model) -> Linear:
    return cast(Linear, cast(nn.Module, model.head).decoder)
