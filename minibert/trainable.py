"""What a model has so that it can be trained and saved: gradients, dropout, and a folder."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from minibert.checkpoint.save import save
from minibert.checkpoint.weights import to_state_dict
from minibert.errors import CheckpointError
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.dropout import Dropout
from minibert.layers.heads import TaskHead, VocabularyHead
from minibert.layers.layer import Change
from minibert.text.tokenizer import Tokenizer


class Trainable(nn.Module):
    """The weights of a model, as an optimiser and a folder see them."""

    config: Config
    tokenizer: Tokenizer | None
    body: Body
    head: TaskHead | None
    fresh: tuple[str, ...] = ()
    """Parameters that no checkpoint gave: the head that `load(..., head_seed=0)` made."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and so of every quantity of a trace."""
        return self.body.word.weight.dtype

    @property
    def dropout(self) -> Dropout:
        """What becomes 0 in training, from the config.json of the checkpoint; it can be set."""
        return self.__dict__.get("_dropout", Dropout())

    @dropout.setter
    def dropout(self, dropout: Dropout) -> None:
        if not isinstance(dropout, Dropout):
            raise CheckpointError(
                f"dropout is a {type(dropout).__name__}; expected a Dropout, such as "
                "Dropout(head=0.1)."
            )
        self.__dict__["_dropout"] = dropout
        self.body.dropout = dropout.embed
        if self.head is not None:
            self.head.dropout = dropout.head

    @property
    def W_E(self) -> Tensor:  # noqa: N802
        """The embedding of words, (vocab, d_embed), the scale of a family that has one included."""
        return self.body.W_E

    @property
    def W_pos(self) -> Tensor | None:  # noqa: N802
        """The embedding of positions, (position, d_embed); None without such a table."""
        return self.body.W_pos

    @property
    def W_U(self) -> Tensor | None:  # noqa: N802
        """The unembedding, (d_model, vocab): logits = hidden·W_U + b_U; None without one.

        What a family divides logits by is in it. Models that were not trained to continue texts
        have a layer and a norm between the hidden state and it.
        """
        return self.head.W_U if isinstance(self.head, VocabularyHead) else None

    @property
    def b_U(self) -> Tensor | None:  # noqa: N802
        """The bias of logits, (vocab); None without one."""
        return self.head.b_U if isinstance(self.head, VocabularyHead) else None

    def train(self, mode: bool = True) -> "Trainable":
        """The model, ready to be trained: its weights require gradients, and dropout is on.

        Where some weights already require gradients, those alone do, so freezing lasts:
        `model.head.requires_grad_()` before `model.train()` trains the head. `model.eval()` turns
        dropout off and leaves the gradients as they are. Dropout acts where logits are computed by
        `model(text)`; traces, explanations and generated texts never drop.
        """
        if mode and not any(one.requires_grad for one in self.parameters()):
            self.requires_grad_()
        return super().train(mode)

    def to_state_dict(self) -> dict[str, Tensor]:
        """The weights by the names of transformers, for `load_state_dict` of the same class there.

        They share memory with this model, but for GPT-2's query, key and value, which are joined.
        A model whose output embedding is its own has two biases there, of which one is read: both
        names get that one.
        """
        return to_state_dict(self.config, dict(self.named_parameters()))

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> Path:
        """The folder, with config.json, weights and tokenizer, for minibert and transformers.

        `dtype` converts the weights on the way. Raises CheckpointError when the folder cannot be
        written or a value does not fit the dtype.
        """
        return save(self, folder, dtype=dtype)

    def _layer_changes(self, layer: int) -> Mapping[str, Change]:
        """What dropout does to the quantities of a layer, in training."""
        return self.dropout.of_layer() if self.training else {}
