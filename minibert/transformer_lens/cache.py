"""The cache of TransformerLens' `run_with_cache`: quantities by its names, stacked and attributed.

`ActivationCache` is what a hooked model fills; `TransformerLensCache`, which
`trace.to_transformer_lens()` makes, is the same over a trace, and reads it when it is read.
Arguments, axes and labels are those of ActivationCache in TransformerLens 3.9; a stack begins with
the axis of its components. Names, axes and numbers are those of HookedTransformer (GPT-2, Pythia,
Llama and other models whose norms do not follow the sum with the stream) and HookedEncoder (BERT)
with the processing of weights off. docs/transformer_lens.md has the table of names.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from minibert.errors import TokenizationError, TraceError
from minibert.layers.heads import VocabularyHead
from minibert.layers.norms import RMSNorm
from minibert.quantities import Float
from minibert.text.tokenizer import Tokenizer
from minibert.trace.run import TracedModel
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.names import (
    Slice,
    UnknownNameError,
    as_slice,
    layer_number,
    whole_name,
)
from minibert.transformer_lens.points import CachedTrace, readers

Stack = Float[Tensor, "component *place d_model"]
Directions = Float[Tensor, "width *direction"]
TokenDirections = Float[Tensor, "*place d_model"]
Change = Callable[[Tensor], Tensor]
Cache = TypeVar("Cache", bound="ActivationCache")
ALL = Slice()
Stacked = Stack | tuple[Stack, list[str]]
_MODES = ("all", "mlp", "attn")

if TYPE_CHECKING:
    Base = Mapping[str, Tensor]
    Whole = int
else:
    # Without type arguments: a run-time type checker would read an item to check it, and so
    # compute it.
    Base = Mapping
    # `layer_number` checks it, with an error that says what was expected.
    Whole = object


class Readings(Base):
    """Tensors that are computed when they are read, each by a function, and then changed."""

    def __init__(
        self, functions: Mapping[str, Callable[[], Tensor]], change: Change = lambda value: value
    ) -> None:
        self.functions = functions
        self.change = change

    def __getitem__(self, name: str, /) -> Tensor:
        """The tensor of that name, computed now."""
        return self.change(self.functions[name]())

    def __contains__(self, name: object) -> bool:
        return name in self.functions

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)


@runtime_checkable
class CachedModel(Protocol):
    """What a cache reads of the hooked model it comes from."""

    @property
    def model(self) -> TracedModel:
        """minibert's model."""

    @property
    def cfg(self) -> HookedTransformerConfig:
        """The facts about it."""


