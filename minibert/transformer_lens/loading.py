"""`HookedTransformer.from_pretrained`: a model by name, its weights processed as asked."""

from typing import Any, TypeVar

import torch
from torch import nn

from minibert.errors import CheckpointError, check_flag
from minibert.loading import load
from minibert.model import Model
from minibert.text.tokenizer import Tokenizer
from minibert.transformer_lens.processing import Processing, processed

__all__ = ["Loading", "check_that_it_generates"]

Hooked = TypeVar("Hooked", bound="Loading")

# Names that TransformerLens has of its own for models of the Hub.
_ALIASES = {
    "gpt2-small": "gpt2",
    "distillgpt2": "distilgpt2",
    "distilgpt2": "distilgpt2",
    **{
        f"pythia-{size}": f"EleutherAI/pythia-{size}"
        for size in (
            "14m",
            "31m",
            "70m",
            "160m",
            "410m",
            "1b",
            "1.4b",
            "2.8b",
            "6.9b",
            "12b",
        )
    },
}
_HUB_OPTIONS = ("revision", "cache_dir", "offline")
# Arguments of TransformerLens that are refused with any other value than this.
_ONLY = {
    "checkpoint_index": (None, 'pass revision="step1000"'),
    "checkpoint_value": (None, 'pass revision="step1000"'),
    "checkpoint_label": (None, 'pass revision="step1000"'),
    "n_devices": (1, "a model lives on one device"),
    "move_to_device": (True, "pass device="),
    "first_n_layers": (None, "use stop_at_layer= when calling the model"),
    "n_ctx": (None, "the checkpoint says how many positions there are"),
    "trust_remote_code": (False, "no code of a checkpoint is run"),
}


class Loading:
    """How a hooked model is loaded."""

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
        default_padding_side: str | None = None,
        dtype: torch.dtype | str = torch.float32,
        **options: Any,
    ) -> Hooked:
        """The model of a name that `minibert.load` knows, or of TransformerLens' aliases.

        fold_ln, center_writing_weights, center_unembed, fold_value_biases: see `Processing`. Not
            given they are done wherever they leave the predictions as they are, as in
            TransformerLens; with True where they would not, CheckpointError says why
        hf_model    a transformers model, whose weights are copied
        tokenizer   of minibert, or a fast one of transformers; by default the checkpoint's
        dtype       float32 when not given, as in TransformerLens
        options     revision, cache_dir, offline, as in `minibert.load`

        Raises CheckpointError also for an option that is not offered.
        """
        _check_options(options)
        if default_padding_side not in (None, "right"):
            raise CheckpointError(f'default_padding_side={default_padding_side!r}: only "right".')
        processing = Processing(
            fold_ln,
            center_writing_weights,
            center_unembed,
            fold_value_biases,
            refactor_factored_attn_matrices,
        )
        for name, flag in vars(processing).items():
            if flag is not None:
                check_flag(name, flag, CheckpointError)
        source = _ALIASES.get(model_name, model_name) if hf_model is None else hf_model
        hub = {name: options[name] for name in _HUB_OPTIONS if name in options}
        model = load(source, dtype=_dtype(dtype), device=device, **hub)
        check_that_it_generates(model)
        if tokenizer is not None:
            model.tokenizer = _tokenizer(tokenizer)
        wanted = processing.checked(model.config)
        # A transformers model keeps weights of its own.
        if wanted.any or hf_model is not None:
            model = processed(model, wanted)
        prepends = True if default_prepend_bos is None else default_prepend_bos
        check_flag("default_prepend_bos", prepends, CheckpointError)
        return cls(  # type: ignore[call-arg]
            model, folded=bool(wanted.fold_ln), default_prepend_bos=prepends
        )

    @classmethod
    def from_pretrained_no_processing(cls: type[Hooked], model_name: Any, **options: Any) -> Hooked:
        """The same with the checkpoint's weights as they are."""
        off = ("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases")
        return cls.from_pretrained(model_name, **(dict.fromkeys(off, False) | options))


def check_that_it_generates(model: Model) -> None:
    """Raise CheckpointError for a model that does not predict a next token."""
    if not model.config.generates:
        raise CheckpointError(
            f"{model.name} ({model.config.model_type}, {model.config.task}) does not continue "
            "texts; HookedTransformer is for causal language models. model.trace and "
            "trace.to_transformer_lens() read the others."
        )


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _HUB_OPTIONS:
            continue
        if name not in _ONLY:
            known = ", ".join((*_HUB_OPTIONS, *_ONLY))
            raise CheckpointError(f"from_pretrained has no option {name:.80}; it has {known}.")
        only, instead = _ONLY[name]
        if value != only:
            raise CheckpointError(f"{name}={value!r:.80} is not offered; {instead}.")


def _dtype(given: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"dtype={given!r:.80}; expected a torch.dtype or its name.")
    return found


def _tokenizer(given: Any) -> Tokenizer:
    if isinstance(given, Tokenizer):
        return given
    fast = getattr(given, "backend_tokenizer", None)
    if fast is None:
        raise CheckpointError(
            f"tokenizer is {type(given).__name__}; expected one of minibert or a fast one of "
            "transformers."
        )
    return Tokenizer.from_json(fast.to_str())
