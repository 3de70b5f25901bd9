"""What a hooked model is made of, by TransformerLens' names: to be made, and as `model.cfg`."""

from collections.abc import Callable
from typing import Any

import torch

from minibert.errors import CheckpointError, EditError, did_you_mean
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model

_ACTIVATIONS = {"gelu_tanh": "gelu_new"}
_POSITIONS = {"standard": "learned", "rotary": "rotary", "shortformer": "shortformer"}
_CHOICES: dict[str, object] = {
    "n_heads": -1, "d_mlp": None, "act_fn": None, "d_vocab": -1, "d_vocab_out": -1, "eps": 1e-5,
    "use_attn_result": False, "use_hook_tokens": False, "use_attn_scale": True,
    "attn_scale": -1.0, "use_local_attn": False,
    "window_size": None, "attn_types": None, "normalization_type": "LN", "final_rms": False,
    "attention_dir": "causal", "attn_only": False, "seed": None, "initializer_range": -1.0,
    "init_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "positional_embedding_type": "standard", "parallel_attn_mlp": False, "rotary_dim": None,
    "rotary_base": 10000, "attn_scores_soft_cap": -1.0,
    "output_logits_soft_cap": -1.0, "default_prepend_bos": True, "device": None,
    "dtype": torch.float32, "model_name": "custom", "tokenizer_name": None,
}  # fmt: skip
"""TransformerLens' names and defaults of what a model is made of."""
_ONLY: dict[str, object] = {
    "init_mode": "gpt2", "n_devices": 1, "use_split_qkv_input": False, "use_attn_in": False,
    "use_hook_mlp_in": False, "rotary_adjacent_pairs": False,
    # TransformerLens adds b_in behind the product of a gated MLP; Config(gated=True) does not.
    "gated_mlp": False, "n_key_value_heads": None,
    "num_experts": None, "post_embedding_ln": False, "use_normalization_before_and_after": False,
}  # fmt: skip
"""What is refused with any other value than this."""


class HookedTransformerConfig:
    """The sizes and choices of a model to be made, by TransformerLens' names and defaults.

    `HookedTransformer(HookedTransformerConfig(n_layers=2, d_model=64, n_ctx=32, d_head=16,
    d_vocab=50, attn_only=True, normalization_type=None))` makes it, with random weights.

    Raises CheckpointError for a name that it does not have, and for a choice that is not offered.
    """

    n_heads: int
    d_mlp: int | None
    d_vocab_out: int
    initializer_range: float
    use_attn_result: bool

    def __init__(
        self, n_layers: int, d_model: int, n_ctx: int, d_head: int, **choices: object
    ) -> None:
        sizes = {"n_layers": n_layers, "d_model": d_model, "n_ctx": n_ctx, "d_head": d_head}
        for name, value in choices.items():
            if name not in _CHOICES and name not in _ONLY:
                known = [*sizes, *_CHOICES]
                raise CheckpointError(
                    f"HookedTransformerConfig has no {name}{did_you_mean(name, known)}; it has "
                    f"{', '.join(known)}."
                )
            if name in _ONLY and value != _ONLY[name]:
                raise CheckpointError(
                    f"{name}={value!r:.80} is not offered; expected {_ONLY[name]!r}."
                )
        vars(self).update({**_CHOICES, **_ONLY, **choices, **sizes})
        if self.n_heads == -1:
            self.n_heads = self.d_model // self.d_head
        if self.d_mlp is None and not self.attn_only:
            self.d_mlp = 4 * self.d_model
        if self.d_vocab_out == -1:
            self.d_vocab_out = self.d_vocab
        if self.initializer_range == -1:
            self.initializer_range = 0.8 / self.d_model**0.5

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cfg has no {name}; it has {', '.join(self.to_dict())}.")

    def to_dict(self) -> dict[str, object]:
        """The sizes and choices by name."""
        return dict(vars(self))

    def __repr__(self) -> str:
        return f"HookedTransformerConfig({self.to_dict()})"

    def config(self) -> Config:
        """These choices as a Config of minibert. Raises CheckpointError for unknown ones."""
        norm = self.normalization_type
        known = {None: "layer", "LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms"}
        if norm not in known:
            raise CheckpointError(f"normalization_type={norm!r:.80}: expected one of {[*known]}.")
        if self.positional_embedding_type not in _POSITIONS:
            raise CheckpointError(
                f"positional_embedding_type={self.positional_embedding_type!r:.80}: expected one "
                f"of {', '.join(_POSITIONS)}."
            )
        causal = self.attention_dir == "causal"
        if not causal and self.attention_dir != "bidirectional":
            raise CheckpointError(
                f"attention_dir={self.attention_dir!r:.80}: expected causal or bidirectional."
            )
        if self.act_fn is None and not self.attn_only:
            raise CheckpointError("act_fn is missing: the activation of the MLPs, such as gelu.")
        names = {theirs: ours for ours, theirs in _ACTIVATIONS.items()}
        turned = self.positional_embedding_type == "rotary"
        rotary = Rotary(self.rotary_dim or self.d_head, float(self.rotary_base)) if turned else None
        return Config(
            "minibert",
            "causal-lm" if causal else "masked-lm",
            vocab_size=self.d_vocab,
            n_positions=self.n_ctx,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            d_model=self.d_model,
            d_mlp=0 if self.attn_only else self.d_mlp or 0,
            d_head=self.d_head,
            d_vocab_out=self.d_vocab_out,
            tied=False,
            causal=causal,
            activation=names.get(self.act_fn, self.act_fn or "gelu"),
            norm=known[norm],
            norm_place="none" if norm is None else "before",
            final_norm=norm is not None,
            norm_eps=self.eps,
            positions=_POSITIONS[self.positional_embedding_type],
            rotary=rotary,
            windows=self._windows(),
            query_scalar=self._query_scalar(),
            scale_by_layer=self.scale_attn_by_inverse_layer_idx,
            attention_soft_cap=_cap(self.attn_scores_soft_cap),
            logit_soft_cap=_cap(self.output_logits_soft_cap),
            parallel=self.parallel_attn_mlp,
        )

    def _query_scalar(self) -> float | None:
        if not self.use_attn_scale:
            return 1.0
        return None if self.attn_scale == -1 else float(self.attn_scale) ** 2

    def _windows(self) -> tuple[int, ...]:
        if not self.use_local_attn:
            return ()
        if self.attn_types is None or self.window_size is None:
            raise CheckpointError(
                "use_local_attn=True: expected window_size, and attn_types with global or local "
                "for each layer."
            )
        return tuple(self.window_size if each == "local" else 0 for each in self.attn_types)


