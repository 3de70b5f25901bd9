"""The links of a graph add up, are what autograd gives, and are written as circuit-tracer reads."""

import json
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

import minibert
from minibert.analysis import prediction_graph
from minibert.analysis.graph import PredictionGraph
from minibert.errors import MinibertError
from minibert.trace.edit import zero
from minibert.trace.read import Trace
from tests.families import Sizes

FAMILIES = dict(VOCABULARY_CLASSES) | dict(ROTARY_CLASSES)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_flows_into_a_node_is_what_it_gives(family: str) -> None:
    _, model, _, tokens = both(family, FAMILIES[family], Sizes(layers=2, heads=2))
    trace = model.trace(tokens)
    found = prediction_graph(trace, 7, against=11, sentence=1, share=0, neurons=2)
    into, out = [0.0] * len(found.nodes), [0.0] * len(found.nodes)
    for link in found.links:
        into[link.target] += link.v
        out[link.source] += link.weight
    size = 1e-9 * max(abs(node.value) for node in found.nodes)
    for node, got, given in zip(found.nodes, into, out, strict=True):
        if node.component.kind in ("logit", "head", "mlp", "neuron"):
            assert got == pytest.approx(node.value, abs=size), node
        if node.component != "logit":
            assert given == pytest.approx(node.value, abs=size), node


def frozen(trace: Trace) -> dict[Any, Any]:
    """Edits that hold what norms divide by and what activations let through."""
    edits: dict[Any, Any] = {}
    for layer, at in enumerate(trace):
        for name in ("attention_norm_scale", "mlp_norm_scale"):
            edits[name, layer] = at.quantity(name).detach()
        pre, through = {}, (at.mlp_post / at.mlp_pre).detach()
        edits["mlp_pre", layer] = lambda value, pre=pre: pre.setdefault("now", value)
        edits["mlp_post", layer] = lambda _, pre=pre, through=through: pre["now"] * through
    if trace.config.pre_norm:
        edits["final_norm_scale"] = trace.final_norm_scale.detach()
    return edits


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_a_word_gives_its_gradient_times_itself_with_norms_and_gates_held(name: str) -> None:
    model = minibert.load(name, dtype=torch.float64)
    trace = model.trace(" river window summer horse river window summer")
    found = prediction_graph(trace, " horse", against=" river", share=0)
    ids = [model.tokenizer.encode(word)[-1] for word in (" horse", " river")]
    embed = trace.embed.detach().requires_grad_()
    with torch.enable_grad():
        logits = trace.rerun({"embed": lambda _: embed} | frozen(trace)).logits[0, -1]
        (slope,) = torch.autograd.grad(logits[ids[0]] - logits[ids[1]], embed)
    words: Tensor = model.body.W_E[trace.tokens.ids[0]]
    expected = (slope[0] * words).sum(-1)
    got = {node.position: node.value for node in found.nodes if node.component == "word embedding"}
    for position, value in enumerate(expected.tolist()):
        assert got[position] == pytest.approx(value, rel=1e-6, abs=1e-9)


@cache
def induction(**options: Any) -> PredictionGraph:
    model = minibert.load("tiny-gpt2")
    trace = model.trace(" river window summer horse garden letter morning river window summer")
    return prediction_graph(trace, " horse", **options)


def test_the_graph_of_induction_has_the_previous_token_head_in_its_keys() -> None:
    found = induction()
    links = [(found.label(found.nodes[a]), found.label(found.nodes[b])) for a, b, *_ in found.links]
    keys = {link: found.links[n].k for n, link in enumerate(links)}
    for head in ("1-0", "1-2", "1-3"):
        assert keys["head 0-3 at ' horse' 3", f"head {head} at ' summer' 9"] > 3
    assert 0.5 < found.kept < 1
    fewer = induction(share=0.3)
    assert len(fewer.nodes) < len(found.nodes)
    assert fewer.note() in str(fewer)


# circuit_tracer/frontend/graph_models.py of circuit-tracer 0.5.0.
METADATA = {
    "slug": str, "scan": str, "transcoder_list": list, "prompt_tokens": list, "prompt": str,
    "node_threshold": float | None, "schema_version": int,
}  # fmt: skip
PARAMS = {"pinnedIds": list, "supernodes": list, "linkType": str, "clickedId": str, "sg_pos": str}
NODE = {
    "node_id": str, "feature": int, "layer": str, "ctx_idx": int, "feature_type": str,
    "token_prob": float, "is_target_logit": bool, "run_idx": int, "reverse_ctx_idx": int,
    "jsNodeId": str, "clerp": str, "influence": float | None, "activation": float | None,
}  # fmt: skip


def test_the_file_is_what_circuit_tracer_reads(tmp_path: Path) -> None:
    found = induction(neurons=2)
    for name in ("first", "second", "first"):
        path = found.save(tmp_path / f"{name}.json")
    told = json.loads(path.read_text(encoding="utf-8"))
    assert set(told) == {"metadata", "qParams", "nodes", "links"}
    for fields, given in (
        (METADATA, told["metadata"]), (PARAMS, told["qParams"]), *((NODE, n) for n in told["nodes"])
    ):  # fmt: skip
        assert set(given) == set(fields)
        assert all(isinstance(given[name], kind) for name, kind in fields.items()), given
    ids = [node["node_id"] for node in told["nodes"]]
    assert len(set(ids)) == len(ids) == len(found.nodes)
    ends = [(ids.index(link["source"]), ids.index(link["target"])) for link in told["links"]]
    assert ends == [link[:2] for link in found.links]
    assert told["links"][0]["weight"] == pytest.approx(sum(found.links[0][2:]))
    listed = json.loads((tmp_path / "graph-metadata.json").read_text(encoding="utf-8"))["graphs"]
    assert [one["slug"] for one in listed] == ["second", "first"]


class Read(HTMLParser):
    """The tags of a page and its texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.texts = list[str](), list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_draws_every_node_and_link_and_runs_nothing() -> None:
    found = induction()
    page = Read(found.page().html)
    assert page.tags.count("g") == page.tags.count("rect") == len(found.nodes)
    # Four lines stand in the legend.
    assert page.tags.count("path") == len(found.links) + 4
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    hostile = "<script>alert(1)</script>"
    again = replace(found, tokens=(hostile,) * len(found.tokens), title=hostile, model=hostile)
    assert Read(again.page().html).tags == page.tags


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    trace = minibert.load("tiny-gpt2").trace("the horse ran away")
    found = induction()
    for words, call in {
        "share=2": lambda: prediction_graph(trace, 7, share=2),
        "neurons": lambda: prediction_graph(trace, 7, neurons=-1),
        "json": lambda: found.save(tmp_path / "graph.html"),
        "there is no folder": lambda: found.save(tmp_path / "no" / "graph.json"),
        "edit": lambda: prediction_graph(trace.rerun({("z", 0): zero}), 7),
    }.items():
        with pytest.raises(MinibertError, match=words):
            call()