class ActivationCache(Base):
    """A mapping from the names of hook points, or shorthands of them, to tensors.

    cache_dict      the tensors by full name
    model           the HookedTransformer that they come from
    has_batch_dim   whether they have an axis of sentences

    `attn.hook_result` need not be kept: it is computed from hook_z where it is read.
    """

    model: CachedModel

    def __init__(
        self, cache_dict: Mapping[str, Tensor], model: CachedModel, has_batch_dim: bool = True
    ) -> None:
        self.model = model
        self._begin(cache_dict, model.model, has_batch_dim)

    of: TracedModel
    """minibert's model."""

    def _begin(self, kept: Base, of: TracedModel, has_batch_dim: bool) -> None:
        self._kept, self.of, self.has_batch_dim = kept, of, has_batch_dim

    @property
    def cache_dict(self) -> dict[str, Tensor]:
        """The tensors by full name; those of a trace are computed now."""
        return self._kept if isinstance(self._kept, dict) else dict(self._kept)

    @property
    def has_embed(self) -> bool:
        """Whether the embeddings of words are kept."""
        return "hook_embed" in self._kept

    @property
    def has_pos_embed(self) -> bool:
        """Whether the embeddings of positions are kept."""
        return "hook_pos_embed" in self._kept

    def __getitem__(self, key: Any, /) -> Tensor:
        """The tensor of that name, or of a shorthand: ("pattern", 1), ("scale", 0, "ln1"), "k3".

        Raises TraceError (a KeyError too) for what is not there.
        """
        name = self._whole(key)
        if name is not None and name in self._kept:
            return self._kept[name]
        if self._has_z_of(name):
            layer = int(str(name).split(".")[1])
            return self._head_results(self["z", layer], layer)
        raise UnknownNameError(self._missing(key, name))

    def __contains__(self, key: object) -> bool:
        name = self._whole(key)
        return name in self._kept or self._has_z_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"ActivationCache with keys {list(self._kept)}"

    def compute_head_results(self) -> None:
        """From now on the cache keeps `attn.hook_result`: what each head adds to the stream."""
        names = [f"blocks.{layer}.attn.hook_result" for layer in range(self._n_layers)]
        self._kept = {**self._kept, **{name: self[name] for name in names}}

    def remove_batch_dim(self: Cache) -> Cache:
        """This cache, without the axis of sentences from now on.

        Raises TraceError for several sentences.
        """
        if self.has_batch_dim:
            several = {len(x) for x in self._samples() if x.dim()} - {1}
            if several:
                raise TraceError(f"remove_batch_dim: there are {several} sentences; expected one.")
            self._kept = self._changed(lambda value: value[0] if value.dim() else value)
            self.has_batch_dim = False
        return self

    def apply_slice_to_batch_dim(self, batch_slice: Any) -> "ActivationCache":
        """Another cache with some of the sentences; an int leaves no axis of them."""
        if not self.has_batch_dim:
            raise TraceError("This cache has no axis of sentences to slice.")
        chosen = as_slice(batch_slice)
        cut: ActivationCache = object.__new__(type(self))
        vars(cut).update(vars(self))
        cut._begin(self._changed(chosen.apply), self.of, chosen.mode != "int")
        return cut

    def to(self: Cache, device: torch.device | str) -> Cache:
        """This cache, its tensors on that device."""
        self._kept = self._changed(lambda value: value.to(device))
        return self

    def toggle_autodiff(self, mode: bool = False) -> None:
        """`torch.set_grad_enabled(mode)`: for all of torch, as in TransformerLens."""
        torch.set_grad_enabled(mode)

    def _changed(self, change: Change) -> Mapping[str, Tensor]:
        kept = self._kept
        if isinstance(kept, Readings):
            before = kept.change
            return Readings(kept.functions, lambda value: change(before(value)))
        return {name: change(value) for name, value in kept.items()}

    def _samples(self) -> list[Tensor]:
        """Tensors whose first axis is asked about: all, or one where each has to be computed."""
        count = 1 if isinstance(self._kept, Readings) else len(self._kept)
        return [self._kept[name] for name in list(self._kept)[:count]]

    def _whole(self, key: object) -> str | None:
        known = isinstance(key, str) and key in self._kept
        return str(key) if known else whole_name(key, self._n_layers)

    def _has_z_of(self, name: str | None) -> bool:
        if name is None or not name.endswith(".attn.hook_result"):
            return False
        return name.removesuffix("result") + "z" in self._kept

    def _missing(self, key: object, name: str | None) -> str:
        return (
            f"{key!r:.80} ({name!s:.80}) is not in this cache of {len(self)} names. Either it is "
            "no hook point (`model.hook_dict` has them), or names_filter or stop_at_layer took it "
            "out."
        )

    def accumulated_resid(
        self,
        layer: Whole | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: Any = None,
        mlp_input: bool = False,
        return_labels: bool = False,
    ) -> Stacked:
        """The stream before each layer up to `layer`, stacked: what a logit lens reads.

        layer       the last layer whose input is in it; None, -1 and n_layers: all layers, and the
                    stream after the last one
        incl_mid    the stream between attention and MLP too, of the layers before `layer`
        mlp_input   that of `layer` itself too
        apply_ln    each as `layer` reads it: after its norm's division by the scale of this pass;
                    at the end the last norm itself, with the scale of each stream
        pos_slice   the positions, see `Slice`
        return_labels   (stack, labels), of the form "0_pre", "0_mid", "final_post"

        Raises TraceError for a model whose norms follow the sum, and a KeyError that is one too for
        a quantity that is not in the cache, such as resid_mid of a parallel model.
        """
        count, at = self._up_to(layer, mlp_input), as_slice(pos_slice)
        names: list[tuple[str, int]] = []
        for number in range(min(count + 1, self._n_layers)):
            names.append(("resid_pre", number))
            if (incl_mid and number < count) or (mlp_input and number == count):
                names.append(("resid_mid", number))
        labels = [f"{number}_{name.removeprefix('resid_')}" for name, number in names]
        if count == self._n_layers:
            names.append(("resid_post", count - 1))
            labels.append("final_post")
        stack = torch.stack([at.apply(self[name], -2) for name in names])
        if apply_ln and count == self._n_layers:
            stack = self._final(stack)
        elif apply_ln:
            stack = self.apply_ln_to_stack(stack, count, mlp_input=mlp_input, pos_slice=at)
        return (stack, labels) if return_labels else stack

    def decompose_resid(
        self,
        layer: Whole | None = None,
        mlp_input: bool = False,
        mode: str = "all",
        apply_ln: bool = False,
        pos_slice: Any = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
    ) -> Stacked:
        """What was added to the stream before `layer`, stacked: with mode "all" they sum to it.

        layer       None, -1 and n_layers: everything; 0: the embeddings
        mlp_input   attn_out of `layer` too, so that the sum is what its MLP reads
        mode        "all", "attn" or "mlp": which blocks
        apply_ln    each divided as `layer` divides the stream, see `apply_ln_to_stack`
        incl_embeds the embeddings of words and positions too
        return_labels   (stack, labels), of the form "embed", "pos_embed", "0_attn_out", "0_mlp_out"

        Raises TraceError as `accumulated_resid` does, and for another `mode`.
        """
        if mode not in _MODES:
            raise TraceError(f"mode={mode!r:.80}: expected one of {', '.join(_MODES)}.")
        count, at = self._up_to(layer, mlp_input), as_slice(pos_slice)
        labels = self._embeds() if incl_embeds else []
        names: list[Any] = [f"hook_{label}" for label in labels]
        blocks = [block for block in ("attn", "mlp") if mode in ("all", block)]
        for number in range(count):
            names += [(f"{block}_out", number) for block in blocks]
            labels += [f"{number}_{block}_out" for block in blocks]
        if mlp_input and "attn" in blocks:
            names.append(("attn_out", count))
            labels.append(f"{count}_attn_out")
        if not names:
            raise TraceError(
                f"decompose_resid(layer={count}, incl_embeds=False): nothing was added before it."
            )
        stack = torch.stack([at.apply(self[name], -2) for name in names])
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, count, mlp_input=mlp_input, pos_slice=at)
        return (stack, labels) if return_labels else stack

    def apply_ln_to_stack(
        self,
        residual_stack: Stack,
        layer: Whole | None = None,
        mlp_input: bool = False,
        pos_slice: Any = None,
        batch_slice: Any = None,
        has_batch_dim: bool = True,
        recompute_ln: bool = False,
    ) -> Float[Tensor, "component *others d_model"]:
        """A stack divided as the norm in front of `layer` divided the whole stream of this pass.

        (x − mean(x)) / scale, of an RMSNorm x / scale, without the norm's weight and bias. So the
        results of parts of the stream sum to the result of their sum.

        layer       None, -1 and n_layers: the last norm; mlp_input: the norm of the layer's MLP
        pos_slice, batch_slice   of the scale: `residual_stack` has these positions alone already;
                    the sentences are taken of both
        has_batch_dim   whether `residual_stack` has the axis of sentences
        recompute_ln    at the end: the last norm itself, with the scale of each part
        """
        number, sentences = self._up_to(layer, mlp_input), as_slice(batch_slice)
        if has_batch_dim:
            residual_stack = sentences.apply(residual_stack, 1)
        if recompute_ln and number == self._n_layers:
            return self._final(residual_stack)
        if not self._norms_by_rms:
            residual_stack = residual_stack - residual_stack.mean(-1, keepdim=True)
        return residual_stack / self._scale(number, mlp_input, as_slice(pos_slice), sentences)

    def stack_activation(
        self, activation_name: str, layer: Whole | None = -1, sublayer_type: str | None = None
    ) -> Float[Tensor, "layer *rest"]:
        """One quantity of all layers before `layer`, stacked; -1 or None means all layers.

        Raises TraceError (a KeyError too) for a name that no layer has and a layer beyond the end.
        """
        count = self._layers_before(layer)
        if not count:
            raise UnknownNameError(
                f"layer={layer} has no layers before it to stack; expected 1 to {self._n_layers}, "
                "or -1 for all."
            )
        return torch.stack(
            [self[activation_name, number, sublayer_type] for number in range(count)]
        )

    def _scale(self, layer: int, mlp_input: bool, at: Slice, sentences: Slice) -> Tensor:
        of_layer = f"blocks.{layer}.ln{2 if mlp_input else 1}"
        norm = "ln_final" if layer == self._n_layers else of_layer
        whole = self[f"{norm}.hook_scale"]
        if whole.dim() != 2 + self.has_batch_dim:
            raise TraceError(
                f"{norm}.hook_scale is that of each head's input here, and not of the stream; "
                "cache with use_split_qkv_input and use_attn_in switched off."
            )
        scale = at.apply(whole, -2)
        return sentences.apply(scale) if self.has_batch_dim else scale

    def _final(self, stack: Stack) -> Stack:
        norm = self.of.body.final_norm
        return stack if norm is None else norm(stack)

    @property
    def _n_layers(self) -> int:
        return self.of.config.n_layers

    @property
    def _norms_by_rms(self) -> bool:
        return isinstance(self.of.body.final_norm, RMSNorm)

    def _embeds(self) -> list[str]:
        return [name for name in ("embed", "pos_embed") if f"hook_{name}" in self]

    def _layers_before(self, layer: Whole | None) -> int:
        """How many layers a stack covers."""
        count = -1 if layer is None else layer_number(layer)
        count = self._n_layers if count == -1 else count
        if count is None or not 0 <= count <= self._n_layers:
            raise UnknownNameError(
                f"layer={layer!r:.80} is not in the model; expected 1 to {self._n_layers}, or -1 "
                "for all layers (0: none of them)."
            )
        return count

    def _up_to(self, layer: Whole | None, mlp_input: bool) -> int:
        """The layer that the stream enters, of a model where such a sum exists."""
        config, count = self.of.config, self._layers_before(layer)
        if not config.pre_norm:
            raise TraceError(
                f"The stream of {config.model_type} goes through a norm after each block, so it is "
                "no sum of what they add; minibert.analysis.decompose gives each part a share."
            )
        if mlp_input and count == self._n_layers:
            raise TraceError(
                f"mlp_input=True with layer={layer}: there is no MLP behind the last layer; "
                f"expected a layer from 0 to {self._n_layers - 1}."
            )
        if mlp_input and config.parallel:
            raise TraceError(
                f"mlp_input=True: the MLP of {config.model_type} reads the stream that attention "
                "reads. Leave mlp_input out."
            )
        return count

    def stack_head_results(
        self,
        layer: Whole | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: Any = None,
        apply_ln: bool = False,
    ) -> Stacked:
        """What each head of the layers before `layer` adds to the stream, layer after layer.

        incl_remainder  and last what else is in the stream there
        apply_ln        each divided as `layer` divides the stream, see `apply_ln_to_stack`
        return_labels   (stack, labels), of the form "L0H0"

        Raises TraceError where heads do not add to the stream: in a model whose norms follow the
        block or the sum.
        """
        count, at = self._summands(layer), as_slice(pos_slice)
        stack, labels = self._heads(count, at)
        return self._finished(stack, labels, count, at, incl_remainder, apply_ln, return_labels)

    def get_neuron_results(
        self,
        layer: Whole,
        neuron_slice: Any = None,
        pos_slice: Any = None,
        project_output_onto: Directions | None = None,
    ) -> Float[Tensor, "*place out"]:
        """What each neuron of a layer adds to the stream: mlp_post of it times its row of W_out.

        The axes are those of mlp_post and d_model, or the axes of `project_output_onto`, a
        direction (d_model) or several (d_model, direction), instead of d_model.
        """
        number = self._layers_before(layer)
        if number == self._n_layers:
            raise TraceError(f"layer={layer}: expected one from 0 to {self._n_layers - 1}.")
        neurons, at = as_slice(neuron_slice), as_slice(pos_slice)
        onto, flat = _columns(project_output_onto)
        found = self._neurons(number, neurons, at, onto)
        return found.squeeze(-1) if flat else found

    def stack_neuron_results(
        self,
        layer: Whole | None,
        pos_slice: Any = None,
        neuron_slice: Any = None,
        return_labels: bool = False,
        incl_remainder: bool = False,
        apply_ln: bool = False,
        project_output_onto: Directions | None = None,
    ) -> Stacked:
        """What each neuron of the layers before `layer` adds to the stream.

        A stack of (layer x neuron, batch, position, d_model): large, unless `pos_slice` or
        `neuron_slice` cut it, or `project_output_onto` names the directions of interest.
        Labels have the form "L0N0". The rest is as in `stack_head_results`.
        """
        count, at = self._summands(layer), as_slice(pos_slice)
        neurons = Slice.unwrap(neuron_slice)
        onto, flat = _columns(project_output_onto)
        scale = None
        if apply_ln and onto is not None:
            # The division is linear, so it can be made in front of the projection.
            scale = self._scale(count, False, at, ALL)
        layers = range(count)
        found = [
            self._neurons(number, neurons, at, onto, scale).movedim(-2, 0) for number in layers
        ]
        stack = self._joined(found, at, onto)
        chosen = neurons.apply(torch.arange(self.of.config.d_mlp)).tolist()
        labels = [f"L{number}N{neuron}" for number in layers for neuron in chosen]
        if onto is None:
            return self._finished(stack, labels, count, at, incl_remainder, apply_ln, return_labels)
        if incl_remainder:
            whole = at.apply(self._stream(count), -2)[None]
            whole = self.apply_ln_to_stack(whole, count, pos_slice=at) if apply_ln else whole
            stack, labels = _with_rest(stack, labels, whole @ onto)
        stack = stack.squeeze(-1) if flat else stack
        return (stack, labels) if return_labels else stack

    def get_full_resid_decomposition(
        self,
        layer: Whole | None = None,
        mlp_input: bool = False,
        expand_neurons: bool = True,
        apply_ln: bool = False,
        pos_slice: Any = None,
        return_labels: bool = False,
        project_output_onto: Directions | None = None,
    ) -> Stacked:
        """All that was added to the stream before `layer`, which it sums to.

        In this order: each head; each neuron, or with expand_neurons=False each MLP; embed;
        pos_embed where there is one; "bias", the sum of the biases b_O and b_out that these
        leave out.
        """
        count, at = self._up_to(layer, mlp_input), as_slice(pos_slice)
        self._summands(count)
        stack, labels = self._heads(count + mlp_input, at)
        onto, flat = _columns(project_output_onto)
        place = at.apply(self["hook_embed"], -2).shape

        def projected(part: Stack) -> Stack:
            if apply_ln:
                part = self.apply_ln_to_stack(part, count, mlp_input=mlp_input, pos_slice=at)
            return part if onto is None else part @ onto

        parts = [projected(stack)]
        if count:
            if expand_neurons:
                scale = self._scale(count, mlp_input, at, ALL) if apply_ln else None
                parts += [
                    self._neurons(n, ALL, at, onto, scale).movedim(-2, 0) for n in range(count)
                ]
                labels += [f"L{n}N{i}" for n in range(count) for i in range(self.of.config.d_mlp)]
            else:
                outputs = [at.apply(self["mlp_out", n], -2) for n in range(count)]
                parts.append(projected(torch.stack(outputs)))
                labels += [f"{n}_mlp_out" for n in range(count)]
        for name in self._embeds():
            parts.append(projected(at.apply(self[f"hook_{name}"], -2)[None]))
        bias = self._biases(count, mlp_input, expand_neurons)
        parts.append(projected(bias.expand(1, *place)))
        whole = torch.cat(parts)
        whole = whole.squeeze(-1) if flat else whole
        return (whole, [*labels, *self._embeds(), "bias"]) if return_labels else whole

    def _heads(self, count: int, at: Slice) -> tuple[Stack, list[str]]:
        """What each head of so many layers adds, and their labels."""
        parts = [at.apply(self._results(layer), -3).movedim(-2, 0) for layer in range(count)]
        heads = range(self.of.config.n_heads)
        return self._joined(parts, at), [f"L{n}H{head}" for n in range(count) for head in heads]

    def _results(self, layer: int) -> Tensor:
        """What each head adds, (..., position, head, d_model)."""
        name = f"blocks.{layer}.attn.hook_result"
        if name in self:
            return self[name]
        return self._head_results(self["z", layer], layer)

    def _head_results(self, z: Tensor, layer: int) -> Tensor:
        """z·W_O of each head, the heads behind the positions."""
        rows = self.of.body.layers[layer].attention.W_O.to(z.device)
        return torch.einsum("...phd,hdm->...phm", z, rows)

    def _neurons(
        self,
        layer: int,
        neurons: Slice,
        at: Slice,
        onto: Directions | None,
        scale: Tensor | None = None,
    ) -> Tensor:
        """What each neuron adds, (..., neuron, d_model or direction); divided by a scale."""
        acts = neurons.apply(at.apply(self["post", layer], -2), -1)
        rows = neurons.apply(self.of.body.layers[layer].mlp.W_out, 0).to(acts.device)
        if scale is not None:
            rows = rows if self._norms_by_rms else rows - rows.mean(-1, keepdim=True)
            acts = acts / scale
        return acts[..., None] * (rows if onto is None else rows @ onto)

    def _biases(self, layer: int, mlp_input: bool, mlps: bool) -> Float[Tensor, " d_model"]:
        layers = self.of.body.layers
        total = torch.zeros_like(layers[0].mlp.W_out[0])
        biases = [each.attention.b_O for each in layers[: layer + mlp_input]]
        biases += [each.mlp.b_out for each in layers[:layer]] if mlps else []
        for bias in biases:
            total = total if bias is None else total + bias
        return total

    def _summands(self, layer: Whole | None) -> int:
        count, config = self._up_to(layer, False), self.of.config
        if config.norm_place != "before":
            raise TraceError(
                f"In {config.model_type} a norm stands behind each block, so heads and neurons are "
                "no parts of the stream. decompose_resid has what each block adds."
            )
        return count

    def _stream(self, layer: int) -> Tensor:
        return self["resid_post", layer - 1] if layer else self["resid_pre", 0]

    def _joined(self, parts: list[Tensor], at: Slice, onto: Directions | None = None) -> Stack:
        if parts:
            return torch.cat(parts)
        like = at.apply(self["hook_embed"], -2)
        return like.new_zeros(0, *like.shape) if onto is None else (like @ onto)[None][:0]

    def _finished(
        self,
        stack: Stack,
        labels: list[str],
        layer: int,
        at: Slice,
        incl_remainder: bool,
        apply_ln: bool,
        return_labels: bool,
    ) -> Stacked:
        if incl_remainder:
            stack, labels = _with_rest(stack, labels, at.apply(self._stream(layer), -2)[None])
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, layer, pos_slice=at)
        return (stack, labels) if return_labels else stack

    def logit_attrs(
        self,
        residual_stack: Stack,
        tokens: Any,
        incorrect_tokens: Any = None,
        pos_slice: Any = None,
        batch_slice: Any = None,
        has_batch_dim: bool = True,
    ) -> Float[Tensor, "component *others"]:
        """What each part of a stack adds to the logit of a token, before its mean and bias.

        The part, divided as the last norm divided the whole stream, times the token's column of
        W_U; with `incorrect_tokens` times the difference of the two columns. The weight of the last
        norm is left out, as in TransformerLens: it is in W_U where the model was folded
        (`fold_ln`); of other models use `minibert.analysis.logit_attribution`.

        tokens      a token as a string or a number, or numbers of shape (batch) or
                    (batch, position), which have to go with the places of the stack
        pos_slice, batch_slice   as in `apply_ln_to_stack`

        Raises TraceError for two kinds of tokens of different shapes, TokenizationError for a
        string that is not one token or an id outside the vocabulary.
        """
        directions = residual_directions(self.of, tokens)
        if incorrect_tokens is not None:
            others = residual_directions(self.of, incorrect_tokens)
            if others.shape != directions.shape:
                raise TraceError(
                    f"tokens of shape {tuple(directions.shape[:-1])} and incorrect_tokens of shape "
                    f"{tuple(others.shape[:-1])}; expected the same shape."
                )
            directions = directions - others
        scaled = self.apply_ln_to_stack(
            residual_stack,
            pos_slice=pos_slice,
            batch_slice=batch_slice,
            has_batch_dim=has_batch_dim,
        )
        return (scaled * directions.to(scaled.device)).sum(-1)


