"""Calls of transformers' attention interface, drawn, against a float64 of their own.

    python -m tests.attached.interface_calls [--minutes 30] [--seed 0]

Each call is one that some model makes: lengths, keys of a cache, padding on either side, groups of
heads, windows, packed texts, chosen keys, soft caps, sinks, position biases, masks as booleans and
as numbers. attn_implementation="minibert" gives its z, with gradients, and `measuring` its
statistics; both may be twice as far from float64 as the same formula in float32.
"""

import argparse
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.attached.call import Call
from minibert.attached.measuring import counted, measured_call
from minibert.kernels.call import parse_want
from minibert.transformers_attention import attention

WANT: tuple[object, ...] = (
    "entropy", "max_prob", "row_max", "argmax", "received", ("key_mass", (0, 3)),
    ("offset_mass", (-2, 0, 1)), ("top_keys", 4), ("top_probs", 3),
)  # fmt: skip
# Of the largest number compared, where float32 itself is right by chance.
LEAST = 2e-6


@dataclass
class Drawn:
    """One call, and how many tokens are in front of its queries."""

    vectors: tuple[Tensor, Tensor, Tensor]
    mask: Tensor | None
    options: dict[str, Any]
    past: int
    causal: bool

    @property
    def module(self) -> nn.Module:
        """A module as the interface sees it."""
        found = nn.Module()
        found.is_causal = self.causal  # type: ignore[assignment]
        return found


def drawn(draw: random.Random) -> Drawn:
    """A call that some model makes."""
    generator = torch.Generator().manual_seed(draw.getrandbits(40))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    batch, groups, d, d_value = (draw.randint(1, most) for most in (3, 4, 12, 12))
    kv_heads, past = draw.randint(1, 3), draw.choice((0, 0, draw.randint(1, 40)))
    n = draw.choice((1, 1, draw.randint(2, 30)))
    heads, total = kv_heads * groups, past + n
    unused = draw.choice((0, 0, draw.randint(1, 9)))
    query, strength = normal(batch, heads, n, d), draw.choice((0.3, 1.0, 6.0))
    key, value = normal(batch, kv_heads, total, d), normal(batch, kv_heads, total, d_value)
    options: dict[str, Any] = {"dropout": 0.0, "scaling": draw.choice((None, strength, 0.1))}
    options["softcap"] = draw.choice((None, None, 3.0))
    if draw.random() < 0.25:
        options[draw.choice(("s_aux", "sinks"))] = normal(heads)
    allowed, mask = _allowed(draw, batch, n, past), None
    # Without a mask causal order is said by is_causal, for as many queries as keys.
    causal = draw.random() < 0.5
    if draw.random() < 0.7:
        mask, causal = allowed, draw.random() < 0.5
        if draw.random() < 0.4:
            least = draw.choice((-torch.inf, torch.finfo(torch.float32).min))
            added = normal(batch, draw.choice((1, heads)), n, total) * draw.choice((0, 1))
            mask = torch.where(allowed, added, least)
        if unused:
            # The places of a static cache that nothing was written to.
            key, value = (_padded(one, unused, 2, 7.0) for one in (key, value))
            mask = _padded(mask, unused, 3, False if mask.dtype == torch.bool else -torch.inf)
    elif past and n > 1:
        causal = False
    if draw.random() < 0.2:
        options["position_bias"] = normal(draw.choice((1, batch)), heads, n, key.shape[2])
    if batch == 1 and not past and n > 2 and not unused and draw.random() < 0.5:
        cut = sorted({0, draw.randint(1, n - 1), n})
        options["cu_seq_lens_q"] = options["cu_seq_lens_k"] = torch.tensor(cut, dtype=torch.int32)
    elif draw.random() < 0.2:
        count = draw.randint(1, total)
        order = torch.rand(batch, n, total, generator=generator).argsort(-1)
        options["indices"] = order[..., :count].int()
    return Drawn((query, key, value), mask, options, past, causal)


