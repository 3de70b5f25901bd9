"""Attention as students write it: two right styles, and mistakes that are named."""

# A class is the functions of one style, not a thing with methods.
# ruff: noqa: N805

import math
import re

import numpy as np
import pytest
import torch
from torch import einsum

import minibert
from minibert.course import check
from minibert.course.writing import rotary
from minibert.errors import MinibertError


class Matmul:
    def scores(query, key):
        return torch.matmul(query, key.transpose(1, 2))

    def scaled(query, key):
        return (query @ key.mT) * query.size(2) ** -0.5

    def masked(scores, allowed):
        return torch.where(allowed, scores, -1e9)

    def softmax(scores):
        exp = torch.exp(scores - scores.max(dim=2, keepdim=True).values)
        return exp / exp.sum(dim=2)[:, :, None]

    def attend(query, key, value, allowed):
        scores = (query @ key.mT) / math.sqrt(query.shape[2])
        return scores.masked_fill(allowed.logical_not(), -math.inf).softmax(2) @ value

    def split(x, n_heads):
        return torch.stack(x.chunk(n_heads, dim=1))

    def merge(z):
        return torch.cat(list(z), dim=1)

    def causal(n_queries, n_keys):
        return torch.triu(torch.ones(n_queries, n_keys), n_keys - n_queries + 1) == 0

    def append(cache, key, value):
        old_key, old_value = cache or (key[:, :0], value[:, :0])
        return torch.hstack([old_key, key]), torch.hstack([old_value, value])

    def rotary(x, positions, base):
        d = x.shape[2]
        angles = positions[:, None] / base ** (torch.arange(0, d, 2) / d)
        cosine, sine = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * cosine + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * sine

    def attention(x, weights, n_heads, cache):
        # A cache of one's own kind: the inputs of all tokens.
        past = x if cache is None else torch.cat([cache, x])
        n, m, w = len(x), len(past), weights
        heads = [
            (read @ w[f"W_{name}"] + w[f"b_{name}"]).view(len(read), n_heads, -1).transpose(0, 1)
            for name, read in (("Q", x), ("K", past), ("V", past))
        ]
        z = Matmul.attend(*heads, Matmul.causal(n, m))
        return z.transpose(0, 1).flatten(1) @ w["W_O"] + w["b_O"], past


class Einsum(Matmul):
    def scores(query, key):
        return einsum("hqd,hkd->hqk", query, key)

    def scaled(query, key):
        return einsum("hqd,hkd->hqk", query / query.shape[-1] ** 0.5, key)

    def masked(scores, allowed):
        return scores.masked_fill(~allowed, -math.inf)

    def softmax(scores):
        exp = scores.sub(scores.amax(-1)[..., None]).exp()
        return einsum("hqk,hq->hqk", exp, 1 / einsum("hqk->hq", exp))

    def attend(query, key, value, allowed):
        weights = Einsum.softmax(Einsum.masked(Einsum.scaled(query, key), allowed))
        return einsum("hqk,hkd->hqd", weights, value)

    def split(x, n_heads):
        return einsum("nhd->hnd", x.unflatten(1, (n_heads, -1)))

    def merge(z):
        return einsum("hnd->nhd", z).flatten(1)

    def causal(n_queries, n_keys):
        return torch.arange(n_keys) <= torch.arange(n_keys - n_queries, n_keys)[:, None]

    def append(cache, key, value):
        if cache is None:
            return key, value
        return torch.cat([cache[0], key], 1), torch.cat([cache[1], value], 1)

    def rotary(x, positions, base):
        half = x.shape[-1] // 2
        turn = torch.exp(1j * torch.outer(positions, base ** -(torch.arange(half) / half)))
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    def attention(x, weights, n_heads, cache):
        # A cache that grows in place.
        cache = cache or {"keys": [], "values": []}
        query, key, value = (
            einsum("nm,mhd->hnd", x, weights[f"W_{name}"].unflatten(1, (n_heads, -1)))
            + weights[f"b_{name}"].unflatten(0, (n_heads, 1, -1)).squeeze(2)
            for name in "QKV"
        )
        cache["keys"].append(key)
        cache["values"].append(value)
        keys, values = (torch.cat(cache[name], 1) for name in ("keys", "values"))
        z = Einsum.attend(query, keys, values, Matmul.causal(len(x), keys.shape[1]))
        out = einsum("hnd,hdm->nm", z, weights["W_O"].unflatten(0, (n_heads, -1)))
        return out + weights["b_O"], cache


