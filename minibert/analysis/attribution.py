"""Direct logit attribution: how much of a logit each component wrote itself.

A logit is a direction that reads the last hidden state. It is pulled back through the head and the
last norm; the value of a component is its product with the part of the stream that the component
wrote, at this one position (`stream.py` has the parts). Only the direct path counts: that a
component also changed what later heads and MLPs read shows in their values.

What is frozen at its real value, so that the path is linear and the sum is the logit exactly:
what every norm divides by (LayerNorm also subtracts the mean, from each part), and in the head of
masked language models the gate of its activation, activation(x) / x: the head is
decoder(LN(x · gate(x))).

Where logits go through a soft cap, cap · tanh(logit / cap) (Gemma 2), the value before it is what
is attributed. It is the sum of what was written, which the capped logit is not, and the cap keeps
the order of tokens.

Sources: Elhage et al. 2021 (direct paths); TransformerLens' `apply_ln_to_stack` and `logit_attrs`
(the frozen norm; they too stop before the soft cap), which this equals for GPT-2; Achtibat et al.
2024 (AttnLRP) treat activations by the same rule.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_trace,
    is_whole,
    one_each,
    token_ids,
    token_name,
    vocabulary_head,
    whole_number,
)
from minibert.analysis.rows import rows_of, wide
from minibert.analysis.stream import Component, FrozenNorm, Written, check_total
from minibert.answers.explain import find_token
from minibert.errors import TraceError, check_index
from minibert.layers.heads import VocabularyHead
from minibert.layers.linear import matrix_of, offset_of
from minibert.layers.linear_backends import activate
from minibert.quantities import Float, Int
from minibert.result import Result, sourced
from minibert.trace.read import Trace


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogitAttribution(Result[Tensor]):
    """What each component wrote into one logit, or into the difference of two, in logits (nats).

    The axes are (component), behind (batch) where all sentences were asked about. The sum is the
    logit. `found["head 1-3"]` is the value of one component.

    components  who wrote
    logit       the model's own logit, or difference of logits; before the soft cap, if any
    token       what was asked about, in place of `against` where that is not None
    positions   where
    """

    components: tuple[Component, ...]
    logit: Float[Tensor, "*batch"]
    token: Int[Tensor, "*batch"]
    against: Int[Tensor, "*batch"] | None
    positions: Int[Tensor, "*batch"]

    @property
    def total(self) -> Float[Tensor, "*batch"]:
        """The sum of the values: the logit, up to rounding."""
        return self.values.sum(-1)

    def by_head(self) -> Float[Tensor, "*batch layer head"]:
        """The value of every attention head."""
        columns = [number for number, c in enumerate(self.components) if c.kind == "head"]
        n_heads = 1 + max(self.components[column].head or 0 for column in columns)
        return self.values[..., columns].unflatten(-1, (-1, n_heads))

    def by_layer(self, kind: str | None = None) -> Float[Tensor, "*batch layer"]:
        """The sum over what each layer wrote: its heads, biases and MLP, or those of one kind.

        Raises TraceError for a kind that no layer has.
        """
        kinds = {component.kind for component in self.components if component.layer is not None}
        if kind is not None and kind not in kinds:
            raise TraceError(f"No layer has a {kind!r}; there are {', '.join(sorted(kinds))}.")
        n_layers = 1 + max(component.layer or 0 for component in self.components)
        sums = []
        for layer in range(n_layers):
            numbered = enumerate(self.components)
            columns = [n for n, c in numbered if c.layer == layer and kind in (None, c.kind)]
            sums.append(self.values[..., columns].sum(-1))
        return torch.stack(sums, -1)

    def top(self, count: int = 10) -> list[tuple[str, float]]:
        """The components with the largest mean over sentences, by size, sign kept.

        Raises TraceError for a count below 1.
        """
        count = whole_number("count", count, TraceError, least=1)
        means = self.values.reshape(-1, len(self.components)).mean(0).tolist()
        names = [component.label for component in self.components]
        return sorted(zip(names, means, strict=True), key=lambda entry: -abs(entry[1]))[:count]

    def __str__(self) -> str:
        lines = ["component            logits, the largest first"]
        lines += [f"{label:<20} {value:+.3f}" for label, value in self.top()]
        return "\n".join([*lines, f"{'all of them':<20} {self.total.mean():+.3f}"])


@sourced
@torch.no_grad()
def logit_attribution(
    trace: Trace,
    token: object,
    *,
    against: object = None,
    position: object = -1,
    sentence: int | None = 0,
) -> LogitAttribution:
    """What each component wrote into the logit of `token` at a position.

    With `against`, into logit(token) − logit(against). Tokens are ids or text. `position` is a
    number, negative ones from the sentence's own end, or a token that stands in the text once.
    `sentence=None` is about every sentence of the batch: token, against and position are then one
    for all of them or one for each, and the result has the batch axis in front.

    The sum of the values is the logit, before a soft cap: within 1e-5 of the largest value in
    float32, 1e-10 in float64. That holds for edited traces too where the edit is of what a
    component writes (z, head_out, mlp_out and what they follow from) or of what a norm divides by;
    an edit of attn_out, a residual stream or the logits is refused.

    Gradients are not kept. Raises TraceError for a model without a vocabulary head, a
    trace that stopped early, and a sentence or position that does not exist; TokenizationError
    for a wrong token.
    """
    check_trace(trace)
    head = vocabulary_head(trace.model)
    logits = trace.logits
    B = trace.allowed.batch
    rows = list(range(B)) if sentence is None else [check_index("sentence", sentence, B)]
    ids = token_ids(trace.model, token, len(rows))
    others = None if against is None else token_ids(trace.model, against, len(rows))
    places = _places(trace, rows, position)
    sentences = torch.tensor(rows, device=ids.device)
    read = logits[sentences, places]
    here = rows_of(trace, sentences, places[:, None])
    if head.soft_cap is not None:
        read = head.uncapped(here.hidden)[:, 0]
    terms = _logit_terms(here, head, ids, others)
    logit = _entries(wide(read), ids) - (0 if others is None else _entries(wide(read), others))
    values = torch.stack([value for _, value in terms], -1)
    if trace.edited_from is not None:
        for number, row in zip(logit.tolist(), values, strict=True):
            check_total(row, number, "The logit", trace.embed.dtype, abs(number))
    # A batch of one and a single sentence differ in the axis alone.
    batch = slice(None) if sentence is None else 0
    titles = _titles(trace, ids, others, places)
    labels = {"component": tuple(component.label for component, _ in terms)}
    return LogitAttribution(
        values[batch],
        "batch component" if sentence is None else "component",
        title="" if sentence is None else titles[0],
        unit="logits (nats)",
        labels={"batch": titles, **labels} if sentence is None else labels,
        signed=True,
        components=tuple(component for component, _ in terms),
        logit=logit[batch],
        token=ids[batch],
        against=None if others is None else others[batch],
        positions=places[batch],
    )


def _titles(trace: Trace, ids: Tensor, others: Tensor | None, places: Tensor) -> tuple[str, ...]:
    """What was asked about in each sentence, in words."""
    pairs = [[i] for i in ids.tolist()]
    if others is not None:
        pairs = [[*one, other] for one, other in zip(pairs, others.tolist(), strict=True)]
    named = [" − ".join(f"“{token_name(trace.model, i)}”" for i in pair) for pair in pairs]
    return tuple(
        f"Logit of {tokens} at position {place}"
        for tokens, place in zip(named, places.tolist(), strict=True)
    )


def _entries(
    logits: Float[Tensor, "sentence vocab"], ids: Int[Tensor, " sentence"]
) -> Float[Tensor, " sentence"]:
    return logits.gather(-1, ids[:, None])[:, 0]


def _places(trace: Trace, sentences: list[int], position: object) -> Int[Tensor, " sentence"]:
    """The position of each sentence that was asked about."""
    wanted = one_each(position, len(sentences), "positions", TraceError)
    for place in wanted:
        if not isinstance(place, str) and not is_whole(place):
            raise TraceError(f"{place!r:.80} is no position; expected a whole number, or a token.")
    places = [
        find_token(trace.tokens, place, what="position", sentence=sentence)
        for sentence, place in zip(sentences, wanted, strict=True)
    ]
    return torch.tensor(places, device=trace.embed.device)


Terms = list[tuple[Component, Float[Tensor, " sentence"]]]


def logit_direction(
    rows: Trace, head: VocabularyHead, token: Tensor, against: Tensor | None
) -> tuple[Float[Tensor, "sentence d_model"], Terms]:
    """What reads the logit from the last resid_post at the one position of `rows`; and biases."""
    direction, behind = _through_head(head, rows.hidden[:, 0], token, against)
    direction = _through_norm("final norm bias", FrozenNorm.of_final(rows), direction, behind)
    return direction, behind[::-1]


def _logit_terms(rows: Trace, head: VocabularyHead, token: Tensor, against: Tensor | None) -> Terms:
    """Every component and its value, in the order of the data, at the one position of `rows`."""
    direction, behind = logit_direction(rows, head, token, against)
    parts = Written(rows, len(rows) - 1, "resid_post", heads=True).vectors()
    terms = [(component, (part[:, 0] * direction).sum(-1)) for component, part in parts]
    return terms + behind


def _through_head(
    head: VocabularyHead, hidden: Tensor, token: Tensor, against: Tensor | None
) -> tuple[Float[Tensor, "sentence width"], Terms]:
    """The direction that reads the logit from the hidden state, and what biases on the way add."""
    weight, bias, behind = head.W_U.mT, head.b_U, Terms()
    direction = wide(weight[token])
    if against is not None:
        direction = direction - wide(weight[against])
    if bias is not None:
        constant = wide(bias)[token] - (0 if against is None else wide(bias)[against])
        behind.append((Component("unembedding bias"), constant))
    if head.transform is None or head.norm is None:
        return direction, behind
    pre, width = head.transform(hidden), hidden.shape[-1]
    norm = FrozenNorm.of(head.norm, activate(pre, head.activation)[:, None])
    direction = _through_norm("transform norm bias", norm, direction, behind)
    direction = direction * gate(pre, head.activation)
    if (offset := offset_of(head.transform, width)) is not None:
        behind.append((Component("transform bias"), (wide(offset) * direction).sum(-1)))
    return direction @ wide(matrix_of(head.transform, width).mT), behind


def _through_norm(
    name: str, norm: FrozenNorm | None, direction: Tensor, behind: Terms
) -> Float[Tensor, "sentence width"]:
    """The direction in front of a norm at the one position; what its bias adds is noted."""
    if norm is None:
        return direction
    frozen = norm.at(0)
    if frozen.bias is not None:
        behind.append((Component(name), (frozen.bias * direction).sum(-1)))
    return frozen.pull(direction)


def gate(pre: Float[Tensor, "*rows width"], activation: str) -> Float[Tensor, "*rows width"]:
    """The share of its input that an activation let through: activation(pre) / pre.

    For gelu it is Φ(pre), for relu 1 or 0. Every activation here is 0 at 0, so that the gate
    times pre is the activation exactly.
    """
    post = activate(pre, activation)
    return torch.where(pre == 0, 0, wide(post) / torch.where(pre == 0, 1, wide(pre)))
