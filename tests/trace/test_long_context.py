"""A trace of thousands of tokens allocates no matrix of queries x keys, whatever is left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import minibert
from minibert.model import Model
from minibert.trace.read import Trace

N = 4096
SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": N,
}


class NoMatrix(TorchDispatchMode):
    """Refuses an operation that gives memory for N x N numbers."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.untyped_storage().nbytes() // one.itemsize)
        if self.largest >= N * N:
            raise AssertionError(f"{func} gives {self.largest} numbers")
        return found


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """Tiny models; the second sees 64 tokens back."""
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    windowed = transformers.MistralConfig(**SIZES, sliding_window=64)
    mistral = transformers.MistralForCausalLM(windowed)
    return {"llama": minibert.load(llama), "mistral": minibert.load(mistral)}


ASKED: dict[str, Callable[[Model, Tensor], Trace]] = {
    "all layers": lambda model, ids: model.trace(ids),
    "until": lambda model, ids: model.trace(ids, until=1),
    "statistics": lambda model, ids: model.trace(ids, statistics=("entropy", "max_prob")),
}


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("asked", ASKED)
def test_a_long_trace_allocates_no_matrix(name: str, asked: str, models: dict[str, Model]) -> None:
    model, ids = models[name], torch.arange(N)[None] % SIZES["vocab_size"]
    with NoMatrix() as mode:
        trace = ASKED[asked](model, ids)
        assert trace[0].z.shape[-2] == N
        if asked == "statistics":
            assert trace[1].statistics.entropy.shape[-1] == N
    assert mode.largest >= N * SIZES["hidden_size"]


def test_the_matrix_itself_is_noticed(models: dict[str, Model]) -> None:
    trace = models["llama"].trace(torch.arange(N)[None] % SIZES["vocab_size"])
    with pytest.raises(AssertionError, match="numbers"), NoMatrix():
        _ = trace[0].probs
