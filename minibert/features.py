"""Features as quantities: read, change and differentiate what sparse autoencoders found.

    features = minibert.features.load(folder)          # SAELens' or circuit-tracer's files
    found = features.read(trace)                       # activations, and x = decoded + error
    model.trace(text, edit=features.edit({17: 0.0}))   # the error stays as it is
    trace.backward(trace.logits[0, -1, 5]); found.grad

Source of the error as a part of its own: Marks et al. 2024, "Sparse feature circuits".
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_in
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from minibert.checkpoint.dictionary import Dictionary, Spot, open_dictionary
from minibert.errors import CheckpointError, EditError, TraceError, check_flag, check_index
from minibert.layers.linear import held
from minibert.layers.norms import centred, deviation
from minibert.quantities import Float, Hidden
from minibert.result import Result
from minibert.trace.edit import Edit, Function, checked_result, kind_of, replace
from minibert.trace.identity import weights_digest
from minibert.trace.layer_view import kept_scale
from minibert.trace.places import Chosen
from minibert.trace.read import Trace

__all__ = ["Activations", "Features", "load"]

#: A new activation, or a function of the old ones, (batch, position).
NewActivation = float | Callable[[Tensor], Tensor]
Flat = Float[Tensor, "batch position width"]


def load(
    name: str | Path,
    layer: int | None = None,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    other_model: bool = False,
) -> "Features":
    """The features of a folder or a Hub id, "owner/name" or "owner/name/a/folder/in/it".

    Read are SAELens' files (cfg.json, sae_weights.safetensors: standard, gated, jumprelu, topk and
    the transcoders) and circuit-tracer's sets of transcoders (config.yaml, layer_N.safetensors), of
    which `layer` says one. `revision`, `cache_dir` and `offline` are those of `minibert.load`.
    Few files say of which model they are (`model_weights` in cfg.json); of those that do, a trace
    of other weights in float32 is refused, unless `other_model`.

    Raises CheckpointError for what cannot be found, fetched or read, and for a field that would
    change the numbers and is not honoured.
    """
    dictionary, reads, writes = open_dictionary(
        name, layer, revision=revision, cache_dir=cache_dir, offline=offline
    )
    check_flag("other_model", other_model, CheckpointError)
    dictionary = replace_in(dictionary, model_weights="") if other_model else dictionary
    return Features(dictionary, reads, writes, name=str(name))


def check_features(features: object, model: object, name: str) -> None:
    """Raise TraceError for what is not Features, or those of other weights than the model's."""
    if not isinstance(features, Features):
        raise TraceError(
            f"features={features!r:.80}: expected what minibert.features.load gives, for example "
            'features=minibert.features.load("tiny-gpt2").'
        )
    features.check_model(model, name)


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """A dictionary at its place in a model.

    reads    what activations are computed from
    writes   what they are parts of: the same of an autoencoder, an output of a transcoder
    """

    dictionary: Dictionary
    reads: Spot
    writes: Spot
    name: str = ""

    def __len__(self) -> int:
        """How many features there are."""
        return len(self.dictionary.W_dec)

    def __repr__(self) -> str:
        where = " to ".join(f"{name} {layer}" for name, layer in dict.fromkeys(self._spots))
        return f"Features({self.name}: {len(self)} of {where}, {self.dictionary.activation})"

    @property
    def _spots(self) -> tuple[Spot, Spot]:
        return self.reads, self.writes

    def read(self, trace: Trace) -> "Activations":
        """The activation of each feature at each position, and what they leave over.

        In float32 at least. Of a trace with grad=True they can be differentiated.
        Raises TraceError where the model has no such place, vectors of another width, or other
        weights than the files say.
        """
        if not isinstance(trace, Trace) or trace.allowed.packed is not None:
            raise TraceError("features.read: expected a trace, or of packed ones trace.text(0).")
        if self.dictionary.centres and trace.config.norm != "layer":
            raise TraceError(
                f"{self!r} are of centred weights (center_writing_weights), and those of "
                f"{trace.config.model_type} cannot be centred: its norm takes no mean away."
            )
        self.check_model(trace.model, trace.model_name)
        x = _wide(_flat(trace, self.reads))
        whole = x if self.reads == self.writes else _wide(_flat(trace, self.writes))
        dictionary = self._of_width(x, whole)
        acts = dictionary.encode(x)
        scale, shift = torch.ones_like(x[..., :1]), torch.zeros_like(x[..., :1])
        if self.reads == self.writes:
            _, scale, shift = dictionary.normalized(x)
        constant = dictionary.b_dec * scale + shift
        skip = None if dictionary.W_skip is None else x @ dictionary.W_skip
        decoded = (acts @ dictionary.directions) * scale + constant
        decoded = decoded if skip is None else decoded + skip
        return Activations(
            acts,
            "batch position feature",
            title=f"features of {self.reads.name} {self.reads.layer}",
            unit="activation",
            tokens=trace.tokens.strings,
            features=self,
            trace=trace,
            scale=scale,
            decoded=decoded,
            error=whole - decoded,
            others={"bias": constant} | ({} if skip is None else {"skip": skip}),
        )

    def check_model(self, model: object, name: str) -> None:
        """Raise TraceError where the files say that they are of other weights than the model's."""
        told = self.dictionary.model_weights
        compared = told and isinstance(model, nn.Module) and _is_float32(model)
        if compared and weights_digest(cast(nn.Module, model)) != told:
            raise TraceError(
                f"{self!r} are of another model: the weights of {name} differ from those that "
                "the files name. If that is meant, features.load(..., other_model=True)."
            )

    def edit(
        self,
        values: Mapping[int, NewActivation],
        *,
        trace: Trace | None = None,
        positions: Chosen = None,
        sentences: Chosen = None,
    ) -> dict[tuple[str, int], Edit]:
        """The edit that gives features other activations, for `edit=`, `rerun` and the like.

        A value is a number or a function of the activations, (batch, position). Other features
        and the error stay as they are. Of a transcoder the activations are those in `trace`, the
        run without the edit, as its input is not what is edited.

        Raises EditError for a feature that is not there, and for a transcoder without a trace.
        """
        if not isinstance(values, Mapping) or not values:
            raise EditError("features.edit: expected features and their values, as {17: 0.0}.")
        new = {check_index("feature", n, len(self), EditError): v for n, v in values.items()}
        if len(new) < len(values):
            raise EditError("features.edit: a feature is named twice, once from the end.")
        for number, value in new.items():
            real = isinstance(value, int | float) and not isinstance(value, bool)
            if not callable(value) and not (real and math.isfinite(value)):
                raise EditError(
                    f"feature {number}: {value!r:.80}; expected a number or a function."
                )
        key = self.writes.name, self.writes.layer
        if self.reads != self.writes:
            if trace is None:
                raise EditError("These features read another place: give trace=, the run to edit.")
            found = self.read(trace)
            whole = (found.decoded + found.error).detach()
            whole = whole + self._moved(found.values.detach(), found.scale, new)
            edit = replace(whole.to(trace.embed.dtype))
            return {key: edit.at(positions=positions, sentences=sentences)}

        def change(value: Tensor) -> Tensor:
            x = value.transpose(1, 2).flatten(2) if self.writes.name == "z" else value
            dictionary = self._of_width(_wide(x), x)
            _, scale, _ = dictionary.normalized(_wide(x))
            more = self._moved(dictionary.encode(_wide(x)), scale, new).to(value.dtype)
            if self.writes.name == "z":
                more = more.unflatten(2, (value.shape[1], -1)).transpose(1, 2)
            return value + more

        return {key: Edit(Function(change), positions, sentences)}

    def _moved(self, acts: Tensor, scale: Tensor, new: Mapping[int, NewActivation]) -> Tensor:
        """How far the vectors move when features get these activations."""
        old = acts[..., list(new)]
        after = [
            checked_result(value(one.clone()), kind_of(one), f"feature {number}: the function")
            if callable(value) else torch.full_like(one, value)
            for (number, value), one in zip(new.items(), old.unbind(-1), strict=True)
        ]  # fmt: skip
        directions = self.dictionary.like(acts).directions[list(new)]
        return ((torch.stack(after, -1) - old) @ directions) * scale

    def _of_width(self, x: Tensor, whole: Tensor) -> Dictionary:
        widths, own = (x.shape[-1], whole.shape[-1]), self.dictionary
        if widths != (expected := (own.W_enc.shape[0], own.W_dec.shape[1])):
            raise TraceError(
                f"{self!r} are of vectors of {expected[0]} and {expected[1]} numbers, and this "
                f"model's have {widths[0]} and {widths[1]}: they belong to another model."
            )
        return own.like(x)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Activations(Result[Tensor]):
    """Activations (batch, position, feature) in a trace; decoded + error is what they explain.

    What stands at padding says nothing, as in every quantity of a trace.

    decoded   what features, biases and skip add up to
    error     what the dictionary does not explain
    others    the parts of `decoded` that belong to no feature: "bias", and "skip" if any
    scale     what an activation's direction is multiplied by, where vectors are normalised
    """

    features: Features = field(repr=False)
    trace: Trace = field(repr=False)
    decoded: Flat = field(repr=False)
    error: Flat = field(repr=False)
    others: Mapping[str, Flat] = field(repr=False)
    scale: Float[Tensor, "batch position 1"] = field(repr=False)

    @property
    def grad(self) -> Float[Tensor, "batch position feature"]:
        """How much the number of `trace.backward` grows with each activation, the error held.

        That of the error is `trace.grad` of what the features write to.
        """
        slope = _wide(_of_heads(self.trace.grad[self.features.writes.layer], self.features.writes))
        return (slope * self.scale) @ self.features.dictionary.like(slope).directions.mT


