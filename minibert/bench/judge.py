"""Is a user's kernel right? What `minibert check` runs, and `minibert bench` before any clock.

The function runs in a worker: numbers in, numbers out. Details that its convention leaves open (the
order of axes, the form of a mask, outputs besides z) are found by calling it. The report states
them, and every number is judged by them. Then come one plain call, whose failure is one line, and
the cases of parity: those of a named workload, or every kind that the function can be told.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor

from minibert.bench.result_rows import Row
from minibert.bench.signatures import (
    OTHER,
    SIGNATURES,
    TOLD,
    USUAL,
    Other,
    Way,
    axes_of,
    other_output,
)
from minibert.bench.user_file import OUTPUTS, target_parts
from minibert.bench.worker import alike
from minibert.bench.worker_process import Printed, Watch, WorkerError, WorkerProcess
from minibert.errors import AttentionError, MinibertError
from minibert.kernels.call import MATRICES, SHAPES, wide
from minibert.kernels.check.faults import suspects
from minibert.kernels.check.gradients import GRADIENTS
from minibert.kernels.check.parity import CheckEndedError, ParityReport, check, short
from minibert.kernels.check.problem import Problem, by_eager
from minibert.kernels.check.workload import ALL_KINDS, INPUT_SCALES, Case, Workload, kinds_of
from minibert.kernels.checks import check_outputs
from minibert.kernels.registry import Implementation

#: The fields of a problem that are not tensors.
_SETTINGS = ("scale", "causal", "window", "soft_cap", "packed", "packed_keys")


class JudgedFunction:
    """FILE.py:function in a worker; each call may take `seconds`.

    It is the caller of `parity.check`. The worker gets copies of the inputs; its answer is accepted
    only as numbers of the promised shapes and dtypes.
    """

    def __init__(
        self,
        target: str,
        device: torch.device,
        *,
        seconds: float,
        signature: str | None = None,
        layout: str = "",
        causal_only: bool = False,
    ) -> None:
        """Run the file.

        `signature` names the calling convention; None: its parameters tell. `layout` says how its
        vectors lie, as `Way.told` takes it. With `causal_only` the function is always causal,
        without being told.

        Raises MinibertError when there is no such file or function, and WorkerEndedError when it
        ends the process.
        """
        self.source, self.name = target_parts(target)
        self.device, self.causal_only, self.layout = device, causal_only, layout
        USUAL.told(layout or USUAL.layout)
        known = self.source if isinstance(self.source, str) else self.source.name
        #: SHA-256 of the file, before its code can change it.
        self.digest = ""
        if isinstance(self.source, Path):
            self.digest = hashlib.sha256(self.source.read_bytes()).hexdigest()
        self.label = f"{known}:{self.name}"
        self.printed = Printed(known)
        self.worker = WorkerProcess(self.label, str(device), seconds, self.printed)
        try:
            path = str(self.source) if isinstance(self.source, Path) else None
            module = None if path else str(self.source)
            answer, _ = self.worker.ask(
                "read", path=path, module=module, name=self.name, signature=signature
            )
        except BaseException:
            self.close()
            raise
        named = str(answer.get("signature"))
        if named not in SIGNATURES:
            raise self.worker.distrust(f"{self.label} has an unknown convention: {named:.40}.")
        self.signature = SIGNATURES[named]
        self.way = self.signature.way
        self.triton = bool(answer.get("triton"))
        self.interpreted = self.triton and device.type == "cpu"
        self.takes = self._listed(answer, "takes")
        # What is found out about it, and what is not judged.
        self.said: list[str] = []
        unknown = [one for one in self._listed(answer, "unknown") if one.isidentifier()]
        self.uncovered = [f"left at their defaults: {', '.join(unknown):.200}"] if unknown else []
        #: The types that are not judged, and why.
        self.untried: dict[str, str] = {}
        self._take(answer)

    def _take(self, answer: Row) -> None:
        """The worker's account of its options."""
        told = {*self._listed(answer, "options")}
        told |= {"causal"} if self.causal_only else set()
        self.options = tuple(one for one in (*TOLD, *SHAPES) if one in told)

    def _listed(self, answer: Row, name: str) -> list[str]:
        found = answer.get(name)
        if not isinstance(found, list):
            raise self.worker.distrust(f"{self.label} answered without its {name}.")
        return [str(one) for one in found]

    def called(self, way: Way) -> None:
        """Call it in this way from now on."""
        answer, _ = self.worker.ask("called", way=way.fields())
        self.way = way
        self._take(answer)

    def close(self) -> None:
        """End the worker."""
        self.worker.close()

    def implementation(self, outputs: tuple[str, ...]) -> Implementation:
        """The implementation that `parity.check` asks, bound to give these outputs."""
        return Implementation(
            name=self.label,
            # Not the method itself, whose own lines are not where the user's errors arise.
            fn=partial(self.call),
            wants=frozenset(outputs) - {"z", "lse"},
            # Whether it can be told all windows is asked before.
            options=frozenset({*self.options, *SHAPES, "window"}),
        )

    def call(self, problem: Problem, *, again: bool = False) -> dict[str, Tensor]:
        """The outputs when the call returns. Raises WorkerError where it does anything else."""
        # What is wanted of it stays with the judge.
        given = problem.tensors()
        tensors = {name: one.detach() for name, one in given.items() if name not in problem.want}
        self._asked = problem
        _, found = self.worker.ask(
            "call",
            tensors=tensors,
            most=_room(problem),
            settings={name: getattr(problem, name) for name in _SETTINGS},
            again=again,
        )
        return self._outputs(found)

    def later(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs of the last call and its outputs, as they are now."""
        problem, most = self._asked, _room(self._asked)
        sizes = sum(one.numel() * one.itemsize for one in problem.tensors().values())
        _, inputs = self.worker.ask("later", of="inputs", most=sizes)
        _, outputs = self.worker.ask("later", of="outputs", most=most)
        if outputs.keys() != self._gave:
            raise self.worker.distrust(f"{self.label} answered with other outputs than it gave.")
        given = problem.tensors()
        for name, one in inputs.items():
            if name not in given or not alike(one, given[name]):
                raise self.worker.distrust(f"{self.label} answered with inputs it was not given.")
        return given | inputs, self._outputs(outputs)

    def _outputs(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """The outputs, of promised names and shapes."""
        problem = self._asked
        self._gave = {*found}
        if unknown := self._gave - {*OUTPUTS, *GRADIENTS, *_OTHERS}:
            raise WorkerError(f"gave {', '.join(sorted(unknown))}; known are {', '.join(OUTPUTS)}")
        dtype, beside = (
            problem.query.dtype,
            {one.name for one in self.way.others or ()} - {*MATRICES},
        )
        forward = {
            name: one.to(wide(dtype)) if name in beside and one.dtype == dtype else one
            for name, one in found.items()
            if name not in GRADIENTS
        }
        check_outputs(forward, self.label, *problem.shapes, problem.want)
        if any(one.is_meta for one in found.values()):
            raise self.worker.distrust(f"{self.label} answered with more than the judge asked for.")
        return found


#: What a tuple may have beside z.
_OTHERS = [f"{OTHER}{number}" for number in range(2, 34)]


def _room(problem: Problem) -> int:
    """The bytes that all outputs take at most, each number in 8 bytes."""
    (B, H, Q, D), K = problem.z_shape, problem.n_keys
    vectors = problem.query.numel() + problem.key.numel() + problem.value.numel()
    return 8 * (B * H * (Q * (D + 2 * K + 16) + K) + vectors) + 2048


#: A relative error that no wrong order of axes stays below, and few mistakes.
_NEAR = 0.1
#: From here on `_unlike` tells nothing.
_UNRELATED = 0.9
#: Layouts of the vectors and of z, in the order in which they are tried.
_LAYOUTS = (
    ("bhnd", ""),
    ("bnhd", ""),
    ("bhnd", "bnhd"),
    ("bhnd", "bn(hd)"),
    ("bnhd", "bn(hd)"),
    ("bnhd", "bhnd"),
    ("nbhd", ""),
    ("nbhd", "nb(hd)"),
    ("(bh)nd", ""),
    ("bn(hd)", ""),
    ("nhd", ""),
    ("nhd", "n(hd)"),
    ("nd", ""),
)
#: Shapes that not every function takes: a kind that has them, and the words where it raises.
_SHAPES = {
    "groups": ("groups", "fewer key heads than query heads"),
    "value_size": ("value size", "values of another size than keys"),
}
#: Draws a problem of this kind of `cases.KINDS`.
Draw = Callable[[str], Problem]


def learn(user: JudgedFunction, *, dtype: torch.dtype, d_head: int) -> None:
    """Find out how the function is called, where its convention leaves that open.

    Where no way works, it is called as its convention has it, and its own error says what fails.
    """

    def draw(kind: str) -> Problem:
        work = user.signature.fitted(ALL_KINDS[kind]) or ALL_KINDS[kind]
        case, seed = Case.of(kind, work, 64), secrets.randbits(31)
        return case.draw(dtype=dtype, device=user.device, d_head=d_head, wants=(), seed=seed)

    if user.layout:
        user.called(user.way.told(user.layout))
    if user.signature.open:
        _learn_layout(user, draw)
        if "mask" in user.takes:
            _learn_mask(user, draw)
        _learn_window(user, draw)
        user.said += user.way.said()
    elif user.signature.layout == "packed" and not user.layout:
        _learn_layout(user, draw)
        user.said += user.way.said() if user.way != user.signature.way else []
    if user.way.others is None:
        _learn_others(user, draw)
    asked = [one for one in _SHAPES if one in user.options]
    raised = [one for one in asked if _given(user, user.way, draw(_SHAPES[one][0])) is None]
    user.options = tuple(one for one in user.options if one not in raised)
    user.uncovered += [f"{_SHAPES[one][1]} (it raises an error there)" for one in raised]


def _learn_layout(user: JudgedFunction, draw: Draw) -> None:
    start, problem = user.way, draw("plain")
    layouts = [(start.layout, start.z)] if user.layout else _LAYOUTS
    if user.signature.layout == "packed":
        # Packed sentences, with or without an axis of one batch before them.
        layouts = [(start.layout, start.z), ("bnhd", "")]
    ways = [replace(start, layout=layout, z=z) for layout, z in layouts]
    causal = replace(problem, causal=True)
    unsaid = user.causal_only or "causal" not in user.options
    asked = [causal] if user.causal_only else [problem, causal] if unsaid else [problem]
    best, works = (math.inf, start, user.causal_only, math.inf), False
    given: list[tuple[tuple[float, Way, bool, float], Problem, Tensor]] = []
    whole = [one for one in ways if len(axes_of(one.layout)) == len(start.layout)]
    apart = [one for one in ways if one not in whole]
    if "heads" in user.takes:
        # Who has to be told how many there are gets them in one axis.
        whole, apart = apart, whole
    # Parts of vectors, and arrays, are for functions that take no whole tensors.
    for arrays, tried in ((False, whole), (False, apart), (True, whole), (True, apart)):
        turned = (replace(one, arrays=arrays) for one in tried)
        for way in (mask for one in turned for mask in _with_masks(one, user)):
            z = (_given(user, way, problem) or {}).get("z")
            if z is None or z.shape != problem.z_shape:
                continue
            works = True
            for one in asked:
                right = by_eager(one, torch.float64)["z"]
                unlike, error = _unlike(z, right), _relative(z, right)
                # Of ways that all give something else the first: chance makes no difference.
                unlike = 1.0 if unlike > _UNRELATED else unlike
                # Who is told how many heads there are has them side by side, unless it is right.
                unlike += "heads" in user.takes and "(hd)" not in way.layout and error >= _NEAR
                found = unlike, way, one.causal, error
                best = min(best, found, key=itemgetter(0))
                given.append((found, one, z))
            if best[3] < _NEAR:
                break
        if works:
            break
    if best[0] >= 1:
        # The way in which a known mistake gives these numbers tells the order as well.
        best = next((found for found, one, z in given if _is_known(one, z)), best)
    _, way, always, error = best
    if always and error < _NEAR and not user.causal_only:
        user.causal_only = True
        user.said.append("always causal")
    user.called(way)


def _is_known(problem: Problem, z: Tensor) -> bool:
    """True where a mistake of `faults.py` gives this z."""
    others = (one.gives("z") for one in suspects(problem))
    return any(one is not None and _relative(z, one) < _NEAR for one in others)


def _with_masks(way: Way, user: JudgedFunction) -> Iterator[Way]:
    """The way with the usual mask of its layout; where a mask has to be given, with others too."""
    forms = _masks(way.layout) if "mask" in user.takes else [way.mask]
    return (replace(way, mask=one) for one in (forms if way == user.way else forms[:1]))


def _masks(layout: str) -> list[str]:
    """The forms of a mask beside vectors of this layout, in the order in which they are tried."""
    if "(" in layout:
        return ["allowed (bh)qk", "added (bh)qk", "allowed qk", "added qk"]
    if not {"b", "h"} <= {*layout}:
        return ["allowed qk", "added qk"]
    axes = ("bhqk", "bqk", "bk", "qk")
    return [f"{form} {one}" for one in axes for form in ("allowed", "added")]


#: A kind whose mask can be told by these axes.
_SAYS = {"bqk": "causal lengths", "bk": "lengths", "qk": "causal"}


def _learn_mask(user: JudgedFunction, draw: Draw) -> None:
    start = user.way
    working = []
    for mask in _masks(user.way.layout):
        problem = draw(_SAYS.get(mask.split()[1], "mask"))
        if user.causal_only:
            problem = replace(problem, causal=True)
        way = replace(user.way, mask=mask)
        z = (_given(user, way, problem) or {}).get("z")
        if z is not None and z.shape == problem.z_shape:
            working.append(way)
            asked = [problem]
            if problem.mask is not None:
                # Who reads Booleans the wrong way round may still take a mask that is added.
                asked.append(replace(problem, mask=~problem.mask))
            if any(_relative(z, by_eager(one, torch.float64)["z"]) < _NEAR for one in asked):
                return
    # Where none is right, the usual one, that a wrong one can be named.
    user.called(working[0] if working else start)


def _learn_window(user: JudgedFunction, draw: Draw) -> None:
    """Find out whether a window given as one number counts the query itself."""
    if "counted window" not in user.takes or "causal" not in user.options:
        return
    problem, start = draw("causal window"), user.way
    right = by_eager(problem, torch.float64)["z"]
    for own in (True, False):
        z = (_given(user, replace(start, own=own), problem) or {}).get("z")
        if z is not None and z.shape == problem.z_shape and _relative(z, right) < _NEAR:
            user.said.append(f"its window counts the query itself{'' if own else ' not'}")
            return
    user.called(start)


#: Options after which a function may give its scores.
_CHANGING = ("lengths", "causal", "mask", "bias", "window", "soft_cap", "alibi_slopes")


def _learn_others(user: JudgedFunction, draw: Draw) -> None:
    """What the outputs beside z are."""
    problem = draw("causal" if user.causal_only else "plain")
    given = _given(user, user.way, problem) or {}
    beside = {name: one for name, one in given.items() if name.startswith(OTHER)}
    want: dict[str, object] = dict.fromkeys(
        ("row_max", "max_prob", "entropy", "scores", "probs"), ()
    )
    right = by_eager(replace(problem, want=want), torch.float64)
    others: list[Other] = []
    for name, numbers in beside.items():
        while len(others) < int(name.removeprefix(OTHER)) - 2:
            others.append(Other())
        one = _recognised(numbers, problem, right, user.way)
        if one.name == "scores" and {*user.options} & {*_CHANGING}:
            user.uncovered.append(f"{name}, the scores: with or without what hides keys")
            others.append(Other())
            continue
        others.append(one)
        shape = tuple(numbers.shape[1:])
        if one.name:
            base = " in base 2" if one.factor != 1 else ""
            user.said.append(f"{name} is {one.name}{base}")
        else:
            user.uncovered.append(f"{name}, of shape {shape}: nothing that can be judged")
    user.called(replace(user.way, others=tuple(others)))


def _recognised(numbers: Tensor, problem: Problem, right: dict[str, Tensor], way: Way) -> Other:
    """The output that these numbers are.

    An unknown output of the size of lse is taken for lse.
    """
    if not numbers.is_floating_point():
        return Other()
    tried = [
        Other(name, axes, factor)
        for name, factor in (
            ("lse", 1.0),
            ("lse", math.log(2)),
            ("entropy", math.log(2)),
            *((one, 1.0) for one in right),
        )
        if name != "z"
        for axes in _axes(way, matrix=right[name].shape == right["probs"].shape)
    ]
    lse, near = Other(), Other()
    for one in tried:
        try:
            found = other_output(numbers, one, problem)
        except MinibertError:
            continue
        error = _relative(found, right[one.name])
        if error < _NEAR**2:
            return one
        if one.name == "lse" and _relative(found, (right["lse"] - right["row_max"]).exp()) < 1e-3:
            # The sum of the row, beside its maximum: nothing that is judged.
            return Other()
        lse = one if one.name == "lse" and not lse.name else lse
        near = one if "k" in one.axes and error < 0.5 and not near.name else near
    return lse if lse.name else near


def _axes(way: Way, *, matrix: bool) -> Iterator[str]:
    layout = way.z or way.layout
    if matrix:
        axes = layout if "(" in layout else "".join(one for one in "bhn" if one in layout)
        yield axes.replace("(hd)", "h").replace("d", "") + "k"
        yield "bhnk"
        return
    if layout.startswith("(bh)"):
        rows = ["(bh)n"]
    else:
        rows = ["".join(one) for one in permutations(one for one in "bhn" if one in layout)]
        rows.sort(key=lambda one: (one != "bhn", one))
    yield from (*rows, *(f"{one}1" for one in rows))


def _given(user: JudgedFunction, way: Way, problem: Problem) -> dict[str, Tensor] | None:
    """The outputs when called in this way; None where it raises an error."""
    try:
        user.called(way)
        return user.call(problem)
    except CheckEndedError:
        raise
    except MinibertError:
        return None


def _unlike(found: Tensor, right: Tensor) -> float:
    """How far z is from the direction of the right one, whatever its size."""
    found = found.to(right.dtype).nan_to_num(0.0, 0.0, 0.0).flatten()
    alike = torch.cosine_similarity(found, right.flatten(), dim=0)
    return float(1 - alike.abs())


def _relative(found: Tensor, right: Tensor) -> float:
    """The root mean square error beside that of 0; of infinities, which are left out, too."""
    kept = right.isfinite()
    error = (found.to(right.dtype) - right)[kept].nan_to_num(1e9)
    return float(error.norm() / right[kept].norm().clamp_min(1e-9))


#: One key; under a tile; one and two more than tiles of 64; past 256, where kernels change.
TOKENS = (1, 17, 65, 130, 257)
QUICK_TOKENS = (17, 65)
#: What every function is asked that takes lengths and causal; "causal cache" on demand.
_USUAL = ("plain", "strided", "lengths", "causal", "causal lengths")


def asked_kinds(
    user: JudgedFunction, *, cache: bool = False, workload: Workload | None = None
) -> dict[str, Workload]:
    """The kinds of calls that a function is checked on: a workload, or all that it can be told.

    Raises MinibertError where the workload cannot be told in its convention.
    """
    signature, known = user.signature, {*user.options}
    if workload is not None:
        fitted = signature.fitted(workload)
        if fitted is None:
            raise MinibertError(f"{signature.name} cannot be told {workload.name}")
        return kinds_of(replace(fitted, name=workload.name))
    found: dict[str, Workload] = {}
    for name, work in ALL_KINDS.items():
        fitted = signature.fitted(work)
        if fitted is None or not work.asks() & frozenset(SHAPES) <= known:
            continue
        if "cache" in name and fitted.layout == "padded" and not cache:
            continue
        # Of a short sentence the last queries see no key in a window.
        if name == "window lengths" and not signature.dead_rows:
            continue
        if "cache" in user.takes and fitted.causal and fitted.lengths != "full":
            # Of such a function the last query may stand at the end of each sentence.
            continue
        if user.causal_only and not work.causal:
            name, fitted = f"causal {name}", replace(fitted, causal=True)
        asks = fitted.asks()
        if "window" not in known and work.window is not None and work.window[1] is None:
            asks = asks - {"window"} | {"window before"}
        if (asks <= known or name in _USUAL) and fitted not in found.values():
            found[name] = fitted
    return found


def gate(
    user: JudgedFunction,
    *,
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

    The inputs are different each time, so no answer can be known in advance. The report names the
    types that the function refuses by an error. Raises MinibertError in one line when a plain call
    of 64 tokens already fails.
    """
    seed = secrets.randbits(31)

    def told(done: int, total: int, what: str) -> None:
        user.worker.place = what
        if watch is not None:
            watch(done, total, what)

    told(0, 1, "a first call with 64 tokens")
    learn(user, dtype=dtypes[0], d_head=d_head or (workload.d_head if workload else 64))
    kinds = asked_kinds(user, cache=cache, workload=workload)
    first, work = next(iter(kinds.items()))
    case = Case.of(first, replace(work, backward=backward), 64)

    def draw(dtype: torch.dtype, *wants: str) -> Problem:
        return case.draw(dtype=dtype, device=user.device, d_head=d_head, wants=wants, seed=seed)

    outputs = _first_call(user, draw(dtypes[0], *OUTPUTS[2:]))
    for dtype in dtypes[1:]:
        try:
            user.call(draw(dtype))
        except WorkerError as error:
            user.untried[short(dtype)] = str(error)
        # What has another shape or type is a finding of the check.
        except AttentionError:
            continue
    return check(
        user.implementation(outputs),
        dtypes=[one for one in dtypes if short(one) not in user.untried],
        device=user.device,
        sizes=tokens,
        d_head=d_head,
        kinds=kinds,
        input_scales=input_scales,
        seed=seed,
        watch=told,
        caller=user,
        backward=backward,
    )


def _first_call(user: JudgedFunction, problem: Problem) -> tuple[str, ...]:
    """The names of what it gives for an easy problem; the gradients left out."""
    try:
        return tuple(name for name in user.call(problem) if name not in GRADIENTS)
    except AttentionError as error:
        raise MinibertError(str(error).removesuffix(_PARITY).replace('impl="', '"')) from error
    except WorkerError as error:
        raise MinibertError(f"{user.label} {error}.") from error


_PARITY = " The kernel is wrong; minibert.kernels.check.parity.check tells more."
