"""Direct logit attribution: how much of a logit each component wrote itself.

A logit is a direction that reads the last hidden state. It is pulled back through everything that
stands between, down to each place where something was added to the stream; the value of a
component is the product of what it wrote with the direction at that place. So nothing of the size
of component x d_model is ever held. Only the direct path counts: that a component also changed
what later heads and MLPs read shows in their values.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace, is_whole, whole_number
from minibert.analysis.components import Component
from minibert.analysis.logit_path import logit_terms
from minibert.analysis.positions import rows_of
from minibert.analysis.precision import wide
from minibert.analysis.vocabulary import token_ids, token_name, vocabulary_head
from minibert.answers.explain import find_token
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float, Int
from minibert.trace.places import check_index
from minibert.trace.read import Trace

__all__ = ["LogitAttribution", "logit_attribution"]


@dataclass(frozen=True, eq=False)
class LogitAttribution:
    """What each component wrote into one logit, or into the difference of two.

    `*batch` is nothing for one sentence, and one axis where all sentences were asked about.
    """

    values: Float[Tensor, "*batch component"]
    """In logits (nats); their sum is the logit."""
    components: tuple[Component, ...]
    logit: Float[Tensor, "*batch"]
    """The model's own logit, or difference of logits; before the soft cap, where there is one."""
    token: Int[Tensor, "*batch"]
    against: Int[Tensor, "*batch"] | None
    positions: Int[Tensor, "*batch"]
    names: Mapping[int, str] = field(default_factory=dict, repr=False)
    """The tokens that were asked about as a person reads them."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each component, as "head 9-6"; minibert/analysis/components.py lists them."""
        return tuple(component.label for component in self.components)

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
        ranking = sorted(zip(self.labels, means, strict=True), key=lambda entry: -abs(entry[1]))
        return ranking[:count]

    def __getitem__(self, label: str) -> Float[Tensor, "*batch"]:
        """The value of one component, by its label. Raises TraceError where there is none."""
        if label not in self.labels:
            raise TraceError(
                f"There is no component {label!r}; there are, among others, "
                f"{', '.join(name for name, _ in self.top(5))}."
            )
        return self.values[..., self.labels.index(label)]

    def plot(self, path: str | Path | None = None, *, sentence: int = 0, count: int = 15) -> Figure:
        """The matplotlib Figure of the largest terms, and of those of every head.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Where the result is of several
        sentences, `sentence` counts them. Raises TraceError for one that is not there, and
        MinibertError without matplotlib.
        """
        single = self.values.dim() == 1
        row = check_index("sentence", sentence, 1 if single else len(self.values))
        values, heads = (v if single else v[row] for v in (self.values, self.by_head()))
        name, total = self._name(row), f"all of them {self.total.flatten()[row]:+.2f}"
        table = plots.by_head(heads, title="Heads", unit="logits (nats)", signed=True)
        return plots.terms(
            values,
            self.labels,
            count=count,
            title=name,
            unit="logits (nats)",
            total=total,
            table=table,
            path=path,
        )

    def _name(self, row: int) -> str:
        """What was asked about, in words."""
        ids = [int(self.token.flatten()[row])]
        ids += [] if self.against is None else [int(self.against.flatten()[row])]
        tokens = " − ".join(f"“{self.names[i]}”" if i in self.names else str(i) for i in ids)
        return f"Logit of {tokens} at position {int(self.positions.flatten()[row])}"

    def __str__(self) -> str:
        lines = ["component            logits, the largest first"]
        lines += [f"{label:<20} {value:+.3f}" for label, value in self.top()]
        return "\n".join([*lines, f"{'all of them':<20} {self.total.mean():+.3f}"])

    def __repr__(self) -> str:
        return f"LogitAttribution({len(self.components)} components: {self.top(1)[0][0]} first)"


@torch.no_grad()
def logit_attribution(
    trace: Trace,
    token: Any,
    *,
    against: Any = None,
    position: Any = -1,
    sentence: int | None = 0,
) -> LogitAttribution:
    """What each component wrote into the logit of `token` at a position.

    With `against`, into logit(token) − logit(against). Tokens are ids or text. `position` is a
    number, negative ones from the sentence's own end, or a token that stands in the text once.
    `sentence=None` is about every sentence of the batch: token, against and position are then one
    for all of them or one for each, and the result has the batch axis in front.

    The sum of the values is the logit, before a soft cap: within 1e-5 of the largest value in
    float32, 1e-10 in float64. That holds for edited traces too where the edit is of what a
    component writes (z, head_out, mlp_out and what they follow from) or of what a norm divides by,
    not of attn_out, a residual stream or the logits.

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
    terms = logit_terms(here, head, ids, others)
    logit = _entries(wide(read), ids) - (0 if others is None else _entries(wide(read), others))
    asked = ids if others is None else torch.cat([ids, others])
    # A batch of one and a single sentence differ in the axis alone.
    batch = slice(None) if sentence is None else 0
    return LogitAttribution(
        values=torch.stack([value for _, value in terms], -1)[batch],
        components=tuple(component for component, _ in terms),
        logit=logit[batch],
        token=ids[batch],
        against=None if others is None else others[batch],
        positions=places[batch],
        names={i: token_name(trace.model, i) for i in asked.unique().tolist()},
    )


def _entries(
    logits: Float[Tensor, "sentence vocab"], ids: Int[Tensor, " sentence"]
) -> Float[Tensor, " sentence"]:
    return logits.gather(-1, ids[:, None])[:, 0]


def _places(trace: Trace, sentences: list[int], position: Any) -> Int[Tensor, " sentence"]:
    """The position of each sentence that was asked about."""
    several = isinstance(position, Sequence) and not isinstance(position, str)
    if isinstance(position, Tensor):
        several, position = position.dim() > 0, position.tolist()
    wanted = list(position) if several else [position] * len(sentences)
    if len(wanted) != len(sentences):
        raise TraceError(
            f"There are {len(wanted)} positions for {len(sentences)} sentences; expected one for "
            "each, or a single one for all."
        )
    for place in wanted:
        if not isinstance(place, str) and not is_whole(place):
            raise TraceError(f"{place!r:.80} is no position; expected a whole number, or a token.")
    places = [
        find_token(trace.tokens, place, what="position", sentence=sentence)
        for sentence, place in zip(sentences, wanted, strict=True)
    ]
    return torch.tensor(places, device=trace.embed.device)