def _with_rest(stack: Tensor, labels: list[str], whole: Tensor) -> tuple[Tensor, list[str]]:
    return torch.cat([stack, whole - stack.sum(0)]), [*labels, "remainder"]


def _columns(onto: Directions | None) -> tuple[Directions | None, bool]:
    """The directions as columns, and whether there was one without an axis of its own."""
    if onto is None or onto.dim() == 2:
        return onto, False
    if onto.dim() != 1:
        raise TraceError(
            f"project_output_onto has the shape {tuple(onto.shape)}; expected (d_model) or "
            "(d_model, direction)."
        )
    return onto[:, None], True


def residual_directions(model: TracedModel, tokens: Any) -> TokenDirections:
    """The columns of W_U of these tokens: (d_model) of one, else the axes of `tokens` before it."""
    head = model.head
    if not isinstance(head, VocabularyHead) or not model.config.generates:
        raise TraceError(f"{model.name} does not predict a next token, so it has no W_U.")
    ids = single_token(model.tokenizer, tokens) if isinstance(tokens, str) else tokens
    ids = torch.as_tensor(ids)
    if ids.dtype.is_floating_point or ids.dtype in (torch.bool, torch.complex64):
        raise TokenizationError(f"Tokens are {ids.dtype}; expected whole numbers or a string.")
    unembed = head.W_U
    size = unembed.shape[1]
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise TokenizationError(f"A token is outside the vocabulary; expected 0 to {size - 1}.")
    found = unembed.mT[ids.to(unembed.device)]
    # As in TransformerLens: a tensor of one token is that token.
    return found.flatten(0, -2)[0] if ids.dim() and ids.numel() == 1 else found


