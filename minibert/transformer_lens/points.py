"""How the hook points of a model take part in a pass through minibert's layers.

A point that is a quantity of the table of a layer is an edit of it. The points at a norm, and at
the input of an MLP, are hooks on a module for the length of the pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minibert.kernels.eager import soft_capped
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer_pass import Change
from minibert.layers.norms import Norm, centred, deviation, scale_of
from minibert.layers.parts import Layer
from minibert.transformer_lens.block_inputs import (
    Points,
    PreHook,
    check_switches,
    head_inputs,
    read_by_mlp,
    reads_by_head,
)
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hook_point import HookPoint

__all__ = ["layer_edits", "listening"]

Hooked = Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]


def layer_edits(
    points: Points, body: Body, evaluation: Evaluation, cfg: HookedTransformerConfig
) -> Callable[[int], dict[str, Change]]:
    """What the points change of each layer's table, asked for layer by layer."""
    config = body.config
    quantities = _quantities(config)

    def of_layer(layer: int) -> dict[str, Change]:
        edits: dict[str, Change] = {}
        for name, (quantity, by_head) in quantities.items():
            point = _active(points, f"blocks.{layer}.{name}")
            if point is not None:
                edits[quantity] = _by_position(point) if by_head else point
        scores = _active(points, f"blocks.{layer}.attn.hook_attn_scores")
        if scores is not None:
            edits |= _through_scores(scores, edits.get("probs"), config, evaluation, layer)
        own, before = body.layers[layer], edits.get("resid_pre")
        return edits | head_inputs(points, f"blocks.{layer}.", own, cfg, before)

    return of_layer


@contextmanager
def listening(points: Points, body: Body, cfg: HookedTransformerConfig) -> Iterator[None]:
    """While this lasts, the points at the body's modules see what passes there.

    Raises EditError for a hook on a point that is switched off.
    """
    check_switches(points, cfg)
    handles: list[RemovableHandle] = []
    try:
        for index, layer in enumerate(body.layers):
            handles.extend(_of_modules(points, f"blocks.{index}.", layer, cfg))
            handles.extend(_in_front(points, f"blocks.{index}.", layer, body.config))
        norm = body.final_norm
        inside = None if norm is None else _inside(norm, points, "ln_final")
        if norm is not None and inside is not None:
            handles.append(norm.register_forward_hook(inside))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _active(points: Points, name: str) -> HookPoint | None:
    point = points.get(name)
    return point if point is not None and point.has_hooks() else None


def _quantities(config: Config) -> dict[str, tuple[str, bool]]:
    """The points that are quantities of the table, and whether their heads stand behind positions.

    They are in the order in which a pass computes them.
    """
    found = {"hook_resid_pre": ("resid_pre", False)}
    turned = config.rotary is not None
    for short, name in (("q", "query"), ("k", "key")):
        # The points in front of a norm of queries and keys are hooks on its module.
        if config.query_key_norm == "none":
            found[f"attn.hook_{short}"] = (f"{name}_unrotated" if turned else name, True)
        if turned:
            found[f"attn.hook_rot_{short}"] = (name, True)
    found |= {
        "attn.hook_v": ("value", True),
        "attn.hook_pattern": ("probs", False),
        "attn.hook_z": ("z", True),
        "attn.hook_result": ("head_out", True),
    }
    before = config.norm_place == "before"
    found |= {"hook_attn_out": ("attn_out", False)} if before else {}
    found |= {} if config.parallel else {"hook_resid_mid": ("resid_mid", False)}
    found["mlp.hook_pre"] = ("mlp_gate" if config.gated else "mlp_pre", False)
    found |= {"mlp.hook_pre_linear": ("mlp_pre", False)} if config.gated else {}
    found["mlp.hook_post"] = ("mlp_post", False)
    found |= {"hook_mlp_out": ("mlp_out", False)} if before else {}
    return found | {"hook_resid_post": ("resid_post", False)}


def _by_position(point: HookPoint) -> Change:
    """The change of a quantity whose heads stand in front of its positions."""
    return lambda value: point(value.transpose(1, 2)).transpose(1, 2)


