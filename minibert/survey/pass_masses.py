"""The masses of rows out of the pass that computes the model, without an N x N matrix.

The kernel that computes attention multiplies its rows by columns over keys, one for each class; the
norm-weighted ones are the same columns times ‖f(x)‖ of each key (Kobayashi et al. 2020), and the
sum of a row is a column of its own. Of the last layer only attention is computed.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.requests import Want
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer_pass import LayerPass
from minibert.survey.rows import RowMasses, sums_of_pairs
from minibert.survey.segments import Batch
from minibert.survey.token_kinds import SegmentTokens
from minibert.trace.run import embedded, run_layers

__all__ = ["PassMasses", "Surveyed"]

Floats = npt.NDArray[np.floating]


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
        self.asked, self.tokens = asked, tokens
        # Some classes are empty here and some the same, as [CLS] and the first position.
        columns = np.ascontiguousarray(tokens.classes.T)
        different: dict[bytes, int] = {}
        self.column = np.array([different.setdefault(c.tobytes(), len(different)) for c in columns])
        kept = columns[np.unique(self.column, return_index=True)[1]]
        # In memory class by class, as the kernel multiplies them.
        self.classes = torch.from_numpy(kept).to(device, torch.float32).mT
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
        if self.asked.corners is None:
            return {"key_sums": self.classes[None, None]}
        # Several heads may read one key-value head.
        value = at.value.float().repeat_interleave(at.attention.group, 1)
        moved = value @ self.asked.corners[at.index]
        self.norms = torch.linalg.vector_norm(moved, dim=-1)  # 1 head token
        classes, norms = self.classes.mT, self.norms[:, :, None]
        plain = classes.expand(*norms.shape[:2], -1, -1)
        return {"key_sums": torch.cat([plain, classes * norms, norms], dim=2).mT}

    def masses(self, at: LayerPass) -> RowMasses:
        found: Any = at.statistics
        sums, offsets, cells, entropy, received = (
            getattr(found, name)[0].cpu().numpy()
            for name in ("key_sums", "offset_mass", "pair_mass", "entropy", "received")
        )
        return RowMasses(
            self.tokens,
            _columns(sums, self.column),
            offsets,
            sums_of_pairs(cells, self.tokens),
            entropy,
            received,
            found.profile[0].cpu().numpy() if self.asked.profile else None,
            self._by_norm(sums, offsets, cells),
            self.asked.offsets,
        )

    def _by_norm(self, sums: Floats, offset_mass: Floats, cells: Floats) -> RowMasses | None:
        if self.norms is None:
            return None
        norms, n_classes = self.norms[0].cpu().numpy(), self.classes.shape[1]
        total = sums[..., -1]
        share = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
        # One offset after the other, as they lie in memory.
        masses = np.moveaxis(np.empty((len(self.asked.offsets), *norms.shape), norms.dtype), 0, -1)
        for number, offset in enumerate(self.asked.offsets):
            # What lies outside of a text, and so is 0, meets any norm.
            of_key = np.roll(norms, -offset, axis=1)
            masses[..., number] = offset_mass[..., number] * of_key * share
        query, key = self.tokens.pairs[0].T
        return RowMasses(
            self.tokens,
            _columns(sums, n_classes + self.column) * share[..., None],
            masses,
            sums_of_pairs(cells * norms[:, key] * share[:, query], self.tokens),
            offsets=self.asked.offsets,
        )


def _columns(sums: Floats, numbers: npt.NDArray[np.int64]) -> Floats:
    """Some of (head, query, column); each column lies together in memory, as in `sums`."""
    return np.swapaxes(np.swapaxes(sums, 1, 2)[:, numbers], 1, 2)


def _corners(body: Body) -> list[Tensor]:
    """For each layer (head, d_head, d_head): value times this has the norm of value · W_O."""
    found = []
    with torch.no_grad():
        for layer in body.layers:
            attention = layer.attention
            weight = torch.Tensor.detach(attention.output.weight).double().cpu()
            per_head = weight.unflatten(1, (attention.n_heads, attention.d_head)).transpose(0, 1)
            corner = torch.linalg.qr(per_head, mode="r")[1].mT  # head d_head d_head
            found.append(corner.float().to(attention.output.weight.device))
    return found
