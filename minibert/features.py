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
from minibert.layers.parts import centred, deviation
from minibert.quantities import Float, Hidden
from minibert.result import Result
from minibert.trace.edit import Chosen, Edit, Function, checked_result, kind_of, replace
from minibert.trace.identity import weights_digest
from minibert.trace.layer_view import kept_scale
from minibert.trace.read import Trace

__all__ = ["Activations", "CrossLayerFeatures", "Features", "load"]

#: A new activation, or a function of the old ones, (batch, position).
NewActivation = float | Callable[[Tensor], Tensor]
#: Of a cross-layer transcoder the layer's axis comes first.
Flat = Float[Tensor, "*layer batch position width"]
#: A feature's number, or of a cross-layer transcoder (layer, number).
Name = int | tuple[int, int]


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
    the transcoders), circuit-tracer's sets of transcoders (config.yaml, layer_N.safetensors), of
    which `layer` says one, and its cross-layer transcoders (config.yaml, W_enc_N.safetensors,
    W_dec_N.safetensors), as `CrossLayerFeatures`. `revision`, `cache_dir` and `offline` are those
    of `minibert.load`.
    Few files name their model (`model_weights` in cfg.json); of those that do, a trace
    of other weights in float32 is refused, unless `other_model`.

    Raises CheckpointError for what cannot be found, fetched or read, and for a field that would
    change the numbers and is not honoured.
    """
    layers = open_dictionary(name, layer, revision=revision, cache_dir=cache_dir, offline=offline)
    check_flag("other_model", other_model, CheckpointError)
    dictionary, reads, writes = layers[0]
    if dictionary.later:
        every = tuple(Features(*each, str(name)) for each in layers)
        return CrossLayerFeatures(dictionary, reads, writes, str(name), every)
    dictionary = replace_in(dictionary, model_weights="") if other_model else dictionary
    return Features(dictionary, reads, writes, str(name))


def check_features(features: object, model: object, name: str) -> None:
    """Raise TraceError for what is not Features, those of other weights, or of several places."""
    if not isinstance(features, Features):
        raise TraceError(
            f"features={features!r:.80}: expected what minibert.features.load gives, for example "
            'features=minibert.features.load("tiny-gpt2").'
        )
    if len(features.places) > 1:
        raise TraceError(f"A page splits by features of one place, and not by {features!r}.")
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

    @property
    def places(self) -> tuple[Spot, ...]:
        """What they are parts of: of a cross-layer transcoder an output a layer."""
        return (self.writes,)

    def named(self, number: int) -> tuple[int, int]:
        """The layer and the number there of a feature, counted over all layers."""
        return self.writes.layer, number

    def numbered(self, name: Name) -> int:
        """The number of a feature over all layers. Raises EditError for one that is not there."""
        return check_index("feature", name, len(self), EditError)

    def directions(self, place: Spot, numbers: Tensor, like: Tensor) -> Float[Tensor, "some width"]:
        """What an activation of 1 of these features adds at a place, in the dtype of `like`."""
        return self.dictionary.like(like).directions[numbers]

    def read(self, trace: Trace) -> "Activations":
        """The activation of each feature at each position, and what they leave over.

        In float32 at least. Of a trace with grad=True they can be differentiated.
        Raises TraceError where the model has no such place, vectors of another width, or other
        weights than the files say.
        """
        if not isinstance(trace, Trace) or trace.allowed.packed is not None:
            raise TraceError("features.read: expected a trace; of packed texts, trace.text(0).")
        if self.dictionary.centres and trace.config.norm != "layer":
            raise TraceError(
                f"{self!r} are of centred weights (center_writing_weights), and those of "
                f"{trace.config.model_type} cannot be centred: its norm takes no mean away."
            )
        self.check_model(trace.unchanged_model(), trace.model_name)
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
        values: Mapping[Name, NewActivation],
        *,
        trace: Trace | None = None,
        positions: Chosen = None,
        sentences: Chosen = None,
    ) -> dict[tuple[str, int], list[Edit]]:
        """The edit that gives features other activations, for `edit=`, `rerun` and the like.

        A value is a number or a function of the activations, (batch, position). Other features
        and the error stay as they are. Of a transcoder the activations are those in `trace`, the
        run without the edit, as its input is not what is edited. That of a cross-layer transcoder
        holds what later MLPs gave, at all positions: their answer to a feature is part of what the
        feature writes (the "constrained patching" of Ameisen et al. 2025).

        Raises EditError for a feature that is not there, and for a transcoder without a trace.
        """
        if not isinstance(values, Mapping) or not values:
            raise EditError("features.edit: expected features and their values, as {17: 0.0}.")
        new = {self.numbered(name): value for name, value in values.items()}
        if len(new) < len(values):
            raise EditError("features.edit: a feature is named twice, once from the end.")
        for name, value in values.items():
            real = isinstance(value, int | float) and not isinstance(value, bool)
            if not callable(value) and not (real and math.isfinite(value)):
                raise EditError(f"feature {name}: {value!r:.80}; expected a number or a function.")
        if self.reads != self.writes or len(self.places) > 1:
            if trace is None:
                raise EditError("These features read another place: give trace=, the run to edit.")
            found, first = self.read(trace), min(self.named(n)[0] for n in new)
            edits = dict[tuple[str, int], list[Edit]]()
            wholes = found.by_place(found.decoded + found.error).detach().to(trace.embed.dtype)
            for place, whole in zip(self.places, wholes, strict=True):
                if place.layer >= first:
                    moved = self._moved(found.flat.detach(), found.scale, new, place).to(whole)
                    edit = replace(whole + moved).at(positions=positions, sentences=sentences)
                    edits[place] = [replace(whole)] * (place.layer > first) + [edit]
            return edits

        def change(value: Tensor) -> Tensor:
            x = value.transpose(1, 2).flatten(2) if self.writes.name == "z" else value
            dictionary = self._of_width(_wide(x), x)
            _, scale, _ = dictionary.normalized(_wide(x))
            acts = dictionary.encode(_wide(x))
            more = self._moved(acts, scale, new, self.writes).to(value.dtype)
            if self.writes.name == "z":
                more = more.unflatten(2, (value.shape[1], -1)).transpose(1, 2)
            return value + more

        return {self.writes: [Edit(Function(change), positions, sentences)]}

    def _moved(
        self, acts: Tensor, scale: Tensor, new: Mapping[int, NewActivation], place: Spot
    ) -> Tensor:
        """How far the vectors at a place move when features get these activations."""
        old = acts[..., list(new)]
        after = [
            checked_result(value(one.clone()), kind_of(one), f"feature {number}: the function")
            if callable(value) else torch.full_like(one, value)
            for (number, value), one in zip(new.items(), old.unbind(-1), strict=True)
        ]  # fmt: skip
        directions = self.directions(place, torch.tensor(list(new), device=acts.device), acts)
        return ((torch.stack(after, -1) - old) @ directions) * scale

    def _of_width(self, x: Tensor, whole: Tensor) -> Dictionary:
        widths, own = (x.shape[-1], whole.shape[-1]), self.dictionary
        if widths != (expected := (own.W_enc.shape[0], own.W_dec.shape[1])):
            raise TraceError(
                f"{self!r} are of vectors of {expected[0]} and {expected[1]} numbers, and this "
                f"model's have {widths[0]} and {widths[1]}: they belong to another model."
            )
        return own.like(x)


@dataclass(frozen=True, eq=False, repr=False)
class CrossLayerFeatures(Features):
    """A cross-layer transcoder: features of every layer's MLP input, parts of all later outputs.

        activations of layer l = activation(x_l · W_enc_l + b_enc_l)
        decoded of layer m     = Σ_{l ≤ m} activations of layer l · W_dec_l[m − l] + b_dec_m

    `layers` are its transcoders, each without what it adds to later layers. A feature is named by
    (layer, number).

    Sources: Ameisen et al. 2025, "Circuit tracing"; `CrossLayerTranscoder` of circuit-tracer 0.5.
    """

    layers: tuple[Features, ...] = ()

    def __len__(self) -> int:
        """How many features there are, those of all layers together."""
        return len(self.layers) * len(self.dictionary.W_dec)

    def __repr__(self) -> str:
        places = f"{self.reads.name} to {self.writes.name} of {len(self.layers)} layers"
        return f"CrossLayerFeatures({self.name}: {len(self)} of {places})"

    @property
    def places(self) -> tuple[Spot, ...]:
        """The output of each layer's MLP."""
        return tuple(one.writes for one in self.layers)

    def named(self, number: int) -> tuple[int, int]:
        """The layer and the number there of a feature, counted over all layers."""
        return divmod(number, len(self.dictionary.W_dec))

    def numbered(self, name: Name) -> int:
        """The number of a feature over all layers. Raises EditError for one that is not there."""
        if not isinstance(name, tuple) or len(name) != 2:
            raise EditError(f"feature {name!r:.80}: expected (layer, number), as {{(3, 17): 0.0}}.")
        count = len(self.dictionary.W_dec)
        layer = check_index("layer", name[0], len(self.layers), EditError)
        return layer * count + check_index("feature", name[1], count, EditError)

    def directions(self, place: Spot, numbers: Tensor, like: Tensor) -> Float[Tensor, "some width"]:
        """What an activation of 1 of these features adds at a place: 0 of those of later layers."""
        count = len(self.dictionary.W_dec)
        found = like.new_zeros(len(numbers), self.dictionary.W_dec.shape[1])
        for layer in range(place.layer + 1):
            own, of_layer = self.layers[layer].dictionary, numbers // count == layer
            decoder = (own.W_dec, *own.later)[place.layer - layer]
            found[of_layer] = decoder[(numbers[of_layer] % count).to(decoder.device)].to(like)
        return found

    def read(self, trace: Trace) -> "Activations":
        """The activations (layer, batch, position, feature), as by `Features.read`."""
        found = [each.read(trace) for each in self.layers]
        values = torch.stack([each.values for each in found])
        flat, count = values.movedim(0, 2).flatten(2), values.shape[-1]
        active = (flat != 0).flatten(0, 1).any(0).nonzero()[:, 0]
        earlier = list[Tensor]()
        for place in self.places:
            some = active[active < place.layer * count]
            earlier.append(flat[..., some] @ self.directions(place, some, flat))
        more = torch.stack(earlier)
        return Activations(
            values,
            "layer batch position feature",
            title=f"features of {self.reads.name}",
            unit="activation",
            tokens=trace.tokens.strings,
            features=self,
            trace=trace,
            scale=found[0].scale,
            decoded=torch.stack([each.decoded for each in found]) + more,
            error=torch.stack([each.error for each in found]) - more,
            others={"bias": torch.stack([each.others["bias"] for each in found])},
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Activations(Result[Tensor]):
    """Activations (batch, position, feature) in a trace; decoded + error is what they explain.

    For a cross-layer transcoder they are (layer, batch, position, feature), and `decoded` has the
    axis of layers too. Values at padding mean nothing, as in every quantity of a trace.

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
    def flat(self) -> Float[Tensor, "batch position feature"]:
        """The activations of all layers side by side."""
        values = self.values
        return values if values.ndim == 3 else values.movedim(0, 2).flatten(2)

    def by_place(self, x: Flat) -> Float[Tensor, "place batch position width"]:
        """What was decoded, or the like, at each of the features' places."""
        return x if x.ndim == 4 else x[None]

    @property
    def grad(self) -> Float[Tensor, "*layer batch position feature"]:
        """How much the number of `trace.backward` grows with each activation, the error held.

        That of the error is `trace.grad` of what the features write to. Of a cross-layer transcoder
        Later MLPs answer too, unless an edit of the trace holds what they give.
        """
        own, trace = self.features, self.trace
        slopes = {at: _wide(_of_heads(trace.grad[at.layer], at)) * self.scale for at in own.places}
        found = [
            torch.stack(
                [slope @ own.directions(at, numbers, slope).mT for at, slope in slopes.items()]
            ).sum(0)
            for numbers in torch.arange(len(own), device=self.scale.device).split(
                self.values.shape[-1]
            )
        ]
        return found[0] if self.values.ndim == 3 else torch.stack(found)


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
    block = trace.unchanged_model().body.layers[layer]
    if name in ("attn_out", "mlp_out"):
        kind = "attention" if name == "attn_out" else "mlp"
        if getattr(block, f"{kind}_output_norm") is not None:
            raise TraceError(
                f"{name} of {trace.config.model_type} goes through a norm before the stream. "
                "The features describe the output of that norm, which is not a quantity here."
            )
    if name not in ("mlp_input", "mlp_normalized"):
        return _of_heads(at, spot)
    with trace.as_made():
        if name == "mlp_input":
            return trace.at(layer).mlp_input
        x = at.quantity("resid_pre" if block.parallel else "resid_mid")
        if block.after or block.mlp_norm is None:
            raise TraceError(f"{trace.config.model_type} has no norm before the MLP.")
        scale = kept_scale(at, "mlp_norm")
        scale = deviation(block.mlp_norm, _wide(x)) if scale is None else scale
        return centred(block.mlp_norm, _wide(x)) / scale
