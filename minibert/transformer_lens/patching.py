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
from minibert.trace.identity import Sources
from minibert.transformer_lens.cache import ActivationCache
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

    Raises TraceError for other axes, for both or none of the two, and for return_index_df=True, and
    EditError for a cache of another model.
    """
    if isinstance(clean_cache, ActivationCache):
        theirs, asking = clean_cache.of, "give its tensors alone: clean_cache.cache_dict"
        Sources(model.model).check(theirs, theirs.name, "clean_cache", asking)
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


def _setter(before: int) -> Setter:
    """What patches [layer, *index], of an activation with so many axes in front of the index."""

    def patch(activation: Tensor, index: Sequence[int], clean: Tensor) -> Tensor:
        place: tuple[int | slice, ...] = (*[slice(None)] * before, *index[1:])
        activation[place] = clean[place]
        return activation

    return patch


# The axes are (batch, position, head, ...), of attention (batch, head, query, key).
layer_pos_patch_setter = layer_pos_head_vector_patch_setter = _setter(1)
layer_head_vector_patch_setter = _setter(2)
layer_head_pattern_patch_setter = layer_head_pos_pattern_patch_setter = _setter(1)
layer_head_dest_src_pos_pattern_patch_setter = _setter(1)


def _patcher(name: str, setter: Setter, *axes: str) -> Callable[..., Tensor]:
    return partial(
        generic_activation_patch,
        patch_setter=setter,
        activation_name=name,
        index_axis_names=axes,
    )


def _at_pos(name: str) -> Callable[..., Tensor]:
    return _patcher(name, layer_pos_patch_setter, "layer", "pos")


def _by_pos(name: str) -> Callable[..., Tensor]:
    return _patcher(name, layer_pos_head_vector_patch_setter, "layer", "pos", "head")


def _all_pos(name: str) -> Callable[..., Tensor]:
    return _patcher(name, layer_head_vector_patch_setter, "layer", "head")


def _pattern(setter: Setter, *axes: str) -> Callable[..., Tensor]:
    return _patcher("pattern", setter, "layer", "head_index", *axes)


get_act_patch_resid_pre = _at_pos("resid_pre")
get_act_patch_resid_mid = _at_pos("resid_mid")
get_act_patch_attn_out = _at_pos("attn_out")
get_act_patch_mlp_out = _at_pos("mlp_out")
get_act_patch_attn_head_out_by_pos = _by_pos("z")
get_act_patch_attn_head_q_by_pos = _by_pos("q")
get_act_patch_attn_head_k_by_pos = _by_pos("k")
get_act_patch_attn_head_v_by_pos = _by_pos("v")
get_act_patch_attn_head_out_all_pos = _all_pos("z")
get_act_patch_attn_head_q_all_pos = _all_pos("q")
get_act_patch_attn_head_k_all_pos = _all_pos("k")
get_act_patch_attn_head_v_all_pos = _all_pos("v")
get_act_patch_attn_head_pattern_all_pos = _pattern(layer_head_pattern_patch_setter)
get_act_patch_attn_head_pattern_by_pos = _pattern(layer_head_pos_pattern_patch_setter, "dest_pos")
get_act_patch_attn_head_pattern_dest_src_pos = _pattern(
    layer_head_dest_src_pos_pattern_patch_setter, "dest_pos", "src_pos"
)


def get_act_patch_attn_head_all_pos_every(
    model: HookedTransformer, corrupted_tokens: Tensor, clean_cache: Any, metric: Metric
) -> Tensor:
    """Patches of output, query, key, value and pattern of each head, (5, layer, head).

    Where heads share keys and values, what would be behind the last shared one is 0.
    """
    kinds = (
        get_act_patch_attn_head_out_all_pos,
        get_act_patch_attn_head_q_all_pos,
        get_act_patch_attn_head_k_all_pos,
        get_act_patch_attn_head_v_all_pos,
        get_act_patch_attn_head_pattern_all_pos,
    )
    found = (patch(model, corrupted_tokens, clean_cache, metric) for patch in kinds)
    return torch.stack([_widened(each, model.cfg.n_heads) for each in found])


def get_act_patch_attn_head_by_pos_every(
    model: HookedTransformer, corrupted_tokens: Tensor, clean_cache: Any, metric: Metric
) -> Tensor:
    """The same at each position, (5, layer, position, head); of patterns that of the query."""
    kinds = (
        get_act_patch_attn_head_out_by_pos,
        get_act_patch_attn_head_q_by_pos,
        get_act_patch_attn_head_k_by_pos,
        get_act_patch_attn_head_v_by_pos,
        lambda *given: get_act_patch_attn_head_pattern_by_pos(*given).transpose(1, 2),
    )
    found = (patch(model, corrupted_tokens, clean_cache, metric) for patch in kinds)
    return torch.stack([_widened(each, model.cfg.n_heads) for each in found])


def get_act_patch_block_every(
    model: HookedTransformer, corrupted_tokens: Tensor, clean_cache: Any, metric: Metric
) -> Tensor:
    """Patches of resid_pre, attn_out and mlp_out at each position, (3, layer, position)."""
    kinds = (get_act_patch_resid_pre, get_act_patch_attn_out, get_act_patch_mlp_out)
    return torch.stack([patch(model, corrupted_tokens, clean_cache, metric) for patch in kinds])


def _widened(values: Tensor, heads: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, heads - values.shape[-1]))
