"""The processing of weights that TransformerLens does, which leaves predictions as they are."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, check_flag
from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.norms import Norm
from minibert.model import Model


def _fold_ln(model: Model) -> None:
    """The weight and bias of each norm go into the linear layers that read it."""
    for layer in model.body.layers:
        attention, mlp = layer.attention, layer.mlp
        _fold(layer.attention_norm, attention.query, attention.key, attention.value)
        _fold(layer.mlp_norm, mlp.up, mlp.gate)
    _fold(model.body.final_norm, _decoder(model))


def _fold(norm: Norm | None, *linears: Linear | None) -> None:
    """What a LayerNorm gives has mean 0, so the mean of a row of the weights can be taken away."""
    if norm is None:
        return
    for linear in linears:
        if linear is None:
            continue
        if norm.bias is not None:
            _bias_of(linear).add_(linear.weight @ norm.bias)
        linear.weight.mul_(norm.scale)
        if norm.centres:
            linear.weight.sub_(linear.weight.mean(1, keepdim=True))
    norm.weight.fill_(0.0 if norm.plus_one else 1.0)
    if norm.bias is not None:
        norm.bias.zero_()


def _center_writing_weights(model: Model) -> None:
    """What is written into the stream has mean 0 over d_model."""
    for table in (model.body.word, model.body.position):
        if table is not None:
            table.weight.sub_(table.weight.mean(1, keepdim=True))
    for layer in model.body.layers:
        for linear in (layer.attention.output, layer.mlp.down):
            _center(linear)


def _center_unembed(model: Model) -> None:
    """W_U and b_U have mean 0 over the vocabulary."""
    _center(_decoder(model))


def _center(linear: Linear) -> None:
    linear.weight.sub_(linear.weight.mean(0))
    _bias_of(linear).sub_(_bias_of(linear).mean())


def _fold_value_biases(model: Model) -> None:
    """b_V goes into b_O, since the rows of attention sum to 1."""
    for layer in model.body.layers:
        attention = layer.attention
        of_heads = _bias_of(attention.value).unflatten(0, (-1, attention.d_head))
        of_heads = of_heads.repeat_interleave(attention.group, 0)
        _bias_of(attention.output).add_(attention.output.weight @ of_heads.flatten())
        _bias_of(attention.value).zero_()


PROCESSING: dict[str, Callable[[Model], None]] = {
    "fold_ln": _fold_ln,
    "center_writing_weights": _center_writing_weights,
    "center_unembed": _center_unembed,
    "fold_value_biases": _fold_value_biases,
}
"""What TransformerLens does to weights, in this order, where predictions stay as they are."""


def steps_of(config: Config, asked: Mapping[str, object]) -> list[str]:
    """The names of the steps that are done: those asked for; not said means where they can be.

    Raises CheckpointError for one that would change what the model predicts.
    """
    unfit = {}
    if config.norm == "rms":
        unfit["center_writing_weights"] = "an RMSNorm does not take the mean away"
    if config.norm_place not in ("before", "both"):
        unfit["fold_ln"] = "no norm stands in front of a linear layer"
    if config.logit_soft_cap is not None:
        unfit["center_unembed"] = "the logits go through a soft cap, which is not linear"
    if config.norm_place != "before":
        unfit["fold_value_biases"] = "a norm stands behind W_O"
    for name, wanted in asked.items():
        if wanted is not None:
            check_flag(name, wanted, CheckpointError)
        if wanted and name in unfit:
            raise CheckpointError(
                f"{name}=True on {config.model_type}: {unfit[name]}. Leave it out, or pass "
                f"{name}=False."
            )
    return [name for name in PROCESSING if asked.get(name, True) is not False and name not in unfit]


@torch.no_grad()
def processed(model: Model, steps: Iterable[str]) -> Model:
    """A copy of the model with these steps of `PROCESSING`; the model itself is left as it is."""
    copy = _copy(model)
    for name in steps:
        PROCESSING[name](copy)
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


def _bias_of(linear: Linear) -> Tensor:
    assert linear.bias is not None, "a model is copied with every bias before it is processed"
    return linear.bias


def _decoder(model: Model) -> Linear:
    return cast(Linear, cast(nn.Module, model.head).decoder)
