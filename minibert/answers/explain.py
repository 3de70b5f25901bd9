"""One row of attention as a calculation: every number between a query and its z.

`render` prints it in a terminal.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from minibert.answers.generate import AnsweringModel
from minibert.errors import TraceError, check_index
from minibert.kernels.eager import soft_capped
from minibert.quantities import Bool, Float
from minibert.terminal import Terminal, bar, cut, number, signed_bar, visible
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace
from minibert.untrusted import Json


@dataclass(frozen=True, eq=False)
class Explanation:
    """How one head computes z from one query.

    The tensors are the model's own numbers, in its dtype. The properties are the steps between
    them, computed from them in float64. They agree with the next tensor up to the accuracy of the
    model's dtype (1e-6 of the largest term in float32).
    """

    model_name: str
    n_layers: int
    n_heads: int
    layer: int
    head: int
    tokens: tuple[str, ...]
    query_position: int
    key_position: int
    chosen: bool
    """False where no key was asked for, so the most attended one is shown."""
    query: Float[Tensor, " d_head"]
    key: Float[Tensor, " d_head"]
    scale: float
    """The factor on the dot product, 1/sqrt(d_head) in most models."""
    scores: Float[Tensor, " key"]
    """The scaled dot product with every key, before soft cap and mask."""
    mask: Bool[Tensor, " key"]
    """True where attention is allowed."""
    probs: Float[Tensor, " key"]
    value: Float[Tensor, "key d_head"]
    z: Float[Tensor, " d_head"]
    n_kv_heads: int = 0
    """Key-value heads of the layer; 0: as many as heads."""
    soft_cap: float | None = None
    """Scores go through cap · tanh(score / cap) in front of the mask."""
    query_unrotated: Float[Tensor, " d_head"] | None = None
    """The query before it was turned by its position, in a rotary model; so the key."""
    key_unrotated: Float[Tensor, " d_head"] | None = None

    @property
    def kv_head(self) -> int:
        """The key-value head that this head reads."""
        return self.head * (self.n_kv_heads or self.n_heads) // self.n_heads

    @property
    def product(self) -> Float[Tensor, " d_head"]:
        """query · key, element by element; their sum is the dot product."""
        return self.query * self.key

    @property
    def dot(self) -> float:
        """query·key, the sum of the products."""
        return self.product.double().sum().item()

    @property
    def score(self) -> float:
        """The score of the chosen key."""
        return self.scores[self.key_position].item()

    @property
    def largest(self) -> float:
        """The largest capped score that is allowed, which the softmax subtracts."""
        return self.capped[self.mask].max().item()

    @property
    def capped(self) -> Float[Tensor, " key"]:
        """The scores after the soft cap; the scores themselves where there is none."""
        return soft_capped(self.scores, self.soft_cap)

    @property
    def exponentials(self) -> Float[Tensor, " key"]:
        """exp(capped score − largest), 0 where masked."""
        return (self.capped.double() - self.largest).exp() * self.mask

    @property
    def total(self) -> float:
        """The sum of the exponentials, which the softmax divides by."""
        return self.exponentials.sum().item()

    @property
    def contributions(self) -> Float[Tensor, "key d_head"]:
        """probs · value of each key; their sum is z."""
        return self.probs.double()[:, None] * self.value.double()

    def to_dict(self) -> Json:
        """The explanation as plain lists and numbers, not rounded."""
        found: Json = {"model": self.model_name}
        for name in _WRITTEN:
            value = getattr(self, name)
            found[name] = value.tolist() if isinstance(value, Tensor) else value
        turned = {name: getattr(self, name) for name in ("query_unrotated", "key_unrotated")}
        before = {name: one.tolist() for name, one in turned.items() if one is not None}
        return found | {"tokens": list(self.tokens)} | before


# In the order of the data.
_WRITTEN = (
    "layer", "head", "kv_head", "tokens", "query_position", "key_position", "query", "key",
    "product", "dot", "scale", "soft_cap", "score", "scores", "mask", "largest", "exponentials",
    "total", "probs", "value", "contributions", "z",
)  # fmt: skip


def explain(
    trace: Trace,
    *,
    layer: int,
    head: int,
    query: int | str,
    key: int | str | None = None,
    sentence: int = 0,
) -> Explanation:
    """The calculation of one row of attention: `query` of a head, and its key in detail.

    `query` and `key` are each a position or a token; without `key` the most attended key is used.
    Numbers count from 0, negative ones from the end. Raises TraceError for a layer, head or
    sentence that does not exist, and for a token that the sentence does not have or has more than
    once.
    """
    if not -len(trace.tokens) <= sentence < len(trace.tokens):
        raise TraceError(f"There is no sentence {sentence}; the trace has {len(trace.tokens)}.")
    sentence %= len(trace.tokens)
    row = find_token(trace.tokens, query, what="query", sentence=sentence)
    column = None if key is None else find_token(trace.tokens, key, what="key", sentence=sentence)
    here = trace[layer, head]
    # Padding is left out: its scores are masked and its probs are 0.
    real = slice(trace.tokens.lengths[sentence])
    probs = here.probs[sentence, row, real]
    looked_at = int(probs.argmax()) if column is None else column
    config = trace.config
    rotary = config.rotary is not None
    return Explanation(
        model_name=trace.model_name,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        layer=here.layer,
        head=head % config.n_heads,
        tokens=trace.tokens.strings[sentence],
        query_position=row,
        key_position=looked_at,
        chosen=column is not None,
        query=here.query[sentence, row],
        key=here.key[sentence, looked_at],
        scale=config.attention_scale(here.layer),
        scores=here.scores[sentence, row, real],
        mask=here.mask[sentence, 0, row, real],
        probs=probs,
        value=here.value[sentence, real],
        z=here.z[sentence, row],
        n_kv_heads=config.n_kv_heads,
        soft_cap=config.attention_soft_cap,
        query_unrotated=here.query_unrotated[sentence, row] if rotary else None,
        key_unrotated=here.key_unrotated[sentence, looked_at] if rotary else None,
    )


def trace_of_head(model: AnsweringModel, tokens: Tokens, *, layer: int, head: int) -> Trace:
    """A trace in which this head can be explained; the layers above it are not computed.

    The numbers are those of a whole trace, bit for bit. Raises TraceError for a layer or head
    that does not exist, before anything is computed.
    """
    config = model.config
    layer = check_index("layer", layer, config.n_layers)
    check_index("head", head, config.n_heads)
    # until=layer would compute this layer's attention by other formulas, with other rounding.
    return model.trace(tokens, until=layer + 1 if layer + 1 < config.n_layers else None)


def find_token(tokens: Tokens, wanted: int | str, *, what: str, sentence: int = 0) -> int:
    """The position of a token, given as a number or as the token itself.

    A whole number is a position. A token is compared with the string that a person reads and with
    the vocabulary's own string; first with its capital letters, then, if nothing is found,
    without. Raises TraceError when the token is missing or there more than once; the message calls
    it `what`.
    """
    strings = tokens.strings[sentence]
    position = _whole_number(wanted)
    if position is not None:
        if not -len(strings) <= position < len(strings):
            expected = f"0 to {len(strings) - 1}: {_listed(strings)}"
            raise TraceError(f"There is no {what} {position}; expected {expected}.")
        return position % len(strings)
    name = str(wanted).strip()
    found = _matches(tokens, sentence, name, str) or _matches(tokens, sentence, name, str.casefold)
    if len(found) == 1:
        return found[0]
    shown = visible(name)
    if found:
        raise TraceError(
            f'{what} "{shown}" is the token at positions {_comma(found)}; '
            "give one of these numbers instead."
        )
    if pieces := _pieces(tokens, name, sentence):
        listed = ", ".join(f"{p} {visible(strings[p].strip())}" for p in pieces)
        raise TraceError(
            f'The {what} "{shown}" is not one token: the word is split into {listed}. '
            "Give one of these numbers instead."
        )
    raise TraceError(f'No token is "{shown}" (the {what}); the tokens are {_listed(strings)}.')


def _whole_number(wanted: int | str) -> int | None:
    try:
        return int(wanted) if isinstance(wanted, str) else operator.index(wanted)
    except ValueError:
        return None


def _matches(tokens: Tokens, sentence: int, name: str, form: Callable[[str], str]) -> list[int]:
    """The positions where one of a token's two strings is the name, both in this form."""
    pairs = zip(tokens.strings[sentence], tokens.raw[sentence], strict=True)
    wanted = form(name)
    return [p for p, (read, raw) in enumerate(pairs) if wanted in (form(read).strip(), form(raw))]


