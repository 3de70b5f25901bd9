"""Heads and neurons as TransformerLens' cache stacks them: what each adds to the stream."""

from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.lens_slice import Slice, as_slice
from minibert.trace.lens_stream import LensStream, Stack, Stacked, Whole

__all__ = ["LensComponents"]

Directions = Float[Tensor, "width *direction"]
ALL = Slice()


class LensComponents(LensStream):
    """A mapping by TransformerLens' names that also stacks heads and neurons."""

    def compute_head_results(self) -> None:
        """From now on the cache has `attn.hook_result`: what each head adds to the stream."""
        raise NotImplementedError

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
        chosen = neurons.apply(torch.arange(self._of.config.d_mlp)).tolist()
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
                labels += [f"L{n}N{i}" for n in range(count) for i in range(self._of.config.d_mlp)]
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
        heads = range(self._of.config.n_heads)
        return self._joined(parts, at), [f"L{n}H{head}" for n in range(count) for head in heads]

    def _results(self, layer: int) -> Tensor:
        """What each head adds, (..., position, head, d_model)."""
        name = f"blocks.{layer}.attn.hook_result"
        if name in self:
            return self[name]
        return self._head_results(self["z", layer], layer)

    def _head_results(self, z: Tensor, layer: int) -> Tensor:
        """z·W_O of each head, the heads behind the positions."""
        rows = self._of.body.layers[layer].attention.W_O.to(z.device)
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
        rows = neurons.apply(self._of.body.layers[layer].mlp.W_out, 0).to(acts.device)
        if scale is not None:
            rows = rows if self._norms_by_rms else rows - rows.mean(-1, keepdim=True)
            acts = acts / scale
        return acts[..., None] * (rows if onto is None else rows @ onto)

    def _biases(self, layer: int, mlp_input: bool, mlps: bool) -> Float[Tensor, " d_model"]:
        layers = self._of.body.layers
        total = torch.zeros_like(layers[0].mlp.W_out[0])
        biases = [each.attention.b_O for each in layers[: layer + mlp_input]]
        biases += [each.mlp.b_out for each in layers[:layer]] if mlps else []
        for bias in biases:
            total = total if bias is None else total + bias
        return total

    def _summands(self, layer: Whole | None) -> int:
        count, config = self._up_to(layer, False), self._of.config
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
