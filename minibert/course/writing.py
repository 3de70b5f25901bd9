"""Unit 8: attention, written by the student one function at a time, until it runs tiny-gpt2.

Each exercise has the right function, the tensors that it is called with, and the slips.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from minibert.course.answers import Exercise, Verdict
from minibert.course.lab import gpt
from minibert.course.naming import Case, Function, Written, WrongKindError, called, is_dense, raised
from minibert.kernels.check.problem import Problem


def _drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(8)
    return [torch.randn(shape, generator=generator) for shape in shapes]


# Heads, queries, keys and d_head: different primes, so that no axis passes for another.
H, Q, K, D = 2, 3, 5, 7


def scores(query: Tensor, key: Tensor) -> Tensor:
    """(head, query, key): the dot product of each query with each key."""
    return query @ key.mT


def scaled(query: Tensor, key: Tensor) -> Tensor:
    """(head, query, key): the scores, divided by the square root of d_head."""
    return scores(query, key) / query.shape[-1] ** 0.5


def masked(scores: Tensor, allowed: Tensor) -> Tensor:
    """(head, query, key): the scores, and −inf where a query may not look."""
    return scores.masked_fill(~allowed, -math.inf)


def softmax(scores: Tensor) -> Tensor:
    """(head, query, key): weights that sum to 1 over the keys."""
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, **slips: Function) -> Tensor:
    """(head, query, d_head): the average of the values that each query takes."""
    part: dict[str, Function] = {"scaled": scaled, "masked": masked, "softmax": softmax, **slips}
    return part["softmax"](part["masked"](part["scaled"](query, key), allowed)) @ value


def split(x: Tensor, n_heads: int) -> Tensor:
    """(head, position, d_head) of (position, d_model)."""
    return x.reshape(len(x), n_heads, -1).transpose(0, 1)


def merge(z: Tensor) -> Tensor:
    """(position, d_model) of (head, position, d_head)."""
    return z.transpose(0, 1).reshape(z.shape[1], -1)


def causal(n_queries: int, n_keys: int, *, after: int = 0) -> Tensor:
    """(query, key): True at a query's own position and before; the last query is the last key."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries + after)


Pair = tuple[Tensor, Tensor]
OutputAndCache = tuple[Tensor, Any]


def append(cache: Pair | None, key: Tensor, value: Tensor, *, axis: int = 1) -> Pair:
    """All keys and all values, (head, position, d_head): those of the cache, then the new ones."""
    if cache is None:
        return key, value
    return torch.cat([cache[0], key], axis), torch.cat([cache[1], value], axis)