def _pieces(tokens: Tokens, name: str, sentence: int) -> list[int]:
    """The positions of the first word that is `name` and has several tokens; [] without one."""
    words, strings = tokens.words[sentence], tokens.strings[sentence]
    segments = tokens.segments[sentence].tolist()
    for (_, word), group in groupby(range(len(words)), lambda p: (segments[p], words[p])):
        pieces = list(group)
        joined = "".join(strings[p] for p in pieces).strip()
        if word is not None and joined.casefold() == name.casefold():
            return pieces
    return []


def _comma(positions: list[int]) -> str:
    return ", ".join(map(str, positions))


def _listed(strings: tuple[str, ...], most: int = 40) -> str:
    shown = [f"{i} {visible(string.strip())}" for i, string in enumerate(strings[:most])]
    return ", ".join([*shown, f"and {len(strings) - most} more"] if len(strings) > most else shown)


# A row of this many keys is shown whole; of a longer one the most attended keys are.
_WHOLE_ROW, _WHOLE_SENTENCE = 24, 60
# Columns of a bar, and of a token at most.
_BAR, _TOKEN = 20, 16
_NUMBERS_OF_Z = 2


def render(about: Explanation, terminal: Terminal | None = None, *, top: int = 8) -> str:
    """The calculation as text; `top` is the number of largest terms of each sum.

    Every number is the model's own, or computed from these in float64, and rounded to the digits
    shown. Characters in tokens that would disturb the terminal are written out.
    """
    page = terminal or Terminal()
    sections = [_heading(about, page), _products(about, page, top), _score(about, page)]
    sections += [_row(about, page, top), _sum(about, page, top)]
    return "\n\n".join("\n".join(section) for section in sections)


