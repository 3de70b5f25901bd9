"""The cache of TransformerLens' `run_with_cache`: quantities by its names, stacked and attributed.

`ActivationCache` holds what a hooked model filled it with. Arguments, axes and labels are those of
TransformerLens 3.9; a stack begins with the axis of its components. Names, axes and numbers are
those of HookedTransformer (GPT-2, Pythia, Llama and other decoders whose norms do not follow the
sum with the stream) with the processing of weights off. docs/transformer_lens.md has the names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from minibert.errors import TokenizationError, TraceError, did_you_mean
from minibert.layers.bodies import VocabularyHead
from minibert.quantities import Float
from minibert.text.tokenizer import Tokenizer
from minibert.trace.identity import Unchanged
from minibert.trace.run import TracedModel
from minibert.transformer_lens.utils import UnknownNameError, layer_number, taken, whole_name

Stack = Float[Tensor, "component *place d_model"]
Cache = TypeVar("Cache", bound="ActivationCache")
Stacked = Stack | tuple[Stack, list[str]]
_MODES = ("all", "mlp", "attn")

if TYPE_CHECKING:
    Whole = int
else:
    # `layer_number` checks it, with an error that says what was expected.
    Whole = object


class ActivationCache(Mapping[str, Tensor]):
    """A mapping from the names of hook points, or shorthands of them, to tensors.

    cache_dict      the tensors by full name
    model           the model that they come from, hooked or of minibert
    has_batch_dim   whether they have an axis of sentences

    `attn.hook_result` need not be kept: it is computed from hook_z where it is read.
    """

    def __init__(
        self, cache_dict: Mapping[str, Tensor], model: Any, has_batch_dim: bool = True
    ) -> None:
        self.model, self.has_batch_dim = model, has_batch_dim
        self._of: TracedModel = getattr(model, "model", model)
        self._unchanged = Unchanged(self._of, self._of.body.layers, "cache")
        self.cache_dict = dict(cache_dict)

    @property
    def of(self) -> TracedModel:
        """minibert's model. Raises TraceError where it is not any more as it was in this pass."""
        self._unchanged.check()
        return self._of

    def __getitem__(self, key: object, /) -> Tensor:
        """The tensor of that name, or of a shorthand: ("pattern", 1), ("scale", 0, "ln1"), "k3".

        Raises TraceError (a KeyError too) for what is not there.
        """
        name = self._whole(key)
        if name is not None and name in self.cache_dict:
            return self.cache_dict[name]
        if z := self._z_of(name):
            kept, layer = self.cache_dict[z], self.of.body.layers[int(z.split(".")[1])]
            # z·W_O of each head, the heads after the positions.
            return torch.einsum("...phd,hdm->...phm", kept, layer.attention.W_O.to(kept.device))
        shown = f"{key!r:.80}" + ("" if name in (key, None) else f" ({name:.80})")
        there = [name for name in self if not name.startswith("blocks.") or ".0." in name]
        raise UnknownNameError(
            f"{shown} is not a name of {self!r}{did_you_mean(name or key, self)}; there are "
            f"{', '.join(there)}. names_filter "
            "and stop_at_layer leave names out."
        )

    def __contains__(self, key: object) -> bool:
        name = self._whole(key)
        return name in self.cache_dict or self._z_of(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.cache_dict)

    def __len__(self) -> int:
        return len(self.cache_dict)

    def __repr__(self) -> str:
        return f"<{len(self)} quantities of {self._of.name}, by TransformerLens' names>"

    def compute_head_results(self) -> None:
        """From now on the cache keeps `attn.hook_result`: what each head adds to the stream."""
        names = [f"blocks.{layer}.attn.hook_result" for layer in range(self._n_layers)]
        self.cache_dict |= {name: self[name] for name in names}

    def remove_batch_dim(self: Cache) -> Cache:
        """This cache, without the axis of sentences from now on.

        Raises TraceError for several sentences.
        """
        if self.has_batch_dim:
            several = {len(x) for x in self.cache_dict.values() if x.dim()} - {1}
            if several:
                raise TraceError(f"remove_batch_dim: there are {several} sentences; expected one.")
            kept = self.cache_dict.items()
            self.cache_dict = {name: value[0] if value.dim() else value for name, value in kept}
            self.has_batch_dim = False
        return self

    def to(self: Cache, device: torch.device | str) -> Cache:
        """This cache, its tensors on that device."""
        self.cache_dict = {name: value.to(device) for name, value in self.cache_dict.items()}
        return self

    def _whole(self, key: object) -> str | None:
        known = isinstance(key, str) and key in self.cache_dict
        return str(key) if known else whole_name(key, self._n_layers)

    def _z_of(self, name: str | None) -> str | None:
        """The name of the z that gives a result which is not kept; None without one."""
        if name is None or not name.endswith(".attn.hook_result"):
            return None
        z = name.removesuffix("result") + "z"
        return z if z in self.cache_dict else None

    def accumulated_resid(
        self,
        layer: Whole | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: object = None,
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
        pos_slice   the positions: an int, a list, (start, stop) or a slice
        return_labels   (stack, labels), of the form "0_pre", "0_mid", "final_post"

        Raises TraceError (a KeyError too) for a quantity that is not in the cache, such as
        resid_mid of a parallel model.
        """
        count = self._up_to(layer, mlp_input)
        names: list[tuple[str, int]] = []
        for number in range(min(count + 1, self._n_layers)):
            names.append(("resid_pre", number))
            has_mid = incl_mid and self._of.config.d_mlp > 0
            if (has_mid and number < count) or (mlp_input and number == count):
                names.append(("resid_mid", number))
        labels = [f"{number}_{name.removeprefix('resid_')}" for name, number in names]
        if count == self._n_layers:
            names.append(("resid_post", count - 1))
            labels.append("final_post")
        stack = self._stack(names, pos_slice)
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, count, mlp_input, pos_slice, recompute_ln=True)
        return (stack, labels) if return_labels else stack

    def decompose_resid(
        self,
        layer: Whole | None = None,
        mlp_input: bool = False,
        mode: str = "all",
        apply_ln: bool = False,
        pos_slice: object = None,
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

        Raises TraceError for another `mode`.
        """
        if mode not in _MODES:
            raise TraceError(f"mode={mode!r:.80}: expected one of {', '.join(_MODES)}.")
        count = self._up_to(layer, mlp_input)
        added = ("embed", "pos_embed") if self.of.body.added_positions is not None else ("embed",)
        labels = [name for name in added if f"hook_{name}" in self] if incl_embeds else []
        names: list[object] = [f"hook_{label}" for label in labels]
        there = ("attn", "mlp") if self._of.config.d_mlp else ("attn",)
        blocks = [block for block in there if mode in ("all", block)]
        places = [(block, number) for number in range(count) for block in blocks]
        if mlp_input and "attn" in blocks:
            places.append(("attn", count))
        names += [(f"{block}_out", number) for block, number in places]
        labels += [f"{number}_{block}_out" for block, number in places]
        if not names:
            raise TraceError(
                f"decompose_resid(layer={count}, incl_embeds=False): nothing was added before it."
            )
        stack = self._stack(names, pos_slice)
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, count, mlp_input, pos_slice)
        return (stack, labels) if return_labels else stack

    def stack_head_results(
        self,
        layer: Whole | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: object = None,
        apply_ln: bool = False,
    ) -> Stacked:
        """What each head of the layers before `layer` adds to the stream, layer after layer.

        incl_remainder  and last what else is in the stream there
        apply_ln        each divided as `layer` divides the stream, see `apply_ln_to_stack`
        return_labels   (stack, labels), of the form "L0H0"

        Raises TraceError where heads do not add to the stream: where a norm follows the block.
        """
        count, config = self._up_to(layer, False), self._of.config
        if config.norm_place not in ("before", "none"):
            raise TraceError(
                f"In {config.model_type} a norm follows each block, so heads are not parts "
                "of the stream. decompose_resid has what each block adds."
            )
        stream = ("resid_post", count - 1) if count else ("resid_pre", 0)
        whole = self._stack([stream], pos_slice)
        found = [taken(self["result", n], pos_slice, -3).movedim(-2, 0) for n in range(count)]
        stack = torch.cat([whole[:0], *found])
        labels = [f"L{n}H{head}" for n in range(count) for head in range(config.n_heads)]
        if incl_remainder:
            stack = torch.cat([stack, whole - stack.sum(0)])
            labels.append("remainder")
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, count, pos_slice=pos_slice)
        return (stack, labels) if return_labels else stack

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
        return self._stack([(activation_name, n, sublayer_type) for n in range(count)], None)

    def apply_ln_to_stack(
        self,
        residual_stack: Stack,
        layer: Whole | None = None,
        mlp_input: bool = False,
        pos_slice: object = None,
        batch_slice: object = None,
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
        number, norm = self._up_to(layer, mlp_input), self.of.body.final_norm
        last = number == self._n_layers
        if has_batch_dim:
            residual_stack = taken(residual_stack, batch_slice, 1)
        if self._of.config.norm_place == "none":
            return residual_stack
        if recompute_ln and last:
            return residual_stack if norm is None else norm(residual_stack)
        if norm is None or norm.centres:
            residual_stack = residual_stack - residual_stack.mean(-1, keepdim=True)
        name = "ln_final" if last else f"blocks.{number}.ln{2 if mlp_input else 1}"
        scale = taken(self[f"{name}.hook_scale"], pos_slice, -2)
        return residual_stack / (taken(scale, batch_slice, 0) if self.has_batch_dim else scale)

    def logit_attrs(
        self,
        residual_stack: Stack,
        tokens: object,
        incorrect_tokens: object = None,
        pos_slice: object = None,
        batch_slice: object = None,
        has_batch_dim: bool = True,
    ) -> Float[Tensor, "component *others"]:
        """What each part of a stack adds to the logit of a token, before its mean and bias.

        The part, divided as the last norm divided the whole stream, times the token's column of
        W_U; with `incorrect_tokens` times the difference of the two columns. The weight of the last
        norm is left out, as in TransformerLens: it is in W_U where the model was folded
        (`fold_ln`); of other models use `minibert.analysis.why_logit`.

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

    def _stack(self, keys: Sequence[object], pos_slice: object) -> Tensor:
        return torch.stack([taken(self[key], pos_slice, -2) for key in keys])

    @property
    def _n_layers(self) -> int:
        return self._of.config.n_layers

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
        """The layer that the stream enters."""
        config, count = self._of.config, self._layers_before(layer)
        if mlp_input and count == self._n_layers:
            raise TraceError(
                f"mlp_input=True with layer={layer}: there is no MLP after the last layer; "
                f"expected a layer from 0 to {self._n_layers - 1}."
            )
        if mlp_input and not config.d_mlp:
            raise TraceError("mlp_input=True: the layers of this model have no MLP. Leave it out.")
        if mlp_input and config.parallel:
            raise TraceError(
                f"mlp_input=True: the MLP of {config.model_type} reads the stream that attention "
                "reads. Leave mlp_input out."
            )
        return count


def residual_directions(model: TracedModel, tokens: object) -> Float[Tensor, "*place d_model"]:
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