def rotary(
    x: Tensor,
    positions: Tensor,
    base: float,
    *,
    sign: int = 1,
    pairs: bool = False,
    step: float = 2,
    swapped: bool = False,
) -> Tensor:
    """(head, position, d_head): number i and number i + d_head/2 turned by position·base^(−2i/d).

    As Llama does (Su et al. 2021, section 3.2, with halves in place of neighbours).
    """
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-step * torch.arange(half) / x.shape[-1])
    cosine, sine = angles.cos(), sign * angles.sin()
    cosine, sine = (sine, cosine) if swapped else (cosine, sine)
    one, other = (x[..., ::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
    turned = one * cosine - other * sine, one * sine + other * cosine
    return torch.stack(turned, -1).flatten(-2) if pairs else torch.cat(turned, -1)


def attention(
    x: Tensor, weights: Mapping[str, Tensor], n_heads: int, cache: Any, **slips: Function
) -> OutputAndCache:
    """(position, d_model), what the heads write for these tokens, and the cache for the next."""
    part: dict[str, Function] = {
        "split": split, "append": append, "causal": causal, "attend": attend, "merge": merge,
        **slips,
    }  # fmt: skip
    query, key, value = (
        part["split"](x @ weights[f"W_{name}"] + weights[f"b_{name}"], n_heads) for name in "QKV"
    )
    cache = part["append"](cache, key, value)
    z = part["attend"](query, *cache, part["causal"](len(x), cache[0].shape[1]))
    return part["merge"](z) @ weights["W_O"] + weights["b_O"], cache


def _vectors() -> Iterator[tuple[Tensor, ...]]:
    yield tuple(_drawn((H, Q, D), (H, K, D)))


def _masks() -> Iterator[tuple[Tensor, Tensor]]:
    """Scores with a mask of each query: of as many queries as keys, and of fewer."""
    for n in (K, Q):
        drawn, chance = _drawn((H, n, K), (n, K))
        chance[:, 0] = 1
        yield 3 * drawn, chance > 0


def _rows() -> Iterator[tuple[Tensor]]:
    """Ordinary scores, some hidden, and rows whose exp is too large or all 0 beside the others."""
    (drawn,) = _drawn((H, Q, K))
    yield (drawn,)
    yield (drawn.masked_fill(drawn < drawn.mean(-1, keepdim=True), -math.inf),)
    yield (drawn + torch.tensor([0.0, 300.0, -300.0])[:, None],)


def _lookups() -> Iterator[tuple[Tensor, ...]]:
    """Where nothing is hidden; with the masks; and with scores whose exp is too large."""
    query, key, value = _drawn((H, K, D), (H, K, D), (H, K, D))
    yield query, key, value, torch.ones(K, K, dtype=torch.bool)
    for _, allowed in _masks():
        yield query[:, -len(allowed) :], key, value, allowed
    yield 300 * query, key, value, torch.ones(K, K, dtype=torch.bool)


def _problem(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Problem:
    mask = None if allowed is None else allowed[None, None]
    scale = query.shape[-1] ** -0.5
    return Problem(query[None], key[None], value[None], scale, mask=mask, want={"scores": ()})


def _turns() -> Iterator[Case]:
    for start in (0, 3):
        yield *_drawn((H, 5, 8)), torch.tensor([0, 1, 2, 3, 40]) + start, 100.0


def _caches() -> Iterator[Case]:
    key, value, old_key, old_value = _drawn(*[(H, 2, D)] * 2, *[(H, K, D)] * 2)
    yield (old_key, old_value), key, value
    yield None, key, value


def _layer_inputs() -> Iterator[Case]:
    """Eight tokens and the weights of three heads of four numbers; and with large scores."""
    x, *matrices = _drawn((8, 12), *[(12, 12)] * 4, *[(12,)] * 4)
    names = [f"{kind}_{name}" for kind in "Wb" for name in "QKVO"]
    weights = dict(zip(names, (one / 2 for one in matrices), strict=True))
    yield x, weights, 3
    yield x, {**weights, "W_Q": 300 * weights["W_Q"]}, 3


def _in_steps(attention: Function) -> Function:
    """The function on a prompt of five tokens, then on one, then on two, with its own cache."""

    def whole(x: Tensor, weights: Mapping[str, Tensor], n_heads: int) -> Tensor | None:
        cache = None
        out: list[Tensor] = []
        for piece in x.split([5, 1, 2]):
            if (found := attention(piece, weights, n_heads, cache)) is None:
                return None
            pair = isinstance(found, tuple | list) and len(found) == 2
            sizes = [math.prod(getattr(x, "shape", (-1,))) for x in found] if pair else []
            if pair and sizes[0] != piece.numel() == sizes[1]:
                raise WrongKindError("it gives the cache first. Swap the two: (output, cache)")
            if not pair or not is_dense(found[0]):
                raise WrongKindError(
                    f"it gives {called(found)}; expected a pair, (output, cache), the output a "
                    "tensor"
                )
            part, cache = found
            if not out and part.shape != piece.shape:
                raise WrongKindError(
                    f"its output for the first {len(piece)} tokens is {called(part)}; expected "
                    f"(position, d_model) = {tuple(piece.shape)}"
                )
            out.append(part)
        return torch.cat(out)

    return whole


PROMPT = "Once upon a time"


@cache
def _words(attention: Function | None) -> str:
    """What tiny-gpt2 writes after PROMPT, with this attention in place of its own."""
    model = gpt()
    x: dict[int, Tensor] = {}
    caches: dict[int, Any] = {}

    def read(layer: int, stream: Tensor) -> Tensor:
        x[layer] = model.body.layers[layer].attention_input(stream)[0]
        return stream

    def written(layer: int, attn_out: Tensor) -> Tensor:
        assert attention is not None
        own = model.weights
        weights = {
            f"W_{name}": own[f"W_{name}"][layer].transpose(0, 1).flatten(1) for name in "QKV"
        }
        weights |= {f"b_{name}": own[f"b_{name}"][layer].flatten() for name in "QKV"}
        weights |= {"W_O": own["W_O"][layer].flatten(0, 1), "b_O": own["b_O"][layer]}
        out, caches[layer] = attention(x[layer], weights, model.config.n_heads, caches.get(layer))
        return torch.as_tensor(out).to(attn_out).expand_as(attn_out)

    edit: dict[tuple[str, int], Function] = {}
    for layer in range(model.config.n_layers if attention is not None else 0):
        edit |= {("resid_pre", layer): partial(read, layer)}
        edit |= {("attn_out", layer): partial(written, layer)}
    with torch.no_grad():
        return str(model.generate(PROMPT, max_new_tokens=24, edit=edit))


def _run(attention: Function) -> Verdict:
    """Right where tiny-gpt2 writes the same words with this attention as with its own."""
    ours = _words(None)
    try:
        said = _words.__wrapped__(attention)
    except Exception as error:
        return Verdict(False, f"Not yet. In tiny-gpt2 {raised(error)}.")
    if said == ours:
        return Verdict(
            True,
            f"Right. tiny-gpt2 with your attention writes: “{said}” It writes the same with ours.",
        )
    return Verdict(
        False,
        f"Not yet. tiny-gpt2 with your attention writes: “{said}” With our attention: “{ours}” "
        "Does your function keep something between calls besides the cache?",
    )


def _sums(exponentials: Tensor, axis: int | tuple[int, ...] = -1) -> Tensor:
    return exponentials / exponentials.sum(axis, keepdim=True)


def _divided(by: Callable[[int, int], float]) -> Function:
    """The scores, divided by this number of heads and d_head."""
    return lambda query, key: scores(query, key) / by(len(query), query.shape[-1])


_SCALES: dict[str, Function] = {
    "The scale is missing: divide the scores by √d_head.": _divided(lambda heads, d: 1),
    "The scores are divided by d_head, or twice by √d_head. Divide once by √d_head.":
        _divided(lambda heads, d: d),
    "The scores are multiplied by √d_head. Divide.": _divided(lambda heads, d: d**-0.5),
    "The scores are divided by d_model. Divide by √d_head.": _divided(lambda heads, d: heads * d),
    "The scores are divided by √d_model. A head multiplies vectors of d_head numbers.":
        _divided(lambda heads, d: (heads * d) ** 0.5),
    "The scores are divided by the root of the number of keys, the wrong axis of `key`. d_head "
    "is the last one.": lambda query, key: scores(query, key) / key.shape[1] ** 0.5,
}  # fmt: skip

_MASKS: dict[str, Function] = {
    "Masked scores are 0, and exp(0) = 1 is a weight like others. Put −inf there.":
        lambda scores, allowed: scores * allowed,
    "The mask is the wrong way round: True is where a query may look.":
        lambda scores, allowed: scores.masked_fill(allowed, -math.inf),
    "0 · (−inf) is NaN. Choose between the two numbers, with torch.where or masked_fill.":
        lambda scores, allowed: scores + ~allowed * -math.inf,
    "The mask is added as 1 and 0. Put −inf where it is False.":
        lambda scores, allowed: scores + allowed,
    "The scores are lost: keep them where a query may look.":
        lambda scores, allowed: masked(0 * scores, allowed),
    "That is the softmax of the scores. Only mask them here.":
        lambda scores, allowed: softmax(scores) * allowed,
    "Masked scores are +inf. Put −inf there, so that exp gives 0.":
        lambda scores, allowed: scores.masked_fill(~allowed, math.inf),
    "The mask is transposed: its rows must be queries and its columns keys.":
        lambda scores, allowed: scores.masked_fill(~allowed.mT, -math.inf),
    "The mask is ignored.": lambda scores, allowed: scores,
}  # fmt: skip

_SOFTMAXES: dict[str, Function] = {
    "The softmax goes along the wrong axis, the queries. The weights of one query, over the last "
    "axis, sum to 1.": lambda scores: scores.softmax(1),
    "The softmax goes along the wrong axis, the heads. The weights of one query, over the last "
    "axis, sum to 1.": lambda scores: scores.softmax(0),
    "The softmax goes over all numbers at once. The weights of each query sum to 1.":
        lambda scores: _sums((scores - scores.amax()).exp(), (0, 1, 2)),
    "The exponentials are divided by their sum along the wrong axis, the queries.":
        lambda scores: _sums((scores - scores.amax(-1, keepdim=True)).exp(), 1),
    "The exponentials are not divided by their sum.": lambda scores: scores.exp(),
    "The exponentials, with the maximum subtracted, are not divided by their sum.":
        lambda scores: (scores - scores.amax(-1, keepdim=True)).exp(),
    "The scores are divided by their sum. Take exp of each score first.": _sums,
    "exp of a large score is infinite. Subtract the maximum of each row from its scores first; "
    "the weights stay the same.": lambda scores: _sums(scores.exp()),
    "The maximum of all scores is subtracted, and in rows far below it every exp is 0. Subtract "
    "the maximum of each row.": lambda scores: _sums((scores - scores.amax()).exp()),
    "That is 2 to the power of each score. Use e instead of 2.":
        lambda scores: _sums(2 ** (scores - scores.amax(-1, keepdim=True))),
    "Those are the logarithms of the weights. Take exp of them.":
        lambda scores: scores.log_softmax(-1),
    "That uses each score by itself. The weights of a query sum to 1.": torch.sigmoid,
    "The maximum is subtracted above and not below: use the same exponentials in both places.":
        lambda scores: (scores - scores.amax(-1, keepdim=True)).exp()
        / scores.exp().sum(-1, keepdim=True),
    "The mean or the minimum is subtracted, which is −inf where a key is hidden. Subtract the "
    "maximum.": lambda scores: _sums((scores - scores.amin(-1, keepdim=True)).exp()),
    "The exponentials are divided by their length, the root of the sum of squares. Divide by "
    "their sum.": lambda scores: torch.nn.functional.normalize(
        (scores - scores.amax(-1, keepdim=True)).exp(), dim=-1),
    "The exponentials are divided by their mean. Divide by their sum.":
        lambda scores: softmax(scores) * scores.shape[-1],
    "Only the largest score gets weight. The others get some, too.":
        lambda scores: (scores == scores.amax(-1, keepdim=True)).to(scores),
    "The softmax is applied twice.": lambda scores: softmax(softmax(scores)),
    "The smallest score gets most weight: exp needs the score, not its negative.":
        lambda scores: (-scores).softmax(-1),
    "The maximum of each key is subtracted. Subtract one number from all scores of a query.":
        lambda scores: _sums((scores - scores.amax(1, keepdim=True)).exp()),
}  # fmt: skip


def _inherited(whole: Function, **parts: Mapping[str, Function]) -> dict[str, Function]:
    """The slips of each part, made where the whole uses it."""
    return {
        said: partial(whole, **{part: slip})
        for part, slips in parts.items()
        for said, slip in slips.items()
    }


_ATTENDS: dict[str, Function] = {
    "The mask comes after the softmax, so the weights that are left no longer sum to 1. Mask the "
    "scores before it.":
        lambda query, key, value, allowed: softmax(scaled(query, key)) * allowed @ value,
    "Those are the weights. Multiply them by the values.":
        lambda query, key, value, allowed: softmax(masked(scaled(query, key), allowed)),
    "The keys are averaged. Keys give the weights; the values are averaged.":
        lambda query, key, value, allowed: attend(query, key, key, allowed),
    "The queries are averaged. The values are.":
        lambda query, key, value, allowed: attend(query, key, query, allowed)
        if query.shape == value.shape else query,
    "The weights of all heads are mixed. Each head has its own.":
        lambda query, key, value, allowed: softmax(masked(scaled(query, key), allowed)).mean(
            0, keepdim=True) @ value,
    "The softmax is missing between the scores and the values.":
        lambda query, key, value, allowed: scaled(query, key) * allowed @ value,
    **_inherited(attend, scaled=_SCALES, masked=_MASKS, softmax=_SOFTMAXES),
}  # fmt: skip

_SPLITS: dict[str, Function] = {
    "The heads are reshaped without a transpose, so a head gets whole tokens instead of its "
    "numbers of every token. Reshape to (position, head, d_head), then swap the first two axes.":
        lambda x, n_heads: x.reshape(n_heads, len(x), -1),
    "The heads are interleaved: head 0 has the first d_head numbers of a token, not every "
    "n_heads-th.": lambda x, n_heads: x.reshape(len(x), -1, n_heads).permute(2, 0, 1),
    "The head is not the first axis: swap the first two.":
        lambda x, n_heads: x.reshape(len(x), n_heads, -1),
    "x is transposed first, so that a head mixes tokens. Reshape x itself.":
        lambda x, n_heads: x.mT.reshape(n_heads, len(x), -1),
    "n_heads is used as d_head: there are d_model / n_heads numbers in each head.":
        lambda x, n_heads: x.reshape(len(x), -1, n_heads).transpose(0, 1),
}  # fmt: skip

_MERGES: dict[str, Function] = {
    "The heads are reshaped without a transpose, so a row mixes tokens. Swap the first two axes, "
    "then reshape.": lambda z: z.reshape(z.shape[1], -1),
    "The heads are interleaved: a row has all numbers of head 0, then those of head 1.":
        lambda z: z.permute(1, 2, 0).reshape(z.shape[1], -1),
    "The heads are summed. Put them side by side.": lambda z: z.sum(0),
    "The heads are averaged. Put them side by side.": lambda z: z.mean(0),
    "The tokens of a head are put side by side. Put the heads of a token side by side.":
        lambda z: z.flatten(1),
    "The heads are put one below the other. Put them side by side.": lambda z: z.flatten(0, 1),
    "The heads are in reverse order.": lambda z: merge(z.flip(0)),
    "The wrong two axes are swapped. Swap the first two.":
        lambda z: z.mT.reshape(z.shape[1], -1),
    "The last two axes are still separate: reshape them into one, of d_model numbers.":
        lambda z: z.transpose(0, 1),
}  # fmt: skip

_CAUSALS: dict[str, Function] = {
    "A query does not see its own position: off by one.": partial(causal, after=-1),
    "A query sees the token after its own: off by one.": partial(causal, after=1),
    "The mask begins at the first key. With more keys than queries the queries are the last "
    "tokens: query i stands at position n_keys − n_queries + i.":
        lambda queries, keys: causal(queries, keys, after=queries - keys),
    "That is the future: a query may look only at its own position and before.":
        lambda queries, keys: ~causal(queries, keys, after=-1),
    "That is what a query must not see. True is where it may look.":
        lambda queries, keys: ~causal(queries, keys),
    "Nothing is hidden: a query must not see the tokens after it.":
        lambda queries, keys: causal(queries, keys, after=keys),
    "A query sees only its own position. It also sees those before.":
        lambda queries, keys: causal(queries, keys) & ~causal(queries, keys, after=-1),
    "There are as many rows as keys. Keep the last n_queries.":
        lambda queries, keys: causal(keys, keys),
    "Rows must be queries and columns keys: transpose the mask.":
        lambda queries, keys: causal(queries, keys).mT,
}  # fmt: skip

_APPENDS: dict[str, Function] = {
    "The cache is not used: only the new keys are returned.":
        lambda cache, key, value: (key, value),
    "The new keys and values are not appended: the cache stays as it was.":
        lambda cache, key, value: cache or (key, value),
    "The new ones come first. They are later in the text: append them.":
        lambda cache, key, value: append((key, value), *cache) if cache else (key, value),
    "The keys are appended, but the values are not.":
        lambda cache, key, value: (append(cache, key, value)[0], value),
    "The values are appended, but the keys are not.":
        lambda cache, key, value: (key, append(cache, key, value)[1]),
    "Only the old values are returned. Append the new ones.":
        lambda cache, key, value: (append(cache, key, value)[0], cache[1] if cache else value),
    "Only the old keys are returned. Append the new ones.":
        lambda cache, key, value: (cache[0] if cache else key, append(cache, key, value)[1]),
    "The oldest token is dropped. Keep all.":
        lambda cache, key, value: tuple(one[:, 1:] for one in append(cache, key, value))
        if cache else (key, value),
    "The old keys went to the values, too.":
        lambda cache, key, value: append((cache[0], cache[0]) if cache else None, key, value),
    "The new keys went to the values, too.":
        lambda cache, key, value: append(cache, key, key),
    "The new values went to the keys, and the new keys to the values.":
        lambda cache, key, value: append(cache, value, key),
    "Keys and values are returned in the wrong order: keys first.":
        lambda cache, key, value: append(cache, key, value)[::-1],
    "In the first step the cache is None: return the new keys and values.":
        lambda cache, key, value: append((cache[0], cache[1]), key, value),
    "They are put side by side along the wrong axis, the heads. Positions are axis 1.":
        partial(append, axis=0),
    "They are put side by side along the wrong axis, d_head. Positions are axis 1.":
        partial(append, axis=2),
}  # fmt: skip


def _by_halves(x: Tensor, first: Tensor, second: Tensor, base: float) -> Tensor:
    """The first half as rotated by some positions, the second as by others."""
    halves = rotary(x, first, base).chunk(2, -1)[0], rotary(x, second, base).chunk(2, -1)[1]
    return torch.cat(halves, -1)


_ROTARIES: dict[str, Function] = {
    "Neighbours are rotated together (0 with 1, 2 with 3). Here number i is paired with number "
    "i + d_head/2.": partial(rotary, pairs=True),
    "It rotates the other way: (a, b) becomes (a·cos − b·sin, a·sin + b·cos).":
        partial(rotary, sign=-1),
    "The positions are not used: they are counted from 0.":
        lambda x, positions, base: rotary(x, torch.arange(len(positions)), base),
    "The positions are counted from 1.":
        lambda x, positions, base: rotary(x, positions + 1, base),
    "The angles fall too slowly: the exponent is −2i/d_head, not −i/d_head.":
        partial(rotary, step=1),
    "The angles grow: the exponent is −2i/d_head, with a minus.": partial(rotary, step=-2),
    "All numbers are rotated by the same angle, the position. It is position · base^(−2i/d_head).":
        partial(rotary, step=0),
    "Cosine and sine are swapped.": partial(rotary, swapped=True),
    "Both sines have the same sign: (a, b) becomes (a·cos − b·sin, a·sin + b·cos).":
        lambda x, positions, base: _by_halves(x, -positions, positions, base),
    "Both sines have a minus: (a, b) becomes (a·cos − b·sin, a·sin + b·cos).":
        lambda x, positions, base: _by_halves(x, positions, -positions, base),
    "It is rotated twice as far.": lambda x, positions, base: rotary(x, 2 * positions, base),
    "The base is not used: it is fixed at 10000.":
        lambda x, positions, base: rotary(x, positions, 10000.0),
    "The angles are multiplied by 2π. They are in radians already.":
        lambda x, positions, base: rotary(x, 2 * math.pi * positions, base),
    "The angles are in degrees. Use radians.":
        lambda x, positions, base: rotary(x, positions * math.pi / 180, base),
    "The positions are counted from the end.":
        lambda x, positions, base: rotary(x, positions.flip(0), base),
    "The positions are counted from the first of them, not from 0.":
        lambda x, positions, base: rotary(x, positions - positions[0], base),
    "The sines are missing: (a, b) becomes (a·cos − b·sin, a·sin + b·cos).":
        lambda x, positions, base: (
            rotary(x, positions, base) + rotary(x, -positions, base)) / 2,
    "The halves are interleaved afterwards. Put the two rotated halves one after the other.":
        lambda x, positions, base: rotary(x, positions, base).unflatten(-1, (2, -1)).mT.flatten(-2),
    "Nothing is rotated.": lambda x, positions, base: x,
}  # fmt: skip

_KEYS = "(head, query, key)"
EXERCISES: dict[str, Exercise] = {
    "8-scores": Written(
        "Write scores(query, key): the dot product of each query with each key. query is (head, "
        "query, d_head), key is (head, key, d_head), the result (head, query, key).",
        _KEYS,
        scores,
        _vectors,
        "One product of matrices for each head.",
        {
            "`key` must be transposed first: key.mT swaps its last two axes.": lambda q, k: q @ k,
            "key.T reverses all three axes. key.mT swaps the last two.":
                lambda q, k: q @ k.permute(2, 1, 0),
            "reshape does not transpose: it keeps the order of the numbers. key.mT swaps the last "
            "two axes.": lambda q, k: q @ k.reshape(H, D, K),
            "Rows are queries and columns keys: multiply the other way round.":
                lambda q, k: k @ q.mT,
            "The heads are added up. Each head has scores of its own.":
                lambda q, k: scores(q, k).sum(0),
            "Those are cosines: the vectors were divided by their lengths. Leave that out.":
                lambda q, k: scores(*(x / x.norm(dim=-1, keepdim=True) for x in (q, k))),
            "They are already divided by √d_head. That comes next.": scaled,
            "The products are averaged. Add them up.": lambda q, k: scores(q, k) / q.shape[-1],
            "The products of the numbers are not added up.":
                lambda q, k: q[:, :, None] * k[:, None],
            "Every head uses the keys of head 0. Head h has its own.":
                lambda q, k: scores(q, k[:1]),
            "The keys of all heads are added up. Head h has its own.":
                lambda q, k: scores(q, k.sum(0, keepdim=True)),
            "Those are distances. A score is a dot product.": torch.cdist,
            "The queries are multiplied with themselves.": lambda q, k: q @ q.mT,
            "The keys are multiplied with themselves.": lambda q, k: k @ k.mT,
        },
    ),
    "8-scale": Written(
        "Write scaled(query, key): the scores, divided by √d_head.",
        _KEYS,
        scaled,
        _vectors,
        "Now scores have the same size, whatever d_head is.",
        _SCALES,
        ("scores", lambda query, key: _problem(query, key, key, None)),
    ),
    "8-mask": Written(
        "Write masked(scores, allowed): the scores, and −inf where a query may not look. scores is "
        "(head, query, key), allowed is (query, key), True where it may look.",
        _KEYS,
        masked,
        _masks,
        "exp(−inf) = 0, so a masked key gets no weight.",
        _MASKS
        | {
            "Masked scores are NaN. Put −inf there.": lambda scores, allowed: scores.masked_fill(
                ~allowed, math.nan
            )
        },
    ),
    "8-softmax": Written(
        "Write softmax(scores): the weights of each query, with exp and a sum. scores is (head, "
        "query, key), with −inf where a query may not look.",
        _KEYS,
        softmax,
        _rows,
        "The weights of each query sum to 1, also where a score is 300 or −inf.",
        _SOFTMAXES,
    ),
    "8-attend": Written(
        "Write attend(query, key, value, allowed) with the functions above: the average of the "
        "values with the weights of each query, (head, query, d_head).",
        "(head, query, d_head)",
        attend,
        _lookups,
        "That is attention.",
        _ATTENDS,
        ("z", _problem),
    ),
    "8-split": Written(
        "Write split(x, n_heads): cut x, (position, d_model), into heads, (head, position, "
        "d_head). Head 0 has the first d_head numbers of every token.",
        "(head, position, d_head)",
        split,
        lambda: [(*_drawn((8, 12)), 3)],
        "Each head has its own part of every token.",
        _SPLITS,
    ),
    "8-merge": Written(
        "Write merge(z): put the heads of z, (head, position, d_head), side by side, (position, "
        "d_model).",
        "(position, d_model)",
        merge,
        lambda: [tuple(_drawn((3, 8, 4)))],
        "W_O reads this row.",
        _MERGES,
    ),
    "8-causal": Written(
        "Write causal(n_queries, n_keys): a Boolean mask, (query, key), True at a query's own "
        "position and before it. The queries are the last tokens.",
        "(query, key)",
        causal,
        lambda: [(5, 5), (3, 7), (1, 6)],
        "No token sees the tokens after it, so the model can predict the next word.",
        _CAUSALS,
    ),
    "8-cache": Written(
        "Write append(cache, key, value): return all keys and all values, those of the cache "
        "first. cache is None, or the pair of keys and values that you returned before. Each is "
        "(head, position, d_head).",
        "(head, position, d_head) of keys and (head, position, d_head) of values",
        append,
        _caches,
        "A new token is multiplied by W_K and W_V once, and never again.",
        _APPENDS,
    ),
    "8-rotary": Written(
        "Write rotary(x, positions, base): rotate numbers i and i + d_head/2 of each row by the "
        "angle position · base^(−2i/d_head). x is (head, position, d_head), positions is "
        "(position).",
        "(head, position, d_head)",
        rotary,
        _turns,
        "Llama rotates queries and keys so: a score then depends on how far apart they are.",
        _ROTARIES,
    ),
    "8-run": Written(
        "Write attention(x, weights, n_heads, cache): return what the heads write for the tokens "
        "x, (position, d_model), and the cache for the next call. weights has W_Q, W_K, W_V, W_O, "
        "(d_model, d_model), and b_Q, b_K, b_V, b_O. cache is None in the first call.",
        "(position, d_model)",
        attention,
        _layer_inputs,
        "",
        {
            "b_O is missing.": lambda *given: _without("b_O", *given),
            "b_Q is missing.": lambda *given: _without("b_Q", *given),
            "b_V is missing.": lambda *given: _without("b_V", *given),
            "All four biases are missing.": lambda *given: _without("b_", *given),
            "W_Q and W_K are exchanged.": lambda *given: _exchanged("QK", "KQ", *given),
            "W_Q is used for the keys, too.": lambda *given: _exchanged("K", "Q", *given),
            "W_K is used for the queries, too.": lambda *given: _exchanged("Q", "K", *given),
            "W_V is used for the keys, too.": lambda *given: _exchanged("K", "V", *given),
            "W_O is transposed. Here it is z·W_O.": lambda x, weights, *rest: attention(
                x, {**weights, "W_O": weights["W_O"].mT}, *rest
            ),
            "W_O is missing: the heads are side by side but not mixed.": (
                lambda x, weights, *rest: attention(
                    x, {**weights, "W_O": torch.eye(x.shape[-1])}, *rest
                )
            ),
            "The weights are used as W·x. Here it is x·W: remove the transpose.": (
                lambda x, weights, *rest: attention(
                    x, {name: one.mT if one.ndim == 2 else one for name, one in weights.items()},
                    *rest,
                )
            ),
            **_inherited(
                attention,
                attend=_ATTENDS, split=_SPLITS, merge=_MERGES, causal=_CAUSALS, append=_APPENDS,
            ),
        },
        use=_in_steps,
        then=_run,
    ),
}  # fmt: skip


def _without(name: str, x: Tensor, weights: Mapping[str, Tensor], *rest: Any) -> OutputAndCache:
    """The attention of a layer without one of its biases, or without those that begin so."""
    zeros = {one: torch.zeros_like(w) for one, w in weights.items() if one.startswith(name)}
    return attention(x, {**weights, **zeros}, *rest)


def _exchanged(
    names: str, by: str, x: Tensor, weights: Mapping[str, Tensor], *rest: Any
) -> OutputAndCache:
    """The attention of a layer with the weights and biases of `by` under these names."""
    others = {f"{kind}_{one}": weights[f"{kind}_{other}"] for kind in "Wb"
              for one, other in zip(names, by, strict=True)}  # fmt: skip
    return attention(x, {**weights, **others}, *rest)