def _wide(x: Tensor) -> Tensor:
    """x in float32 at least, with its gradient."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _is_float32(model: nn.Module) -> bool:
    return all(one.dtype == torch.float32 for one in held(model))


def _of_heads(at: object, spot: Spot) -> Tensor:
    """The quantity of a layer, heads side by side: (batch, position, width)."""
    value: Tensor = getattr(at, spot.name)
    return value.transpose(1, 2).flatten(2) if spot.name == "z" else value


def _flat(trace: Trace, spot: Spot) -> Hidden:
    """The vectors there. Raises TraceError where the model does not have them."""
    at, (name, layer) = trace[spot.layer], spot
    block = trace.model.body.layers[layer]
    if name in ("attn_out", "mlp_out"):
        kind = "attention" if name == "attn_out" else "mlp"
        if getattr(block, f"{kind}_output_norm") is not None:
            raise TraceError(
                f"{name} of {trace.config.model_type} goes through a norm before the stream, and "
                "features are of what is behind it, which is not a quantity here."
            )
    if name not in ("mlp_input", "mlp_normalized"):
        return _of_heads(at, spot)
    with trace.as_made():
        if name == "mlp_input":
            return trace.at(layer).mlp_input
        x = at.quantity("resid_pre" if block.parallel else "resid_mid")
        if block.after or block.mlp_norm is None:
            raise TraceError(f"{trace.config.model_type} has no norm in front of the MLP.")
        scale = kept_scale(at, "mlp_norm")
        scale = deviation(block.mlp_norm, _wide(x)) if scale is None else scale
        return centred(block.mlp_norm, _wide(x)) / scale
