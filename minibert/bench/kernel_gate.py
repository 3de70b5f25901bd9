"""Is a user's kernel right? What `minibert check` runs, and `minibert bench` before any clock.

First one plain call, whose failure is one line; then the cases of parity; and `sampled`, the check
of z at a size that is timed, by a few rows.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.bench.judged_function import JudgedFunction
from minibert.bench.printed import Watch
from minibert.bench.user_file import OUTPUTS
from minibert.bench.worker_process import WorkerError
from minibert.errors import AttentionError, MinibertError
from minibert.kernels import eager
from minibert.kernels.check.cases import INPUT_SCALES, Case, Problem
from minibert.kernels.check.parity import ParityReport, check
from minibert.kernels.check.tolerances import error_of, tolerance_of
from minibert.kernels.masks import allowed_keys
from minibert.quantities import Float, Int

__all__ = ["KINDS", "QUICK_TOKENS", "TOKENS", "Sampled", "gate", "sampled"]

#: One key; under a tile; one and two more than tiles of 64; past 256, where kernels change.
TOKENS = (1, 17, 65, 130, 257)
QUICK_TOKENS = (17, 65)
#: The cases that f(query, key, value, lengths, causal) can be asked; "causal cache" on demand.
KINDS = ("plain", "strided", "lengths", "causal", "causal lengths")
_ROWS, _HEADS = 48, 2


def gate(
    user: JudgedFunction,
    *,
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    tokens: Sequence[int] = TOKENS,
    d_head: int = 64,
    kinds: Sequence[str] = KINDS,
    input_scales: Sequence[float] = INPUT_SCALES,
    watch: Watch | None = None,
) -> ParityReport:
    """The report of `parity.check` on the outputs the function gives; `watch` sees each case.

    The inputs are other ones each time, so that no answer can be known before. Raises MinibertError
    in one line when a plain call of 64 tokens already fails.
    """
    seed = secrets.randbits(31)

    def told(done: int, total: int, what: str) -> None:
        user.worker.place = what
        if watch is not None:
            watch(done, total, what)

    told(0, 1, "a first call with 64 tokens")
    outputs = _first_call(user, device, dtypes[0], d_head, seed)
    return check(
        user.implementation(outputs),
        dtypes=dtypes,
        device=device,
        sizes=tokens,
        d_head=d_head,
        kinds=kinds,
        input_scales=input_scales,
        seed=seed,
        watch=told,
        caller=user,
    )


def _first_call(
    user: JudgedFunction, device: torch.device, dtype: torch.dtype, d_head: int, seed: int
) -> tuple[str, ...]:
    """The names of what it gives for an easy problem."""
    wants = set(OUTPUTS) - {"z", "lse"}
    problem = Case("plain", 64, 64, 1.0).draw(
        dtype=dtype, device=device, d_head=d_head, wants=wants, seed=seed
    )
    try:
        return tuple(user.call(problem))
    except AttentionError as error:
        raise MinibertError(str(error).removesuffix(_PARITY).replace('impl="', '"')) from error
    except WorkerError as error:
        raise MinibertError(f"{user.label} {error}.") from error


_PARITY = " The kernel is wrong; minibert.kernels.check.parity.check tells more."


@dataclass(frozen=True)
class Sampled:
    """The largest error of z in the rows looked at, and what is allowed there."""

    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """True when the error is within the tolerance."""
        return self.error <= self.tolerance


def sampled(
    query: Float[Tensor, "batch head position d_head"],
    key: Float[Tensor, "batch head position d_head"],
    value: Float[Tensor, "batch head position d_head"],
    z: Float[Tensor, "batch head position d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    causal: bool,
) -> Sampled:
    """How far z is off in some rows of some heads, at a size whose scores would not fit.

    Which ones they are is drawn when z is there, and cannot be foreseen.

    The truth is eager in float64, which parity proves equal to the reference; the tolerance is
    parity's, from eager in the dtype of the inputs on the same rows.
    """
    B, H, N, D = query.shape
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    rows = torch.randperm(N, generator=generator)[:_ROWS]
    rows[0] = N - 1
    rows = rows.sort().values.to(query.device)
    worst: Sampled | None = None
    if z.shape != query.shape:
        return Sampled(math.inf, 0.0)
    allowed = _allowed_rows(query, rows, lengths=lengths, causal=causal)
    for place in torch.randperm(B * H, generator=generator)[:_HEADS].tolist():
        b, h = divmod(place, H)
        one = (slice(b, b + 1), slice(h, h + 1))
        mask = None if allowed is None else allowed[[b if len(allowed) > 1 else 0]]
        problem = Problem(query[one][:, :, rows], key[one], value[one], scale=D**-0.5, mask=mask)
        found = _sampled_head(problem, z[one][:, :, rows])
        if not found.ok:
            return found
        if worst is None or found.error > worst.error:
            worst = found
    assert worst is not None
    return worst


def _sampled_head(problem: Problem, z: Tensor) -> Sampled:
    options = problem.options()
    vectors = (problem.query, problem.key, problem.value)
    truth = eager.attend(*(one.double() for one in vectors), **options)
    yardstick = eager.attend(*vectors, **options)
    return Sampled(
        error_of("z", problem, {"z": z}, truth), tolerance_of("z", problem, yardstick, truth)
    )


def _allowed_rows(
    query: Tensor, rows: Tensor, *, lengths: Tensor | None, causal: bool
) -> Tensor | None:
    """(batch or 1, 1, row, key): what these rows may see."""
    N = query.shape[2]
    if not causal and lengths is None:
        return None
    keys = torch.arange(N, device=query.device)
    allowed = allowed_keys(query[:, :, :1], query, lengths=lengths, mask=None, causal=False)
    past = (keys <= rows[:, None])[None, None]
    if not causal:
        return None if allowed is None else allowed.expand(-1, 1, len(rows), N)
    return past if allowed is None else allowed & past
