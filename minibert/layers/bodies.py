"""The body of a model: embeddings, layers and, where there is one, a last norm.

What differs between families is in the Config: a table of positions or rotation, segments, norms,
a projection after the embeddings, layers that share their weights. Sources: Devlin et al. 2019;
Liu et al. 2019 (RoBERTa); Sanh et al. 2019 (DistilBERT); Clark et al. 2020 (ELECTRA); Lan et al.
2020 (ALBERT); Radford et al. 2019 (GPT-2); Black et al. 2022 (GPT-NeoX); Touvron et al. 2023
(Llama); Jiang et al. 2023 (Mistral); Gemma Team 2024; Warner et al. 2024 (ModernBERT).

`StackedWeights` has the weights of all layers of one kind in one tensor, by the names of the
literature, in the convention of Elhage et al. 2021: the stream is a row x and weights act on it
from the right, query = x·W_Q + b_Q. The axes:

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
from minibert.layers.config import Config
from minibert.layers.dropout import dropped
from minibert.layers.finite import check_stream
from minibert.layers.linear import Embedding, Linear, dtype_of, held, read_only
from minibert.layers.norms import Divisors, Norm, normed
from minibert.layers.parts import Layer
from minibert.quantities import Float, Hidden, Int, TokenIds

Positions = Int[torch.Tensor, "#batch position"]


class Body(nn.Module):
    """Embeddings and layers of a Config, the weights without values yet."""

    dropout = 0.0
    """The share of the embeddings that becomes 0 in training."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width = config.d_embed
        rows = config.n_positions + config.position_offset
        self.word = Embedding(config.vocab_size, width)
        self.position = Embedding(rows, width) if config.positions == "learned" else None
        self.segment = Embedding(config.n_segments, width) if config.n_segments else None
        self.embed_norm = Norm(config, width) if config.embed_norm else None
        projects = width != config.d_model or config.family == "albert"
        self.embed_project = Linear(width, config.d_model) if projects else None
        self.groups = nn.ModuleList(Layer(config, n) for n in range(config.n_layer_groups))
        self.pooler = Linear(config.d_model, config.d_model) if config.pooler else None
        self.final_norm = Norm(config, config.d_model) if config.final_norm else None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order; ALBERT names the same one several times."""
        groups = tuple(self.groups)
        share = self.config.n_layers / len(groups)
        return tuple([groups[int(n / share)] for n in range(self.config.n_layers)])  # type: ignore[misc]

    def embed(
        self, ids: TokenIds, segments: TokenIds | None, positions: Positions | None = None
    ) -> Hidden:
        """What enters layer 0: word (+ segment) (+ position), a norm and a projection if there are.

        `positions` are rows of the position table.
        """
        summed = self.word(ids)
        if self.config.embed_scaled:
            # Rounded to the weights' type first, as Gemma was trained.
            summed = summed * torch.tensor(self.config.d_model**0.5, dtype=summed.dtype)
        if self.config.embed_multiplier != 1.0:
            summed = summed * self.config.embed_multiplier
        if self.segment is not None:
            chosen = self.segment.weight[0] if segments is None else self.segment(segments)
            summed = summed + chosen
        if self.position is not None:
            rows = self.positions(ids) if positions is None else positions
            summed = summed + self.position(rows)
        if self.embed_norm is not None:
            if not self.training:
                check_stream(summed, what="sum of embeddings")
            summed = self.embed_norm(summed)
        summed = dropped(summed, self.dropout) if self.training else summed
        return summed if self.embed_project is None else self.embed_project(summed)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return dtype_of(self.word)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(held(self.word)).device

    @property
    def word_scale(self) -> float:
        """What the rows of `word` are multiplied by, as `embed` rounds it."""
        if not self.config.embed_scaled:
            return self.config.embed_multiplier
        scale = torch.tensor(self.config.d_model**0.5, dtype=self.dtype)
        return scale.item() * self.config.embed_multiplier

    @property
    def W_E(self) -> Float[torch.Tensor, "vocab d_embed"]:  # noqa: N802
        """What each word adds to the embedding, the scale of a family that has one included."""
        scale = self.word_scale
        weight = self.word.table if isinstance(self.word, Embedding) else self.word.weight
        return weight if scale == 1.0 else read_only(weight * scale, f"W_E, a weight * {scale:g}")

    @property
    def W_pos(self) -> Float[torch.Tensor, "position d_embed"] | None:  # noqa: N802
        """What each position adds to it; None without a table of positions."""
        return None if self.position is None else self.position.weight

    def positions(self, ids: TokenIds) -> Positions:
        """The row of the position table that each token has."""
        if not self.config.position_offset:
            return torch.arange(ids.shape[1], device=ids.device)[None]
        # RoBERTa counts real tokens only; padding keeps the reserved row padding_idx.
        padding = self.config.position_offset - 1
        real = (ids != padding).long()
        return real.cumsum(1) * real + padding

    def final(self, hidden: Hidden, divisors: Divisors | None = None) -> Hidden:
        """The hidden state that the task head reads: the stream, or the last norm of it.

        `divisors` are those of the norm, where they are not its own.
        """
        return normed(self.final_norm, hidden, divisors)


class AbsentWeightError(CheckpointError, KeyError):
    """A weight that a model does not have; a KeyError too, so that `in` and `get` work."""

    # That of KeyError shows the quotes and escapes of a key.
    __str__ = Exception.__str__


class StackedWeights(Mapping[str, Tensor]):
    """`model.weights["W_Q"]`: the weights of all layers as they are when they are read.

    A stack over layers is a copy, made each time, which cannot be written: CheckpointError. W_E,
    W_pos, W_U and b_U are views of the model's memory, which can, where nothing is multiplied in.
    Nothing here has a gradient.
    """

    def __init__(self, body: Body, head: nn.Module | None) -> None:
        self._body, self._head = body, head

    def __getitem__(self, name: str) -> Tensor:
        """The weights of that name; AbsentWeightError, which is a KeyError, without one."""
        weights = self._weights()
        if name not in weights:
            raise AbsentWeightError(
                f"{name!r:.80} is not a weight of this model; it has {', '.join(weights)}."
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
                    found[name] = getattr(holder, name).detach
        return found

    def _stack(self, part: str, name: str) -> Tensor:
        """One weight of every layer; of layers that share it, as often as it is used."""
        each = [getattr(getattr(layer, part), name).detach() for layer in self._body.layers]
        return read_only(torch.stack(each), f"{name} of all layers")


_OF_LAYERS = {
    "attention": ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O", "b_O"),
    "mlp": ("W_in", "b_in", "W_gate", "b_gate", "W_out", "b_out"),
}
