"""Random small transformers models of every family and task head, for parity tests."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from hypothesis import strategies as st

from minibert.layers.config import Config
from minibert.layers.layer import layer_quantities
from minibert.text.tokens import Tokens

VOCABULARY, POSITIONS, LABELS = 41, 31, 3
#: The quantities of a layer of BERT or GPT-2: no rotation, no gate.
LAYER_NAMES = tuple(layer_quantities(Config("gpt2", "none", 1, 1, 1, 1, 1, 1)))

_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_MASKED = ("Model", "ForMaskedLM")
# What the names of a family's classes begin with, and their ends.
_FAMILIES = {
    "bert": (
        "Bert",
        (*_MASKED, "LMHeadModel", "ForNextSentencePrediction", "ForPreTraining", *_HEADS),
    ),
    "roberta": ("Roberta", (*_MASKED, "ForCausalLM", *_HEADS)),
    "xlm-roberta": ("XLMRoberta", _MASKED),
    "camembert": ("Camembert", _MASKED),
    "distilbert": ("DistilBert", (*_MASKED, *_HEADS)),
    "electra": ("Electra", (*_MASKED, "ForCausalLM", "ForPreTraining", *_HEADS)),
    "albert": ("Albert", (*_MASKED, "ForPreTraining", *_HEADS)),
    "gpt2": ("GPT2", ("Model", "LMHeadModel", *_HEADS)),
}
CLASSES = {
    family: tuple(f"{prefix}{end}" for end in ends) for family, (prefix, ends) in _FAMILIES.items()
}
CONFIGS = {family: f"{prefix}Config" for family, (prefix, _) in _FAMILIES.items()}
ARCHITECTURES = [(family, name) for family, names in CLASSES.items() for name in names]


@dataclass(frozen=True)
class Sizes:
    """What hypothesis draws of a configuration; primes, so that no axis passes for another.

    A model is at least 5 wide: LayerNorm over two numbers divides by a difference near zero and
    says nothing about rounding.
    """

    layers: int = 3
    heads: int = 3
    d_head: int = 5
    d_mlp: int = 23
    d_embed: int = 11
    activation: str = "gelu"
    tied: bool = True
    segments: int = 2
    layer_groups: int = 1
    scale_by_layer: bool = False
    seed: int = 0


sizes = st.builds(
    Sizes,
    layers=st.sampled_from([1, 2, 3]),
    heads=st.sampled_from([1, 2, 3, 5]),
    d_head=st.sampled_from([5, 7, 11]),
    d_mlp=st.sampled_from([13, 17, 23]),
    d_embed=st.sampled_from([7, 11, 13]),
    activation=st.sampled_from(
        ["gelu", "gelu_new", "relu", "silu", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "tanh"]
    ),
    tied=st.booleans(),
    segments=st.sampled_from([2, 3]),
    layer_groups=st.sampled_from([1, 2]),
    scale_by_layer=st.booleans(),
    seed=st.integers(0, 2**20),
)


def hf_config(family: str, chosen: Sizes) -> Any:
    """The transformers configuration of that family and those sizes."""
    common = {
        "vocab_size": VOCABULARY,
        "initializer_range": 0.15,
        "tie_word_embeddings": chosen.tied,
        "num_labels": LABELS,
    }
    if family == "gpt2":
        names = ("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "activation_function")
        scale = {"scale_attn_by_inverse_layer_idx": chosen.scale_by_layer, "pad_token_id": 0}
        return transformers.GPT2Config(**_sized(names, chosen), **scale, **common)
    if family == "distilbert":
        names = ("dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings")
        return transformers.DistilBertConfig(**_sized((*names, "activation"), chosen), **common)
    extra = {"embedding_size": chosen.d_embed} if family in ("electra", "albert") else {}
    if family == "albert":
        extra["num_hidden_groups"] = min(chosen.layer_groups, chosen.layers)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sized = _sized((*names, "max_position_embeddings", "hidden_act"), chosen)
    return getattr(transformers, CONFIGS[family])(
        type_vocab_size=chosen.segments, **sized, **common, **extra
    )


def _sized(names: tuple[str, ...], chosen: Sizes) -> dict[str, Any]:
    """Width, layers, heads, width of the MLP, positions and activation, as a family calls them."""
    width = chosen.heads * chosen.d_head
    sizes = (width, chosen.layers, chosen.heads, chosen.d_mlp, POSITIONS, chosen.activation)
    return dict(zip(names, sizes, strict=True))


def hf_model(family: str, name: str, chosen: Sizes = Sizes(), dtype: Any = torch.float32) -> Any:
    """A transformers model with random weights, biases and norms included, in evaluation mode."""
    config = hf_config(family, chosen)
    if name.endswith("QuestionAnswering"):
        config.num_labels = 2
    if name in ("BertLMHeadModel", "RobertaForCausalLM", "ElectraForCausalLM"):
        config.is_decoder = True
    config._attn_implementation = "eager"
    torch.manual_seed(chosen.seed)
    model = getattr(transformers, name)(config).eval().to(dtype)
    generator = torch.Generator().manual_seed(chosen.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # transformers starts biases at 0 and norms at 1, where a swapped one would not show.
            if parameter.dim() == 1:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(0.2 * noise.to(dtype))
    return model


def batch(family: str, segments: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    """Three sentences of different lengths: ids, mask and segments, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([13, 7, 1])
    position = torch.arange(13)
    mask = position[None] < lengths[:, None]
    ids = torch.randint(2, VOCABULARY, (3, 13), generator=generator)
    # The padding id of each family; RoBERTa counts its positions from it.
    pad = 1 if family in ("roberta", "xlm-roberta", "camembert") else 0
    ids = torch.where(mask, ids, pad)
    kinds = torch.randint(0, segments, (3, 13), generator=generator)
    return {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": kinds * mask}


def as_tokens(inputs: dict[str, torch.Tensor]) -> Tokens:
    """The same batch for a model of ours."""
    return Tokens.from_ids(
        inputs["input_ids"], mask=inputs["attention_mask"].bool(), segments=inputs["token_type_ids"]
    )


def run_transformers(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """The output of a transformers model with everything it can show."""
    inputs = dict(inputs)
    if model.config.model_type in ("distilbert", "gpt2"):
        inputs.pop("token_type_ids")
    options = {"use_cache": False} if model.config.model_type == "gpt2" else {}
    with torch.no_grad():
        return model(**inputs, output_attentions=True, output_hidden_states=True, **options)


def their_logits(output: Any, name: str) -> torch.Tensor:
    """The logits in the output of a class of that name; the hidden state without a head."""
    if name.endswith("QuestionAnswering"):
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    for key in ("logits", "prediction_logits", "last_hidden_state"):
        if output.get(key) is not None:
            return output[key]
    raise AssertionError(f"{name} gives none of the logits this test knows")


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of two tensors of one shape and dtype."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    return (ours - theirs).abs().max().item()
