"""The stream as TransformerLens' cache stacks it: layer after layer, or part by part.

`LensStream` is what both caches by its names have: the one that reads a trace (lens_names.py), and
the one that a hooked model fills (`minibert.transformer_lens`). Arguments, axes and labels are
those of ActivationCache in TransformerLens 3.9. A stack begins with the axis of its components.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.layers.norms import RMSNorm
from minibert.quantities import Float
from minibert.trace.lens_shorthands import UnknownNameError, layer_number
from minibert.trace.lens_slice import Slice, as_slice
from minibert.trace.run import TracedModel

__all__ = ["LensStream", "Stack"]

Stack = Float[Tensor, "component *place d_model"]
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


class LensStream(Base):
    """A mapping of quantities by TransformerLens' names that stacks the stream and its parts."""

    has_batch_dim: bool = True

    def __getitem__(self, name: Any, /) -> Tensor:
        """The quantity of a name, or of a shorthand: ("pattern", 1)."""
        raise NotImplementedError

    @property
    def _of(self) -> TracedModel:
        """The model that the quantities belong to."""
        raise NotImplementedError

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
        norm = self._of.body.final_norm
        return stack if norm is None else norm(stack)

    @property
    def _n_layers(self) -> int:
        return self._of.config.n_layers

    @property
    def _norms_by_rms(self) -> bool:
        return isinstance(self._of.body.final_norm, RMSNorm)

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
        config, count = self._of.config, self._layers_before(layer)
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
