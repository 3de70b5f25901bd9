"""Finds the likely cause when `parity.check` sees wrong numbers.

It looks first for what the numbers show directly: a stale output, NaN, rows whose scores are too
large for exp unless their maximum is subtracted. Then it tries every mistake of `faults.py`. When
none fits, it tests whether everything is off by one factor, of the output or of the scale, or by
one constant. Last, it names the places of the wrong numbers.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from minibert.kernels.check.faults import TILES, suspects
from minibert.kernels.check.gradients import GRADIENTS, gradient_of_z, right_gradients
from minibert.kernels.check.problem import (
    Problem,
    by_eager,
    distance,
    mean_distance,
    truth,
    unfolded,
)

#: The step by which the scale is moved to see what a little more of it does.
_STEP = 1e-4
#: What a factor leaves unexplained of an error that it makes: its second order, and rounding.
_LEFT = 0.1
#: A factor of what has one sign, as lse nearly has, looks like something added.
_BOTH_SIGNS = ("z", "scores", "probs")


def factor_cause(
    output: str, problem: Problem, found: Tensor, expected: Tensor, tolerance: float
) -> str | None:
    """A sentence that names what gives nearly all of the error: a factor or what is added."""
    finite = expected.isfinite() & found.isfinite()
    if output not in _BOTH_SIGNS or not bool(finite.any()):
        return None
    right = expected[finite].double()
    if (factor := factor_of(found[finite].double(), right)) is not None:
        return f"everywhere {factor:.5g} times what is right: a factor at the end is wrong"
    if scale := _fitted_scale(output, problem, found, expected, tolerance):
        return (
            f"wrong scale: it behaves as {round(scale, 4):g} times `scale`, everywhere; a rounded "
            "constant, or log2(e) with too few digits"
        )
    error = found[finite].double() - right
    if _share(error, torch.ones_like(error)) is not None:
        return f"about {float(error.mean()):.2g} is added everywhere"
    return None


def factor_of(found: Tensor, right: Tensor) -> float | None:
    """The factor between what was found and what is right, where it explains both and the error."""
    share = _share(found - right, right)
    if share is None:
        return None
    factor = round(1 + share, 9)
    # Of numbers that are too small altogether the error is what is right, whatever they are.
    left = torch.linalg.vector_norm(found - factor * right)
    return factor if left < _LEFT * torch.linalg.vector_norm(found) else None


def _share(error: Tensor, direction: Tensor) -> float | None:
    """The multiple of the direction in the error, where that explains it; otherwise None."""
    size = torch.linalg.vector_norm(direction).square()
    if not bool(size > 0):
        return None
    share = error @ direction / size
    left = torch.linalg.vector_norm(error - share * direction)
    return float(share) if left < _LEFT * torch.linalg.vector_norm(error) else None


def _factors_of_rows(found: Tensor, expected: Tensor) -> str | None:
    """A sentence when each row of z is right but for a factor of its own."""
    right = expected.double()
    size = right.square().sum(-1)
    factors = (found.double() * right).sum(-1) / size
    left = torch.linalg.vector_norm(found.double() - factors[..., None] * right)
    whole = torch.linalg.vector_norm(found.double() - right)
    if not bool(size.all()) or not left < _LEFT * whole:
        return None
    return "each row is right but for a factor of its own: the sum that it is divided by is wrong"


#: How many times the scale a kernel may behave as, for a first guess.
_FACTORS = tuple(2.0 ** (n / 2) for n in range(-12, 13))


def _fitted_scale(
    output: str, problem: Problem, found: Tensor, expected: Tensor, tolerance: float
) -> float | None:
    """The multiple of the scale that gives these numbers; None where none does."""
    if not bool(found.isfinite().all()):
        return None

    def given(factor: float) -> Tensor:
        other = replace(problem, scale=problem.scale * factor, want={})
        return by_eager(other, torch.float64)[output]

    def far(factor: float) -> float:
        return mean_distance(found, given(factor))

    factor = min(_FACTORS, key=far)
    for _ in range(6):
        here, slope = given(factor), given(factor * (1 + _STEP))
        slope, error = (slope - here) / _STEP, found.to(here.dtype) - here
        factor *= 1 + float((error * slope).sum() / slope.square().sum().clamp_min(1e-30))
    return factor if _fits(found, given(factor), expected, tolerance) else None


_ADVICE = "subtract the maximum of the row from its scores before exp"


def large_scores(problem: Problem, found: Tensor, wrong: Tensor) -> str | None:
    """A sentence when rows are wrong because of the size of their scores; None where not."""
    row_max = truth(replace(problem, want={"row_max": ()}))["row_max"]
    if found.shape[:3] != row_max.shape or not found.is_floating_point():
        return None
    numbers = found.reshape(*row_max.shape, -1)
    rows = wrong.reshape(numbers.shape).any(dim=-1) & (row_max > -math.inf)
    # nan_to_num turns NaN into 0 and infinity into the largest number.
    finite = (numbers.abs() < torch.finfo(found.dtype).max).all(dim=-1)
    lost = ~finite | (numbers == 0).all(dim=-1)
    if overflow := _overflow(problem, row_max, rows, lost):
        return overflow
    low = row_max < math.log(torch.finfo(torch.float32).tiny)
    if bool((rows & lost).any()) and not bool((rows & ~(low & lost)).any()):
        return f"exp is 0 for all keys of rows with scores below −87, and 0 / 0 is lost: {_ADVICE}"
    return None


def _overflow(problem: Problem, row_max: Tensor, rows: Tensor, lost: Tensor) -> str | None:
    """A sentence when the rows that are lost are those whose exp no number type can hold."""
    for dtype in dict.fromkeys((torch.float32, problem.query.dtype)):
        info = torch.finfo(dtype)
        high, low = math.log(info.max), math.log(info.tiny)
        # The sum of a row, and its products with value, are larger than its largest exp.
        near = row_max > high - math.log(problem.n_keys) - 2
        beyond = row_max > high + 1
        # Beside rows that a rounded score has put on the other side, all has to fit.
        against = (beyond & ~lost) | (rows & ~((near & lost) | (row_max < low)))
        if bool((beyond & lost).any()) and int(against.sum()) * 20 <= int(rows.sum()):
            return f"exp overflows: rows with scores near or above {high:.0f} are lost; {_ADVICE}"
    return None


STALE = "a stale output"


def likely_cause(
    output: str,
    problem: Problem,
    found: Tensor,
    expected: Tensor,
    *,
    tolerance: float,
    previous: Tensor | None,
    known: Collection[str] = (),
) -> str:
    """A sentence that says what is probably wrong with `output`, and where.

    The `known` ones, found in other cases, are tried first. The sentence is empty where two
    mistakes look alike and only a call with other lengths tells them apart.
    """
    constant = bool((found == found.flatten()[0]).all())
    # A constant is the same in every call and tells nothing.
    previous = None if constant else previous
    if previous is not None and torch.equal(found, previous):
        return (
            f"the same numbers as in the previous call, which had other inputs: {STALE}, kept or "
            "cached between calls"
        )
    wrong = ((found.to(expected.dtype) - expected).abs() > tolerance) | (
        found.isfinite() != expected.isfinite()
    )
    if large := large_scores(problem, found, wrong):
        return large
    if not bool(wrong.any()):
        return "within the tolerance at each value, but masked cells are not exactly 0"
    if previous is not None and (stale := _stale_part(wrong, found, previous)):
        return stale
    if dropped := dropout_cause(output, problem, found, expected):
        return dropped
    for base in (2, 10) if output == "lse" else ():
        if distance(found * math.log(base), expected) <= tolerance:
            return f"lse is in base {base}: multiply by ln {base}"
    # Making the suspects costs little beside what each of them gives.
    for suspect in sorted(suspects(problem), key=lambda one: one.sentence not in known):
        other = suspect.gives(output)
        if other is None or other.shape != found.shape:
            continue
        if _fits(found, other, expected, tolerance):
            return suspect.sentence
    if bool(found.isnan().any()):
        return _about_nan(problem, found)
    if _only_in(_dead_rows(problem), wrong):
        return (
            "only rows without an allowed key are wrong: there z, probs and entropy are 0, lse and "
            "row_max −inf, argmax −1"
        )
    if _only_in(_padded_queries(problem), wrong):
        return (
            "only rows of padded queries are wrong: a query after the length of its sentence sees "
            "the real keys like any other"
        )
    if constant and bool((expected != expected.flatten()[0]).any()):
        return f"{output} is {float(found.flatten()[0]):.4g} everywhere: a constant, never computed"
    if factor := factor_cause(output, problem, found, expected, tolerance):
        return factor
    if rounded := rounding_cause(output, problem, found, expected):
        return rounded
    where = _where(wrong, found, expected)
    rows = _factors_of_rows(found, expected) if output == "z" else None
    return f"{where}; {rows}" if rows else where


#: Of the probs, how many may be neither kept nor dropped, and how many have to be dropped.
_MIXED, _DROPPED = 0.02, 0.01


def dropout_cause(output: str, problem: Problem, found: Tensor, expected: Tensor) -> str | None:
    """A sentence when probs, or z, are either 0 or all larger by one factor; None where not.

    The probs that give z are known where a value has at least as many numbers as there are keys.
    """
    pairs = [(found.double(), expected.double())] if output in ("z", "probs") else []
    plain = unfolded(problem)
    if output == "z" and problem.n_keys <= plain.value.shape[-1]:
        probs = by_eager(replace(plain, want={"probs": ()}), torch.float64)["probs"]
        pairs.append((found.double() @ torch.linalg.pinv(plain.value), probs))
    for given, right in pairs:
        share = (given / right)[right.abs() > 1e-2 * right.abs().amax()]
        if not bool(share.isfinite().all()) or len(share) < 50:
            continue
        dropped = share.abs() < 0.05
        kept = float((~dropped).double().mean())
        factor = float(share[~dropped].median()) if bool((~dropped).any()) else 1.0
        mixed = ~dropped & ((share / factor - 1).abs() > 0.05)
        # What is left is divided by the share that is left.
        fits = factor > 1.01 and abs(factor * kept - 1) < 0.2
        if fits and _DROPPED < 1 - kept < 0.9 and mixed.double().mean() < _MIXED:
            return (
                f"dropout is on: of {'the probs' if given is not pairs[0][0] else output} a share "
                f"of {1 - kept:.2g} is 0, the others are {factor:.3g} times what is right"
            )
    return None


def _fits(found: Tensor, other: Tensor, expected: Tensor, tolerance: float) -> bool:
    """True when the numbers agree in every row and explain the error.

    A suspect marks a row that it cannot know by NaN; what a kernel gives in a row that sees no key
    for it alone is not known either.
    """
    rows = other.shape[:3]
    unknown = other.isnan().reshape(*rows, -1).any(dim=-1)
    if other.ndim == 4:
        dead = ((other == 0) & (expected != 0)).all(dim=-1)
        unknown = unknown | (dead & (found != 0).any(dim=-1))
    known = ~unknown
    if int(known.sum()) * 2 < known.numel():
        return False
    mine, theirs, right = found[known], other[known], expected[known]
    # Where everything is larger, so is what rounding does.
    size = theirs.abs().amax() / right.abs().amax().clamp_min(1e-30)
    allowed = tolerance * max(1.0, float(size.nan_to_num(1.0, 1.0)))
    return distance(mine, theirs) <= allowed and explains(mine, theirs, right)


def explains(found: Tensor, other: Tensor, expected: Tensor) -> bool:
    """True when a suspect's numbers leave at most half of the mean error."""
    return mean_distance(found, other) <= mean_distance(found, expected) / 2


