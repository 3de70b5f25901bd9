"""Activation patching by TransformerLens' names: one pass for each place that is patched.

Every `get_act_patch_...` takes the model, the corrupted tokens (batch, position), the cache of the
clean run and a metric of logits, and gives the metric with each activation of the clean run written
into the corrupted one. `minibert.analysis.patch_heads` and `patch_positions` compute the same side
by side, in fewer passes.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.trace.identity import Sources
from minibert.transformer_lens.cache import ActivationCache
from minibert.transformer_lens.utils import get_act_name

Setter = Callable[[Tensor, Sequence[int], Tensor], Tensor]
Metric = Callable[[Tensor], Tensor]


def generic_activation_patch(
    model: Any,
    corrupted_tokens: Tensor,
    clean_cache: Mapping[Any, Tensor],
    patching_metric: Metric,
    patch_setter: Setter,
    activation_name: str,
    index_axis_names: Sequence[str],
) -> Tensor:
    """The metric with one activation patched, for every index of the named axes.

    activation_name   a shorthand, such as "resid_pre" or "z"
    index_axis_names  axes that are gone through, "layer" first: pos, src_pos, dest_pos, head,
                      head_index
    patch_setter      called with (corrupted activation, index, clean activation), returns what
                      takes the activation's place

    Raises TraceError for other axes, and EditError for a cache of another model.
    """
    if isinstance(clean_cache, ActivationCache):
        theirs, asking = clean_cache.of, "give its tensors alone: clean_cache.cache_dict"
        Sources(model.model).check(theirs, theirs.name, "clean_cache", asking)
    shape = _sizes(model, corrupted_tokens, activation_name, index_axis_names)
    found = []
    for index in itertools.product(*map(range, shape)):
        name = get_act_name(activation_name, index[0])

        def patch(
            activation: Tensor,
            hook: Any,
            index: Sequence[int] = index,
            clean: Tensor = clean_cache[name],
        ) -> Tensor:
            return patch_setter(activation, index, clean)

        logits = model.run_with_hooks(corrupted_tokens, fwd_hooks=[(name, patch)])
        found.append(torch.as_tensor(patching_metric(logits)).detach().reshape(()))
    return torch.stack(found).reshape(shape)


def _sizes(model: Any, tokens: Tensor, name: str, axes: Sequence[str]) -> tuple[int, ...]:
    heads = model.cfg.n_heads
    if name in ("k", "v"):
        heads = model.cfg.n_key_value_heads or heads
    sizes = {"layer": model.cfg.n_layers, "head": heads, "head_index": heads}
    sizes |= dict.fromkeys(("pos", "src_pos", "dest_pos"), tokens.shape[-1])
    for axis in axes:
        if axis not in sizes:
            raise TraceError(f"{axis!r:.80} is no axis of an index; expected {', '.join(sizes)}.")
    return tuple(sizes[axis] for axis in axes)


def _patcher(name: str, *axes: str) -> Callable[..., Tensor]:
    """The function that patches this activation at each index of the axes."""
    # (batch, position, head, ...), of attention (batch, head, query, key).
    whole = [slice(None)] * (2 if axes == ("layer", "head") else 1)

    def setter(activation: Tensor, index: Sequence[int], clean: Tensor) -> Tensor:
        place: tuple[slice | int, ...] = (*whole, *index[1:])
        activation[place] = clean[place]
        return activation

    return partial(
        generic_activation_patch,
        patch_setter=setter,
        activation_name=name,
        index_axis_names=axes,
    )


get_act_patch_resid_pre = _patcher("resid_pre", "layer", "pos")
get_act_patch_resid_mid = _patcher("resid_mid", "layer", "pos")
get_act_patch_attn_out = _patcher("attn_out", "layer", "pos")
get_act_patch_mlp_out = _patcher("mlp_out", "layer", "pos")
get_act_patch_attn_head_out_by_pos = _patcher("z", "layer", "pos", "head")
get_act_patch_attn_head_q_by_pos = _patcher("q", "layer", "pos", "head")
get_act_patch_attn_head_k_by_pos = _patcher("k", "layer", "pos", "head")
get_act_patch_attn_head_v_by_pos = _patcher("v", "layer", "pos", "head")
get_act_patch_attn_head_out_all_pos = _patcher("z", "layer", "head")
get_act_patch_attn_head_q_all_pos = _patcher("q", "layer", "head")
get_act_patch_attn_head_k_all_pos = _patcher("k", "layer", "head")
get_act_patch_attn_head_v_all_pos = _patcher("v", "layer", "head")
get_act_patch_attn_head_pattern_all_pos = _patcher("pattern", "layer", "head_index")
get_act_patch_attn_head_pattern_by_pos = _patcher("pattern", "layer", "head_index", "dest_pos")
get_act_patch_attn_head_pattern_dest_src_pos = _patcher(
    "pattern", "layer", "head_index", "dest_pos", "src_pos"
)


def _every(*patchers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function that stacks what these give.

    Where heads share keys and values, what would be behind the last shared one is 0.
    """

    def every(model: Any, corrupted_tokens: Tensor, clean_cache: Any, metric: Metric) -> Tensor:
        found = [patch(model, corrupted_tokens, clean_cache, metric) for patch in patchers]
        last = max(each.shape[-1] for each in found)
        return torch.stack(
            [torch.nn.functional.pad(each, (0, last - each.shape[-1])) for each in found]
        )

    return every


get_act_patch_attn_head_all_pos_every = _every(
    get_act_patch_attn_head_out_all_pos,
    get_act_patch_attn_head_q_all_pos,
    get_act_patch_attn_head_k_all_pos,
    get_act_patch_attn_head_v_all_pos,
    get_act_patch_attn_head_pattern_all_pos,
)
get_act_patch_attn_head_by_pos_every = _every(
    get_act_patch_attn_head_out_by_pos,
    get_act_patch_attn_head_q_by_pos,
    get_act_patch_attn_head_k_by_pos,
    get_act_patch_attn_head_v_by_pos,
    lambda *given: get_act_patch_attn_head_pattern_by_pos(*given).transpose(1, 2),
)
get_act_patch_block_every = _every(
    get_act_patch_resid_pre, get_act_patch_attn_out, get_act_patch_mlp_out
)
