"""What a model put into its output, read as a trace: weights, queries and keys of one text.

BertViz' own copies of BERT, GPT-2, RoBERTa and XLNet end their output with a mapping a layer:
"attn", "queries" and "keys" (XLNet: "attn" alone), (batch, head, ...) each.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.errors import AttentionError
from minibert.text.tokens import Tokens

__all__ = ["OutputTrace", "gives_vectors", "output_trace"]


@dataclass(frozen=True)
class _Sizes:
    n_layers: int
    n_heads: int
    d_head: int
    causal: bool

    def attention_scale(self, layer: int) -> float:
        """The models of this kind all scale by their heads' width."""
        return float(self.d_head) ** -0.5


@dataclass(frozen=True)
class _Layer:
    given: Mapping[str, Tensor]
    where: str

    @property
    def probs(self) -> Tensor:
        """(1, head, query, key)."""
        return self._read("attn")

    @property
    def query(self) -> Tensor:
        """(1, head, position, d_head)."""
        return self._read("queries")

    @property
    def key(self) -> Tensor:
        """(1, head, position, d_head)."""
        return self._read("keys")

    def _read(self, name: str) -> Tensor:
        if name not in self.given:
            raise AttentionError(
                f"{self.where} has {', '.join(self.given)} and no {name!r}: this model does not"
                " give query and key. head_view and model_view show its weights"
            )
        return self.given[name]


@dataclass(frozen=True)
class OutputTrace:
    """The layers of one text, as `minibert.viz.trace_example` reads those of a trace."""

    model_name: str
    tokens: Tokens
    config: _Sizes
    layers: tuple[_Layer, ...]

    def __len__(self) -> int:
        """Layers that can be read."""
        return len(self.layers)

    def __getitem__(self, layer: int) -> _Layer:
        """One layer."""
        return self.layers[layer]


def gives_vectors(model: Any) -> bool:
    """True for a module that is none of today's transformers, which name their type."""
    config = getattr(model, "config", None)
    return isinstance(model, nn.Module) and not hasattr(config, "model_type")


def output_trace(model: nn.Module, tokens: Tokens, *, pair: bool, causal: bool) -> OutputTrace:
    """The model's own numbers for these tokens, without dropout; the model stays as it is.

    Raises AttentionError for a model that cannot read the tokens, or whose output does not end
    with a mapping a layer.
    """
    name = type(model).__name__
    parameter = next(model.parameters(), torch.empty(0))
    ids = tokens.ids.to(parameter.device)
    given = {"token_type_ids": tokens.segments.to(parameter.device)} if pair else {}
    with torch.no_grad(), _evaluating(model):
        try:
            output = model(ids, **given)
        except (IndexError, RuntimeError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise AttentionError(
                f"{name} could not read {ids.shape[1]} tokens ({reason}); expected a text that"
                " fits its positions and a tokenizer of its vocabulary"
            ) from error
    layers = output[-1] if isinstance(output, Sequence) and output else ()
    if not isinstance(layers, Sequence) or not layers or not all(map(_has_weights, layers)):
        raise AttentionError(
            f"the output of {name} does not end with a mapping of attn, queries and keys a layer;"
            " give a model of transformers, of minibert, or of bertviz.transformers_neuron_view"
        )
    read = tuple(_Layer(layer, f"layer {i} of {name}'s output") for i, layer in enumerate(layers))
    n_heads, d_head = read[0].probs.shape[1], read[0].given.get("queries", torch.empty(0)).shape[-1]
    sizes = _Sizes(len(read), n_heads, d_head, causal)
    return OutputTrace(name, tokens, sizes, read)


def _has_weights(layer: Any) -> bool:
    return isinstance(layer, Mapping) and "attn" in layer


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout inside; every module's mode is as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