def _stale_part(wrong: Tensor, found: Tensor, previous: Tensor) -> str | None:
    """A sentence when nearly every wrong number is that of the previous call; 0 does not count."""
    kept = wrong & (found == previous) & (found != 0)
    if int(kept.sum()) < 0.9 * int(wrong.sum()):
        return None
    return (
        f"{int(kept.sum())} of {found.numel()} values, first at {_first(kept)}, are those of the "
        f"previous call, which had other inputs: {STALE}, of which a part is not written"
    )


def _dead_rows(problem: Problem) -> Tensor | None:
    allowed = unfolded(problem).mask
    sizes = (*problem.query.shape[:3], problem.n_keys)
    return None if allowed is None else ~allowed.expand(sizes).any(dim=-1)


def _padded_queries(problem: Problem) -> Tensor | None:
    B, H, Q, _ = problem.query.shape
    if problem.lengths is None or problem.n_keys != Q:
        return None
    padded = torch.arange(Q, device=problem.query.device) >= problem.lengths[:, None, None]
    return padded.expand(B, H, Q)


def _only_in(rows: Tensor | None, wrong: Tensor) -> bool:
    """True where something is wrong, and only in these rows (batch, head, query)."""
    if rows is None or wrong.shape[:3] != rows.shape:
        return False
    there = wrong if wrong.ndim == 3 else wrong.any(dim=-1)
    return bool(there.any()) and not bool((there & ~rows).any())


