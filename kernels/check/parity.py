"""Checks a kernel: `check` compares any implementation, ours or a user's, with the reference.

It is called as `check("sdpa")` or `check(function)`, and runs before every benchmark.

The tolerance is derived, not set by hand. Each output, in each dtype, may differ from NumPy float64
on the same rounded inputs by at most twice what torch eager differs by (the rule of
flash-attention's own tests), or by the few roundings that any honest kernel makes, where that is
more (`floors`). The root mean square error of z is held to the same two (`mean_tolerance`).

Every call has fresh inputs, every case is called twice, and memory is poisoned with NaN before
each call, so that neither a stale nor an unwritten output can pass. The second call gets the
tensors of the first with other numbers in them: results kept by address or by object show. The
function gets copies: what it writes into its inputs is a finding and never reaches the truth it is
measured against. What counts is what the outputs hold when the call returns.
"""

import inspect
import math
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.errors import AttentionError, MinibertError, did_you_mean
from minibert.kernels.call import Call, Outputs
from minibert.kernels.check.causes import STALE, gradient_cause, likely_cause, mean_cause
from minibert.kernels.check.gradients import gradients_of, right_gradients, tolerances
from minibert.kernels.check.problem import (
    Problem,
    by_eager,
    distance,
    error_of,
    mean_distance,
    mean_tolerance,
    tolerance_of,
    truth,
)
from minibert.kernels.check.workload import (
    ALL_KINDS,
    INPUT_SCALES,
    KINDS,
    LEFT_OUT,
    SIZES,
    Case,
    Workload,
    cases,
    named,
)
from minibert.kernels.checks import check_outputs
from minibert.kernels.folding import folded, padded_call, unpadded
from minibert.kernels.registry import (
    Implementation,
    Request,
    accepted_options,
    by_keywords,
    implementations,
)


@dataclass(frozen=True)
class Finding:
    """One output of one case: its error, what was allowed, and why it failed.

    The error is the largest of all values, and of "z, mean" their root mean square.
    """

    case: str
    dtype: torch.dtype
    output: str
    error: float
    tolerance: float
    cause: str = ""

    @property
    def ok(self) -> bool:
        """True when the error is within the tolerance."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        line = f"{short(self.dtype)} {self.output}: error {self.error:.2e}, allowed "
        return f"{line}{self.tolerance:.2e} ({self.case}){': ' if self.cause else ''}{self.cause}"


#: In a cause: those of one mistake differ from case to case.
_NUMBERS = re.compile(r"-?\b\d[\d.]*(?:e[+-]?\d+)?|-?\b(?:inf|nan)\b")


@dataclass(frozen=True)
class ParityReport:
    """The result of `check`; `ok` when something was checked and all is within tolerance.

    skipped  kinds of calls that the function takes no argument for
    refused  options that it refuses by an error, and the error
    """

    name: str
    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when something was checked and nothing failed."""
        return bool(self.findings) and not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings whose error is over the tolerance."""
        return tuple(finding for finding in self.findings if not finding.ok)

    @property
    def causes(self) -> tuple[str, ...]:
        """The likely causes, most frequent first; those that differ only in numbers are one."""
        told: dict[str, str] = {}
        found = [finding.cause for finding in self.failures if finding.cause]
        kinds = [_NUMBERS.sub("", cause) for cause in found]
        for kind, cause in zip(kinds, found, strict=True):
            told.setdefault(kind, cause)
        return tuple(told[kind] for kind, _ in Counter(kinds).most_common())

    def __str__(self) -> str:
        n, bad = len(self.findings), self.failures
        verdict = "right" if self.ok else "WRONG" if bad else "NOT CHECKED"
        lines = [f"{self.name}: {verdict}; {n - len(bad)} of {n} checks within tolerance"]
        lines += [f"  likely cause: {cause}" for cause in self.causes[:3]]
        lines += [f"  {worst}" for worst in bad[:10]]
        if len(bad) > 10:
            lines.append(f"  and {len(bad) - 10} more")
        lines += [f"  not covered: {reason}" for reason in self.skipped]
        return "\n".join([*lines, *(f"  {line}" for line in self.not_taken)])

    @property
    def not_taken(self) -> list[str]:
        """A line for each option that the function refuses."""
        return [f"does not take {name}: it {told}" for name, told in self.refused.items()]


def short(dtype: torch.dtype) -> str:
    """A dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def poisoned_memory(query: Tensor, n_keys: int) -> Iterator[None]:
    """Memory handed out inside is NaN until it is written.

    torch fills what `empty` gives when told to; and for memory that comes another way, tensors of
    the outputs' sizes full of NaN were freed just before.
    """
    # Typed as a plain module; the setting is a property that torch puts there at run time.
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = memory.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = True
        rows, K = query.shape[:3], n_keys
        shapes = (query.shape, rows, (*rows, K), (*query.shape[:2], K))
        poison = [torch.full(shape, math.nan).to(query) for shape in shapes for _ in range(2)]
        del poison
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
            memory.fill_uninitialized_memory = fill


