"""Real weights: MiniLM as itself, as RoBERTa and as DistilBERT, and the GPT-2 that sorts."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from data import data_path
from safetensors.torch import load_file, save_file

import minibert
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.eager import attention_probs

SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "No.",
    "I see leaves fall in late autumn",
    "Time flies like an arrow; fruit flies like a banana.",
    "The strawberries, picked at dawn by seven sleepy students, were sold before noon.",
    "naïve café, 東京, 1314151",
    "Why?!",
    "At the store, I bought fresh strawberries, and then I went home to read about attention.",
]
TOLERANCE = 1e-5


def run_transformers(
    folder: Path, name: str, dtype: torch.dtype = torch.float32, **inputs: Any
) -> Any:
    theirs = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        theirs = theirs.eval().to(dtype)
        return theirs(**inputs, output_hidden_states=True, output_attentions=True)


def of_real_tokens(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The rows of real tokens of hidden states or attentions."""
    return tensor[mask] if tensor.dim() == 3 else tensor.transpose(1, 2)[mask]


def assert_same(trace: Any, output: Any, mask: torch.Tensor) -> None:
    """Every hidden state and attention of real tokens.

    Rows of padding are compared in double precision: in single, transformers itself is 1e-4 off
    there, because [PAD] stands where these weights were never trained to have it.
    """
    for name in ("hidden_states", "attentions"):
        for ours, theirs in zip(getattr(trace, name), output[name], strict=True):
            assert ours.shape == theirs.shape
            difference = (of_real_tokens(ours, mask) - of_real_tokens(theirs, mask)).abs().max()
            assert difference <= TOLERANCE


@pytest.fixture(scope="module")
def minilm() -> Path:
    return data_path("models", "all-MiniLM-L6-v2")


@pytest.fixture(scope="module")
def trace(minilm: Path) -> Any:
    return minibert.load(minilm).trace(SENTENCES)


def test_minilm_gives_every_hidden_state_and_attention_of_transformers(
    minilm: Path, trace: Any
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    assert torch.equal(trace.tokens.ids, inputs["input_ids"])
    assert torch.equal(trace.tokens.mask, inputs["attention_mask"].bool())
    assert len(set(trace.tokens.lengths)) >= 8
    output = run_transformers(minilm, "BertModel", **inputs)
    assert_same(trace, output, trace.tokens.mask)
    assert (trace.pooled - output.pooler_output).abs().max() <= TOLERANCE


def test_minilm_in_double_precision_agrees_to_ten_digits_padding_included(
    minilm: Path, trace: Any
) -> None:
    tokens = trace.tokens
    ids, mask = tokens.ids, tokens.mask.long()
    theirs = run_transformers(
        minilm, "BertModel", torch.float64, input_ids=ids, attention_mask=mask
    )
    ours = minibert.load(minilm, dtype=torch.float64).trace(tokens)
    for name in ("hidden_states", "attentions"):
        for got, expected in zip(getattr(ours, name), theirs[name], strict=True):
            assert (got - expected).abs().max() <= 1e-10


def test_minilm_gives_the_published_cosines(minilm: Path, trace: Any) -> None:
    real = trace.tokens.mask[:3, :, None]
    mean = (trace.hidden[:3] * real).sum(1) / real.sum(1)
    unit = mean / mean.norm(dim=-1, keepdim=True)
    cosines = [round((unit[a] @ unit[b]).item(), 4) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert cosines == [0.6660, 0.1046, 0.1411]


def test_the_sorter_sorts_all_729() -> None:
    model = minibert.load(data_path("models", "minigpt-nano-sort"))
    given = list(itertools.product(range(3), repeat=6))
    ids = torch.tensor(given)
    for _ in range(6):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    sorted_ids = [tuple(row) for row in ids[:, 6:].tolist()]
    assert sorted_ids == [tuple(sorted(row)) for row in given]


def test_softmax_of_the_scores_of_the_real_gpt2_is_its_attention() -> None:
    """Numbers of TransformerExplainer; queries and keys of gpt2 are in tests/kernels."""
    with np.load(data_path("refs", "gpt2__te0.npz"), allow_pickle=False) as arrays:
        raw, scores, expected = (
            torch.from_numpy(arrays[name]) for name in ("scores", "scores_scaled", "attn")
        )
    ids = torch.zeros(1, scores.shape[-1], dtype=torch.long)
    rows = AllowedKeys.of(None, causal=True, ids=ids).rows()
    assert (attention_probs(scores, rows) - expected).abs().max() <= 1e-6
    allowed = AllowedKeys.of(None, causal=True, ids=ids).full()
    off = (raw / 8 - scores)[:, :, allowed[0, 0]].abs().max()
    assert off <= 1e-5 * raw.abs().max(), "the scale of gpt2 is 1 / sqrt(64)"


def as_roberta(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Positions are counted from padding_idx + 1, so two rows stand in front of them."""
    config |= {"model_type": "roberta", "architectures": ["RobertaModel"], "pad_token_id": 1}
    config["max_position_embeddings"] += 2
    position = tensors["embeddings.position_embeddings.weight"]
    reserved = torch.full((2, position.shape[1]), 9.0)
    tensors["embeddings.position_embeddings.weight"] = torch.cat([reserved, position])


DISTILBERT = {
    "encoder.layer.": "transformer.layer.",
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}


def as_distilbert(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    """No segments: the embedding of type 0 is added to every position."""
    renamed = {
        "dim": config["hidden_size"],
        "hidden_dim": config["intermediate_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "activation": config["hidden_act"],
    }
    kept = {name: config[name] for name in ("vocab_size", "max_position_embeddings")}
    config.clear()
    config |= kept | renamed
    config |= {"model_type": "distilbert", "architectures": ["DistilBertModel"]}
    segment = tensors.pop("embeddings.token_type_embeddings.weight")[0]
    tensors["embeddings.position_embeddings.weight"] += segment
    for name in [*tensors]:
        tensor = tensors.pop(name)
        for bert, distilbert in DISTILBERT.items():
            name = name.replace(bert, distilbert)
        if not name.startswith("pooler") and "position_ids" not in name:
            tensors[name] = tensor


@pytest.mark.parametrize(
    ("change", "name"), [(as_roberta, "RobertaModel"), (as_distilbert, "DistilBertModel")]
)
def test_minilm_in_the_layout_of_another_family_is_still_minilm(
    change: Callable[..., None], name: str, minilm: Path, trace: Any, tmp_path: Path
) -> None:
    config = json.loads((minilm / "config.json").read_text())
    tensors = load_file(minilm / "model.safetensors")
    change(config, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    mask = trace.tokens.mask
    # Padding is 1 in RoBERTa, which is [unused0] here: no sentence has it.
    ids = torch.where(mask, trace.tokens.ids, 1 if name == "RobertaModel" else 0)
    ours = minibert.load(tmp_path).trace(minibert.Tokens.from_ids(ids, mask=mask))
    theirs = run_transformers(tmp_path, name, input_ids=ids, attention_mask=mask.long())
    assert_same(ours, theirs, mask)
    assert_same(
        ours, {name: getattr(trace, name) for name in ("hidden_states", "attentions")}, mask
    )
