"""A causal model by TransformerLens' names: hooks, cache and weights of one of minibert's models.

The computation is minibert's own loop over layers; a hook point that somebody hooked is an edit of
it (points.py). A pass without hooks is the plain forward pass.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError, TokenizationError, TraceError
from minibert.kernels.eager import soft_capped
from minibert.layers.evaluation import Evaluation
from minibert.model import Model
from minibert.quantities import Hidden, Logits
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.run import run_layers
from minibert.transformer_lens.activation_cache import ActivationCache
from minibert.transformer_lens.config import INPUT_SWITCHES, config_of
from minibert.transformer_lens.generation import Generating
from minibert.transformer_lens.loading import Loading, check_that_it_generates
from minibert.transformer_lens.losses import lm_cross_entropy_loss
from minibert.transformer_lens.parts import Part
from minibert.transformer_lens.points import layer_edits, listening
from minibert.transformer_lens.root_module import HookedRootModule
from minibert.transformer_lens.stacked import StackedMethods
from minibert.transformer_lens.text import USE_DEFAULT_VALUE, as_ids, right_side
from minibert.transformer_lens.tree import build_tree

__all__ = ["HookedTransformer", "Output"]

_RETURNS = ("logits", "loss", "both", None)


class Output(NamedTuple):
    """What return_type="both" gives."""

    logits: Logits
    loss: Tensor


class HookedTransformer(Loading, StackedMethods, Generating, HookedRootModule):
    """A model of minibert's that is called, hooked and read as one of TransformerLens.

    `HookedTransformer.from_pretrained(name)` loads one and processes its weights as TransformerLens
    does; `HookedTransformer(minibert.load(name))` shows a model as it is. `model` is minibert's.
    Raises CheckpointError for a model that does not predict a next token, or whose norms follow the
    sum with the stream.
    """

    def __init__(
        self, model: Model, *, folded: bool = False, default_prepend_bos: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(model, Model):
            raise CheckpointError(
                f"HookedTransformer was given {type(model).__name__}; expected a model of "
                "minibert.load, or use HookedTransformer.from_pretrained(name)."
            )
        check_that_it_generates(model)
        # In place writes into the views of the weights would go past packed copies.
        model.unpack()
        # As in TransformerLens; under torch.no_grad() nothing is kept for gradients.
        model.requires_grad_(True)
        # Beside the tree of parts, which has TransformerLens' names alone.
        self.__dict__["model"] = model
        self.__dict__["cfg"] = config_of(
            model, folded=folded, default_prepend_bos=default_prepend_bos
        )
        build_tree(self, model, folded=folded)
        self.setup()
        self.train(False)

    def forward(
        self,
        input: Any,
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = USE_DEFAULT_VALUE,
        padding_side: str | None = USE_DEFAULT_VALUE,
        start_at_layer: int | None = None,
        tokens: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Logits (batch, position, d_vocab) of a text, of texts, or of ids (batch, position).

        return_type     "logits"; "loss", the mean of −ln p of each next token in nats, padding
                        counted too unless attention_mask names it, as in TransformerLens 3.9;
                        "both", (logits, loss); None: nothing
        loss_per_token  the loss of each token, (batch, position − 1)
        start_at_layer  `input` is the stream before this layer, (batch, position, d_model);
                        the loss is then that of `tokens`
        stop_at_layer   the stream before this layer is returned; negative numbers count back
        attention_mask  True or 1 where a real token is, which come first in each sentence

        Raises TraceError or TokenizationError before anything is computed.
        """
        if return_type not in _RETURNS:
            raise TraceError(
                f"return_type={return_type!r:.80}: expected logits, loss, both or None."
            )
        right_side(padding_side)
        start, stop = self._span(start_at_layer, stop_at_layer)
        with listening(self.hook_dict, self.model.body, self.cfg):
            if start_at_layer is None:
                inputs = self._inputs(input, prepend_bos, attention_mask)
                hidden, tokens = self._embedded(inputs), inputs.ids
            else:
                hidden, inputs = self._given(input, attention_mask)
            if return_type in ("loss", "both") and tokens is None and stop_at_layer is None:
                raise TraceError(f"return_type={return_type!r} with start_at_layer needs tokens=.")
            hidden = self._through(hidden, inputs, start, stop)
            if stop_at_layer is not None:
                return hidden
            final = self.model.body.final(hidden)
            if return_type is None:
                return None
            logits = soft_capped(self.unembed(final), self.model.config.logit_soft_cap)
        if return_type == "logits":
            return logits
        loss = self.loss_fn(logits, tokens, attention_mask, per_token=loss_per_token)
        return loss if return_type == "loss" else Output(logits, loss)

    def loss_fn(
        self,
        logits: Logits,
        tokens: Any,
        attention_mask: Tensor | None = None,
        per_token: bool = False,
    ) -> Tensor:
        """The mean of −ln p of each next token in nats, or one number a token."""
        return lm_cross_entropy_loss(logits, tokens, attention_mask, per_token)

    def run_with_cache(
        self,
        *model_args: Any,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        """What the model returns, and an ActivationCache of what passed through its hook points.

        With return_cache_object=False it is a dictionary. The other arguments are those of
        `HookedRootModule.run_with_cache` and of the model. `attn.hook_result`, which is large, is
        kept where `cfg.use_attn_result` says so or names_filter names it; ActivationCache computes
        it from hook_z where it was not kept.
        """
        out, kept = super().run_with_cache(*model_args, remove_batch_dim=remove_batch_dim, **kwargs)
        order = [f"{name}{end}" for end in ("", "_grad") for name in self.hook_dict]
        cache = {name: kept[name] for name in order if name in kept}
        if not return_cache_object:
            return out, cache
        return out, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Whether caches and hooks on names that a function chooses have attn.hook_result.

        A hook on it by its name works in any case.
        """
        self.cfg.use_attn_result = use_attn_result

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        """Whether the stream that each query, key and value reads, before its norm, has a point.

        hook_q_input is (batch, position, head, d_model); hook_k_input and hook_v_input have an
        input for each key-value head. The points of ln1 are called once for each of the three then,
        with its axes. Raises EditError while use_attn_in is on.
        """
        self.cfg.use_split_qkv_input = use_split_qkv_input

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        """Whether the stream that each head reads, before its norm, has a point.

        hook_attn_in is (batch, position, head, d_model), as ln1's points are then. Raises EditError
        where heads share keys and values, and while use_split_qkv_input is on.
        """
        self.cfg.use_attn_in = use_attn_in

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Whether the stream that an MLP reads, before its norm, has a point: hook_mlp_in."""
        self.cfg.use_hook_mlp_in = use_hook_mlp_in

    def set_ungroup_grouped_query_attention(self, ungroup_grouped_query_attention: bool) -> None:
        """False changes nothing; True is refused: TraceError."""
        if ungroup_grouped_query_attention:
            raise TraceError(
                "ungroup_grouped_query_attention=True is not offered; what it is used for can be "
                "done at hook_k and hook_v of key-value heads."
            )

    def train(self, mode: bool = True) -> "HookedTransformer":
        """Training mode, of minibert's model too."""
        self.model.train(mode)
        return super().train(mode)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of minibert's model, which optimisers change and gradients reach."""
        return self.model.parameters(recurse)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:  # type: ignore[override]
        """Weights by TransformerLens' names and in its shapes, as views without `.grad`.

        Their gradients are read from `model.parameters()`, or from minibert's `model.model`.
        """
        for name, part in self.named_modules():
            if isinstance(part, Part):
                found = ((each, getattr(part, each, None)) for each in (*part.weights, "w", "b"))
                yield from ((f"{name}.{each}", x) for each, x in found if isinstance(x, Tensor))

    tl_named_parameters = named_parameters

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Weights by TransformerLens' names and in its shapes."""
        return {name: weight.detach() for name, weight in self.named_parameters()}

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: CheckpointError."""
        raise CheckpointError(
            "Load weights with minibert.load, and show them as HookedTransformer."
        )

    def _apply(self, fn: Any, recurse: bool = True) -> "HookedTransformer":
        self.model._apply(fn, recurse)
        weight = self.model.body.word.weight
        # What `to`, `half` and their like move.
        vars(self.cfg).update(device=weight.device, dtype=weight.dtype)
        return self

    def _cached_names(self, names_filter: Any) -> list[str]:
        names = list(self.hook_dict)
        if names_filter is not None and not callable(names_filter):
            return names
        off: tuple[str, ...] = () if self.cfg.use_attn_result else ("hook_result",)
        for switch, inputs in INPUT_SWITCHES.items():
            off += () if getattr(self.cfg, switch) else inputs
        return [name for name in names if not name.endswith(off)]

    def _inputs(self, given: Any, prepend_bos: bool | None, mask: Tensor | None) -> Inputs:
        text = isinstance(given, str) or (
            isinstance(given, Sequence) and all(isinstance(each, str) for each in given)
        )
        ids = self.to_tokens(given, prepend_bos) if text else as_ids(given)
        if ids.is_floating_point():
            raise TokenizationError(
                "The input is a tensor of numbers with a point; expected ids. The stream goes with "
                "start_at_layer=."
            )
        if mask is None:
            return self.model.inputs(ids)
        real = torch.as_tensor(mask).bool()
        if real.shape != ids.shape or bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise TokenizationError(
                f"attention_mask of shape {tuple(real.shape)} for ids of {tuple(ids.shape)}; "
                "expected the same shape, and the real tokens of each sentence first."
            )
        return self.model.inputs(Tokens.from_ids(ids, mask=real))

    def _embedded(self, inputs: Inputs) -> Hidden:
        body, ids = self.model.body, inputs.ids
        words = body.word(ids)
        words = words if body.word_scale == 1 else words * body.word_scale
        stream = self.hook_dict["hook_embed"](words)
        if body.position is None:
            return stream
        rows = body.position(body.positions(ids)).expand(*ids.shape, -1)
        return stream + self.hook_dict["hook_pos_embed"](rows)

    def _given(self, stream: Any, mask: Tensor | None) -> tuple[Hidden, Inputs]:
        """The stream before a layer, and inputs of its shape whose ids nobody reads."""
        width = self.cfg.d_model
        if not isinstance(stream, Tensor) or stream.dim() != 3 or stream.shape[-1] != width:
            shown = tuple(stream.shape) if isinstance(stream, Tensor) else type(stream).__name__
            raise TraceError(
                f"start_at_layer with an input of {shown}; expected the stream, (batch, position, "
                f"{width})."
            )
        ids = torch.zeros(stream.shape[:2], dtype=torch.int64, device=stream.device)
        return stream, self._inputs(ids, None, mask)

    def _through(self, hidden: Hidden, inputs: Inputs, start: int, stop: int) -> Hidden:
        evaluation = Evaluation(self.model.allowed(inputs.ids, inputs.mask), self.model.impl)
        edits = layer_edits(self.hook_dict, self.model.body, evaluation, self.cfg)
        return run_layers(self.model.body, hidden, evaluation, start=start, stop=stop, edits=edits)

    def _span(self, start: int | None, stop: int | None) -> tuple[int, int]:
        n_layers = self.cfg.n_layers
        found = []
        for name, layer, default in (("start", start, 0), ("stop", stop, n_layers)):
            number = default if layer is None else layer + n_layers * (layer < 0)
            if not 0 <= number <= n_layers:
                raise TraceError(f"{name}_at_layer={layer}: there are {n_layers} layers.")
            found.append(number)
        return found[0], found[1]