def _heading(about: Explanation, terminal: Terminal) -> list[str]:
    """Which model, which head, which tokens; that its numbers are rounded, where they are."""
    lines = [
        visible(about.model_name, space=" "),
        f"layer {about.layer}, head {about.head} of {about.n_layers} layers x"
        f" {about.n_heads} heads, counted from 0",
    ]
    if about.n_kv_heads not in (0, about.n_heads):
        lines.append(
            f"key and value are those of key-value head {about.kv_head} of {about.n_kv_heads}, "
            f"which {about.n_heads // about.n_kv_heads} heads share"
        )
    shown = [f"{p} {_token(about, p)}" for p in range(min(len(about.tokens), _WHOLE_SENTENCE))]
    shown += ["…"] * (len(about.tokens) > _WHOLE_SENTENCE)
    reason = "" if about.chosen else "   the most attended key"
    lines += ["", *terminal.wrapped(shown), ""]
    lines.append(f"  query  {about.query_position} {_token(about, about.query_position)}")
    lines.append(f"  key    {about.key_position} {_token(about, about.key_position)}{reason}")
    if about.query.dtype in (torch.bfloat16, torch.float16):
        name = str(about.query.dtype).removeprefix("torch.")
        lines.append(f"  This model rounds to {name}, so sums agree to a few digits.")
    return lines