def single_token(tokenizer: Tokenizer | None, text: str) -> int:
    """The id of a text that is one token. Raises TokenizationError where it is not."""
    if tokenizer is None:
        raise TokenizationError(f"{text!r:.80}: the model has no tokenizer; give the token's id.")
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        parts = [tokenizer.string(each) for each in ids]
        raise TokenizationError(f"{text!r:.80} is not a single token; it is {parts!r:.200}.")
    return ids[0]


class TransformerLensCache(ActivationCache):
    """The quantities of a trace by TransformerLens' names, in the order of the data.

    Each quantity is computed when it is read, and is not stored. The methods that stack, decompose
    and attribute are TransformerLens' own.
    """

    def __init__(self, trace: CachedTrace, *, attn_result: bool = False) -> None:
        self.trace = trace
        self._begin(Readings(dict(readers(trace, attn_result))), trace.model, True)

    def compute_head_results(self) -> None:
        """From now on the cache has `attn.hook_result`: what each head adds to the stream."""
        assert isinstance(self._kept, Readings)
        self._kept = Readings(dict(readers(self.trace, attn_result=True)), self._kept.change)

    def __repr__(self) -> str:
        return f"<{len(self)} quantities of {self.trace!r}, by TransformerLens' names>"

    def _has_z_of(self, name: str | None) -> bool:
        return False

    def _missing(self, key: object, name: str | None) -> str:
        shown = f"{key!r:.80}" + ("" if name in (key, None) else f" ({name:.80})")
        there = [name for name in self if not name.startswith("blocks.") or ".0." in name]
        asked = name is not None and name.endswith("hook_result")
        more = " attn.hook_result is there with attn_result=True." * asked
        return f"{shown} is not a name of {self!r}; there are {', '.join(there)}.{more}"