def _about_nan(problem: Problem, found: Tensor) -> str:
    nan = found.isnan()
    share = f"NaN in {int(nan.sum())} of {nan.numel()} values"
    if _only_in(_dead_rows(problem), nan):
        return f"{share}, only in rows without an allowed key: a softmax over −inf alone"
    return (
        f"{share}, first at {_first(nan)}: memory that was never written (it is poisoned with NaN "
        "before each call), or 0·(−inf) at a masked key"
    )


def _where(wrong: Tensor, found: Tensor, expected: Tensor) -> str:
    index = tuple(wrong.nonzero()[0].tolist())
    numbers = f"{float(found[index]):.6g} where {float(expected[index]):.6g} is right"
    rows = wrong.transpose(0, 2).flatten(1).any(dim=-1).nonzero().flatten()
    n_rows = wrong.shape[2]
    last = {n_rows % tile for tile in TILES}
    if len(rows) < n_rows and len(rows) in last and int(rows[0]) == n_rows - len(rows):
        return (
            f"only the last {len(rows)} of {n_rows} rows are wrong: an incomplete block? {numbers}"
        )
    if len(rows) == 1 < n_rows:
        return f"only row {int(rows[0])} of {n_rows} is wrong, first at {_first(wrong)}: {numbers}"
    heads = wrong.transpose(0, 1).flatten(1).any(dim=-1).nonzero().flatten().tolist()
    where = f"{int(wrong.sum())} of {wrong.numel()} values, first at {_first(wrong)}: {numbers}"
    if len(heads) < wrong.shape[1]:
        of = f"{_listed(heads)} of {wrong.shape[1]}"
        return f"only {f'heads {of} are' if heads[1:] else f'head {of} is'} wrong: {where}"
    return where