def _products(about: Explanation, terminal: Terminal, top: int) -> list[str]:
    """The largest products, the sum of the others, and the sum of all."""
    products = about.product.double()
    kept = products.abs().topk(min(top, len(products))).indices.tolist()
    most = products.abs().max().item() or 1.0
    rows = [
        [
            *(str(i), *map(number, (about.query[i].item(), about.key[i].item()))),
            *(number(products[i].item()), signed_bar(products[i].item() / most, _BAR // 2)),
        ]
        for i in kept
    ]
    if others := len(products) - len(kept):
        rows.append([f"{others} others", "", "", number(_without(products, kept).sum().item()), ""])
    rows.append(["sum", "", "", number(about.dot), ""])
    return [
        f"query·key = the products query[i]·key[i] of {len(products)} numbers, the largest first",
        *terminal.table(["i", "query[i]", "key[i]", "product", ""], rows, ">>>><"),
    ]


def _score(about: Explanation, terminal: Terminal) -> list[str]:
    """The scaled dot product, the soft cap, and which keys the mask allows."""
    product = f"{number(about.dot)} x {number(about.scale)}"
    allowed, size = int(about.mask.sum()), len(about.mask)
    mask = "allows every key" if allowed == size else f"allows {allowed} of {size} keys"
    if not about.mask[about.key_position]:
        mask += "; this one is masked"
    lines = [
        f"score = query·key x scale, scale = {_scale(about)}",
        f"  score  {product} = {number(about.score)}",
    ]
    if about.soft_cap is not None:
        cap, now = number(about.soft_cap), number(about.capped[about.key_position].item())
        lines.append(f"  capped {cap} x tanh({number(about.score)} / {cap}) = {now}")
    return [*lines, f"  mask   {mask}"]


def _row(about: Explanation, terminal: Terminal, top: int) -> list[str]:
    """The softmax over the keys of this query: all, or the most attended and the chosen one."""
    exponentials, probs = about.exponentials, about.probs.double()
    order = [p for p in probs.argsort(descending=True, stable=True).tolist() if about.mask[p]]
    shown = {*order[: None if len(order) <= _WHOLE_ROW else max(top, 1)], about.key_position}
    rows = [
        [
            *(str(p), _token(about, p), number(about.capped[p].item())),
            number(exponentials[p].item()) if about.mask[p] else "masked",
            *(number(probs[p].item()), bar(probs[p].item(), _BAR)),
        ]
        for p in sorted(shown)
    ]
    for name, allowed in (("other keys", True), ("masked keys", False)):
        hidden = [p for p in range(len(probs)) if p not in shown and about.mask[p] == allowed]
        if hidden:
            sums = exponentials[hidden].sum().item(), probs[hidden].sum().item()
            rows.append(["", f"{len(hidden)} {name}", "", *map(number, sums), ""])
    rows.append(["", "sum", "", *map(number, (about.total, probs.sum().item())), ""])
    score = "score" if about.soft_cap is None else "capped"
    return [
        f"probs = softmax of the row, exp(score − max) / sum; max = {number(about.largest)}",
        *terminal.table(["key", "", score, "exp(score − max)", "prob", ""], rows, "><>>><"),
    ]


def _sum(about: Explanation, terminal: Terminal, top: int) -> list[str]:
    """The largest prob·value, and z, the sum of all of them."""
    terms = about.contributions
    allowed = int(about.mask.sum())
    norms = terms.norm(dim=-1).masked_fill(~about.mask, -1.0)
    kept = norms.topk(min(top, allowed)).indices.tolist()
    dims = about.z.double().abs().topk(min(_NUMBERS_OF_Z, len(about.z))).indices.sort().values

    def numbers(vector: Tensor) -> list[str]:
        return [_norm(vector), *map(number, vector[dims].tolist())]

    rows = [
        [
            *(str(p), _token(about, p), number(about.probs[p].item())),
            *(_norm(about.value[p]), *numbers(terms[p])),
        ]
        for p in kept
    ]
    if others := allowed - len(kept):
        rest = numbers(_without(terms, kept).sum(dim=0))
        rows.append(["", f"{others} others", "", "", *rest])
    rows.append(["", "z", "", "", *numbers(about.z)])
    header = ["key", "", "prob", "‖value‖", "length", *(f"z[{d}]" for d in dims.tolist())]
    return [
        "z = the sum of prob·value, the longest first; length = ‖prob·value‖",
        *terminal.table(header, rows, "><>>>" + ">" * len(dims)),
    ]


def _token(about: Explanation, position: int) -> str:
    return cut(visible(about.tokens[position]), _TOKEN)


def _norm(vector: Tensor) -> str:
    return number(vector.double().norm().item())


def _without(values: Tensor, left_out: Sequence[int]) -> Tensor:
    kept = torch.ones(len(values), dtype=torch.bool)
    kept[list(left_out)] = False
    return values[kept]


def _scale(about: Explanation) -> str:
    """The factor, as a formula where it is the usual one."""
    width, value = len(about.query), number(about.scale)
    usual = math.isclose(about.scale, width**-0.5, rel_tol=1e-9)
    return f"1/√{width} = {value}" if usual else value