class CheckEndedError(MinibertError):
    """The implementation cannot be called again, so that the check ends here."""


@runtime_checkable
class Caller(Protocol):
    """The object that calls the implementation that is checked."""

    def call(self, problem: Problem, *, again: bool) -> dict[str, Tensor]:
        """The outputs as they are when the call returns.

        The implementation gets copies of the inputs; with `again` in the tensors that the call
        before had. Raises CheckEndedError when there can be no further call; any other error is a
        finding about this one.
        """

    def later(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs of the last call and its outputs, as they are now."""


class InProcess:
    """Calls the function of an implementation in this process."""

    def __init__(self, record: Implementation) -> None:
        self._record = record
        self._given: Problem | None = None
        self._outputs: dict[str, Tensor] = {}

    def call(self, problem: Problem, *, again: bool) -> dict[str, Tensor]:
        """See `Caller`. Raises what the function raises, and AttentionError for wrong outputs."""
        known = self._given if again else None
        given = self._given = problem.copy() if known is None else known.take(problem)
        backward = problem.z_gradient is not None
        for one in (given.query, given.key, given.value):
            one.requires_grad_(backward)
        with poisoned_memory(problem.query, problem.n_keys):
            found = bound(self._record, given)()
        record = self._record
        shapes, exact = problem.shapes, record.checked
        check_outputs(found, record.name, *shapes, problem.want, exact=exact)
        outputs = {name: one for name, one in found.items() if isinstance(one, Tensor)}
        if backward:
            outputs |= gradients_of(outputs["z"], given)
        self._outputs = {name: one.detach() for name, one in outputs.items()}
        return {name: one.clone() for name, one in self._outputs.items()}

    def later(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See `Caller`."""
        given = {} if self._given is None else self._given.tensors()
        return {name: one.detach() for name, one in given.items()}, self._outputs


def bound(record: Implementation, problem: Problem) -> Callable[[], Outputs]:
    """The call of an implementation in the form that it takes, without arguments.

    What it does not take is folded into what it takes: masks are made once, keys and values that
    are repeated or laid out in another way are made by each call, from what stands there then.
    """
    call = problem.call()
    return lambda: _run(record, call)


def _run(record: Implementation, call: Call) -> Outputs:
    taken = record.options
    if call.packed is not None and "packed" not in taken:
        return unpadded(_run(record, padded_call(call)), call)
    return record.fn(folded(call, taken))


_LOOKING = "looking for the likely cause"


@dataclass
class _Run:
    """What stays the same during one check, and the last output of each name and shape."""

    record: Implementation
    caller: Caller
    device: torch.device
    d_head: int | None
    say: Callable[[str], None] = lambda _: None
    previous: dict[tuple[str, torch.Size], Tensor] = field(default_factory=dict)
    causes: set[str] = field(default_factory=set)
    stale: bool = False
    """Whether an output was that of an earlier call: then the same call differs for that reason."""


def check(
    implementation: str | Implementation | Callable[..., object],
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str | torch.device = "cpu",
    wants: Iterable[str] | None = None,
    sizes: Iterable[int] = SIZES,
    input_scales: Iterable[float] = INPUT_SCALES,
    d_head: int | None = 64,
    seed: int = 0,
    kinds: Iterable[str] | Mapping[str, Workload] = tuple(KINDS),
    watch: Callable[[int, int, str], None] | None = None,
    caller: Caller | None = None,
    backward: bool = False,
) -> ParityReport:
    """The report on a registered name, an `Implementation`, or a function (see `register`).

    A bare function may return only z. It is checked in float32 and bfloat16, and on the options
    (lengths, mask, causal, scale, bias) that it names; the others are listed as not covered. An
    exception in the function is a failure of its case, not of the check. Where its error refuses an
    option by name, the report says that the function does not take it. `kinds` limits the check to
    some of `cases.KINDS` and `cases.FIELD_KINDS`, or to workloads by name, whose own d_head is used
    where `d_head` is None. watch(done, of, what) is called for each case. A `caller` calls the
    function in place of this process. With `backward` the gradients of query, key and value are
    checked as well, for a drawn gradient of z.
    Raises AttentionError when the name is unknown, it cannot run on `device`, or sizes or
    input_scales are empty.
    """
    record = _record(implementation)
    if wants is not None:
        record = replace(record, wants=frozenset(wants))
    run = _Run(record, caller or InProcess(record), torch.device(device), d_head)
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    refused: dict[str, str] = {}
    known = (
        kinds
        if isinstance(kinds, Mapping)
        else {one: named("kind", one, ALL_KINDS) for one in kinds}
    )
    if backward:
        known = {name: replace(one, backward=True) for name, one in known.items()}
    tried = tuple(cases(sizes, input_scales, known))
    tasks = list(product(record.dtypes if dtypes is None else dtypes, tried))
    for done, (dtype, case) in enumerate(tasks):
        asks = case.work.asks()
        wants_here = record.wants - LEFT_OUT[case.work.layout]
        request = Request(wants_here, asks, run.device.type, dtype, gradient=False)
        if refusal := record.refusal(request):
            skipped[f"{case.kind} in {short(dtype)}: {refusal}"] = refusal
            continue
        if watch is not None:
            run.say = partial(watch, done, len(tasks))
        told = any(one.cause and one.case.startswith(f"{case.kind},") for one in findings)
        try:
            findings += _examine(run, case, dtype, seed=seed, explain=not told)
        except _RefusedError as error:
            refused.setdefault(error.options, str(error))
        seed += 2
    if not findings:
        reasons = "; ".join(dict.fromkeys((*skipped.values(), *refused.values())))
        raise AttentionError(f"{record.name} was not checked at all: {reasons}.")
    return ParityReport(record.name, tuple(findings), tuple(skipped), refused)


class _RefusedError(Exception):
    """The function raised an error to say that it does not take these options of the call."""

    def __init__(self, options: str, told: str) -> None:
        super().__init__(told)
        self.options = options


#: How people write the options of a call in an error.
_WRITTEN = {
    "lengths": "length|seq_?lens|padding",
    "causal": "causal",
    "window": "window",
    "prefix": "prefix",
    "soft_cap": "soft.?cap|logits?_cap",
    "alibi_slopes": "alibi|slopes",
    "sinks": r"\bsinks?\b|s_aux",
    "mask": "mask",
    "bias": "bias",
    "scale": r"\bscal(?:e|ing)|_scale\b",
    "packed": "packed|cu_seqlens|varlen",
    "packed_keys": "packed|cu_seqlens|varlen",
    "pages": r"\bpages?\b|block_table",
    "groups": "gqa|groups|kv_?heads|key heads",
    "value_size": r"value|d_?v\b",
}
_REFUSES = re.compile(
    r"not (?:yet )?(?:support|implement|take|accept|allow|handle)|n't (?:support|take|accept|allow)"
    r"|unsupported|unexpected keyword|(?:must|should|has to|expected to) be (?:None|False|0)",
    re.IGNORECASE,
)


def _refusal(told: str, asks: Collection[str]) -> str:
    """The options of a call that an error refuses by their names; "" for any other error.

    A NotImplementedError without a message refuses everything besides query, key and value.
    """
    if re.match(r"raised NotImplementedError(?!:)", told):
        return ", ".join(sorted(asks))
    if not (_REFUSES.search(told) or told.startswith("raised AssertionError")):
        return ""
    return ", ".join(one for one in sorted(asks) if re.search(_WRITTEN[one], told, re.IGNORECASE))


def _examine(
    run: _Run, case: Case, dtype: torch.dtype, *, seed: int, explain: bool
) -> list[Finding]:
    """The findings of two calls with different inputs in the same tensors.

    Raises _RefusedError where the function refuses an option of the case.
    """
    findings: list[Finding] = []
    what = f"{case}, {short(dtype)}"
    for call in range(2):
        run.say(what)
        problem = case.draw(
            dtype=dtype,
            device=run.device,
            d_head=run.d_head,
            wants=run.record.wants,
            seed=seed + call,
        )
        where = f"{case}, call {call + 1}"
        try:
            outputs = run.caller.call(problem, again=call > 0)
        except CheckEndedError:
            raise
        # Whatever a user's function raises is a finding about it.
        except Exception as error:
            cause = _told(error, run.record.fn)
            if options := _refusal(cause, case.work.asks()):
                raise _RefusedError(options, cause) from error
            return [*findings, Finding(where, dtype, "call", math.inf, 0.0, cause)]
        compared = _compare(run, where, problem, outputs, explain=explain)
        run.say(what)
        given, later = run.caller.later()
        if changed := problem.differing(given):
            cause = f"changes its inputs: {', '.join(changed)}"
            findings.append(Finding(where, dtype, "inputs", math.inf, 0.0, cause))
        findings += _called_again(run, problem, outputs, compared)
        if moved := [name for name, early in outputs.items() if not _equal(early, later[name])]:
            cause = (
                f"{', '.join(moved)} changed after the call had returned: the work continues after "
                "it, in a thread or on another stream"
            )
            findings.append(Finding(where, dtype, "late", math.inf, 0.0, cause))
        run.previous |= {(name, found.shape): found for name, found in outputs.items()}
    return findings


def _called_again(
    run: _Run, problem: Problem, outputs: dict[str, Tensor], findings: list[Finding]
) -> list[Finding]:
    """The findings after the same call is repeated: a different result is then the cause."""
    explained = [i for i, one in enumerate(findings) if one.cause and math.isfinite(one.tolerance)]
    place = next((i for i in explained if findings[i].output.split(",")[0] in outputs), None)
    run.stale = run.stale or any(STALE in one.cause for one in findings)
    if place is None or run.stale:
        return findings
    told, output = findings[place], findings[place].output.split(",")[0]
    try:
        again = run.caller.call(problem, again=True)[output]
    except CheckEndedError:
        raise
    # It did not raise before: that it does now is what the cause says.
    except Exception:
        again = None
    # NaN in the same places is the same.
    before = outputs[output].nan_to_num()
    if again is not None and distance(again.nan_to_num(), before) <= told.tolerance:
        return findings
    if told.cause.startswith("dropout"):
        return findings
    cause = (
        "another result when it is called again with the same inputs: a race between threads, or "
        "something kept between calls"
    )
    return [replace(one, cause=cause) if i == place else one for i, one in enumerate(findings)]


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def one_line(error: BaseException) -> str:
    """The message of an error, on one line and shortened."""
    return " ".join(str(error).split())[:300]


def _told(error: Exception, fn: Callable[..., object]) -> str:
    """The error in one line, and where in the file of `fn` it arose."""
    told = f"raised {type(error).__name__}: {one_line(error)}".removesuffix(": ")
    file = getattr(getattr(inspect.unwrap(fn), "__code__", None), "co_filename", None)
    trace = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in trace if frame.filename == file]
    if not lines and isinstance(error, MinibertError):
        # It is about its outputs or its end, not about an error that it raised.
        return one_line(error)
    return f"{told} (line {lines[-1]} of {Path(str(file)).name})" if lines else told