def _cap(given: float) -> float | None:
    return given if given > 0 else None


_FACTS: dict[str, Callable[[Model], object]] = {
    "n_layers": lambda model: model.config.n_layers,
    "d_model": lambda model: model.config.d_model,
    "n_ctx": lambda model: model.config.n_positions,
    "d_head": lambda model: model.config.d_head,
    "n_heads": lambda model: model.config.n_heads,
    # None where every head has keys and values of its own.
    "n_key_value_heads": lambda model: (
        None if model.config.n_kv_heads == model.config.n_heads else model.config.n_kv_heads
    ),
    "d_mlp": lambda model: model.config.d_mlp or None,
    "d_vocab": lambda model: model.config.vocab_size,
    "d_vocab_out": lambda model: model.config.n_logits,
    "act_fn": lambda model: _ACTIVATIONS.get(model.config.activation, model.config.activation),
    "gated_mlp": lambda model: model.config.gated,
    "parallel_attn_mlp": lambda model: model.config.parallel,
    "eps": lambda model: model.config.norm_eps,
    "model_name": lambda model: model.name,
    "tokenizer_name": lambda model: None if model.tokenizer is None else model.name,
    "original_architecture": lambda model: model.config.model_type,
    "attn_only": lambda model: not model.config.d_mlp,
    "attention_dir": lambda model: "causal" if model.config.causal else "bidirectional",
    "positional_embedding_type": lambda model: (
        "standard" if model.config.positions == "learned" else model.config.positions
    ),
    "rotary_dim": lambda model: None if model.config.rotary is None else model.config.rotary.dims,
    # What scores are divided by.
    "attn_scale": lambda model: 1 / model.config.attention_scale(0),
    # -1 where there is none.
    "attn_scores_soft_cap": lambda model: model.config.attention_soft_cap or -1.0,
    "output_logits_soft_cap": lambda model: model.config.logit_soft_cap or -1.0,
    "window_size": lambda model: max(model.config.windows, default=0) or None,
    "n_params": lambda model: _counted(model.config),
    "device": lambda model: model.body.device,
    "dtype": lambda model: model.body.dtype,
}


class ModelConfig(HookedTransformerConfig):
    """What there is to know about a hooked model: `_FACTS`, read from the model, and these.

    normalization_type    LN, LNPre, RMS or RMSPre: Pre where the norms' weights were folded away;
                          None without norms
    default_prepend_bos   whether texts get a first token; can be set
    use_attn_result       whether caches have attn.hook_result without being asked for it by name;
                          can be set

    Raises EditError for setting anything else, since that would change no model.
    """

    default_prepend_bos: bool
    use_attn_result: bool

    def __init__(self, model: Model, *, folded: bool, default_prepend_bos: bool) -> None:
        norm = "RMS" if model.config.norm == "rms" else "LN"
        kind = None if model.config.norm_place == "none" else f"{norm}Pre" if folded else norm
        vars(self).update(
            _model=model,
            normalization_type=kind,
            default_prepend_bos=default_prepend_bos,
            use_attn_result=False,
        )

    def __getattr__(self, name: str) -> Any:
        if name not in _FACTS or "_model" not in vars(self):
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(f"cfg has no {name}; it has {', '.join(self.to_dict())}.")
        return _FACTS[name](vars(self)["_model"])

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("default_prepend_bos", "use_attn_result"):
            raise EditError(
                f"cfg.{name} describes the model and cannot be set; what can is "
                "default_prepend_bos and use_attn_result."
            )
        vars(self)[name] = value

    def to_dict(self) -> dict[str, object]:
        """The facts by name."""
        own = {name: value for name, value in vars(self).items() if name != "_model"}
        return {name: getattr(self, name) for name in _FACTS} | own


def _counted(config: Config) -> int:
    """As TransformerLens counts: W_Q, W_K, W_V and W_O of every head, and the MLPs."""
    of_heads = 4 * config.d_model * config.d_head * config.n_heads
    of_mlp = config.d_model * config.d_mlp * (3 if config.gated else 2)
    return config.n_layers * (of_heads + of_mlp)
