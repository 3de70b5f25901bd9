"""The facts about a model that notebooks read from `model.cfg`, by TransformerLens' names."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.transformer_lens.points import INPUT_SWITCHES

if TYPE_CHECKING:
    from minibert.model import Model

_CHANGEABLE = ("use_attn_result", "default_prepend_bos", *INPUT_SWITCHES)
_ACTIVATIONS = {"gelu_tanh": "gelu_new"}


@dataclass
class HookedTransformerConfig:
    """What there is to know about a HookedTransformer.

    default_prepend_bos and the switches (use_attn_result, use_attn_in, use_split_qkv_input,
    use_hook_mlp_in) can be set; EditError for the rest, since setting it would change no model, and
    for use_attn_in together with use_split_qkv_input or where heads share keys and values.
    """

    n_layers: int
    d_model: int
    n_ctx: int
    d_head: int
    n_heads: int
    d_mlp: int
    d_vocab: int
    d_vocab_out: int
    act_fn: str
    eps: float
    model_name: str
    original_architecture: str
    normalization_type: str
    """LN | LNPre | RMS | RMSPre: Pre where the norms' weights were folded away."""
    positional_embedding_type: str
    final_rms: bool
    gated_mlp: bool
    parallel_attn_mlp: bool
    n_key_value_heads: int | None
    """None where every head has keys and values of its own."""
    rotary_dim: int | None
    attn_scale: float
    """What scores are divided by."""
    attn_scores_soft_cap: float
    """-1 where there is none, as of the logits."""
    output_logits_soft_cap: float
    window_size: int | None
    use_local_attn: bool
    n_params: int
    """As TransformerLens counts: W_Q, W_K, W_V and W_O of every head, and the MLPs."""
    device: torch.device
    dtype: torch.dtype
    tokenizer_name: str | None
    default_prepend_bos: bool = True
    use_attn_result: bool = False
    """Whether `run_with_cache` keeps attn.hook_result without being asked for it by name."""
    use_attn_in: bool = False
    """Whether each head's input has a point, hook_attn_in, as the next ones have theirs."""
    use_split_qkv_input: bool = False
    use_hook_mlp_in: bool = False
    attn_only: bool = False
    attention_dir: str = "causal"
    use_attn_scale: bool = True
    n_devices: int = 1
    seed: int | None = None
    checkpoint_index: int | None = None
    checkpoint_value: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_made", True)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _CHANGEABLE and getattr(self, "_made", False):
            raise EditError(
                f"cfg.{name} describes the model and cannot be set; what can is "
                f"{', '.join(_CHANGEABLE)}."
            )
        if name in ("use_attn_in", "use_split_qkv_input") and value:
            self._check_heads(name)
        object.__setattr__(self, name, value)

    def _check_heads(self, name: str) -> None:
        if name == "use_attn_in" and self.n_key_value_heads is not None:
            raise EditError(
                "use_attn_in: heads share keys and values here, so no input is one head's; use "
                "use_split_qkv_input."
            )
        other = "use_attn_in" if name == "use_split_qkv_input" else "use_split_qkv_input"
        if getattr(self, other):
            raise EditError(f"{name}: a head has one input; set {other} to False first.")

    def to_dict(self) -> dict[str, Any]:
        """The facts by name."""
        return asdict(self)


def config_of(
    model: "Model", *, folded: bool, default_prepend_bos: bool
) -> HookedTransformerConfig:
    """The facts about a model, whose norms may be folded into the weights behind them."""
    config = model.config
    weight = model.body.word.weight
    norm = "RMS" if config.norm == "rms" else "LN"
    decoder = getattr(model.head, "decoder")  # noqa: B009, not every head has one
    grouped = config.n_kv_heads != config.n_heads
    return HookedTransformerConfig(
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_ctx=config.n_positions,
        d_head=config.d_head,
        n_heads=config.n_heads,
        d_mlp=config.d_mlp,
        d_vocab=weight.shape[0],
        d_vocab_out=decoder.weight.shape[0],
        act_fn=_ACTIVATIONS.get(config.activation, config.activation),
        eps=config.norm_eps,
        model_name=model.name,
        original_architecture=config.model_type,
        normalization_type=f"{norm}Pre" if folded else norm,
        positional_embedding_type="rotary" if config.rotary is not None else "standard",
        final_rms=config.norm == "rms",
        gated_mlp=config.gated,
        parallel_attn_mlp=config.parallel,
        n_key_value_heads=config.n_kv_heads if grouped else None,
        rotary_dim=None if config.rotary is None else config.rotary.dims,
        attn_scale=1 / config.attention_scale(0),
        attn_scores_soft_cap=config.attention_soft_cap or -1.0,
        output_logits_soft_cap=config.logit_soft_cap or -1.0,
        window_size=max(config.windows, default=0) or None,
        use_local_attn=any(config.windows),
        n_params=_counted(config),
        device=weight.device,
        dtype=weight.dtype,
        tokenizer_name=None if model.tokenizer is None else model.name,
        default_prepend_bos=default_prepend_bos,
    )


def _counted(config: Config) -> int:
    of_heads = 4 * config.d_model * config.d_head * config.n_heads
    of_mlp = config.d_model * config.d_mlp * (3 if config.gated else 2)
    return config.n_layers * (of_heads + of_mlp)