@dataclass
class _Judged:
    """The findings of one call; the cause of the first output that is wrong is looked for."""

    run: _Run
    where: str
    dtype: torch.dtype
    explain: bool
    findings: list[Finding] = field(default_factory=list)

    def add(
        self, output: str, error: float, allowed: float, cause: Callable[[], str] | str
    ) -> Finding:
        """Adds a finding, with its cause where that is known or has to be looked for."""
        said = "" if callable(cause) else cause
        if callable(cause) and self.explain and not error <= allowed:
            # The first wrong output of a case tells: the others follow from the same slip.
            self.explain = False
            self.run.say(f"{_LOOKING}: {self.where}")
            said = cause()
            self.run.causes.add(said)
        self.findings.append(Finding(self.where, self.dtype, output, error, allowed, said))
        return self.findings[-1]


def _compare(
    run: _Run, where: str, problem: Problem, outputs: dict[str, Tensor], *, explain: bool
) -> list[Finding]:
    expected, yardstick = truth(problem), by_eager(problem, problem.query.dtype)
    judged = _Judged(run, where, problem.query.dtype, explain)
    for output in ("z", "lse", *problem.want):
        if output not in outputs:
            if output != "lse":
                cause = f"gave {', '.join(outputs)} and no {output}"
                judged.add(output, math.inf, 0.0, cause)
            continue
        found, right = outputs[output], expected[output]
        tolerance = tolerance_of(output, problem, yardstick, expected) + _held(found, right)
        previous = run.previous.get((output, found.shape))
        told = (output, problem, found, right)
        why = partial(likely_cause, *told, tolerance=tolerance, previous=previous, known=run.causes)
        finding = judged.add(output, error_of(output, problem, outputs, expected), tolerance, why)
        if output == "z" and finding.ok:
            # Each value is within its tolerance; all of them together have one too.
            allowed = mean_tolerance(problem, yardstick["z"], right)
            why = partial(mean_cause, *told, allowed=allowed, previous=previous)
            judged.add("z, mean", mean_distance(found, right), allowed, why)
    if problem.z_gradient is not None:
        _compare_gradients(judged, problem, outputs)
    return judged.findings


