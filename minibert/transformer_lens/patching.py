"""Activation patching by TransformerLens' names: one pass for each place that is patched.

Every function takes the corrupted tokens (batch, position), the cache of the clean run and a
metric of logits, and gives the metric with each activation of the clean run written into the
corrupted one. `minibert.analysis.patch_heads` and `patch_positions` compute the same side by side,
in fewer passes.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.transformer_lens.utils import get_act_name

if TYPE_CHECKING:
    from minibert.transformer_lens.model import HookedTransformer
else:
    HookedTransformer = Any

Setter = Callable[[Tensor, Sequence[int], Tensor], Tensor]
Metric = Callable[[Tensor], Tensor]
_POSITIONS = ("pos", "src_pos", "dest_pos")


def generic_activation_patch(
    model: HookedTransformer,
    corrupted_tokens: Tensor,
    clean_cache: Mapping[Any, Tensor],
    patching_metric: Metric,
    patch_setter: Setter,
    activation_name: str,
    index_axis_names: Sequence[str] | None = None,
    index_df: Any = None,
    return_index_df: bool = False,
) -> Tensor:
    """The metric with one activation patched, for every index of the named axes.

    activation_name   a shorthand, such as "resid_pre" or "z"
    index_axis_names  axes that are gone through, "layer" first: pos, src_pos, dest_pos, head,
                      head_index
    index_df          in their place a pandas.DataFrame with a row for each index; the result has
                      one number a row then
    patch_setter      called with (corrupted activation, index, clean activation), returns what
                      takes the activation's place

    Raises TraceError for other axes, for both or none of the two, and for return_index_df=True.
    """
    if return_index_df:
        raise TraceError("return_index_df=True is not offered; the result's axes are the index.")
    if (index_axis_names is None) == (index_df is None):
        raise TraceError("Pass either index_axis_names or index_df.")
    if index_df is not None:
        indices, shape = [tuple(map(int, row)) for row in index_df.to_numpy()], None
    else:
        shape = _sizes(model, corrupted_tokens, activation_name, index_axis_names or ())
        indices = list(itertools.product(*map(range, shape)))
    found = []
    for index in indices:
        name = get_act_name(activation_name, index[0])
        hook = partial(_patch, setter=patch_setter, index=index, clean=clean_cache[name])
        logits = model.run_with_hooks(corrupted_tokens, fwd_hooks=[(name, hook)])
        found.append(torch.as_tensor(patching_metric(logits)).detach().reshape(()))
    values = torch.stack(found)
    return values if shape is None else values.reshape(shape)


def _patch(
    activation: Tensor, *, hook: Any, setter: Setter, index: Sequence[int], clean: Tensor
) -> Tensor:
    return setter(activation, index, clean)


def _sizes(
    model: HookedTransformer, tokens: Tensor, name: str, axes: Sequence[str]
) -> tuple[int, ...]:
    heads = model.cfg.n_heads
    if name in ("k", "v", "k_input", "v_input"):
        heads = model.cfg.n_key_value_heads or heads
    sizes = {"layer": model.cfg.n_layers, "head": heads, "head_index": heads}
    sizes |= dict.fromkeys(_POSITIONS, tokens.shape[-1])
    for axis in axes:
        if axis not in sizes:
            raise TraceError(f"{axis!r:.80} is no axis of an index; expected {', '.join(sizes)}.")
    return tuple(sizes[axis] for axis in axes)


def layer_pos_patch_setter(activation: Tensor, index: Sequence[int], clean: Tensor) -> Tensor:
    """Patch [layer, position] of what has the axes (batch, position, ...)."""
    _, position = index
    activation[:, position] = clean[:, position]
    return activation


def layer_pos_head_vector_patch_setter(
    activation: Tensor, index: Sequence[int], clean: Tensor
) -> Tensor:
    """Patch [layer, position, head] of what has the axes (batch, position, head, ...)."""
    _, position, head = index
    activation[:, position, head] = clean[:, position, head]
    return activation


def layer_head_vector_patch_setter(
    activation: Tensor, index: Sequence[int], clean: Tensor
) -> Tensor:
    """Patch [layer, head] of what has the axes (batch, position, head, ...)."""
    _, head = index
    activation[:, :, head] = clean[:, :, head]
    return activation


def layer_head_pattern_patch_setter(
    activation: Tensor, index: Sequence[int], clean: Tensor
) -> Tensor:
    """Patch [layer, head] of attention, (batch, head, query, key)."""
    _, head = index
    activation[:, head] = clean[:, head]
    return activation


def layer_head_pos_pattern_patch_setter(
    activation: Tensor, index: Sequence[int], clean: Tensor
) -> Tensor:
    """Patch [layer, head, query] of attention."""
    _, head, query = index
    activation[:, head, query] = clean[:, head, query]
    return activation


def layer_head_dest_src_pos_pattern_patch_setter(
    activation: Tensor, index: Sequence[int], clean: Tensor
) -> Tensor:
    """Patch [layer, head, query, key] of attention."""
    _, head, query, key = index
    activation[:, head, query, key] = clean[:, head, query, key]
    return activation


def _patcher(name: str, setter: Setter, *axes: str) -> Callable[..., Tensor]:
    return partial(
        generic_activation_patch,
        patch_setter=setter,
        activation_name=name,
        index_axis_names=axes,
    )


_LAYER_POS, _LAYER_HEAD = ("layer", "pos"), ("layer", "head")

get_act_patch_resid_pre = _patcher("resid_pre", layer_pos_patch_setter, *_LAYER_POS)
get_act_patch_resid_mid = _patcher("resid_mid", layer_pos_patch_setter, *_LAYER_POS)
get_act_patch_attn_out = _patcher("attn_out", layer_pos_patch_setter, *_LAYER_POS)
get_act_patch_mlp_out = _patcher("mlp_out", layer_pos_patch_setter, *_LAYER_POS)


def _by_pos(name: str) -> Callable[..., Tensor]:
    return _patcher(name, layer_pos_head_vector_patch_setter, *_LAYER_POS, "head")


def _all_pos(name: str) -> Callable[..., Tensor]:
    return _patcher(name, layer_head_vector_patch_setter, *_LAYER_HEAD)


get_act_patch_attn_head_out_by_pos = _by_pos("z")
get_act_patch_attn_head_q_by_pos = _by_pos("q")
get_act_patch_attn_head_k_by_pos = _by_pos("k")
get_act_patch_attn_head_v_by_pos = _by_pos("v")
get_act_patch_attn_head_out_all_pos = _all_pos("z")
get_act_patch_attn_head_q_all_pos = _all_pos("q")
get_act_patch_attn_head_k_all_pos = _all_pos("k")
get_act_patch_attn_head_v_all_pos = _all_pos("v")
get_act_patch_attn_head_pattern_all_pos = _patcher(
    "pattern", layer_head_pattern_patch_setter, "layer", "head_index"
)
get_act_patch_attn_head_pattern_by_pos = _patcher(
    "pattern", layer_head_pos_pattern_patch_setter, "layer", "head_index", "dest_pos"
)
get_act_patch_attn_head_pattern_dest_src_pos = _patcher(
    "pattern",
    layer_head_dest_src_pos_pattern_patch_setter,
    "layer",
    "head_index",
    "dest_pos",
    "src_pos",
)


def get_act_patch_attn_head_all_pos_every(
    model: HookedTransformer, corrupted_tokens: Tensor, clean_cache: Any, metric: Metric
) -> Tensor:
    """Patches of output, query, key, value and pattern of each head, (5, layer, head).

    Where heads share keys and values, what would be behind the last shared one is 0.
    """
    by_kind = (
        get_act_patch_attn_head_out_all_pos,
        get_act_patch_attn_head_q_all_pos,
        get_act_patch_attn_head_k_all_pos,
        get_act_patch_attn_head_v_all_pos,
        get_act_patch_attn_head_pattern_all_pos,
    )
    found = [patch(model, corrupted_tokens, clean_cache, metric) for patch in by_kind]
    return torch.stack([_widened(each, model.cfg.n_heads) for each in found])


def get_act_patch_attn_head_by_pos_every(
    model: HookedTransformer, corrupted_tokens: Tensor, clean_cache: Any, metric: Metric
) -> Tensor:
    """The same at each position, (5, layer, position, head); of patterns that of the query."""
    by_kind = (
        get_act_patch_attn_head_out_by_pos,
        get_act_patch_attn_head_q_by_pos,
        get_act_patch_attn_head_k_by_pos,
        get_act_patch_attn_head_v_by_pos,
    )
    found = [patch(model, corrupted_tokens, clean_cache, metric) for patch in by_kind]
    patterns = get_act_patch_attn_head_pattern_by_pos(model, corrupted_tokens, clean_cache, metric)
    found.append(patterns.transpose(1, 2))
    return torch.stack([_widened(each, model.cfg.n_heads) for each in found])


def get_act_patch_block_every(
    model: HookedTransformer, corrupted_tokens: Tensor, clean_cache: Any, metric: Metric
) -> Tensor:
    """Patches of resid_pre, attn_out and mlp_out at each position, (3, layer, position)."""
    by_kind = (get_act_patch_resid_pre, get_act_patch_attn_out, get_act_patch_mlp_out)
    return torch.stack([patch(model, corrupted_tokens, clean_cache, metric) for patch in by_kind])


def _widened(values: Tensor, heads: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, heads - values.shape[-1]))
