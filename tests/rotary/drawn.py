"""Random small configurations of the eleven rotary families, over every choice that each has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers
from hypothesis import strategies as st

VOCABULARY, POSITIONS, LABELS = 41, 31, 3
# Shorter than the longest text of the tests: scalings that depend on the length change within it.
ORIGINAL = 8

_CONFIGS = {
    "gpt_neox": "GPTNeoXConfig",
    "gemma3_text": "Gemma3TextConfig",
    "modernbert": "ModernBertConfig",
}
WINDOWED = ("mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3")

activations = st.sampled_from(["gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh"])
# So large that leaving it out would show.
epsilons = st.sampled_from([1e-6, 1e-5, 1e-2])
bases = st.sampled_from([10000.0, 1000000.0, 100.0])
windows = st.integers(1, 8)
caps = st.sampled_from([None, 0.7, 3.0])


@dataclass(frozen=True)
class Drawn:
    """A configuration: the arguments of the family's config class, and the seed of its weights."""

    family: str
    options: dict[str, Any]
    seed: int

    def config(self, **changed: Any) -> Any:
        """A new object of transformers' config class."""
        name = _CONFIGS.get(self.family, f"{self.family.capitalize()}Config")
        options = {
            "vocab_size": VOCABULARY,
            "max_position_embeddings": POSITIONS,
            "num_labels": LABELS,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": None,
            "attn_implementation": "eager",
        }
        return getattr(transformers, name)(**options | _copied(self.options) | changed)

    @property
    def depends_on_length(self) -> bool:
        """True where a longer text is rotated with other frequencies."""
        rope = self.options["rope_parameters"]
        each = rope.values() if self.family in ("gemma3_text", "modernbert") else (rope,)
        return any(one["rope_type"] in ("dynamic", "longrope") for one in each)