def _held(found: Tensor, right: Tensor) -> float:
    """The extra error allowed in one number a row that is held in the 16 bits of the inputs.

    Of lse the maximum, the sum, its logarithm and lse itself are rounded, each by half of eps.
    """
    if found.ndim != 3 or found.dtype not in (torch.float16, torch.bfloat16):
        return 0.0
    largest = float(right[right.isfinite()].abs().max()) if bool(right.isfinite().any()) else 0.0
    return 2 * torch.finfo(found.dtype).eps * (1 + largest)


def _compare_gradients(judged: _Judged, problem: Problem, outputs: dict[str, Tensor]) -> None:
    allowed = tolerances(problem)
    for output, right in right_gradients(problem).items():
        found = outputs.get(output)
        if found is None or found.shape != right.shape:
            said = "none" if found is None else f"shape {tuple(found.shape)}"
            cause = f"gave {said} as {output}; expected shape {tuple(right.shape)}"
            judged.add(output, math.inf, allowed[output], cause)
        else:
            why = partial(gradient_cause, output, problem, found, right, allowed[output])
            judged.add(output, distance(found, right), allowed[output], why)


def _record(implementation: str | Implementation | Callable[..., object]) -> Implementation:
    if isinstance(implementation, Implementation):
        return implementation
    if isinstance(implementation, str):
        if implementation not in implementations():
            guess = did_you_mean(implementation, implementations())
            raise AttentionError(
                f'check("{implementation}"): not known{guess}; known are '
                f"{', '.join(implementations())}."
            )
        return implementations()[implementation]
    name = getattr(implementation, "__name__", type(implementation).__name__)
    return Implementation(
        name=name,
        fn=by_keywords(implementation, name),
        dtypes=(torch.float32, torch.bfloat16),
        options=accepted_options(implementation),
    )
