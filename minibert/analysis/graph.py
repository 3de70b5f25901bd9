"""A graph of one prediction: the words, heads and MLPs that a logit came from, and how.

A node is what one component wrote at one token. A link leads from it to what read it there. With
the weights of attention, what norms divide by and what activations let through (activation(x) / x)
frozen at their real values, the model is linear: what a node gives to the logit is the sum of what
it got by its V links (through a head's values, or into an MLP), and the links into the logit add up
to the logit. Q and K links say why a head looks where it looks: to first order, what the logit has
of the source's part in the head's query, and in the keys that it may see,

    Σ_k d logit / d score_k · score_k, the score taken apart by its query or by its keys.

Sources: Kamath et al. 2025, "Tracing attention computation through feature interactions"; Ameisen
et al. 2025, "Circuit tracing: revealing computational graphs in language models" (there with
transcoders; pruning, and the share that is kept); Achtibat et al. 2024 (AttnLRP) freeze activations
by the same rule. `PredictionGraph.save` writes the files of circuit-tracer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minibert.analysis.arguments import check_unedited, token_id
from minibert.analysis.reading import Reading, into_mlp, into_stream, seen_keys
from minibert.analysis.reasons import Why, why_logit
from minibert.analysis.rows import wide
from minibert.analysis.stream import Component, layer_of, mlp_of
from minibert.doors import Page, opened
from minibert.errors import TraceError, whole_number
from minibert.features import Features
from minibert.quantities import Float
from minibert.trace.read import Trace
from minibert.writing import check_place, replacing


class Node(NamedTuple):
    """What a component wrote at a token, and what the logit has of it.

    position   None for biases, which are not token's
    value      all that its links lead to the logit, those that are not shown too
    """

    component: Component
    position: int | None
    value: float


class Link(NamedTuple):
    """What the target has of the source, by number of their nodes, in units of the logit.

    `v` is part of the sum that the target is; `q` and `k` are to first order.
    """

    source: int
    target: int
    v: float
    q: float
    k: float

    @property
    def weight(self) -> float:
        """All three."""
        return self.v + self.q + self.k


@dataclass(frozen=True, eq=False)
class PredictionGraph:
    """The nodes and links of a logit that are larger than a share of its largest part.

    nodes    the logit first, then from the last layer to the words
    kept     of all that flows into the nodes shown, by size, the share that flows over the links
             shown
    number   the logit, before a soft cap
    ids      the token of each position, and then that of the logit
    """

    title: str
    tokens: tuple[str, ...]
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    kept: float
    number: float
    model: str
    ids: tuple[int, ...]
    probability: float

    def label(self, node: Node) -> str:
        """The name of a node, with its token."""
        if node.position is None or node.component == "logit":
            return str(node.component)
        token = f"{self.tokens[node.position]!r} {node.position}"
        return token if node.component == "word embedding" else f"{node.component} at {token}"

    def note(self) -> str:
        """The sentence that says what is seen."""
        return (
            f"{self.title[0].upper()}{self.title[1:]} is {self.number:+.2f}. {len(self.nodes)} "
            f"nodes and {len(self.links)} links, which carry {self.kept:.0%} of what flows into "
            "these nodes."
        )

    def __str__(self) -> str:
        lines = [self.note()]
        for link in sorted(self.links, key=lambda link: -abs(link.weight))[:10]:
            parts = zip("VQK", link[2:], strict=True)
            shown = ", ".join(f"{name} {value:+.2f}" for name, value in parts if value)
            source, target = (self.label(self.nodes[end]) for end in link[:2])
            lines.append(f"{link.weight:+.2f}  {source} -> {target} ({shown})")
        return "\n".join(lines)

    def page(self) -> Page:
        """The graph as one HTML file, which shows itself in a notebook; `.save(path)` writes it."""
        page: Page = opened("graph")(self)
        return page

    def save(self, path: str | Path) -> Path:
        """Write the graph as circuit-tracer's file: metadata, qParams, nodes, links.

        Its list of graphs, graph-metadata.json in the same folder, is written too. Heads, MLPs and
        neurons stand in place of features, with their names in `clerp`; each link has its v, q
        and k beside its weight. Raises TraceError for a name that does not end in .json and for
        a folder that is not there.
        """
        file = Path(path)
        if file.suffix != ".json":
            raise TraceError(f"{str(file)!r:.80}: expected a .json file; .page().save(...) draws.")
        check_place(file, TraceError)
        about: dict[str, object] = {
            "slug": file.stem, "scan": self.model, "transcoder_list": [],
            "prompt_tokens": list(self.tokens), "prompt": "".join(self.tokens),
            "node_threshold": None, "schema_version": 1,
        }  # fmt: skip
        nodes = self._nodes_of_file()
        links = [
            {"source": nodes[link.source]["node_id"], "target": nodes[link.target]["node_id"]}
            | {"weight": link.weight, "v": link.v, "q": link.q, "k": link.k}
            for link in self.links
        ]
        params = {"pinnedIds": [], "supernodes": [], "linkType": "both"}
        params |= {"clickedId": "", "sg_pos": ""}
        listed = file.with_name("graph-metadata.json")
        others = json.loads(listed.read_text(encoding="utf-8"))["graphs"] if listed.exists() else []
        others = [one for one in others if one["slug"] != file.stem]
        for where, content in (
            (file, {"metadata": about, "qParams": params, "nodes": nodes, "links": links}),
            (listed, {"graphs": [*others, about]}),
        ):
            with replacing(where) as fresh:
                fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return file

    def _nodes_of_file(self) -> list[dict[str, object]]:
        sizes = torch.tensor([0.0, *(abs(node.value) for node in self.nodes[1:])])
        order, shares = sizes.argsort(descending=True, stable=True), torch.zeros(len(sizes))
        shares[order] = sizes[order].cumsum(0) / sizes.sum().clamp(min=1e-30)
        last, found = len(self.tokens) - 1, list[dict[str, object]]()
        layers = [node.component.layer or 0 for node in self.nodes]
        names = sorted({node.component for node in self.nodes[1:]})
        for node, share in zip(self.nodes, shares.tolist(), strict=True):
            component = node.component
            place = last if node.position is None else node.position
            kind, layer, feature = "cross layer transcoder", str(component.layer), -1
            if component == "logit":
                kind, layer, feature = "logit", str(max(layers) + 2), self.ids[-1]
            elif component == "word embedding":
                kind, layer, feature = "embedding", "E", self.ids[place]
            else:
                feature = names.index(component)
                if component.kind not in ("head", "mlp", "neuron", "feature"):
                    kind, layer = "mlp reconstruction error", str(component.layer or 0)
            number = f"{layer}_{feature}_{place}"
            found.append({
                "node_id": number if kind != "mlp reconstruction error" else f"bias_{number}",
                "jsNodeId": f"{layer}_{feature}-{place}", "feature": feature, "layer": layer,
                "ctx_idx": place, "reverse_ctx_idx": 0, "run_idx": 0, "feature_type": kind,
                "token_prob": self.probability if kind == "logit" else 0.0,
                "is_target_logit": kind == "logit", "clerp": self._clerp(node),
                "influence": share if kind != "logit" else None, "activation": node.value,
            })  # fmt: skip
        return found

    def _clerp(self, node: Node) -> str:
        return self.title if node.component == "logit" else self.label(node)


@torch.no_grad()
def prediction_graph(
    trace: Trace,
    token: int | str,
    *,
    against: int | str | None = None,
    position: int | str = -1,
    sentence: int = 0,
    share: float | int = 0.1,
    neurons: int = 0,
    features: Features | None = None,
) -> PredictionGraph:
    """The graph of the logit of a token, or of logit(token) − logit(against).

    What gives less than `share` of the largest part of the logit has no node, and a link that
    carries less than a fifth of that is not shown; what flows through nodes that are left out is
    left out with them. `neurons` shows so many neurons of each MLP as nodes of their own.
    `features` are as in `why`, and are ends, as words are.

    It costs three readings of the stream for each node that is a head, one for each other.
    Raises TraceError and TokenizationError as `why_logit`; TraceError too for a trace with edits
    and for a share that is not between 0 and 1.
    """
    if not isinstance(share, float | int) or not 0 <= share <= 1:
        raise TraceError(f"share={share!r:.80}: expected a number from 0 to 1.")
    neurons = whole_number("neurons", neurons, TraceError, least=0)
    check_unedited(trace)
    whole = why_logit(
        trace, token, against=against, position=position, sentence=sentence, features=features
    )
    flow = _Flow(whole, share * whole.values.abs().max().item(), neurons)
    flow.run()
    text, place = whole.reading.trace, whole.reading.positions[0]
    nodes, links, kept = flow.shown()
    target = token_id(text.unchanged_model(), token)
    probs = wide(text.logits[0, place]).softmax(-1)
    return PredictionGraph(
        whole.title,
        text.tokens.strings[0],
        nodes,
        links,
        kept,
        whole.number,
        text.unchanged_model().name,
        (*text.tokens.ids[0].tolist(), target),
        probs[target].item(),
    )


class _Flow:
    """From the logit down to the words: which nodes give at least so much, and to whom.

    reads   what reads, of what a block wrote at each token, all that the nodes found so far have
    found   for each target and each of v, q, k: who gave how much, at which tokens
    """

    def __init__(self, whole: Why, least: float, neurons: int) -> None:
        self.text, self.least, self.neurons = whole.reading.trace, least, neurons
        self.split = whole.reading.split
        self.nodes = [Node(Component("logit"), whole.reading.positions[0], whole.number)]
        self.reads = dict[tuple[str, int | None], Tensor]()
        self.found = list[tuple[int, str, Sequence[Component], Sequence[int | None], Tensor]]()
        self._read(0, "v", whole.reading)

    def run(self) -> None:
        """Find the nodes of all layers."""
        for layer in reversed(range(len(self.text))):
            taken = () if self.split is None else self.split.found.features.places
            if ("mlp_out", layer) not in taken and self.text.config.d_mlp:
                self._mlps(layer)
            if ("attn_out", layer) not in taken:
                self._heads(layer)

    def _read(self, target: int, part: str, reading: Reading) -> None:
        """Note what a node has of every component, and read the same of every block."""
        components, parts = (reading := replace(reading, split=self.split)).parts()
        self.found.append((target, part, components, reading.positions, parts[..., 0]))
        for block, reader in reading.readers().items():
            whole = self.reads.setdefault(block, torch.zeros_like(wide(self.text.embed)[0]))
            whole[list(reading.positions)] += reader.directions[:, 0] * reader.scale

    def _add(self, component: Component, position: int | None, value: Tensor | float) -> int:
        self.nodes.append(Node(component, position, float(value)))
        return len(self.nodes) - 1

    def _mlps(self, layer: int) -> None:
        at, reads = self.text[layer], self.reads.get(("mlp", layer))
        if reads is None:
            return
        mlp, values = mlp_of(at), (wide(at.mlp_out)[0] * reads).sum(-1)
        for place in (values.abs() >= self.least).nonzero()[:, 0].tolist():
            pre, post = wide(at.mlp_pre)[0, place], wide(at.mlp_post)[0, place]
            by_neuron = wide(mlp.W_out) @ reads[place]
            let_through = torch.where(pre == 0, 0, post / torch.where(pre == 0, 1, pre))
            target = self._add(Component("mlp", layer), place, values[place])
            rest, sizes = by_neuron * let_through, post * by_neuron
            for neuron in sizes.abs().topk(min(self.neurons, len(sizes))).indices.tolist():
                own = torch.zeros_like(rest)
                own[neuron], rest[neuron] = rest[neuron].clone(), 0
                node = Component("neuron", layer, neuron)
                number = self._add(node, place, sizes[neuron])
                self.found.append((target, "v", [node], [place], sizes[neuron].reshape(1, 1)))
                self._read(number, "v", into_mlp(self.text, layer, place, own))
            constant = 0 if mlp.b_out is None else wide(mlp.b_out) @ reads[place]
            self._read(target, "v", into_mlp(self.text, layer, place, rest, constant))

    def _heads(self, layer: int) -> None:
        at, reads = self.text[layer], self.reads.get(("attention", layer))
        if reads is None:
            return
        attention, z = layer_of(at).attention, wide(at.z)[0]
        wanted = torch.einsum("hdm,pm->hpd", wide(attention.W_O), reads)
        values = (z * wanted).sum(-1)
        for head, place in (values.abs() >= self.least).nonzero().tolist():
            target = self._add(Component("head", layer, head), place, values[head, place])
            self._of_head(target, layer, head, place, wanted[head, place])

    def _of_head(
        self, target: int, layer: int, head: int, place: int, wanted: Float[Tensor, " d_head"]
    ) -> None:
        """What a head has of the values, queries and keys that it read."""
        text, at = self.text, self.text[layer]
        attention, row = layer_of(at).attention, text.at(layer, slice(head, head + 1), [place])
        own = head // attention.group
        keys = seen_keys(text, layer, [place])[0].nonzero()[:, 0]
        weights, scores = (wide(each)[0, 0, 0, keys] for each in (row.probs, row.scores))
        query, value = wide(at.query)[0, head, place], wide(at.value)[0, own, keys]
        key, places = wide(at.key)[0, own, keys], keys.tolist()
        given = weights * (value @ wanted)
        slope = (given - weights * given.sum()) * attention.scale
        if attention.soft_cap is not None:
            slope = slope * (1 - torch.tanh(scores / attention.soft_cap) ** 2)
        into_query = (slope @ key)[None, None]
        into_value, into_key = weights[:, None, None] * wanted, slope[:, None, None] * query
        self._read(target, "v", into_stream(text, layer, "value", own, places, into_value))
        self._read(target, "q", into_stream(text, layer, "query", head, [place], into_query))
        self._read(target, "k", into_stream(text, layer, "key", own, places, into_key))

    def shown(self) -> tuple[tuple[Node, ...], tuple[Link, ...], float]:
        """The nodes, with the words and biases that give as much, the links, and what is kept."""
        for (component, position), value in self._ends().items():
            if abs(value) >= self.least:
                self._add(component, position, value)
        numbers = {node[:2]: number for number, node in enumerate(self.nodes)}
        links, whole = dict[tuple[int, int], dict[str, float]](), 0.0
        for target, part, components, positions, values in self.found:
            whole += values.abs().sum().item()
            for component, row in zip(components, values.tolist(), strict=True):
                for position, value in zip(positions, row, strict=True):
                    source = numbers.get((component, _place_of(component, position)))
                    if source is not None:
                        link = links.setdefault((source, target), dict.fromkeys("vqk", 0.0))
                        link[part] += value
        found = [Link(*ends, *parts.values()) for ends, parts in links.items()]
        found = [link for link in found if abs(link.weight) >= self.least / 5]
        kept = sum(abs(part) for link in found for part in link[2:])
        return tuple(self.nodes), tuple(found), kept / max(whole, 1e-30)

    def _ends(self) -> dict[tuple[Component, int | None], float]:
        """What every word and every bias gives in all."""
        found = dict[tuple[Component, int | None], float]()
        for _, _, components, positions, values in self.found:
            for component, row in zip(components, values.tolist(), strict=True):
                if component.kind not in ("head", "mlp", "neuron"):
                    for position, value in zip(positions, row, strict=True):
                        key = component, _place_of(component, position)
                        found[key] = found.get(key, 0.0) + value
        return found


def _place_of(component: Component, position: int | None) -> int | None:
    """Where a node of this component stands: a bias is the same at all tokens."""
    return None if component.endswith(("bias", f"bias {component.layer}")) else position
