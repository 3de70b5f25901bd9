"""A pass with hooks is a pass with edits: what points change, and at which modules they listen.

Points of quantities are edits of the layer's table. Those inside a norm, or behind it, listen at
the norm's module while a pass lasts (`listening`), as do the inputs that a switch turns on.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minibert.errors import EditError
from minibert.kernels.eager import soft_capped
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer_pass import Change
from minibert.layers.norms import Norm, centred, deviation, normed, scale_of
from minibert.layers.parts import Layer
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hooks import HookPoint
from minibert.transformer_lens.points import (
    INPUT_SWITCHES,
    OfLayer,
    OfTrace,
    behind_layers,
    layer_points,
    wide,
)

Points = Mapping[str, HookPoint]
Inputs = tuple[Tensor, ...]
Hooked = Callable[[nn.Module, Inputs, Tensor], Tensor | None]
PreHook = Callable[[nn.Module, Inputs], Inputs]


def layer_edits(
    points: Points, body: Body, evaluation: Evaluation, cfg: HookedTransformerConfig
) -> Callable[[int], dict[str, Change]]:
    """What the points change of each layer's table, asked for layer by layer."""
    config = body.config

    def of_layer(layer: int) -> dict[str, Change]:
        at, edits = f"blocks.{layer}.", dict[str, Change]()
        for name, entry in layer_points(config, layer).items():
            point = points[at + name]
            if entry.edits and point.has_hooks():
                edits[entry.edits] = _by_position(point) if entry.by_head else point
        scores = points[f"{at}attn.hook_attn_scores"]
        if scores.has_hooks():
            edits |= _through_scores(scores, edits.get("probs"), config, evaluation, layer)
        return edits | _head_inputs(points, at, body.layers[layer], cfg, edits.get("resid_pre"))

    return of_layer


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


def _head_inputs(
    points: Points, at: str, layer: Layer, cfg: HookedTransformerConfig, before: Change | None
) -> dict[str, Change]:
    """The edits that hand the stream to each head through its points; none where nothing listens.

    `before` is the edit of resid_pre itself.
    """
    if not _reads_by_head(cfg):
        return {}
    own = INPUT_SWITCHES["use_split_qkv_input" if cfg.use_split_qkv_input else "use_attn_in"]
    inside = () if layer.attention_norm is None else ("ln1.hook_scale", "ln1.hook_normalized")
    if not any(points[at + name].has_hooks() for name in (*own, *inside)):
        return {}
    attention = layer.attention
    found: list[Tensor] = []

    def resid_pre(stream: Tensor) -> Tensor:
        stream = stream if before is None else before(stream)
        for name in own:
            shared = name in ("hook_k_input", "hook_v_input")
            heads = attention.n_kv_heads if shared else attention.n_heads
            read = points[at + name](stream.unsqueeze(2).expand(-1, -1, heads, -1))
            found.append(normed(layer.attention_norm, read).transpose(1, 2))
        return stream

    def read_from(index: int) -> Change:
        return lambda value: found[index]

    quantities = ("query_input", "key_input", "value_input")
    # With hook_attn_in there is one input for all three.
    edits = {name: read_from(min(n, len(own) - 1)) for n, name in enumerate(quantities)}
    return edits | {"resid_pre": resid_pre}


def _reads_by_head(cfg: HookedTransformerConfig) -> bool:
    """True where each head has an input of its own."""
    return cfg.use_attn_in or cfg.use_split_qkv_input


@contextmanager
def listening(points: Points, body: Body, cfg: HookedTransformerConfig) -> Iterator[None]:
    """While this lasts, the points at the body's modules see what passes there.

    Raises EditError for a hook on a point that is switched off.
    """
    _check_switches(points, cfg)
    handles: list[RemovableHandle] = []
    try:
        for index, layer in enumerate(body.layers):
            at, table = f"blocks.{index}.", layer_points(body.config, index)
            handles.extend(_at_norms(points, at, layer, table, cfg))
            handles.extend(_in_front(points, at, layer, body.config))
        handles.extend(_at_norms(points, "", body, behind_layers(body.config), cfg))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_switches(points: Points, cfg: HookedTransformerConfig) -> None:
    for switch, names in INPUT_SWITCHES.items():
        for layer in range(0 if getattr(cfg, switch) else cfg.n_layers):
            for name in names:
                if points[f"blocks.{layer}.{name}"].has_hooks():
                    raise EditError(
                        f"blocks.{layer}.{name} has a hook and is switched off; call "
                        f"model.set_{switch}(True), or remove the hook."
                    )