def _through_scores(
    point: HookPoint, pattern: Change | None, config: Config, evaluation: Evaluation, layer: int
) -> dict[str, Change]:
    """The scores as TransformerLens has them: after the soft cap and the mask.

    So what a hook writes there goes into the softmax as it is, and the table's own softmax, which
    masks behind it, is replaced. A query that no key is left for looks nowhere.
    """
    window = config.window(layer)
    allowed = evaluation if window is None else evaluation.in_window(window)
    found: list[Tensor] = []

    def scores(value: Tensor) -> Tensor:
        masked = soft_capped(value, config.attention_soft_cap)
        found.append(point(masked.masked_fill(~allowed.allowed.full(), float("-inf"))))
        return value

    def probs(value: Tensor) -> Tensor:
        if point.writes:
            value = torch.softmax(found[-1], -1).nan_to_num(0.0)
        return value if pattern is None else pattern(value)

    return {"scores": scores, "probs": probs}


def _of_modules(
    points: Points, at: str, layer: Layer, cfg: HookedTransformerConfig
) -> Iterator[RemovableHandle]:
    """Listen at the norms of a layer, inside and behind them."""
    post = "" if layer.attention_norm is None else "_post"
    norms = (
        (layer.attention_norm, "ln1", None),
        (layer.attention_output_norm, f"ln1{post}", "hook_attn_out"),
        (layer.mlp_norm, "ln2", None),
        (layer.mlp_output_norm, f"ln2{post}", "hook_mlp_out"),
    )
    for norm, name, behind in norms:
        if norm is None:
            continue
        by_head = norm is layer.attention_norm and reads_by_head(cfg)
        inside = _inside(norm, points, at + name, by_head=by_head)
        if inside is not None:
            yield norm.register_forward_hook(inside)
        out = None if behind is None else _active(points, at + behind)
        if out is not None:
            yield norm.register_forward_hook(_output(out))


def _in_front(points: Points, at: str, layer: Layer, config: Config) -> Iterator[RemovableHandle]:
    """Listen where the MLP reads its input, and in front of norms of queries and keys."""
    attention, mlp = layer.attention, layer.mlp
    point = _active(points, f"{at}hook_mlp_in")
    if point is not None:
        first = (mlp.gate, mlp.up) if layer.mlp_norm is None else (layer.mlp_norm,)
        read = read_by_mlp(point)
        for module in filter(None, first):
            yield module.register_forward_pre_hook(read)
    for short, norm in (("q", attention.query_norm), ("k", attention.key_norm)):
        point = _active(points, f"{at}attn.hook_{short}")
        if norm is not None and point is not None:
            of_heads = attention.norms_heads
            yield norm.register_forward_pre_hook(_projected(point, config.d_head, of_heads))


def _output(point: HookPoint) -> Hooked:
    return lambda module, inputs, out: point(out)


def _projected(point: HookPoint, d_head: int, of_heads: bool) -> PreHook:
    if of_heads:
        return lambda module, inputs: (point(inputs[0].transpose(1, 2)).transpose(1, 2),)
    return lambda module, inputs: (point(inputs[0].unflatten(-1, (-1, d_head))).flatten(-2),)


def _inside(norm: Norm, points: Points, name: str, *, by_head: bool = False) -> Hooked | None:
    """What listens between a norm's division and its weight; None where no hook is.

    With `by_head` the norm is called for inputs of heads (batch, position, head, d_model).
    """
    scale, normalized = (
        points.get(f"{name}.hook_{each}", HookPoint()) for each in ("scale", "normalized")
    )
    if not scale.has_hooks() and not normalized.has_hooks():
        return None
    seen: list[tuple[Tensor, Tensor | None]] = []

    def listen(module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
        x = inputs[0]
        if by_head and x.dim() == 3:
            # The stream itself, which no head reads then.
            return None
        # A gated MLP reads its norm twice in one pass, which is one place in the model.
        if seen and seen[-1][0] is x:
            return seen[-1][1]
        wide = x.float() if x.dtype.itemsize < 4 else x
        divided = normalized(centred(norm, wide) / scale(deviation(norm, wide)))
        found = None
        if scale.writes or normalized.writes:
            found = divided * scale_of(norm)
            bias = getattr(norm, "bias", None)
            found = (found if bias is None else found + bias).to(out.dtype)
        seen[:] = [(x, found)]
        return found

    return listen