def _allowed(draw: random.Random, batch: int, n: int, past: int) -> Tensor:
    """(batch, 1, n, past + n): causal order or none, a window or none, padding or none."""
    queries, keys = torch.arange(past, past + n)[:, None], torch.arange(past + n)
    allowed = torch.ones(n, past + n, dtype=torch.bool)
    if draw.random() < 0.7:
        allowed = allowed & (keys <= queries)
    if draw.random() < 0.3:
        allowed = allowed & ((queries - keys).abs() < draw.randint(1, 9))
    allowed = allowed.expand(batch, 1, n, past + n).clone()
    if draw.random() < 0.4:
        for text in range(batch):
            padding = draw.randint(0, past + n - 1)
            if draw.random() < 0.5:
                allowed[text, ..., :padding] = False
            else:
                allowed[text, ..., past + n - padding :] = False
    return allowed


def _padded(tensor: Tensor, count: int, axis: int, filling: float) -> Tensor:
    shape = [*tensor.shape]
    shape[axis] = count
    return torch.cat([tensor, tensor.new_full(shape, filling)], axis)


def own(call: Drawn, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z, scores of the softmax, probs and which keys are seen, by the formulas."""
    query, key, value = (one.to(dtype) for one in call.vectors)
    options, heads, n = call.options, query.shape[1], query.shape[2]
    key, value = (one.repeat_interleave(heads // one.shape[1], 1) for one in (key, value))
    scale = query.shape[-1] ** -0.5 if options["scaling"] is None else options["scaling"]
    scores = query @ key.mT * scale
    if (cap := options["softcap"]) is not None:
        scores = cap * torch.tanh(scores / cap)
    seen = torch.ones(scores.shape, dtype=torch.bool)
    mask = call.mask
    if mask is None and call.causal and n > 1:
        seen = seen.tril()
    elif mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        seen = seen & (mask > torch.finfo(torch.float32).min / 2)
        scores = scores + mask.to(dtype).masked_fill(~seen[:, : mask.shape[1]], 0)
    if "position_bias" in options:
        scores = scores + options["position_bias"].to(dtype)
    if "indices" in options:
        chosen = torch.zeros(len(query), n, key.shape[2], dtype=torch.bool)
        for at in options["indices"].long().unbind(-1):
            chosen.scatter_(-1, at[..., None], True)
        seen = seen & chosen[:, None]
    if "cu_seq_lens_q" in options:
        _, middle, *last = options["cu_seq_lens_q"].tolist()
        text = torch.tensor([place >= middle for place in range(n)]) if last else torch.zeros(n)
        seen = seen & (text[:, None] == text)
    scores = scores.masked_fill(~seen, -torch.inf)
    sinks = options.get("s_aux", options.get("sinks"))
    rows = scores
    if sinks is not None:
        column = sinks.to(dtype)[:, None, None].expand(*scores.shape[:3], 1)
        rows = torch.cat([scores, column], -1)
    probs = rows.softmax(-1)[..., : key.shape[2]].masked_fill(~seen.any(-1, keepdim=True), 0)
    return probs @ value, scores, probs, seen


def check(call: Drawn) -> None:
    """Raise AssertionError where z, a gradient or a statistic is off."""
    vectors = tuple(one.clone().requires_grad_() for one in call.vectors)
    z = attention(call.module, *vectors, call.mask, **call.options)[0].transpose(1, 2)
    exact = Drawn(tuple(one.double().requires_grad_() for one in call.vectors), call.mask,
                  call.options, call.past, call.causal)  # fmt: skip
    narrow = Drawn(tuple(one.clone().requires_grad_() for one in call.vectors), call.mask,
                   call.options, call.past, call.causal)  # fmt: skip
    right, scores, probs, seen = own(exact, torch.float64)
    rough = own(narrow, torch.float32)
    close("z", z, right, rough[0])
    for one in (z, right, rough[0]):
        one.sum().backward()
    # A gradient is a sum of such products, which may cancel.
    size = max(1.0, call.options["scaling"] or 0) * float(
        torch.stack([one.abs().max() for one in call.vectors]).prod()
    )
    for name, mine, its, other in zip(("query", "key", "value"), vectors, exact.vectors,
                                      narrow.vectors, strict=True):  # fmt: skip
        close(f"gradient of {name}", mine.grad, its.grad, other.grad, size)
    check_statistics(call, scores.detach(), probs.detach(), seen, rough[2].detach())


def check_statistics(
    call: Drawn, scores: Tensor, probs: Tensor, seen: Tensor, rough: Tensor
) -> None:
    """The statistics of a call that `measuring` hears."""
    heard = Call(call.module, "minibert", *call.vectors, call.mask, dict(call.options))
    with torch.no_grad():
        want = parse_want(WANT, n_keys=None)
        z, given = measured_call(heard, want, call.past, crossed=False)
        # As those of a pass are: of several layers at once.
        _, numbers = counted([given, given], want)
    assert not isinstance(numbers, str)
    found, n_keys = numbers.values, numbers.values["received"].shape[2]
    close("z of measuring", z, (own(call, torch.float64)[0]), own(call, torch.float32)[0])
    queries = torch.arange(call.past, call.past + probs.shape[2])
    for name, formula in {
        "entropy": lambda p: torch.special.entr(p).sum(-1),
        "max_prob": lambda p: p.amax(-1),
        "received": lambda p: p.sum(2)[..., :n_keys],
        "key_mass": lambda p: torch.stack([at(p, torch.full_like(queries, k)) for k in (0, 3)], -1),
        "offset_mass": lambda p: torch.stack([at(p, queries + k) for k in (-2, 0, 1)], -1),
    }.items():
        close(name, found[name], formula(probs), formula(rough))
    live = seen.any(-1)
    close("row_max", found["row_max"][live], scores.amax(-1)[live], scores.amax(-1)[live].float())
    ranks = min(4, probs.shape[-1])
    best, keys = probs.topk(ranks).values, found["top_keys"][..., :ranks]
    close("top_keys", at_keys(probs, keys), best, rough.topk(ranks).values)
    close(
        "top_probs",
        found["top_probs"][..., :ranks],
        best[..., :3],
        rough.topk(ranks).values[..., :3],
    )
    close("argmax", at_keys(probs, found["argmax"][..., None]), best[..., :1], rough.amax(-1, True))
    assert (keys >= 0).sum(-1).equal(seen.sum(-1).clamp_max(ranks)), "top_keys of few keys"


def at(probs: Tensor, keys: Tensor) -> Tensor:
    """The weight of each query at one key, 0 where there is none."""
    there = (keys >= 0) & (keys < probs.shape[-1])
    index = keys.clamp(0, probs.shape[-1] - 1).expand(probs.shape[:-1])[..., None]
    return probs.gather(-1, index)[..., 0] * there


def at_keys(probs: Tensor, keys: Tensor) -> Tensor:
    """The weights at these keys, 0 at −1."""
    return probs.gather(-1, keys.clamp_min(0)) * (keys >= 0)


def close(name: str, found: Any, right: Any, rough: Any, size: float = 1.0) -> None:
    """Raise AssertionError for what is further from float64 than twice the float32 formula.

    `size` is that of the numbers that were added, where the sum may be smaller.
    """
    found, right, rough = (one.detach().double() for one in (found, right, rough))
    if not right.numel():
        return
    bound = 2 * float((rough - right).abs().nan_to_num(0).max())
    bound += LEAST * max(size, float(right.abs().nan_to_num(0).max()))
    off = float((found - right).abs().nan_to_num(torch.inf).max())
    assert off <= bound, f"{name} is {off:.3g} off, more than {bound:.3g}"


def main() -> int:
    """The exit status: 1 for a wrong number."""
    parser = argparse.ArgumentParser(description="Calls of the attention interface, drawn.")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    end, seed = time.monotonic() + 60 * chosen.minutes, chosen.seed
    while time.monotonic() < end:
        try:
            check(drawn(random.Random(seed)))
        except Exception as error:
            print(f"seed {seed}: {error!r}", file=sys.stderr)
            return 1
        seed += 1
    print(f"{seed - chosen.seed} calls, no wrong number")
    return 0


if __name__ == "__main__":
    sys.exit(main())