def _listed(heads: list[int]) -> str:
    if len(heads) > 2 and heads[-1] - heads[0] == len(heads) - 1:
        return f"{heads[0]} to {heads[-1]}"
    return ", ".join(map(str, heads[:8])) + (" ..." if heads[8:] else "")


def _first(flags: Tensor) -> str:
    return f"[{', '.join(str(i) for i in flags.nonzero()[0].tolist())}]"


#: A value that is off by as many times the allowed mean error is not off by rounding.
_FAR = 6.0


def mean_cause(
    output: str,
    problem: Problem,
    found: Tensor,
    right: Tensor,
    *,
    allowed: float,
    previous: Tensor | None,
) -> str:
    """A sentence that says what is probably wrong.

    Where a few large errors dominate, it is that of `likely_cause`; otherwise the nearest of the
    known mistakes, a factor, and an added number.
    """
    error = found.to(right.dtype) - right
    squared, far = error.square(), error.abs() > _FAR * allowed
    if not bool(squared[~far].sum() > squared.sum() / 2):
        least = _FAR * allowed
        return likely_cause(output, problem, found, right, tolerance=least, previous=previous)
    share, added = float((error * right).sum() / right.square().sum()), float(error.mean())
    tried = [
        (right * (1 + share), f"everywhere about {1 + share:.4g} times what is right"),
        (right + added, f"about {added:.2g} is added everywhere"),
    ]
    for suspect in suspects(problem):
        other = suspect.gives(output)
        if other is not None and other.shape == found.shape and not bool(other.isnan().any()):
            tried.append((other, suspect.sentence))
    nearest, sentence = min(tried, key=lambda one: mean_distance(found, one[0]))
    if explains(found, nearest, right):
        return sentence
    return factor_cause(output, problem, found, right, _FAR * allowed) or (
        "off by more than rounding, on average over all: sums or probs held in too few digits?"
    )


