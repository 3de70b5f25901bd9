"""The weights of all layers of one kind in one tensor, by the names of the literature.

In the convention of Elhage et al. 2021: the stream is a row x and weights act on it from the right,
query = x·W_Q + b_Q. The axes:

    W_Q W_K W_V     layer head d_model d_head         b_Q b_K b_V    layer head d_head
    W_O             layer head d_head d_model         b_O            layer d_model
    W_in W_gate     layer d_model d_mlp               b_in b_gate    layer d_mlp
    W_out           layer d_mlp d_model               b_out          layer d_model
    W_E             vocab d_model                     W_pos          position d_model
    W_U             d_model vocab                     b_U            vocab

What a family multiplies in is in them: W_E is scaled in Gemma and Granite, W_O, W_out, b_O and
b_out are by Granite's residual_multiplier, and W_U is divided by its logits_scaling. W_K and W_V
have the key-value heads. In a model whose embeddings are narrower than its stream, W_E has their
width. W_pos begins with the rows that RoBERTa reserves.
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
    memory where nothing is multiplied in. Read them, and write into the model's own parameters.
    Nothing here has a gradient.
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
        found: dict[str, Callable[[], Tensor]] = {}
        for part, names in _OF_LAYERS.items():
            for name in names:
                if getattr(getattr(body.layers[0], part), name) is not None:
                    found[name] = partial(self._stack, part, name)
        for holder, names in ((body, ("W_E", "W_pos")), (head, ("W_U", "b_U"))):
            for name in names:
                if getattr(holder, name, None) is not None:
                    found[name] = partial(_read, holder, name)
        return found

    def _stack(self, part: str, name: str) -> Tensor:
        """One weight of every layer; of layers that share it, as often as it is used."""
        return torch.stack([_read(getattr(layer, part), name) for layer in self._body.layers])


_OF_LAYERS = {
    "attention": ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O", "b_O"),
    "mlp": ("W_in", "b_in", "W_gate", "b_gate", "W_out", "b_out"),
}


def _read(holder: object, name: str) -> Tensor:
    # torch.Tensor.detach and not the method: packed layers stay packed.
    return torch.Tensor.detach(getattr(holder, name))