def _at_norms(
    points: Points,
    at: str,
    owner: nn.Module,
    table: OfLayer | OfTrace,
    cfg: HookedTransformerConfig,
) -> Iterator[RemovableHandle]:
    """Listen at the norms of a layer, or of the body, inside and behind them."""
    by_norm: dict[str, dict[str, HookPoint]] = {}
    for name, entry in table.items():
        if entry.norm and points[at + name].has_hooks():
            kind = name.rpartition("hook_")[2]
            by_norm.setdefault(entry.norm, {})[kind] = points[at + name]
    for name, active in by_norm.items():
        norm: Norm = getattr(owner, name)
        scale, normalized = (active.pop(kind, None) for kind in ("scale", "normalized"))
        if scale is not None or normalized is not None:
            by_head = name == "attention_norm" and _reads_by_head(cfg)
            inside = _inside(norm, scale or HookPoint(), normalized or HookPoint(), by_head)
            yield norm.register_forward_hook(inside)
        for point in active.values():
            yield norm.register_forward_hook(_output(point))


def _output(point: HookPoint) -> Hooked:
    return lambda module, inputs, out: point(out)


def _inside(norm: Norm, scale: HookPoint, normalized: HookPoint, by_head: bool) -> Hooked:
    """What listens between a norm's division and its weight.

    With `by_head` the norm is called for inputs of heads (batch, position, head, d_model).
    """
    seen: list[tuple[Tensor, Tensor | None]] = []

    def listen(module: nn.Module, inputs: Inputs, out: Tensor) -> Tensor | None:
        x = inputs[0]
        if by_head and x.dim() == 3:
            # The stream itself, which no head reads then.
            return None
        # A gated MLP reads its norm twice in one pass, which is one place in the model.
        if seen and seen[-1][0] is x:
            return seen[-1][1]
        divided = normalized(centred(norm, wide(x)) / scale(deviation(norm, wide(x))))
        found = None
        if scale.writes or normalized.writes:
            found = divided * scale_of(norm)
            bias = getattr(norm, "bias", None)
            found = (found if bias is None else found + bias).to(out.dtype)
        seen[:] = [(x, found)]
        return found

    return listen


def _in_front(points: Points, at: str, layer: Layer, config: Config) -> Iterator[RemovableHandle]:
    """Listen where the MLP reads its input, and in front of norms of queries and keys."""
    attention, mlp = layer.attention, layer.mlp
    point = points[f"{at}hook_mlp_in"]
    if point.has_hooks():
        first = (mlp.gate, mlp.up) if layer.mlp_norm is None else (layer.mlp_norm,)
        read = _read_by_mlp(point)
        for module in filter(None, first):
            yield module.register_forward_pre_hook(read)
    for short, norm in (("q", attention.query_norm), ("k", attention.key_norm)):
        point = points[f"{at}attn.hook_{short}"]
        if norm is not None and point.has_hooks():
            read = _projected(point, config.d_head, attention.norms_heads)
            yield norm.register_forward_pre_hook(read)


def _projected(point: HookPoint, d_head: int, of_heads: bool) -> PreHook:
    if of_heads:
        return lambda module, inputs: (point(inputs[0].transpose(1, 2)).transpose(1, 2),)
    return lambda module, inputs: (point(inputs[0].unflatten(-1, (-1, d_head))).flatten(-2),)


def _read_by_mlp(point: HookPoint) -> PreHook:
    """What changes the input of the first module that the MLP's input goes through."""
    seen: list[tuple[Tensor, Tensor]] = []

    def change(module: nn.Module, inputs: Inputs) -> Inputs:
        x, *rest = inputs
        # A gated MLP reads its input twice in one pass, which is one place in the model.
        if not seen or seen[-1][0] is not x:
            seen[:] = [(x, point(x))]
        return (seen[-1][1], *rest)

    return change
