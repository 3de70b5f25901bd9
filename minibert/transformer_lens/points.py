"""How the hook points of a model take part in a pass through minibert's layers.

A point that is a quantity of the table of a layer is an edit of it. The points inside a norm, and
what a norm at a block's output gives, are hooks on the norm's module for the length of the pass.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from minibert.kernels.eager import soft_capped
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer_pass import Change
from minibert.layers.norms import Norm, centred, deviation, scale_of
from minibert.layers.parts import Layer
from minibert.transformer_lens.hook_point import HookPoint

__all__ = ["Points", "layer_edits", "listening"]

Points = Mapping[str, HookPoint]
Hooked = Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]


def layer_edits(
    points: Points, config: Config, evaluation: Evaluation
) -> Callable[[int], dict[str, Change]]:
    """What the points change of each layer's table, asked for layer by layer."""
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
        return edits

    return of_layer


@contextmanager
def listening(points: Points, body: Body) -> Iterator[None]:
    """While this lasts, the points inside the body's norms see what passes there."""
    handles = []
    try:
        for index, layer in enumerate(body.layers):
            for module, hook in _of_modules(points, f"blocks.{index}.", layer, body.config):
                handles.append(module.register_forward_hook(hook))
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
    points: Points, at: str, layer: Layer, config: Config
) -> Iterator[tuple[nn.Module, Hooked]]:
    """The modules of a layer that have to be listened to, and what does."""
    place = config.norm_place
    post = "" if place == "output" else "_post"
    norms = (
        (layer.attention_norm, "ln1", None),
        (layer.attention_output_norm, f"ln1{post}", "hook_attn_out"),
        (layer.mlp_norm, "ln2", None),
        (layer.mlp_output_norm, f"ln2{post}", "hook_mlp_out"),
    )
    for norm, name, behind in norms:
        if norm is None:
            continue
        inside = _inside(norm, points, at + name)
        if inside is not None:
            yield norm, inside
        out = None if behind is None else _active(points, at + behind)
        if out is not None:
            yield norm, _output(out)
    if config.query_key_norm != "none":
        for short, linear in (("q", layer.attention.query), ("k", layer.attention.key)):
            point = _active(points, f"{at}attn.hook_{short}")
            if point is not None:
                yield linear, _projected(point, config.d_head)


def _output(point: HookPoint) -> Hooked:
    return lambda module, inputs, out: point(out)


def _projected(point: HookPoint, d_head: int) -> Hooked:
    return lambda module, inputs, out: point(out.unflatten(-1, (-1, d_head))).flatten(-2)


def _inside(norm: Norm, points: Points, name: str) -> Hooked | None:
    """What listens between a norm's division and its weight; None where no hook is."""
    scale, normalized = (
        points.get(f"{name}.hook_{each}", HookPoint()) for each in ("scale", "normalized")
    )
    if not scale.has_hooks() and not normalized.has_hooks():
        return None
    seen: list[tuple[Tensor, Tensor | None]] = []

    def listen(module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
        x = inputs[0]
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
