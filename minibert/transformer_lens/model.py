"""`HookedTransformer`: a minibert model with TransformerLens' attributes, hooks and methods."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from minibert.errors import (
    CheckpointError,
    EditError,
    TokenizationError,
    TraceError,
    check_flag,
)
from minibert.kernels.eager import soft_capped
from minibert.layers.evaluation import Evaluation
from minibert.layers.finite import check_logits
from minibert.layers.linear import ReadOnly, read_only
from minibert.model import Model, load
from minibert.quantities import Hidden, Logits
from minibert.text.inputs import Inputs
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens
from minibert.trace.run import run_layers
from minibert.transformer_lens.cache import ActivationCache
from minibert.transformer_lens.components import (
    PROCESSING,
    Circuits,
    WithWeights,
    build_tree,
    folded_norms,
    processed,
    shared_by_heads,
    stacked,
    steps_of,
)
from minibert.transformer_lens.config import HookedTransformerConfig, ModelConfig
from minibert.transformer_lens.hook_points import HookPoint
from minibert.transformer_lens.points import layer_edits, listening
from minibert.transformer_lens.tokens import WithTokens, as_ids, right_side
from minibert.transformer_lens.utils import lm_cross_entropy_loss

Hooked = TypeVar("Hooked", bound="HookedTransformer")

# Names that TransformerLens has of its own for models of the Hub.
_SIZES = ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
_ALIASES = {
    "gpt2-small": "gpt2",
    "distillgpt2": "distilgpt2",
    **{f"pythia-{size}": f"EleutherAI/pythia-{size}" for size in _SIZES},
}
_HUB_OPTIONS = ("revision", "cache_dir", "offline")
# Arguments of TransformerLens that are refused with any other value than this.
_ONLY = {
    "checkpoint_index": (None, 'pass revision="step1000"'),
    "checkpoint_value": (None, 'pass revision="step1000"'),
    "checkpoint_label": (None, 'pass revision="step1000"'),
    "default_padding_side": ("right", "in a causal model padding on the right changes no token"),
    "n_devices": (1, "a model lives on one device"),
    "move_to_device": (True, "pass device="),
    "first_n_layers": (None, "use stop_at_layer= when calling the model"),
    "n_ctx": (None, "the checkpoint says how many positions there are"),
    "trust_remote_code": (False, "no code of a checkpoint is run"),
}
# Entries of TransformerLens' state dictionaries that are not weights.
_NOT_WEIGHTS = (".mask", ".IGNORE", ".rotary_sin", ".rotary_cos")
_RETURNS = ("logits", "loss", "both", None)


def _check_options(options: dict[str, object]) -> None:
    for name, value in options.items():
        if name in _HUB_OPTIONS:
            continue
        if name not in _ONLY:
            known = ", ".join((*PROCESSING, *_HUB_OPTIONS, *_ONLY))
            raise CheckpointError(f"from_pretrained has no option {name:.80}; it has {known}.")
        only, instead = _ONLY[name]
        if value != only:
            raise CheckpointError(f"{name}={value!r:.80} is not offered; {instead}.")


def _dtype(given: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"dtype={given!r:.80}; expected a torch.dtype or its name.")
    return found


def _made(cfg: HookedTransformerConfig) -> Model:
    """A model of this config, its weights not drawn yet; CheckpointError where it has no place."""
    tokenizer = Tokenizer.from_folder(cfg.tokenizer_name) if cfg.tokenizer_name else None
    model = Model.from_config(cfg.config(), tokenizer=tokenizer, name=cfg.model_name)
    return model.to(device=cfg.device, dtype=_dtype(cfg.dtype))


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


class HookedTransformer(Circuits, WithWeights, WithTokens):
    """A model of minibert's that is called, hooked and read as one of TransformerLens.

    `HookedTransformer.from_pretrained(name)` loads one and processes its weights as TransformerLens
    does; `HookedTransformer(minibert.load(name))` shows a model as it is;
    `HookedTransformer(HookedTransformerConfig(...))`, or a dictionary of the same, makes one with
    random weights, those of TransformerLens for the same seed. `model` is minibert's.
    W_Q to b_out are those of all layers, (layer, ...), copies that cannot be written; W_E, W_pos,
    W_U and b_U are the model's.

    Raises CheckpointError for a model that does not predict a next token, unless it was made of a
    config, and for one whose norms follow the sum with the stream.
    """

    def __init__(
        self,
        cfg: Model | HookedTransformerConfig | dict[str, Any],
        tokenizer: Any = None,
        *,
        folded: bool = False,
        default_prepend_bos: bool | None = None,
    ) -> None:
        super().__init__()
        wanted = HookedTransformerConfig(**cfg) if isinstance(cfg, dict) else cfg
        model = wanted
        if isinstance(wanted, HookedTransformerConfig):
            model, folded = _made(wanted), "Pre" in str(wanted.normalization_type)
            if default_prepend_bos is None:
                default_prepend_bos = wanted.default_prepend_bos
        if default_prepend_bos is None:
            default_prepend_bos = True
        if not isinstance(model, Model):
            raise CheckpointError(
                f"HookedTransformer was given {type(model).__name__}; expected a model of "
                "minibert.load, or use HookedTransformer.from_pretrained(name)."
            )
        if tokenizer is not None:
            model.tokenizer = _tokenizer(tokenizer)
        if not model.config.generates and model.config.family != "minibert":
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
        vars(self)["cfg"] = ModelConfig(
            model, folded=folded, default_prepend_bos=default_prepend_bos
        )
        # TransformerLens' LNPre and RMSPre have no weights, so neither has an optimizer of these.
        hidden = list(folded_norms(model)) if folded else []
        vars(self)["folded"] = [one.requires_grad_(False) for one in hidden]
        build_tree(self, model, folded=folded)
        self.train(False)
        if getattr(wanted, "use_hook_tokens", False):
            self.hook_tokens = HookPoint()
        self.setup()
        if isinstance(wanted, HookedTransformerConfig):
            self.cfg.use_attn_result = wanted.use_attn_result
            if wanted.init_weights:
                self._draw(wanted)

    @torch.no_grad()
    def _draw(self, wanted: HookedTransformerConfig) -> None:
        """Normal weights by the seed of the config, in TransformerLens' order; biases are 0."""
        if wanted.seed is not None:
            torch.manual_seed(wanted.seed)
        for name, weight in self.named_parameters():
            if "W_" in name:
                drawn = torch.empty(weight.shape).normal_(std=wanted.initializer_range)
                weight.copy_(drawn)

    @classmethod
    def from_pretrained(
        cls: type[Hooked],
        model_name: Any,
        fold_ln: bool | None = None,
        center_writing_weights: bool | None = None,
        center_unembed: bool | None = None,
        refactor_factored_attn_matrices: bool = False,
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

        fold_ln to fold_value_biases    as in `PROCESSING`. Not given they are done wherever they
                    leave the predictions as they are, as in TransformerLens; with True where they
                    would not, CheckpointError says why
        hf_model    a transformers model, whose weights are copied
        tokenizer   of minibert, or a fast one of transformers; by default the checkpoint's
        dtype       float32 when not given, as in TransformerLens
        options     revision, cache_dir, offline, as in `minibert.load`

        Raises CheckpointError also for an option that is not offered.
        """
        _check_options(options)
        source = _ALIASES.get(model_name, model_name) if hf_model is None else hf_model
        hub = {name: options[name] for name in _HUB_OPTIONS if name in options}
        model = load(source, dtype=_dtype(dtype), device=device, **hub)
        if tokenizer is not None:
            model.tokenizer = _tokenizer(tokenizer)
        flags = (
            *(fold_ln, center_writing_weights, center_unembed, fold_value_biases),
            refactor_factored_attn_matrices,
        )
        steps = steps_of(model.config, dict(zip(PROCESSING, flags, strict=True)))
        # A transformers model keeps weights of its own.
        if model.config.generates and (steps or hf_model is not None):
            model = processed(model, steps)
        prepends = True if default_prepend_bos is None else default_prepend_bos
        return cls(model, folded="fold_ln" in steps, default_prepend_bos=prepends)

    @classmethod
    def from_pretrained_no_processing(cls: type[Hooked], model_name: Any, **options: Any) -> Hooked:
        """Load a model with the checkpoint's weights unprocessed."""
        return cls.from_pretrained(model_name, **(dict.fromkeys(PROCESSING, False) | options))

    def forward(
        self,
        input: Any,
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        start_at_layer: int | None = None,
        tokens: Any = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Logits (batch, position, d_vocab) of a text, of texts, or of ids (batch, position).

        return_type     "logits"; "loss", the mean of −ln p of each next token in nats, padding
                        counted too unless attention_mask names it, as in TransformerLens 3.9;
                        "both", (logits, loss); None: nothing
        loss_per_token  the loss of each token, (batch, position − 1)
        start_at_layer  the input is the stream before this layer, (batch, position, d_model), of
                        `tokens`, which the loss needs
        stop_at_layer   the stream before this layer is returned; negative numbers count back
        attention_mask  True or 1 where a real token is, which come first in each sentence

        Raises TraceError or TokenizationError before anything is computed.
        """
        if return_type not in _RETURNS:
            raise TraceError(
                f"return_type={return_type!r:.80}: expected logits, loss, both or None."
            )
        right_side(padding_side)
        if start_at_layer is not None and tokens is None and return_type in ("loss", "both"):
            raise TraceError("The loss of a stream needs its tokens; pass tokens=.")
        start, stop = self._place(start_at_layer, 0), self._place(stop_at_layer, self.cfg.n_layers)
        model, points, given = self.model, self.hook_dict, input
        if start_at_layer is not None:
            self._check_stream(input)
            given = torch.zeros(input.shape[:2], dtype=torch.long) if tokens is None else tokens
        inputs = self._inputs(given, prepend_bos, attention_mask)
        evaluation = Evaluation(model.allowed(inputs.ids, inputs.mask), model.impl)
        with listening(points, model.body):
            edits = layer_edits(points, model.config, evaluation)
            hidden = self._embedded(inputs) if start_at_layer is None else input
            hidden = run_layers(model.body, hidden, evaluation, start=start, stop=stop, edits=edits)
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

    def _place(self, layer: int | None, otherwise: int) -> int:
        count = self.cfg.n_layers
        place = otherwise if layer is None else layer + count * (layer < 0)
        if not 0 <= place <= count:
            raise TraceError(
                f"start_at_layer or stop_at_layer is {layer}: there are {count} layers."
            )
        return place

    def _check_stream(self, given: Any) -> None:
        got, fits = type(given).__name__, False
        if isinstance(given, Tensor):
            got = f"{tuple(given.shape)} of {given.dtype}"
            fits = given.is_floating_point() and given.shape[2:] == (self.cfg.d_model,)
        if not fits:
            raise TraceError(
                "With start_at_layer the input is the stream before that layer, (batch, position, "
                f"d_model = {self.cfg.d_model}) of floats; got {got}. For tokens leave "
                "start_at_layer out."
            )

    def evaluation(self, hidden: Tensor) -> Evaluation:
        """What a pass over a stream of (batch, position, d_model) without padding may see."""
        ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        return Evaluation(self.model.allowed(ids, None), self.model.impl)

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
        folded = {id(one) for one in self.folded}
        return (one for one in self.model.parameters(recurse) if id(one) not in folded)

    def state_dict(self, *args: object, prefix: str = "", **kwargs: object) -> dict[str, Any]:  # type: ignore[override]
        """Weights by TransformerLens' names and in its shapes, and the masks that it keeps too."""
        size, found = self.cfg.n_ctx, super().state_dict(prefix=prefix)
        for place, part in self.named_modules(prefix=prefix.rstrip(".")):
            if place.endswith(".attn"):
                found[f"{place}.mask"] = torch.ones(size, size, dtype=torch.bool).tril()
                found[f"{place}.IGNORE"] = torch.tensor(part.hook_attn_scores.ignored)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        kept = ("fwd_hooks", "bwd_hooks", "ctx", "ignored")
        hooks = {
            name: {each: getattr(point, each) for each in kept}
            for name, point in self.hook_dict.items()
        }
        settings = (self.cfg.default_prepend_bos, self.cfg.use_attn_result, self.training)
        return _again, (type(self), self.model, bool(self.folded), settings, hooks)

    @torch.no_grad()
    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> None:
        """Write weights of TransformerLens' names and shapes into the model.

        Masks and tables of a rotation, which such files have too, are passed over; IGNORE is what
        stands at masked scores. Weights that several heads share, or words and logits, are taken
        where they are equal, and those that the model does not have where they are zeros. Raises
        CheckpointError, before anything is written, for others, for a shape that does not fit, and
        with `strict` for names that are missing or not known.
        """
        own = dict(self._named_weights(""))
        given = {
            name: value for name, value in state_dict.items() if not name.endswith(_NOT_WEIGHTS)
        }
        missing, unknown = sorted(own.keys() - given), sorted(given.keys() - own)
        if strict and (missing or unknown):
            raise CheckpointError(
                f"load_state_dict: missing {', '.join(missing[:6]) or 'nothing'}; not weights of "
                f"this model: {', '.join(unknown[:6]) or 'none'}."
            )
        writes = [
            write
            for name, value in given.items()
            if name in own
            for write in self._writes(name, own[name], value)
        ]
        pair = "embed.W_E", "unembed.W_U"
        if all(name in given for name in pair) and len({own[n].data_ptr() for n in pair}) == 1:
            words, logits = (given[name] for name in pair)
            if not torch.equal(words.mT, logits):
                raise CheckpointError(
                    "load_state_dict: embed.W_E and unembed.W_U are one weight in this model; "
                    "expected W_U equal to W_E transposed. A model that was loaded with "
                    "from_pretrained(name, center_unembed=True) has two."
                )
        for weight, value in writes:
            weight.copy_(value)
        for place, point in self.hook_dict.items():
            name = place.replace("hook_attn_scores", "IGNORE")
            point.ignored = float(state_dict.get(name, point.ignored))

    def _writes(self, name: str, weight: Tensor, value: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The weight that a value of a state dictionary goes into, if any, and the numbers."""
        if weight.shape != value.shape:
            raise CheckpointError(
                f"load_state_dict: {name} has shape {tuple(value.shape)}; expected "
                f"{tuple(weight.shape)}."
            )
        if not isinstance(weight, ReadOnly):
            yield weight, value
            return
        place, _, short = name.rpartition(".")
        shared = shared_by_heads(self.get_submodule(place), short)
        if shared is not None:
            group = len(value) // len(shared)
            each = value[::group]
            if not torch.equal(each.repeat_interleave(group, 0), value):
                raise CheckpointError(
                    f"load_state_dict: {name} differs between heads that share it; expected the "
                    f"same numbers for each {group} heads in a row."
                )
            yield shared, each
        elif not torch.equal(value.to(weight), weight):
            raise CheckpointError(
                f"load_state_dict: {name} is {weight.what}, which cannot be written; expected "
                f"{'the numbers that it has' if weight.any() else 'zeros'}."
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HookedTransformer":
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

    def _cached_names(self, names_filter: object) -> list[str]:
        names = list(self.hook_dict)
        if self.cfg.use_attn_result or not (names_filter is None or callable(names_filter)):
            return names
        return [name for name in names if not name.endswith("hook_result")]

    def _inputs(self, given: Any, prepend_bos: bool | None, mask: Tensor | None) -> Inputs:
        text = isinstance(given, str) or (
            isinstance(given, Sequence) and all(isinstance(each, str) for each in given)
        )
        ids = self.to_tokens(given, prepend_bos) if text else as_ids(given)
        if "hook_tokens" in self.hook_dict:
            ids = self.hook_tokens(ids)
        if ids.is_floating_point():
            raise TokenizationError(
                "The input is a tensor of floats; expected ids. A stream is written "
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
        changed = self.hook_dict["hook_pos_embed"](rows)
        if body.added_positions is not None:
            return stream + changed
        if changed is not rows and not torch.equal(changed, rows):
            raise EditError(
                "hook_pos_embed: queries and keys read the table of positions itself "
                "(shortformer); change attn.hook_q and attn.hook_k, or W_pos."
            )
        return stream


def _again(
    kind: type[Hooked], model: Model, folded: bool, settings: tuple[bool, ...], hooks: Any
) -> Hooked:
    """A hooked model that was copied or pickled: the leaves and points belong to one model."""
    made = kind(model, folded=folded, default_prepend_bos=settings[0])
    made.cfg.use_attn_result = settings[1]
    if "hook_tokens" in hooks:
        made.hook_tokens = HookPoint()
        made.setup()
    for name, kept in hooks.items():
        vars(made.hook_dict[name]).update(kept)
    made.train(settings[2])
    return made


# What 4 calls the input and output of a module, and HookedTransformer's point with the same tensor.
_SAME = {
    "hook_in": "hook_resid_pre",
    "hook_out": "hook_resid_post",
    "attn.hook_out": "hook_attn_out",
    "mlp.hook_out": "hook_mlp_out",
}


class TransformerBridge(HookedTransformer):
    """A hooked model that begins with the checkpoint's weights, as TransformerLens 4's does.

    Its hook points have the names of HookedTransformer from the start, with the numbers that they
    have there. Of the names that 4 adds around modules, hooks go on those of `_SAME` by name.
    """

    def _points(self, name: Any) -> list[HookPoint]:
        if isinstance(name, str) and (found := re.fullmatch(r"(blocks\.\d+\.)(.*)", name)):
            name = found[1] + _SAME.get(found[2], found[2])
        return super()._points(name)

    @classmethod
    def boot_transformers(cls: type[Hooked], model_name: object, **options: object) -> Hooked:
        """The model of that name with the weights as they are; options as `from_pretrained`."""
        return cls.from_pretrained_no_processing(model_name, **options)

    def enable_compatibility_mode(
        self, disable_warnings: bool = False, no_processing: bool = False, **processing: object
    ) -> None:
        """Process the weights, as `HookedTransformer.from_pretrained` does, by the same flags.

        disable_warnings changes nothing: there are none. Hooks that were added before are gone.
        """
        steps = [] if no_processing else steps_of(self.model.config, processing)
        if not steps:
            return
        cfg = self.cfg
        made = type(self)(
            processed(self.model, steps),
            folded="fold_ln" in steps,
            default_prepend_bos=cfg.default_prepend_bos,
        )
        made.cfg.use_attn_result = cfg.use_attn_result
        self.__dict__ = made.__dict__