NAMES = {
    "8-scores": "scores", "8-scale": "scaled", "8-mask": "masked", "8-softmax": "softmax",
    "8-attend": "attend", "8-split": "split", "8-merge": "merge", "8-causal": "causal",
    "8-cache": "append", "8-rotary": "rotary", "8-run": "attention",
}  # fmt: skip


@pytest.mark.parametrize("style", [Einsum, Matmul])
@pytest.mark.parametrize("name", NAMES)
def test_right_functions_pass_whatever_their_style(name, style):
    verdict = check(name, getattr(style, NAMES[name]))
    assert verdict, verdict
    if name == "8-run":
        assert str(minibert.load("tiny-gpt2").generate("Once upon a time", max_new_tokens=24)) in (
            verdict.said
        )


def softmax_over(axis):
    def softmax(scores):
        exp = torch.exp(scores - scores.amax(axis, keepdim=True))
        return exp / exp.sum(axis, keepdim=True)

    return softmax


def attends(*, scale=None, before=True, hidden=-math.inf, axis=-1, swap=False):
    """Attention with one thing written wrongly."""

    def attend(query, key, value, allowed):
        key, value = (value, key) if swap else (key, value)
        scores = einsum("hqd,hkd->hqk", query, key) * (scale or query.shape[-1] ** -0.5)
        if before:
            scores = torch.where(allowed, scores, hidden)
        weights = torch.softmax(scores, dim=axis)
        return (weights if before else torch.where(allowed, weights, 0.0)) @ value

    return attend


def layer(split=Matmul.split, merge=Matmul.merge, causal=Matmul.causal, append=Matmul.append,
          attend=Matmul.attend, bias=True):  # fmt: skip
    """A layer with one part written wrongly."""

    def attention(x, weights, n_heads, cache):
        query, key, value = (
            split(x @ weights[f"W_{n}"] + weights[f"b_{n}"], n_heads) for n in "QKV"
        )
        cache = append(cache, key, value)
        z = attend(query, *cache, causal(len(x), cache[0].shape[1]))
        return merge(z) @ weights["W_O"] + (weights["b_O"] if bias else 0), cache

    return attention


def in_place(scores, allowed):
    scores[:, ~allowed] = -math.inf
    return scores


def cosine_only(x, positions, base):
    angles = positions[:, None] / base ** (torch.arange(0, 8, 2) / 8)
    return x * angles.cos().repeat(1, 2)


def neighbours(x, positions, base):
    angles = positions[:, None] / base ** (torch.arange(0, 8, 2) / 8)
    a, b = x[..., 0::2], x[..., 1::2]
    found = torch.empty_like(x)
    found[..., 0::2] = a * angles.cos() - b * angles.sin()
    found[..., 1::2] = a * angles.sin() + b * angles.cos()
    return found


def tril(extra):
    return lambda n, m: torch.ones(n, m).tril(m - n + extra) > 0


def new_only(cache, key, value):
    return key, value


def keys_only(cache, key, value):
    return (key, value) if cache is None else (torch.cat([cache[0], key], 1), cache[1])


