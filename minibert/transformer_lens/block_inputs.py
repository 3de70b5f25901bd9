"""The points in front of the norms of a block: what each head and the MLP read of the stream.

They are switched on in `cfg`. A head's input is an edit of query_input, key_input and value_input,
which stand behind the norm; so the stream goes through the points, and then through the norm here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from minibert.errors import EditError
from minibert.layers.layer_pass import Change
from minibert.layers.norms import normed
from minibert.layers.parts import Layer
from minibert.transformer_lens.config import INPUT_SWITCHES, HookedTransformerConfig
from minibert.transformer_lens.hook_point import HookPoint

__all__ = ["check_switches", "head_inputs", "read_by_mlp", "reads_by_head"]

Points = Mapping[str, HookPoint]
PreHook = Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]
_QUANTITIES = ("query_input", "key_input", "value_input")


def check_switches(points: Points, cfg: HookedTransformerConfig) -> None:
    """Raise EditError for a hook on a point that is switched off."""
    for switch, names in INPUT_SWITCHES.items():
        if getattr(cfg, switch):
            continue
        for layer in range(cfg.n_layers):
            for name in names:
                if points[f"blocks.{layer}.{name}"].has_hooks():
                    raise EditError(
                        f"blocks.{layer}.{name} has a hook and is switched off; call "
                        f"model.set_{switch}(True), or remove the hook."
                    )


def reads_by_head(cfg: HookedTransformerConfig) -> bool:
    """True where each head has an input of its own."""
    return cfg.use_attn_in or cfg.use_split_qkv_input


def head_inputs(
    points: Points, at: str, layer: Layer, cfg: HookedTransformerConfig, before: Change | None
) -> dict[str, Change]:
    """The edits that hand the stream to each head through its points; none where nothing listens.

    `before` is the edit of resid_pre itself.
    """
    if not reads_by_head(cfg):
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

    # With hook_attn_in there is one input for all three.
    edits = {name: read_from(min(n, len(own) - 1)) for n, name in enumerate(_QUANTITIES)}
    return edits | {"resid_pre": resid_pre}


def read_by_mlp(point: HookPoint) -> PreHook:
    """What changes the input of the first module that the MLP's input goes through."""
    seen: list[tuple[Tensor, Tensor]] = []

    def change(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = inputs
        # A gated MLP reads its input twice in one pass, which is one place in the model.
        if not seen or seen[-1][0] is not x:
            seen[:] = [(x, point(x))]
        return (seen[-1][1], *rest)

    return change
