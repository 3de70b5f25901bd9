"""The parts and hook points of a hooked model, built from minibert's model."""

from typing import Any, cast

from torch import nn

from minibert.layers.norms import Norm
from minibert.layers.parts import Layer
from minibert.model import Model
from minibert.trace.lens_points import point_names
from minibert.transformer_lens.config import INPUT_SWITCHES
from minibert.transformer_lens.hook_point import HookPoint
from minibert.transformer_lens.parts import (
    Attention,
    Block,
    Embed,
    Mlp,
    NormPart,
    PosEmbed,
    Unembed,
)

__all__ = ["build_tree"]


def build_tree(root: nn.Module, model: Model, *, folded: bool) -> None:
    """Put the parts of the model below `root`, and in them a hook point of each of its names."""
    body, names = model.body, point_names(model.config)
    root.embed = Embed(body)
    if body.position is not None:
        root.pos_embed = PosEmbed(body)
    _add_points(root, [name for name in names if name.startswith("hook_")])
    root.blocks = nn.ModuleList()
    for number, layer in enumerate(body.layers):
        at = f"blocks.{number}."
        inside = [name.removeprefix(at) for name in names if name.startswith(at)]
        root.blocks.append(_block(layer, _with_inputs(inside), folded, model.config.norm_place))
    for name, part in (
        ("ln_final", NormPart(cast(Norm, body.final_norm), folded)),
        ("unembed", Unembed(model.head)),
    ):
        root.add_module(name, part)
        _add_points(part, [each.split(".")[1] for each in names if each.startswith(f"{name}.")])


def _block(layer: Layer, names: list[str], folded: bool, norm_place: str) -> Block:
    """A layer with its parts, in the order of the data, and their hook points."""
    block = Block(layer)
    for name in names:
        part, _, point = name.rpartition(".")
        if part and part not in block._modules:
            block.add_module(part, _part(layer, part, folded, norm_place))
        _add_points(block.get_submodule(part), [point])
    return block


def _with_inputs(names: list[str]) -> list[str]:
    """The names of a block, with those of its inputs where they stand in the data."""
    heads = names.index("hook_resid_pre") + 1
    mlp = next(n for n, name in enumerate(names) if name.startswith(("ln2.", "mlp.")))
    of_heads = INPUT_SWITCHES["use_attn_in"] + INPUT_SWITCHES["use_split_qkv_input"]
    of_mlp = INPUT_SWITCHES["use_hook_mlp_in"]
    return [*names[:heads], *of_heads, *names[heads:mlp], *of_mlp, *names[mlp:]]


def _part(layer: Layer, name: str, folded: bool, norm_place: str) -> nn.Module:
    simple: dict[str, Any] = {"attn": Attention, "mlp": Mlp}
    if name in simple:
        return simple[name](layer)
    behind = name.endswith("_post") or norm_place == "output"
    kind = "attention" if name.startswith("ln1") else "mlp"
    norm = getattr(layer, f"{kind}_output_norm" if behind else f"{kind}_norm")
    return NormPart(norm, folded and not behind)


def _add_points(part: nn.Module, names: list[str]) -> None:
    for name in names:
        part.add_module(name, HookPoint())