_IEEE = (
    'In Triton: tl.dot(..., input_precision="ieee"); in torch: '
    "torch.backends.cuda.matmul.allow_tf32 = False"
)


def _to_tf32(numbers: Tensor) -> Tensor:
    """Float32 numbers with the 10 bits of mantissa that tf32 keeps, rounded half away from 0."""
    bits = numbers.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(numbers.dtype)


#: Narrower types than the inputs': name, from which bytes a number on, advice, and the rounding.
_NARROWER: tuple[tuple[str, int, str, Callable[[Tensor], Tensor]], ...] = (
    ("float32", 8, "Accumulate in float64", lambda x: x.float().double()),
    ("tf32 (10 bits of mantissa; float16 has as many)", 4, _IEEE, _to_tf32),
    (
        "bfloat16 (7 bits of mantissa)",
        4,
        "Keep float32 inputs in float32 until the end",
        lambda x: x.bfloat16().to(x.dtype),
    ),
)
#: What rounding gives depends on the tiles of a kernel: so far its size may be off.
_FACTOR = 8**0.5


def rounding_cause(output: str, problem: Problem, found: Tensor, expected: Tensor) -> str | None:
    """A sentence that names the narrower type whose rounding the errors look like; None for none.

    Either the reference on inputs rounded to that type gives most of the error, or the error is as
    large as what that rounding gives, on average, at worst and in the middle. An error in some rows
    alone is not a rounding.
    """
    finite = expected.isfinite() & found.isfinite()
    error = (found.to(expected.dtype) - expected)[finite]
    if not expected.is_floating_point() or not bool(error.any()):
        return None
    for narrow, itemsize, advice, rounded in _NARROWER:
        if problem.query.dtype.itemsize < itemsize:
            continue
        # All that is multiplied, or the scores alone.
        for names in (("query", "key", "value"), ("query", "key")):
            vectors = {one: rounded(getattr(problem, one)) for one in names}
            effect = (truth(problem.changed(**vectors))[output] - expected)[finite]
            left = torch.linalg.vector_norm(error - effect)
            sizes = zip(_sizes(error), _sizes(effect), strict=True)
            alike = all(1 / _FACTOR < one / max(other, 1e-300) < _FACTOR for one, other in sizes)
            if alike or left < 0.5 * torch.linalg.vector_norm(error):
                return f"rounded to {narrow}: the error is what that type gives. {advice}"
    return None


def _sizes(error: Tensor) -> tuple[float, ...]:
    size = error.abs()
    quantiles = (float(size.quantile(share)) for share in (0.3, 0.5, 0.8))
    return float(error.square().mean().sqrt()), float(size.max()), *quantiles


