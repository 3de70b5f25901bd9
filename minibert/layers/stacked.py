"""The weights of all layers of one kind in one tensor, by the names of the literature.

In the convention of Elhage et al. 2021: the stream is a row x and weights act on it from the right,
query = x·W_Q + b_Q. The axes:

    W_Q W_K W_V     layer head d_model d_head         b_Q b_K b_V    layer head d_head
    W_O             layer head d_head d_model         b_O            layer d_model
    W_in W_gate     layer d_model d_mlp               b_in b_gate    layer d_mlp
    W_out           layer d_mlp d_model               b_out          layer d_model
    W_E             vocab d_model                     W_pos          position d_model
    W_U             d_model vocab                     b_U            vocab

W_K and W_V have the key-value heads. In a model whose embeddings are narrower than its stream, W_E
has their width. W_pos begins with the rows that RoBERTa reserves.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from minibert.errors import CheckpointError
from minibert.layers.bodies import Body

__all__ = ["AbsentWeightError", "StackedWeights"]


class AbsentWeightError(CheckpointError, KeyError):
    """A weight that a model does not have; a KeyError too, so that `in` and `get` work."""

    # That of KeyError shows the quotes and escapes of a key.
    __str__ = Exception.__str__


class StackedWeights(Mapping[str, Tensor]):
    """`model.weights["W_Q"]`: the weights of all layers as they are when they are read.

    A stack over layers is a copy, made each time. W_E, W_pos, W_U and b_U are views of the model's
    memory: read them, and write into the model's own parameters. Nothing here has a gradient.
    """

    def __init__(self, body: Body, head: nn.Module | None) -> None:
        self._body, self._head = body, head

    def __getitem__(self, name: str) -> Tensor:
        """The weights of that name; AbsentWeightError, which is a KeyError, without one."""
        weights = self._weights()
        if name not in weights:
            raise AbsentWeightError(
                f"{name!r:.80} is no weight of this model; it has {', '.join(weights)}."
            )
        return weights[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights())

    def __len__(self) -> int:
        return len(self._weights())

    def __repr__(self) -> str:
        return f"<weights {', '.join(self)}>"

    def _weights(self) -> dict[str, Callable[[], Tensor]]:
        """How each weight of this model is made, by name."""
        body, head = self._body, self._head
        found = self._of_attention() | self._of_mlps()
        found["W_E"] = lambda: _plain(body.word.weight)
        if body.position is not None:
            rows = body.position.weight
            found["W_pos"] = lambda: _plain(rows)
        decoder = getattr(head, "decoder", None)
        if decoder is not None:
            found["W_U"] = lambda: _plain(decoder.weight).T
            if decoder.bias is not None:
                found["b_U"] = lambda: _plain(decoder.bias)
        return found

    def _of_attention(self) -> dict[str, Callable[[], Tensor]]:
        first, d_head = self._body.layers[0].attention, self._body.config.d_head
        found: dict[str, Callable[[], Tensor]] = {}

        def by_head(rows: Tensor) -> Tensor:
            return rows.unflatten(0, (-1, d_head))

        for letter, name in (("Q", "query"), ("K", "key"), ("V", "value")):
            part = f"attention.{name}"
            found[f"W_{letter}"] = partial(self._stack, f"{part}.weight", lambda x: by_head(x).mT)
            if getattr(first, name).bias is not None:
                found[f"b_{letter}"] = partial(self._stack, f"{part}.bias", by_head)
        found["W_O"] = partial(self._stack, "attention.output.weight", lambda x: by_head(x.T))
        if first.output.bias is not None:
            found["b_O"] = partial(self._stack, "attention.output.bias", lambda x: x)
        return found

    def _of_mlps(self) -> dict[str, Callable[[], Tensor]]:
        mlp = self._body.layers[0].mlp
        found: dict[str, Callable[[], Tensor]] = {}
        for short, name in (("in", "up"), ("gate", "gate"), ("out", "down")):
            linear = getattr(mlp, name)
            if linear is None:
                continue
            found[f"W_{short}"] = partial(self._stack, f"mlp.{name}.weight", lambda x: x.T)
            if linear.bias is not None:
                found[f"b_{short}"] = partial(self._stack, f"mlp.{name}.bias", lambda x: x)
        return found

    def _stack(self, path: str, view: Callable[[Tensor], Tensor]) -> Tensor:
        """One parameter of every layer; of layers that share it, as often as it is used."""
        layers = self._body.layers
        return torch.stack([view(_plain(layer.get_parameter(path))) for layer in layers])


def _plain(parameter: Tensor) -> Tensor:
    # torch.Tensor.detach and not the method: packed layers stay packed.
    return torch.Tensor.detach(parameter)
