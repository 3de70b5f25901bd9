"""The points of a model by TransformerLens' names, one table, and what hooks at them do.

A model has the names of the parts that it has, as its config says; the tree of parts (modules.py)
follows from the same table. A pass with hooks is a pass with edits: points of quantities are edits
of the layer's table. Those inside a norm, or after it, listen at the norm's module while a pass
lasts (`listening`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minibert.kernels.eager import soft_capped
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer import Change
from minibert.layers.parts import Attention, Norm, centred, deviation
from minibert.transformer_lens.hook_points import HookPoint

Hooked = Mapping[str, HookPoint]
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Point:
    """The place in the model that a name stands for.

    edits     the quantity that a hook edits; "" where it listens at a module instead
    by_head   its positions stand in front of a head axis
    norm      the norm that it listens at, by its attribute; "" for none
    """

    edits: str = ""
    by_head: bool = False
    norm: str = ""


Points = dict[str, Point]


def layer_points(config: Config) -> Points:
    """The points of a layer, in the order of the data."""
    place = config.norm_place
    before, behind = place in ("before", "both"), place in ("output", "both")
    # A norm of the output is ln1_post beside one in front of the block, and ln1 alone.
    post = "_post" if before else ""
    added = {
        short: Point(norm=f"{name}_output_norm") if behind else Point(f"{short}_out")
        for short, name in (("attn", "attention"), ("mlp", "mlp"))
    }
    of_attention = {
        "hook_resid_pre": Point("resid_pre"),
        **(_norm("ln1", "attention_norm") if before else {}),
        **_attention(config),
        **(_norm(f"ln1{post}", "attention_output_norm") if behind else {}),
        "hook_attn_out": added["attn"],
    }
    if not config.d_mlp:
        return {**of_attention, "hook_resid_post": Point("resid_post")}
    return {
        **of_attention,
        **({} if config.parallel else {"hook_resid_mid": Point("resid_mid")}),
        **(_norm("ln2", "mlp_norm") if before else {}),
        "mlp.hook_pre": Point("mlp_gate" if config.gated else "mlp_pre"),
        **({"mlp.hook_pre_linear": Point("mlp_pre")} if config.gated else {}),
        "mlp.hook_post": Point("mlp_post"),
        "hook_mlp_out": added["mlp"],
        **(_norm(f"ln2{post}", "mlp_output_norm") if behind else {}),
        "hook_resid_post": Point("resid_post"),
    }


def _attention(config: Config) -> Points:
    def heads(name: str) -> Point:
        return Point(name, by_head=True)

    turned, found = config.rotary is not None, Points()
    for short, name in (("q", "query"), ("k", "key")):
        # As W_Q or W_K gives it: before its norm and its rotation.
        normed = config.query_key_norm != "none"
        before = heads(f"{name}_unrotated" if turned else name)
        found[f"attn.hook_{short}"] = Point(by_head=True) if normed else before
    found["attn.hook_v"] = heads("value")
    if turned:
        found |= {"attn.hook_rot_q": heads("query"), "attn.hook_rot_k": heads("key")}
    return {
        **found,
        "attn.hook_attn_scores": Point(),
        "attn.hook_pattern": Point("probs"),
        "attn.hook_z": heads("z"),
        "attn.hook_result": heads("head_out"),
    }


def _norm(name: str, norm: str) -> Points:
    """What a norm divides by, and what is divided before weight and bias."""
    return {f"{name}.hook_{each}": Point(norm=norm) for each in ("scale", "normalized")}


def wide(x: Tensor) -> Tensor:
    """In float32 or wider, as in TransformerLens."""
    return x.float() if x.dtype.itemsize < 4 else x


def before_layers(config: Config) -> Points:
    """The points in front of layer 0."""
    has_table = config.positions in ("learned", "shortformer")
    return {"hook_embed": Point()} | ({"hook_pos_embed": Point()} if has_table else {})


def behind_layers(config: Config) -> Points:
    """The points after the last layer."""
    found = _norm("ln_final", "final_norm") if config.final_norm else {}
    return found | {"unembed.hook_in": Point(), "unembed.hook_out": Point()}


def layer_edits(
    points: Hooked, config: Config, evaluation: Evaluation
) -> Callable[[int], dict[str, Change]]:
    """What the points change of each layer's table, asked for layer by layer."""

    def of_layer(layer: int) -> dict[str, Change]:
        at, edits = f"blocks.{layer}.", dict[str, Change]()
        for name, entry in layer_points(config).items():
            point = points[at + name]
            if entry.edits and point.has_hooks():
                edits[entry.edits] = _by_position(point) if entry.by_head else point
        scores = points[f"{at}attn.hook_attn_scores"]
        if scores.has_hooks():
            edits |= _through_scores(scores, edits.get("probs"), config, evaluation, layer)
        return edits

    return of_layer