def gradient_cause(
    output: str, problem: Problem, found: Tensor, expected: Tensor, tolerance: float
) -> str:
    """The probable mistake in a gradient: the slip that gives these numbers, or the place."""
    if bool(found.isnan().any()):
        return f"NaN in {int(found.isnan().sum())} of {found.numel()} values of {output}"
    for sentence, other in _gradient_slips(output, problem, expected):
        if other.shape == found.shape and distance(found, other) <= tolerance:
            return sentence
    factor = factor_of(found.to(expected.dtype).flatten(), expected.flatten())
    if factor is not None:
        return f"{output} is off by the factor {factor:.4g}, everywhere"
    wrong = (found.to(expected.dtype) - expected).abs() > tolerance
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{output} is wrong in {int(wrong.sum())} of {wrong.numel()} values, first at "
        f"{list(place)}: {float(found[place]):.6g} where {float(expected[place]):.6g} is right"
    )


#: A gradient that is off by a factor, made of the scale.
_GRADIENT_FACTORS: dict[str, Callable[[float], float]] = {
    "is 0: nothing flows to it": lambda scale: 0.0,
    "is not multiplied by the scale": lambda scale: 1 / scale,
    "is multiplied by the scale twice": lambda scale: scale,
    "is multiplied by log2(e), or lacks ln 2": lambda scale: 1 / math.log(2),
    "is multiplied by ln 2, or lacks log2(e)": lambda scale: math.log(2),
    "has the wrong sign": lambda scale: -1.0,
}
_OPTIONS = {
    "causal": "causal order",
    "lengths": "lengths",
    "mask": "the mask",
    "sinks": "the sinks",
    "window": "the window",
    "soft_cap": "the soft cap",
    "alibi_slopes": "ALiBi",
}


def _gradient_slips(
    output: str, problem: Problem, expected: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """What each slip gives, one made after the other."""
    for sentence, factor in _GRADIENT_FACTORS.items():
        yield f"{output} {sentence}", expected * factor(problem.scale)
    for one, numbers in right_gradients(problem).items():
        if one != output:
            yield f"{output} holds the numbers of {one}: two gradients are swapped", numbers
    for name, said in _OPTIONS.items():
        given = getattr(problem, name)
        if given is not None and given is not False:
            without: dict[str, object] = {name: None}
            without |= {"causal": False, "prefix": None} if name == "causal" else {}
            other = right_gradients(problem.changed(**without))[output]
            yield f"{said} is ignored in {output}", other
    # A key head's gradient is the sum over the query heads of its group.
    gradient, group = gradient_of_z(problem), problem.query.shape[1] // problem.key.shape[1]
    if group > 1 and output != "query_gradient":
        head = torch.arange(problem.query.shape[1], device=gradient.device) % group
        for which, of_group in (("first", 0), ("last", group - 1)):
            kept = gradient * (head == of_group)[:, None, None]
            yield (
                f"{output} is that of the {which} query head of each group: add up all of the "
                "group",
                right_gradients(replace(problem, z_gradient=kept))[output],
            )
    if output == "value_gradient" and problem.query.shape[2] == problem.n_keys:
        plain = unfolded(problem)
        probs = by_eager(replace(plain, want={"probs": ()}), torch.float64)["probs"]
        if group == 1:
            yield "value_gradient is probs · dz: it is probsᵀ · dz", probs @ gradient.double()
    elif output != "value_gradient":
        yield (
            f"{output} lacks the term −rowsum(dz · z) of the softmax",
            _without_delta(problem)[output],
        )


def _without_delta(problem: Problem) -> dict[str, Tensor]:
    """The gradients when dS = P·dP, without the softmax's own term."""
    plain, gradient = unfolded(problem), gradient_of_z(problem)
    with torch.enable_grad():
        query, key = (
            one.detach().double().requires_grad_() for one in (problem.query, problem.key)
        )
        scores = unfolded(replace(problem, query=query, key=key))
        s = scores.scale * scores.query @ scores.key.mT
        if plain.soft_cap is not None:
            s = plain.soft_cap * torch.tanh(s / plain.soft_cap)
        probs = by_eager(problem, torch.float64)["probs"]
        flowing = probs * (gradient.double() @ plain.value.mT)
        found = torch.autograd.grad(s, (query, key), flowing)
    return dict(zip(GRADIENTS, found, strict=False))
