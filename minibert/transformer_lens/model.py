"""`HookedTransformer`: a minibert model with TransformerLens' attributes, hooks and methods."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from minibert.answers.generate import Sampling
from minibert.errors import CheckpointError, TokenizationError, TraceError, check_flag
from minibert.kernels.eager import soft_capped
from minibert.layers.evaluation import Evaluation
from minibert.layers.finite import check_logits
from minibert.layers.weight_views import read_only
from minibert.loading import load
from minibert.model import Model
from minibert.quantities import Float, Hidden, Logits, TokenIds
from minibert.text.inputs import Inputs
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens, padded
from minibert.text.words import is_text
from minibert.trace.run import run_layers
from minibert.transformer_lens.cache import ActivationCache, residual_directions, single_token
from minibert.transformer_lens.config import HookedTransformerConfig
from minibert.transformer_lens.hook_edits import layer_edits, listening
from minibert.transformer_lens.hook_points import HookedRootModule
from minibert.transformer_lens.modules import build_tree, named_weights, stacked
from minibert.transformer_lens.utils import lm_cross_entropy_loss
from minibert.transformer_lens.weights import PROCESSING, processed, steps_of

Hooked = TypeVar("Hooked", bound="HookedTransformer")

# Names that TransformerLens has of its own for models of the Hub.
_SIZES = ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
_ALIASES = {
    "gpt2-small": "gpt2",
    "distillgpt2": "distilgpt2",
    **{f"pythia-{size}": f"EleutherAI/pythia-{size}" for size in _SIZES},
}
_HUB_OPTIONS = ("revision", "cache_dir", "offline")
_RETURNS = ("logits", "loss", "both", None)


def _dtype(given: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"dtype={given!r:.80}; expected a torch.dtype or its name.")
    return found


def _tokenizer(given: object) -> Tokenizer:
    if isinstance(given, Tokenizer):
        return given
    fast = getattr(given, "backend_tokenizer", None)
    if fast is None:
        raise CheckpointError(
            f"tokenizer is {type(given).__name__}; expected one of minibert or a fast one of "
            "transformers."
        )
    return Tokenizer.from_json(fast.to_str())


class Output(NamedTuple):
    """What return_type="both" gives."""

    logits: Logits
    loss: Tensor


class HookedTransformer(HookedRootModule):
    """A model of minibert's that is called, hooked and read as one of TransformerLens.

    `HookedTransformer.from_pretrained(name)` loads one and processes its weights as TransformerLens
    does; `HookedTransformer(minibert.load(name))` shows a model as it is. `model` is minibert's.
    W_Q to b_out are those of all layers, (layer, ...), copies that cannot be written; W_E, W_pos,
    W_U and b_U are the model's.

    Raises CheckpointError for a model that does not predict a next token, or whose norms follow the
    sum with the stream.
    """

    model: Model
    cfg: HookedTransformerConfig

    def __init__(
        self, model: Model, *, folded: bool = False, default_prepend_bos: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(model, Model):
            raise CheckpointError(
                f"HookedTransformer was given {type(model).__name__}; expected a model of "
                "minibert.load, or use HookedTransformer.from_pretrained(name)."
            )
        if not model.config.generates:
            raise CheckpointError(
                f"{model.name} ({model.config.model_type}, {model.config.task}) does not continue "
                "texts; HookedTransformer is for causal language models. model.trace reads others."
            )
        # In place writes into the views of the weights would go past packed copies.
        model.unpack()
        # As in TransformerLens; under torch.no_grad() nothing is kept for gradients.
        model.requires_grad_(True)
        check_flag("default_prepend_bos", default_prepend_bos, CheckpointError)
        # Beside the tree of parts, which has TransformerLens' names alone.
        vars(self)["model"] = model
        vars(self)["cfg"] = HookedTransformerConfig(
            model, folded=folded, default_prepend_bos=default_prepend_bos
        )
        build_tree(self, model, folded=folded)
        self.setup()
        self.train(False)

    @classmethod
    def from_pretrained(
        cls: type[Hooked],
        model_name: Any,
        fold_ln: bool | None = None,
        center_writing_weights: bool | None = None,
        center_unembed: bool | None = None,
        *,
        fold_value_biases: bool | None = None,
        hf_model: nn.Module | None = None,
        device: torch.device | str | None = None,
        tokenizer: Any = None,
        default_prepend_bos: bool | None = None,
        dtype: torch.dtype | str = torch.float32,
        **options: Any,
    ) -> Hooked:
        """The model of a name that `minibert.load` knows, or of TransformerLens' aliases.

        fold_ln to fold_value_biases    as in `weights.PROCESSING`. Not given they are done wherever
                    they leave the predictions as they are, as in TransformerLens; with True where
                    they would not, CheckpointError says why
        hf_model    a transformers model, whose weights are copied
        tokenizer   of minibert, or a fast one of transformers; by default the checkpoint's
        dtype       float32 when not given, as in TransformerLens
        options     revision, cache_dir, offline, as in `minibert.load`

        Raises CheckpointError also for an option that is not offered.
        """
        if unknown := [name for name in options if name not in _HUB_OPTIONS]:
            known = ", ".join((*PROCESSING, "hf_model", "device", "dtype", *_HUB_OPTIONS))
            raise CheckpointError(
                f"from_pretrained has no option {unknown[0]:.80}; leave it out. It has {known}."
            )
        source = _ALIASES.get(model_name, model_name) if hf_model is None else hf_model
        hub = {name: options[name] for name in _HUB_OPTIONS if name in options}
        model = load(source, dtype=_dtype(dtype), device=device, **hub)
        if tokenizer is not None:
            model.tokenizer = _tokenizer(tokenizer)
        flags = (fold_ln, center_writing_weights, center_unembed, fold_value_biases)
        steps = steps_of(model.config, dict(zip(PROCESSING, flags, strict=True)))
        # A transformers model keeps weights of its own.
        if model.config.generates and (steps or hf_model is not None):
            model = processed(model, steps)
        prepends = True if default_prepend_bos is None else default_prepend_bos
        return cls(model, folded="fold_ln" in steps, default_prepend_bos=prepends)

    @classmethod
    def from_pretrained_no_processing(cls: type[Hooked], model_name: Any, **options: Any) -> Hooked:
        """The same with the checkpoint's weights as they are."""
        return cls.from_pretrained(model_name, **(dict.fromkeys(PROCESSING, False) | options))

    def forward(
        self,
        input: object,
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Logits (batch, position, d_vocab) of a text, of texts, or of ids (batch, position).

        return_type     "logits"; "loss", the mean of −ln p of each next token in nats, padding
                        counted too unless attention_mask names it, as in TransformerLens 3.9;
                        "both", (logits, loss); None: nothing
        loss_per_token  the loss of each token, (batch, position − 1)
        stop_at_layer   the stream before this layer is returned; negative numbers count back
        attention_mask  True or 1 where a real token is, which come first in each sentence

        Raises TraceError or TokenizationError before anything is computed.
        """
        if return_type not in _RETURNS:
            raise TraceError(
                f"return_type={return_type!r:.80}: expected logits, loss, both or None."
            )
        inputs, n_layers = self._inputs(input, prepend_bos, attention_mask), self.cfg.n_layers
        stop = n_layers if stop_at_layer is None else stop_at_layer + n_layers * (stop_at_layer < 0)
        if not 0 <= stop <= n_layers:
            raise TraceError(f"stop_at_layer={stop_at_layer}: there are {n_layers} layers.")
        model, points = self.model, self.hook_dict
        evaluation = Evaluation(model.allowed(inputs.ids, inputs.mask), model.impl)
        with listening(points, model.body):
            edits = layer_edits(points, model.config, evaluation)
            hidden = self._embedded(inputs)
            hidden = run_layers(model.body, hidden, evaluation, stop=stop, edits=edits)
            if stop_at_layer is not None:
                return hidden
            final = model.body.final(hidden)
            if return_type is None:
                return None
            logits = soft_capped(self.unembed(final), model.config.logit_soft_cap)
            check_logits(logits)
        if return_type == "logits":
            return logits
        loss = self.loss_fn(logits, inputs.ids, attention_mask, per_token=loss_per_token)
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
        out, cache = super().run_with_cache(
            *model_args, remove_batch_dim=remove_batch_dim, **kwargs
        )
        if not return_cache_object:
            return out, cache
        return out, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Whether caches and hooks on names that a function chooses have attn.hook_result.

        A hook on it by its name works in any case.
        """
        self.cfg.use_attn_result = use_attn_result

    def train(self, mode: bool = True) -> "HookedTransformer":
        """Training mode, of minibert's model too."""
        self.model.train(mode)
        return super().train(mode)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of minibert's model, which optimisers change and gradients reach."""
        return self.model.parameters(recurse)

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, Tensor]]:  # type: ignore[override]
        """Weights by TransformerLens' names and in its shapes, as views without `.grad`.

        Their gradients are read from `model.parameters()`, or from minibert's `model.model`.
        """
        return named_weights(self)

    tl_named_parameters = named_parameters

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        """Weights by TransformerLens' names and in its shapes."""
        return {name: weight.detach() for name, weight in self.named_parameters()}

    def load_state_dict(self, *args: object, **kwargs: object) -> Any:
        """Refused: CheckpointError."""
        raise CheckpointError(
            "Load weights with minibert.load, and show them as HookedTransformer."
        )

    def _apply(self, fn: object, recurse: bool = True) -> "HookedTransformer":
        self.model._apply(fn, recurse)
        return self

    def __getattr__(self, name: str) -> Any:
        if name[:2] in ("W_", "b_"):
            return stacked(self, name)
        return super().__getattr__(name)

    @property
    def W_E_pos(self) -> Tensor:  # noqa: N802
        """Both tables, one below the other."""
        return read_only(torch.cat([self.W_E, self.W_pos]), "W_E and W_pos in one")

    @property
    def tokenizer(self) -> Tokenizer | None:
        """minibert's tokenizer."""
        return self.model.tokenizer

    def to_tokens(
        self,
        input: str | Sequence[str],
        prepend_bos: bool | None = None,
        truncate: bool = True,
    ) -> TokenIds:
        """The ids of a text or of several, (batch, position), padded on the right.

        There padding changes no token of a causal model.

        prepend_bos  a BOS token in front (the end-of-text token where there is none); by default as
                     `cfg.default_prepend_bos` says, which is True
        truncate     cut to the model's positions; otherwise a longer text is left, and the model
                     refuses it

        Raises TokenizationError for a model without a tokenizer or BOS token.
        """
        tokenizer, first = self._own_tokenizer(), list[int]()
        if prepend_bos is not None:
            check_flag("prepend_bos", prepend_bos, TokenizationError)
        if self.cfg.default_prepend_bos if prepend_bos is None else prepend_bos:
            begin = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
            if begin is None:
                raise TokenizationError(
                    f"{self.model.name} has neither a BOS nor an end-of-text token; pass "
                    "prepend_bos=False."
                )
            first = [begin]
        texts = [input] if isinstance(input, str) else list(input)
        longest = self.cfg.n_ctx if truncate else None
        rows = [[*first, *tokenizer.encode(text)][:longest] for text in texts]
        fill = tokenizer.eos_id if tokenizer.pad_id is None else tokenizer.pad_id
        return padded(rows, fill or 0).to(self.cfg.device)

    def to_string(self, tokens: object) -> Any:
        """The text of ids of shape (position) or (), or the texts of ids of (batch, position)."""
        ids = torch.as_tensor(tokens)
        if ids.dim() > 2:
            raise TokenizationError(f"ids of shape {tuple(ids.shape)}; expected one or two axes.")
        if ids.dim() == 2:
            return [self.to_string(row) for row in ids]
        return self._own_tokenizer().decode(ids.reshape(-1), skip_special=False)

    def to_str_tokens(self, input: Any, prepend_bos: bool | None = None) -> Any:
        """Each token of a text, or of ids of shape (position) or (1, position), as a string.

        Of a list of texts it is a list of lists.
        """
        if isinstance(input, list):
            return [self.to_str_tokens(each, prepend_bos) for each in input]
        ids = self.to_tokens(input, prepend_bos) if isinstance(input, str) else input
        return [self.to_string(each) for each in torch.as_tensor(ids).reshape(-1)]

    def to_single_token(self, string: str) -> int:
        """The id of a string that is one token. Raises TokenizationError where it is not."""
        return single_token(self.model.tokenizer, string)

    def to_single_str_token(self, int_token: int) -> str:
        """The string of one id."""
        return self.to_str_tokens(torch.tensor([int_token]))[0]

    def tokens_to_residual_directions(self, tokens: object) -> Float[Tensor, "*place d_model"]:
        """The columns of W_U of a token (a string or an id), or of ids of any shape.

        It is (d_model) for one token, and else the axes of the ids before d_model.
        """
        return residual_directions(self.model, tokens)

    @torch.no_grad()
    def generate(
        self,
        input: Any = "",
        max_new_tokens: int = 10,
        stop_at_eos: bool = True,
        do_sample: bool = True,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        prepend_bos: bool | None = None,
    ) -> Any:
        """One text, or ids (1, position), with up to max_new_tokens more tokens.

        Drawn with torch's own random numbers; do_sample=False takes the largest logit. Each step
        computes the whole text, all of which hooks see. With `stop_at_eos` it ends behind the
        tokenizer's end-of-text token.

        Raises TokenizationError for several texts, and for one that grows past the positions.
        """
        text = is_text(input)
        ids = (self.to_tokens(input, prepend_bos) if text else as_ids(input)).to(self.cfg.device)
        if len(ids) != 1 or ids.shape[1] + max_new_tokens > self.cfg.n_ctx:
            raise TokenizationError(
                f"generate(max_new_tokens={max_new_tokens}) of ids of shape {tuple(ids.shape)}; "
                f"expected one text, and with the new tokens at most {self.cfg.n_ctx} positions."
            )
        tokenizer = self.model.tokenizer
        end = tokenizer.eos_id if tokenizer is not None and stop_at_eos else None
        sampling = Sampling(temperature if do_sample else 0, top_k, top_p)
        for _ in range(max_new_tokens):
            new = torch.multinomial(sampling.probs(self(ids)[:, -1]), 1).to(ids.device)
            ids = torch.cat([ids, new], 1)
            if int(new) == end:
                break
        return self._own_tokenizer().decode(ids[0]) if text else ids

    def _own_tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            raise TokenizationError(
                f"{self.model.name} has no tokenizer; give token ids, not text."
            )
        return self.model.tokenizer

    def _cached_names(self, names_filter: object) -> list[str]:
        names = list(self.hook_dict)
        if self.cfg.use_attn_result or not (names_filter is None or callable(names_filter)):
            return names
        return [name for name in names if not name.endswith("hook_result")]

    def _inputs(self, given: Any, prepend_bos: bool | None, mask: Tensor | None) -> Inputs:
        ids = self.to_tokens(given, prepend_bos) if is_text(given) else as_ids(given)
        if ids.is_floating_point():
            raise TokenizationError(
                "The input is a tensor of numbers with a point; expected ids. A stream is written "
                "by a hook on hook_resid_pre."
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


def as_ids(tokens: object) -> Tensor:
    """Ids given as a tensor, an array or a list of numbers, with the axis of sentences."""
    ids = torch.as_tensor(np.asarray(tokens) if not isinstance(tokens, Tensor) else tokens)
    return ids[None] if ids.dim() == 1 else ids