# A mistake, and what is said of it; "" where it is only found.
PLANTED = [
    ("8-scores", lambda q, k: k @ q.transpose(1, 2), "the other way round"),
    ("8-scores", lambda q, k: q @ k.view(2, 7, 5), "reshape does not transpose"),
    ("8-scores", lambda q, k: q.matmul(k), "key.mT swaps its last two axes"),
    ("8-scores", lambda q, k: einsum("hqd,hkd->qk", q, k), "heads are added up"),
    ("8-scores", lambda q, k: torch.cdist(q, k), "are distances"),
    ("8-scores", lambda q, k: -(q @ k.mT), "The sign is wrong"),
    ("8-scores", lambda q, k: (q @ k.mT).softmax(-1), "A softmax was applied"),
    ("8-scores", lambda q, k: (q @ k.mT)[0], "only the first head"),
    ("8-scores", lambda q, k: (q[:, :, None] * k[:, None]).mean(-1), "products are averaged"),
    ("8-scores", lambda q, k: (q @ k.mT) ** 3, ""),
    ("8-scale", lambda q, k: q @ k.mT, "scale is missing"),
    ("8-scale", lambda q, k: q @ k.mT / math.sqrt(7) / math.sqrt(7), "twice by √d_head"),
    ("8-scale", lambda q, k: q @ k.mT / 7, "divided by d_head"),
    ("8-scale", lambda q, k: q @ k.mT / 14, "divided by d_model"),
    ("8-scale", lambda q, k: q @ k.mT * math.sqrt(7), "multiplied by √d_head"),
    ("8-scale", lambda q, k: q @ k.mT / 8, "Everywhere 0.33072 times what is right"),
    ("8-mask", lambda s, a: s.masked_fill(~a, 0), "exp(0) = 1"),
    ("8-mask", lambda s, a: torch.where(a, -math.inf, s), "wrong way round"),
    ("8-mask", lambda s, a: s + torch.where(a, 0, 1) * -math.inf, "is NaN"),
    ("8-mask", lambda s, a: s.masked_fill(~a, -100), "A hidden score is -100"),
    ("8-mask", in_place, "changes its input"),
    ("8-softmax", softmax_over(0), "wrong axis, the heads"),
    ("8-softmax", softmax_over(1), "wrong axis, the queries"),
    ("8-softmax", lambda s: torch.exp(s) / torch.exp(s).sum(-1, keepdim=True), "is infinite"),
    ("8-softmax", lambda s: torch.exp(s), "not divided by their sum"),
    ("8-softmax", lambda s: s.softmax(-1).flip(1), "The axis query is in reverse order"),
    ("8-softmax", lambda s: s.softmax(-1).log().softmax(-1).softmax(-1), "applied twice"),
    ("8-softmax", lambda s: torch.eye(5)[s.argmax(-1)], "Only the largest score"),
    ("8-softmax", lambda s: (np.exp(s.numpy()).T / 2).T, "ndarray; expected one torch tensor"),
    ("8-attend", attends(before=False), "after the softmax"),
    ("8-attend", attends(hidden=0.0), "exp(0) = 1"),
    ("8-attend", attends(scale=1 / 7), "twice by √d_head"),
    ("8-attend", attends(scale=1.0), "scale is missing"),
    ("8-attend", attends(axis=1), "wrong axis, the queries"),
    ("8-attend", attends(swap=True), "Key and value are swapped"),
    ("8-split", lambda x, n: x.view(n, 8, 4), "without a transpose"),
    ("8-split", lambda x, n: torch.stack([x[:, h::n] for h in range(n)]), "interleaved"),
    ("8-split", lambda x, n: x.reshape(8, n, 4).permute(1, 2, 0), "(head, d_head, position)"),
    ("8-merge", lambda z: z.contiguous().view(8, 12), "without a transpose"),
    ("8-merge", lambda z: torch.stack(list(z), -1).flatten(1), "interleaved"),
    ("8-causal", tril(-1), "its own position: off by one"),
    ("8-causal", tril(1), "after its own: off by one"),
    ("8-causal", lambda n, m: torch.ones(n, m).triu().bool(), "future"),
    ("8-causal", lambda n, m: torch.ones(n, m).tril() > 0, "begins at the first key"),
    ("8-causal", lambda n, m: torch.ones(n, m).tril(m - n), "float32; expected torch.bool"),
    ("8-cache", new_only, "not used: only the new keys"),
    ("8-cache", keys_only, "Only the old values are returned"),
    ("8-cache", lambda cache, k, v: (torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)),
     "In the first step the cache is None"),
    ("8-rotary", neighbours, "Neighbours are rotated"),
    ("8-rotary", lambda x, p, base: Matmul.rotary(x, -p, base), "rotates the other way"),
    ("8-rotary", lambda x, p, base: Matmul.rotary(x, p + 1, base), "counted from 1"),
    ("8-rotary", lambda x, p, base: Matmul.rotary(x, p, base**0.5), "fall too slowly"),
    ("8-rotary", cosine_only, "The sines are missing"),
    ("8-rotary", lambda x, p, base: x + Matmul.rotary(x, p, base), "The input is added"),
    ("8-run", lambda x, *rest: (lambda z, cache: (z + x, cache))(*Matmul.attention(x, *rest)),
     "The input is added"),
    ("8-run", layer(split=lambda x, n: x.reshape(n, len(x), -1)), "without a transpose"),
    ("8-run", layer(causal=lambda n, m: torch.ones(n, m).tril() > 0), "begins at the first key"),
    ("8-run", layer(append=new_only), "not used: only the new keys"),
    ("8-run", layer(attend=attends(scale=32**-0.5)), ""),
    ("8-run", layer(attend=attends(before=False)), "after the softmax"),
    ("8-run", layer(bias=False), "b_O is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "cause"), PLANTED)
def test_a_planted_mistake_is_found_and_named_with_what_shows_it(name, function, cause):
    verdict = check(name, function)
    assert not verdict
    assert verdict.said.startswith("Not yet. ")
    assert cause in verdict.said
    shown = r"gives .*(is right \(\d+ of \d+ numbers|expected|torch tensor)|With .* it raises|input"
    assert re.search(shown, verdict.said), verdict


def fails(*given):
    raise AssertionError


def dots(query, key):
    """Its text."""
    ...


def then(change, whole=Matmul.attention):
    """A right function whose outcome is changed."""
    return lambda *given: change(whole(*given))


def halves(change):
    return then(lambda found: (change(found[0]), found[1]))


KINDS = [
    ("8-scores", fails, "it raises AssertionError."),
    ("8-scores", then(lambda found: None, Matmul.scores), "returns None. Does the function end"),
    ("8-scores", dots, "No guess yet"),
    ("8-split", lambda x, n: x.chunk(n, -1), "a tensor (8, 4)); expected one torch tensor"),
    ("8-split", lambda x, n: Matmul.split(x, n).to_sparse(), "sparse_coo tensor on cpu; expected"),
    ("8-split", lambda x, n: Matmul.split(x, n).to("meta"), "tensor on meta; expected one"),
    ("8-split", lambda x, n: x.T.view(n, 8, 4), "Use .reshape(...) instead."),
    ("8-cache", then(list, Matmul.append), "it gives list; expected a pair of tensors"),
    ("8-cache", lambda c, k, v: {"k": k}, "it gives dict; expected a pair of tensors"),
    ("8-cache", lambda c, k, v: Matmul.append(c, k, v)[0], "a tensor (2, 7, 7); expected a pair"),
    ("8-scale", then(torch.Tensor.half, Matmul.scaled), "It gives torch.float16; expected"),
    ("8-scale", then(torch.Tensor.bool, Matmul.scaled), "It gives torch.bool; expected"),
    ("8-scale", then(torch.Tensor.cfloat, Matmul.scaled), "It gives torch.complex64; expected"),
    ("8-scale", then(lambda found: found.softmax(-1), Matmul.scaled),
     "A softmax was applied. Leave it out here. At [0, 0, 0] it gives"),
    ("8-attend", lambda q, k, v, a: Matmul.attend(q, k, v, tril(0)(q.shape[1], k.shape[1])),
     "where it was not asked for. At ["),
    ("8-run", halves(torch.Tensor.double), "Right."),
    ("8-run", halves(torch.Tensor.half), "It gives torch.float16; expected"),
    ("8-run", halves(lambda out: out[None]), "first 5 tokens is a tensor (1, 5, 12); expected"),
    ("8-run", halves(torch.Tensor.numpy), "(ndarray, a tensor (5, 12)); expected a pair, (output"),
    ("8-run", then(lambda found: found[0]), "gives a tensor (5, 12); expected a pair, (output"),
    ("8-run", then(lambda found: found[::-1], layer()), "it gives the cache first. Swap the two"),
    ("8-run", then(lambda found: found[::-1]), "it gives the cache first. Swap the two"),
    ("8-run", lambda x, w, n, cache: Matmul.attention(x, w, 3, cache), "In tiny-gpt2 it raises"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "words"), KINDS)
def test_another_kind_of_answer_is_named(name, function, words):
    assert words in check(name, function).said


def test_a_function_that_keeps_what_it_saw_is_found_by_the_words():
    seen = []

    def attention(x, weights, n_heads, cache):
        seen.append(len(weights["W_Q"]))
        out, cache = Matmul.attention(x, weights, n_heads, cache)
        return out * (1 if seen.count(128) < 20 else -1), cache

    assert "keep something between calls" in check("8-run", attention).said


def test_rotation_is_that_of_tiny_llama():
    trace = minibert.load("tiny-llama").trace("Once upon a time")
    for name in ("query", "key"):
        before, after = (getattr(trace[0], one)[0] for one in (f"{name}_unrotated", name))
        found = rotary(before, torch.arange(before.shape[1]), 500_000.0)
        torch.testing.assert_close(found, after, atol=1e-5, rtol=1e-5)


def test_what_is_no_function_is_refused_with_what_was_expected():
    with pytest.raises(
        MinibertError, match=r"expected a function .*attend\(query, key, value, all"
    ):
        check("8-attend", 3)
    assert "No guess yet" in check("8-attend", lambda *given: None).said
