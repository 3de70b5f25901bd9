"""Activation patching by TransformerLens' names: one place after another from a clean run.

Each `get_act_patch_...` has the arguments (model, corrupted_tokens, clean_cache, patching_metric)
and gives the metric of the logits after each patch. `minibert.analysis.patch_heads` and
`patch_positions` give the same numbers in fewer passes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from minibert.transformer_lens.utils import get_act_name

# The activation behind each name, and what stands for its axes after the batch: "" is left whole.
_BLOCK = {name: (name, ("pos",)) for name in ("resid_pre", "resid_mid", "attn_out", "mlp_out")}
_VECTORS = {"out": "z", "q": "q", "k": "k", "v": "v"}
_PATCHES = {
    **_BLOCK,
    **{f"attn_head_{name}_by_pos": (act, ("pos", "head")) for name, act in _VECTORS.items()},
    **{f"attn_head_{name}_all_pos": (act, ("", "head")) for name, act in _VECTORS.items()},
    "attn_head_pattern_all_pos": ("pattern", ("head",)),
    "attn_head_pattern_by_pos": ("pattern", ("head", "dest_pos")),
    "attn_head_pattern_dest_src_pos": ("pattern", ("head", "dest_pos", "src_pos")),
}


def generic_activation_patch(
    model: Any,
    corrupted_tokens: Tensor,
    clean_cache: Any,
    patching_metric: Callable[[Tensor], Any],
    patch_setter: Callable[[Tensor, Sequence[int], Tensor], Tensor],
    activation_name: str,
    index_axis_names: Sequence[str],
) -> Tensor:
    """The metric of the corrupted run after each patch, with an axis for each of the index.

    patch_setter      (corrupted, index, clean) -> patched, of one activation
    index_axis_names  layer, and of pos, head, head_index, dest_pos, src_pos
    """
    shared = model.cfg.n_key_value_heads if activation_name in ("k", "v") else None
    heads = shared or model.cfg.n_heads
    sizes = {"layer": model.cfg.n_layers, "head": heads, "head_index": heads}
    shape = [sizes.get(axis, corrupted_tokens.shape[-1]) for axis in index_axis_names]

    def patched(index: Sequence[int]) -> float:
        name = get_act_name(activation_name, index[0])
        hook = (name, lambda value, hook: patch_setter(value, index, clean_cache[name]))
        return float(patching_metric(model.run_with_hooks(corrupted_tokens, fwd_hooks=[hook])))

    found = [patched(index) for index in product(*map(range, shape))]
    return torch.tensor(found, device=model.cfg.device).reshape(shape)


def _patch(activation: str, axes: Sequence[str], *given: Any, **named: Any) -> Tensor:
    def write(corrupted: Tensor, index: Sequence[int], clean: Tensor) -> Tensor:
        numbers = iter(index[1:])
        place = (slice(None), *(next(numbers) if axis else slice(None) for axis in axes))
        corrupted[place] = clean[place]
        return corrupted

    named |= {"patch_setter": write, "activation_name": activation}
    named["index_axis_names"] = ("layer", *filter(None, axes))
    return generic_activation_patch(*given, **named)


def _every(names: Sequence[str], *given: Any, **named: Any) -> Tensor:
    """The results of several functions, stacked; key-value heads that are missing have 0."""
    if "metric" in named:
        named["patching_metric"] = named.pop("metric")
    found = [_patch(*_PATCHES[name], *given, **named) for name in names]
    if names[-1].endswith("pattern_by_pos"):
        found[-1] = found[-1].mT
    width = max(each.shape[-1] for each in found)
    return torch.stack([F.pad(each, (0, width - each.shape[-1])) for each in found])


for _name, _place in _PATCHES.items():
    globals()[f"get_act_patch_{_name}"] = partial(_patch, *_place)
get_act_patch_block_every = partial(_every, ("resid_pre", "attn_out", "mlp_out"))
_HEADS = (*_VECTORS, "pattern")
get_act_patch_attn_head_all_pos_every = partial(
    _every, [f"attn_head_{name}_all_pos" for name in _HEADS]
)
get_act_patch_attn_head_by_pos_every = partial(
    _every, [f"attn_head_{name}_by_pos" for name in _HEADS]
)