def _by_position(point: HookPoint) -> Change:
    """The change of a quantity whose heads stand in front of its positions."""
    return lambda value: point(value.transpose(1, 2)).transpose(1, 2)


def _through_scores(
    point: HookPoint, pattern: Change | None, config: Config, evaluation: Evaluation, layer: int
) -> dict[str, Change]:
    """The scores as TransformerLens has them: after the soft cap and the mask.

    So what a hook writes there goes into the softmax as it is, and the table's own softmax, which
    masks after it, is replaced. A query that no key is left for looks nowhere.
    """
    window = config.window(layer)
    allowed = evaluation if window is None else evaluation.in_window(window)
    found: list[Tensor] = []

    def scores(value: Tensor) -> Tensor:
        masked = soft_capped(value, config.attention_soft_cap)
        found.append(point(masked.masked_fill(~allowed.allowed.full(), point.ignored)))
        return value

    def probs(value: Tensor) -> Tensor:
        if point.writes:
            value = torch.softmax(found[-1], -1).nan_to_num(0.0)
        return value if pattern is None else pattern(value)

    return {"scores": scores, "probs": probs}


@contextmanager
def listening(points: Hooked, body: Body) -> Iterator[None]:
    """While this lasts, the points at the body's modules see what passes there."""
    with ExitStack() as undo:
        for index, layer in enumerate(body.layers):
            at = f"blocks.{index}."
            _at_norms(undo, points, at, layer, layer_points(body.config))
            for short in "qk":
                point = points[f"{at}attn.hook_{short}"]
                if point.has_hooks():
                    _before_its_norm(undo, point, layer.attention, short)
        _at_norms(undo, points, "", body, behind_layers(body.config))
        yield


def _at_norms(
    undo: ExitStack, points: Hooked, at: str, owner: nn.Module, table: Mapping[str, Point]
) -> None:
    """Listen at the norms of a layer, or of the body, inside and after them."""
    by_norm: dict[str, dict[str, HookPoint]] = {}
    for name, entry in table.items():
        if entry.norm and points[at + name].has_hooks():
            kind = name.rpartition("hook_")[2]
            by_norm.setdefault(entry.norm, {})[kind] = points[at + name]
    for name, active in by_norm.items():
        norm: Norm = getattr(owner, name)
        pair = [active.pop(kind, None) for kind in ("scale", "normalized")]
        if any(pair):
            hook = inside(norm, *(point or HookPoint() for point in pair))
            undo.callback(norm.register_forward_hook(hook).remove)
        for point in active.values():
            undo.callback(norm.register_forward_hook(_output(point)).remove)


def _output(point: HookPoint) -> Callable[[nn.Module, Inputs, Tensor], Tensor]:
    return lambda module, inputs, out: point(out)


def inside(
    norm: Norm, scale: HookPoint, normalized: HookPoint
) -> Callable[[nn.Module, Inputs, Tensor], Tensor | None]:
    """What listens between a norm's division and its weight."""
    seen: list[tuple[Tensor, Tensor | None]] = []

    def listen(module: nn.Module, inputs: Inputs, out: Tensor) -> Tensor | None:
        x = inputs[0]
        # A gated MLP reads its norm twice in one pass, which is one place in the model.
        if seen and seen[-1][0] is x:
            return seen[-1][1]
        divided = normalized(centred(norm, wide(x)) / scale(deviation(norm, wide(x))))
        found = None
        if scale.writes or normalized.writes:
            found = divided * norm.scale
            bias = getattr(norm, "bias", None)
            found = (found if bias is None else found + bias).to(out.dtype)
        seen[:] = [(x, found)]
        return found

    return listen


def _before_its_norm(undo: ExitStack, point: HookPoint, attention: Attention, short: str) -> None:
    """Listen in front of the norm of queries or keys, where there is one."""
    norm = attention.query_norm if short == "q" else attention.key_norm

    def read(module: nn.Module, inputs: Inputs) -> Inputs:
        if attention.norms_heads:
            return (point(inputs[0].transpose(1, 2)).transpose(1, 2),)
        return (point(inputs[0].unflatten(-1, (-1, attention.d_head))).flatten(-2),)

    if norm is not None:
        undo.callback(norm.register_forward_pre_hook(read).remove)
