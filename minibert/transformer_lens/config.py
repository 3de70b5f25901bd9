"""The facts about a model that notebooks read from `model.cfg`, by TransformerLens' names."""

from collections.abc import Callable
from typing import Any

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.model import Model

_ACTIVATIONS = {"gelu_tanh": "gelu_new"}

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
    "d_mlp": lambda model: model.config.d_mlp,
    "d_vocab": lambda model: model.config.vocab_size,
    "d_vocab_out": lambda model: getattr(model.head, "decoder").weight.shape[0],  # noqa: B009
    "act_fn": lambda model: _ACTIVATIONS.get(model.config.activation, model.config.activation),
    "gated_mlp": lambda model: model.config.gated,
    "parallel_attn_mlp": lambda model: model.config.parallel,
    "eps": lambda model: model.config.norm_eps,
    "model_name": lambda model: model.name,
    "tokenizer_name": lambda model: None if model.tokenizer is None else model.name,
    "original_architecture": lambda model: model.config.model_type,
    "positional_embedding_type": lambda model: (
        "standard" if model.config.rotary is None else "rotary"
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


class HookedTransformerConfig:
    """What there is to know about a hooked model: `_FACTS`, read from the model, and these.

    normalization_type    LN, LNPre, RMS or RMSPre: Pre where the norms' weights were folded away
    default_prepend_bos   whether texts get a first token; can be set
    use_attn_result       whether caches have attn.hook_result without being asked for it by name;
                          can be set

    Raises EditError for setting anything else, since that would change no model.
    """

    default_prepend_bos: bool
    use_attn_result: bool

    def __init__(self, model: Model, *, folded: bool, default_prepend_bos: bool) -> None:
        norm = "RMS" if model.config.norm == "rms" else "LN"
        vars(self).update(
            _model=model,
            normalization_type=f"{norm}Pre" if folded else norm,
            default_prepend_bos=default_prepend_bos,
            use_attn_result=False,
        )

    def __getattr__(self, name: str) -> Any:
        if name not in _FACTS:
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

    def __repr__(self) -> str:
        return f"HookedTransformerConfig({self.to_dict()})"


def _counted(config: Config) -> int:
    """As TransformerLens counts: W_Q, W_K, W_V and W_O of every head, and the MLPs."""
    of_heads = 4 * config.d_model * config.d_head * config.n_heads
    of_mlp = config.d_model * config.d_mlp * (3 if config.gated else 2)
    return config.n_layers * (of_heads + of_mlp)