def _copied(value: Any) -> Any:
    """The same with dictionaries and lists of its own: config classes write into theirs."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return list(value) if isinstance(value, list) else value


@st.composite
def ropes(draw: Callable[..., Any], dims: int, types: tuple[str, ...], nested: bool) -> Any:
    """The rope_parameters of transformers 5, for `dims` rotated dimensions."""
    kind = draw(st.sampled_from([each for each in types if each != "dynamic" or dims > 2]))
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": draw(bases)}
    if kind == "default":
        return rope
    rope["factor"] = draw(st.sampled_from([1.0, 2.0, 8.0]))
    if kind == "dynamic":
        # The length it begins at is max_position_embeddings.
        rope["factor"] = 4.0
    original = draw(st.sampled_from([ORIGINAL, 64, 4096]))
    if kind == "llama3":
        low = draw(st.sampled_from([1.0, 0.5]))
        rope |= {"low_freq_factor": low, "high_freq_factor": draw(st.sampled_from([4.0, 1.5]))}
        rope["original_max_position_embeddings"] = original
    if kind == "yarn":
        rope |= draw(_yarns(nested)) | {"original_max_position_embeddings": original}
    if kind == "longrope":
        factors = st.lists(st.sampled_from([1.0, 1.5, 4.0]), min_size=dims // 2, max_size=dims // 2)
        rope |= {"short_factor": draw(factors), "long_factor": draw(factors)}
        rope |= draw(_some({"attention_factor": st.sampled_from([1.2, 0.8])}))
        rope["original_max_position_embeddings"] = ORIGINAL
    return rope


def _yarns(nested: bool) -> Any:
    choices = {
        "beta_fast": st.sampled_from([32.0, 4.0, 2.0]),
        "beta_slow": st.sampled_from([1.0, 0.25]),
        "attention_factor": st.sampled_from([0.8, 1.3]),
        "mscale": st.sampled_from([0.7, 1.0]),
        "mscale_all_dim": st.sampled_from([0.0, 0.5]),
    }
    # transformers looks for it beside the layer types, and so never finds it in one of them.
    return _some(choices if nested else choices | {"truncate": st.booleans()})


def _some(choices: dict[str, Any]) -> Any:
    return st.fixed_dictionaries({}, optional=choices)


#: Of Granite, none of them 1 and no two alike.
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.7,
}


def plain(family: str, seed: int = 0) -> Drawn:
    """A configuration of two layers of four heads, two of keys where the family has grouped ones,
    with windows in the first layer where it can have them."""
    default = {"rope_type": "default", "rope_theta": 100.0}
    options: dict[str, Any] = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 24,
        "intermediate_size": 11,
        "tie_word_embeddings": False,
        "rope_parameters": default,
    }
    if family not in ("gpt_neox", "modernbert"):
        options["num_key_value_heads"] = 2
    if family in ("llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text"):
        options["head_dim"] = 8
    if family in ("gemma3_text", "modernbert"):
        local = default | {"rope_theta": 10.0}
        options["rope_parameters"] = {"full_attention": default, "sliding_attention": local}
    if family in ("gpt_neox", "phi3"):
        options["rope_parameters"] = default | {"partial_rotary_factor": 4 / 6}
    if family in ("qwen2", "qwen3"):
        options["use_sliding_window"] = True
    if family in WINDOWED:
        options["sliding_window"] = 4
    if family == "modernbert":
        options["local_attention"] = 4
    if family in ("qwen2", "qwen3", "gemma2", "gemma3_text", "modernbert"):
        options["layer_types"] = ["sliding_attention", "full_attention"]
    if family in ("gemma2", "gemma3_text"):
        options |= {"query_pre_attn_scalar": 5, "final_logit_softcapping": 3.0}
    if family == "granite":
        options |= MULTIPLIERS
    if family == "gemma2":
        options["attn_logit_softcapping"] = 2.0
    return Drawn(family, options, seed)


_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@st.composite
def drawn(draw: Callable[..., Any], family: str) -> Drawn:
    """A configuration of the family."""
    layers = draw(st.integers(1, 3))
    d_head = draw(st.sampled_from([4, 6, 8]))
    grouped = family not in ("gpt_neox", "modernbert")
    key_heads = draw(st.integers(1, 2))
    heads = key_heads * draw(st.integers(1, 3))
    options: dict[str, Any] = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": heads * d_head,
        "intermediate_size": draw(st.sampled_from([7, 11])),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if grouped:
        options["num_key_value_heads"] = key_heads
    if family in ("llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text"):
        # Narrower than 5, a norm divides by what is near zero and says nothing about rounding.
        options |= {"hidden_size": heads * draw(st.sampled_from([5, 6, 8])), "head_dim": d_head}
    options |= draw(st.fixed_dictionaries(_choices(family, layers, d_head)))
    if "partial_rotary_factor" in options:
        # Only some dimensions of a head are turned.
        dims = options.pop("partial_rotary_factor")
        options["rope_parameters"] = draw(ropes(dims, _TYPES_OF.get(family, _TYPES), nested=False))
        options["rope_parameters"]["partial_rotary_factor"] = dims / d_head
    if options.get("use_sliding_window") and draw(st.booleans()):
        options["layer_types"] = draw(_types(layers))
    rope = options["rope_parameters"]
    each = rope.values() if family in ("gemma3_text", "modernbert") else (rope,)
    if any(one["rope_type"] == "dynamic" for one in each):
        options["max_position_embeddings"] = ORIGINAL
    return Drawn(family, options, draw(st.integers(0, 2**20)))


def _types(layers: int) -> Any:
    """Which layers have a window."""
    kinds = st.sampled_from(["sliding_attention", "full_attention"])
    return st.lists(kinds, min_size=layers, max_size=layers)


_TYPES_OF = {"phi3": ("default", "longrope")}


_CAPPED = {
    "hidden_activation": activations,
    "rms_norm_eps": epsilons,
    "query_pre_attn_scalar": st.sampled_from([2, 5, 16]),
    "sliding_window": windows,
    "final_logit_softcapping": caps,
}
_MODERNBERT = {
    "hidden_activation": activations,
    "norm_eps": epsilons,
    **dict.fromkeys(("norm_bias", "decoder_bias", "classifier_bias"), st.booleans()),
    "classifier_activation": activations,
    "classifier_pooling": st.sampled_from(["cls", "mean"]),
    "local_attention": windows,
}


def _choices(family: str, layers: int, d_head: int) -> dict[str, Any]:
    """What is drawn for each field of a family beside its sizes.

    Under partial_rotary_factor stands how many dimensions of a head are turned.
    """
    flag = st.booleans()
    rms = {"hidden_act": activations, "rms_norm_eps": epsilons}
    rope = {"rope_parameters": ropes(d_head, _TYPES, nested=False)}
    nested = ropes(d_head, _TYPES, nested=True)
    by_type = st.fixed_dictionaries({"sliding_attention": nested, "full_attention": nested})
    dims = {"partial_rotary_factor": st.sampled_from([n for n in (2, 4, 6, 8) if n <= d_head])}
    types = {"layer_types": _types(layers)}
    bias, mlp = {"attention_bias": flag}, {"mlp_bias": flag}
    window = {"sliding_window": st.none() | windows}
    qwen = (
        rms
        | rope
        | {
            "use_sliding_window": flag,
            "sliding_window": windows,
            "max_window_layers": st.integers(0, layers),
        }
    )
    capped = types | bias | _CAPPED
    table: dict[str, dict[str, Any]] = {
        "gpt_neox": dims | bias | {
            "hidden_act": activations,
            "layer_norm_eps": epsilons,
            "use_parallel_residual": flag,
        },
        "llama": rms | rope | bias | mlp,
        "mistral": rms | rope | window,
        "qwen2": qwen,
        "qwen3": qwen | bias,
        "gemma": rms | rope | bias,
        "gemma2": capped | rope | {"attn_logit_softcapping": caps},
        # Its attn_logit_softcapping is read by no code of transformers.
        "gemma3_text": capped
        | {"rope_parameters": by_type, "attn_logit_softcapping": st.none()},
        "phi3": rms | dims | window | {"original_max_position_embeddings": st.just(ORIGINAL)},
        "olmo2": rms | rope | bias,
        "granite": rms | rope | bias | mlp
        | dict.fromkeys(MULTIPLIERS, st.sampled_from([0.25, 0.7, 1.0, 2.2])),
        "modernbert": types | bias | mlp | _MODERNBERT | {"rope_parameters": by_type},
    }  # fmt: skip
    return table[family]
