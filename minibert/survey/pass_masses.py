"""The masses of rows out of the pass that computes the model, without an N x N matrix.

The kernel that computes attention multiplies its rows by columns over keys, one for each class; the
norm-weighted ones are the same columns times ‖f(x)‖ of each key (Kobayashi et al. 2020), and the
sum of a row is a column of its own. Of the last layer only attention is computed.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.requests import Want
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer_pass import LayerPass
from minibert.survey.batch_rows import BatchRows, Numbers, columns_by_norm, corner_of
from minibert.survey.rows import RowMasses
from minibert.survey.segments import Batch
from minibert.survey.token_kinds import SegmentTokens
from minibert.trace.run import embedded, run_layers

__all__ = ["PassMasses", "Surveyed"]


@runtime_checkable
class Surveyed(Protocol):
    """What is asked of a model here."""

    config: Config
    body: Body
    impl: str


class PassMasses:
    """Gives the masses of every layer for batches of segments."""

    def __init__(
        self,
        model: Surveyed,
        *,
        offsets: tuple[int, ...],
        by_norm: bool,
        profile: bool,
        impl: str | None = None,
    ) -> None:
        self.model, self.offsets, self.profile = model, offsets, profile
        self.impl = model.impl if impl is None else impl
        self.corners = _corners(model.body) if by_norm else None

    def __call__(self, batch: Batch, visit: Callable[[int, RowMasses], None]) -> None:
        """Hands the masses of layer 0, 1, ... in turn to `visit`."""
        body, device = self.model.body, self.model.body.word.weight.device
        with torch.no_grad():
            inputs = batch.inputs(device)
            tokens, n = batch.tokens, len(batch.tokens)
            allowed = AllowedKeys(
                1, n, device, self.model.config.causal, packed=tuple(tokens.lengths)
            )
            one = _OneBatch(self, tokens, device)
            evaluation = Evaluation(allowed, self.impl, one.want, one.of_layer)

            def told(at: LayerPass) -> None:
                visit(at.index, one.masses(at))

            last = len(body.layers) - 1
            hidden = embedded(body, inputs, allowed)
            hidden = run_layers(body, hidden, evaluation, stop=last, visit=told)
            at = LayerPass(body.layers[last], last, evaluation, known={"resid_pre": hidden})
            _ = at.z
            told(at)


class _OneBatch:
    """What is the same for all layers of a batch, and the norms of the layer that is computed."""

    def __init__(self, asked: PassMasses, tokens: SegmentTokens, device: torch.device) -> None:
        self.asked = asked
        self.rows = BatchRows(tokens, asked.offsets, device)
        pairs = torch.from_numpy(tokens.pairs[0]).to(device)
        self.want: Want = {
            "entropy": (),
            "received": (),
            "offset_mass": asked.offsets,
            "pair_mass": pairs[None],
        }
        if asked.profile:
            self.want["profile"] = ()
        self.norms: Tensor | None = None

    def of_layer(self, at: LayerPass) -> Want:
        classes = self.rows.classes
        if self.asked.corners is None:
            return {"key_sums": classes[None, None]}
        # Several heads may read one key-value head.
        value = at.value.float().repeat_interleave(at.attention.group, 1)
        moved = value @ self.asked.corners[at.index]
        self.norms = torch.linalg.vector_norm(moved, dim=-1)  # 1 head token
        return {"key_sums": columns_by_norm(classes[None], self.norms)}

    def masses(self, at: LayerPass) -> RowMasses:
        found: Any = at.statistics
        names = ("key_sums", "offset_mass", "pair_mass", "entropy", "received")
        numbers = {name: getattr(found, name)[0].cpu().numpy() for name in names}
        profile = found.profile[0].cpu().numpy() if self.asked.profile else None
        norms = None if self.norms is None else self.norms[0].cpu().numpy()
        return self.rows.masses(Numbers(**numbers, profile=profile), norms)


def _corners(body: Body) -> list[Tensor]:
    """That of each layer's output projection."""
    with torch.no_grad():
        return [
            corner_of(layer.attention.output.weight, layer.attention.n_heads)
            for layer in body.layers
        ]
