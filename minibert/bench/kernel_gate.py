"""Is a user's kernel right? What `minibert check` runs, and `minibert bench` before any clock.

First one plain call, whose failure is one line; then the cases of parity: those of a named
workload, or every kind that the function can be told.
"""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import torch

from minibert.bench.judged_function import JudgedFunction
from minibert.bench.learning import Called, learn
from minibert.bench.signatures import Signature
from minibert.bench.user_file import OUTPUTS
from minibert.bench.worker_process import Watch, WorkerError
from minibert.errors import AttentionError, MinibertError
from minibert.kernels.call import SHAPES
from minibert.kernels.check.cases import (
    FIELD_KINDS,
    INPUT_SCALES,
    KINDS,
    Case,
    kinds_of,
    known_kind,
)
from minibert.kernels.check.gradients import GRADIENTS
from minibert.kernels.check.parity import check
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.report import ParityReport, short
from minibert.kernels.check.workload import Workload

#: One key; under a tile; one and two more than tiles of 64; past 256, where kernels change.
TOKENS = (1, 17, 65, 130, 257)
QUICK_TOKENS = (17, 65)
#: What every function is asked that takes lengths and causal; "causal cache" on demand.
_USUAL = ("plain", "strided", "lengths", "causal", "causal lengths")


def asked_kinds(
    signature: Signature,
    options: Collection[str],
    *,
    causal_only: bool = False,
    cache: bool = False,
    workload: Workload | None = None,
) -> dict[str, Workload]:
    """What a function is asked that is told these options: a workload, or all kinds that it can.

    Raises MinibertError where the workload cannot be told in its convention.
    """
    if workload is not None:
        fitted = signature.fitted(workload)
        if fitted is None:
            raise MinibertError(f"{signature.name} cannot be told {workload.name}")
        return kinds_of(replace(fitted, name=workload.name))
    found: dict[str, Workload] = {}
    known = {*options}
    for name, work in (KINDS | FIELD_KINDS).items():
        fitted = signature.fitted(work)
        if fitted is None or not work.asks() & frozenset(SHAPES) <= known:
            continue
        if "cache" in name and fitted.layout == "padded" and not cache:
            continue
        if causal_only and not work.causal:
            name, fitted = f"causal {name}", replace(fitted, causal=True)
        asks = fitted.asks()
        if "window" not in known and work.window is not None and work.window[1] is None:
            asks = asks - {"window"} | {"window before"}
        taken = asks <= known
        # Of a short sentence the last queries see no key in a window.
        if name == "window lengths" and not signature.dead_rows:
            continue
        if (taken or name in _USUAL) and fitted not in found.values():
            found[name] = fitted
    return found


def gate(
    user: JudgedFunction,
    *,
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    tokens: Sequence[int] = TOKENS,
    d_head: int | None = 64,
    workload: Workload | None = None,
    cache: bool = False,
    input_scales: Sequence[float] = INPUT_SCALES,
    watch: Watch | None = None,
    backward: bool = False,
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
    size = d_head or (workload.d_head if workload else 64)
    learn(user, partial(learning_problem, user, dtype=dtypes[0], device=device, d_head=size))
    kinds = asked_kinds(
        user.signature,
        user.options,
        causal_only=user.causal_only,
        cache=cache,
        workload=workload,
    )
    first, work = next(iter(kinds.items()))
    case = Case(first, min(64, work.queries or 64), 64, 1.0, replace(work, backward=backward))
    outputs = _first_call(user, case, device, dtypes[0], d_head, seed)
    dtypes = [dtypes[0], *_that_work(user, case, device, dtypes[1:], d_head, seed)]
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
        backward=backward,
    )


def _that_work(
    user: JudgedFunction,
    case: Case,
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    d_head: int | None,
    seed: int,
) -> list[torch.dtype]:
    """The types in which it computes; of those that it refuses by an error the report says so."""
    found = []
    for dtype in dtypes:
        problem = case.draw(dtype=dtype, device=device, d_head=d_head, wants=(), seed=seed)
        try:
            user.call(problem)
        except WorkerError as error:
            user.untried[short(dtype)] = str(error)
        # What has another shape or type is a finding of the check.
        except AttentionError:
            found.append(dtype)
        else:
            found.append(dtype)
    return found


def learning_problem(
    user: Called, kind: str, *, dtype: torch.dtype, device: torch.device, d_head: int
) -> Problem:
    """A problem of this kind, with 64 tokens, for finding out how a function is called."""
    work = user.signature.fitted(known_kind(kind)) or known_kind(kind)
    case = Case(kind, work.queries or 64, 64, 1.0, work)
    return case.draw(dtype=dtype, device=device, d_head=d_head, wants=(), seed=secrets.randbits(31))


def _first_call(
    user: JudgedFunction,
    case: Case,
    device: torch.device,
    dtype: torch.dtype,
    d_head: int | None,
    seed: int,
) -> tuple[str, ...]:
    """The names of what it gives for an easy problem; the gradients left out."""
    problem = case.draw(
        dtype=dtype, device=device, d_head=d_head, wants=set(OUTPUTS) - {"z", "lse"}, seed=seed
    )
    try:
        return tuple(name for name in user.call(problem) if name not in GRADIENTS)
    except AttentionError as error:
        raise MinibertError(str(error).removesuffix(_PARITY).replace('impl="', '"')) from error
    except WorkerError as error:
        raise MinibertError(f"{user.label} {error}.") from error


_PARITY = " The kernel is wrong; minibert.kernels.check.parity.check tells more."
