"""Edges to first order are what hooks on transformers give, and one by one path patching."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

import minibert
from minibert.analysis import edge_attribution, faithfulness, logit_difference, path_patching
from minibert.analysis.edges import EdgeEstimates
from minibert.errors import EditError, TraceError
from minibert.trace.edit import zero
from minibert.trace.read import Trace

FAMILIES = dict(VOCABULARY_CLASSES) | dict(ROTARY_CLASSES)


def pair(model: Any, tokens: Any) -> tuple[Trace, Trace]:
    """Three sentences, and the same with other tokens."""
    ids = torch.where(tokens.mask, (tokens.ids + 7) % 41, tokens.ids)
    other = minibert.Tokens.from_ids(ids, mask=tokens.mask, segments=tokens.segments)
    return model.trace(tokens), model.trace(other)


METRIC = logit_difference(5, 9)


def hooked(theirs: Any, ids: Tensor, embeds: Tensor | None = None) -> dict[str, Any]:
    """What each module of GPT-2 of transformers was given and gave, by its path."""
    seen: dict[str, Any] = {}

    def note(path: str) -> Any:
        def hook(_: Any, given: Any, out: Any) -> None:
            if isinstance(out, Tensor):
                out.retain_grad()
            seen[path] = given[0] if given else None, out

        return hook

    handles = [m.register_forward_hook(note(p)) for p, m in theirs.named_modules()]
    given = {"input_ids": ids} if embeds is None else {"inputs_embeds": embeds}
    logits = theirs(**given).logits[0, -1]
    (logits[5] - logits[9]).backward()
    for handle in handles:
        handle.remove()
    return seen


def by_hooks(theirs: Any, ids: Tensor, other: Tensor, steps: int) -> dict[tuple[str, str], float]:
    """(corrupt − clean output) · mean gradient of each edge, from the definition."""
    ours, corrupt = hooked(theirs, ids), hooked(theirs, other)
    wrote = {"embed": corrupt["transformer.h.0"][0] - ours["transformer.h.0"][0]}
    config, found, block = theirs.config, dict[tuple[str, str], float](), {"embed": -1}
    width = config.n_embd // config.n_head
    for n, layer in enumerate(theirs.transformer.h):
        path = f"transformer.h.{n}"
        z = corrupt[f"{path}.attn.c_proj"][0] - ours[f"{path}.attn.c_proj"][0]
        for h in range(config.n_head):
            own = slice(h * width, (h + 1) * width)
            wrote[f"head {n}-{h}"] = z[..., own] @ layer.attn.c_proj.weight[own]
            block[f"head {n}-{h}"] = 2 * n
        wrote[f"mlp {n}"] = corrupt[f"{path}.mlp"][1] - ours[f"{path}.mlp"][1]
        block[f"mlp {n}"] = 2 * n + 1
    table = theirs.transformer.wte.weight.detach()
    for step in range(1, steps + 1):
        seen = hooked(theirs, ids, torch.lerp(table[other], table[ids], step / steps))
        for n, layer in enumerate(theirs.transformer.h):
            path = f"transformer.h.{n}"
            reads = {
                f"mlp {n}": (2 * n + 1, "ln_2", "mlp.c_fc", layer.mlp.c_fc.weight, slice(None))
            }
            for h in range(config.n_head):
                for k, name in enumerate(("query", "key", "value")):
                    own = slice(k * config.n_embd + h * width, k * config.n_embd + (h + 1) * width)
                    there = 2 * n, "ln_1", "attn.c_attn", layer.attn.c_attn.weight, own
                    reads[f"{name} {n}-{h}"] = there
            for receiver, (place, norm, module, weight, own) in reads.items():
                x = seen[f"{path}.{norm}"][0].detach().requires_grad_()
                back = seen[f"{path}.{module}"][1].grad[..., own] @ weight[:, own].T
                (slope,) = torch.autograd.grad(layer.get_submodule(norm)(x), x, back)
                for sender in (s for s in wrote if block[s] < place):
                    share = (wrote[sender] * slope).sum().item() / steps
                    found[sender, receiver] = found.get((sender, receiver), 0.0) + share
        slope = seen["transformer.ln_f"][0]
        (slope,) = torch.autograd.grad(
            theirs.lm_head(theirs.transformer.ln_f(slope))[0, -1] @ sign(config.vocab_size), slope
        )
        for sender in wrote:
            share = (wrote[sender] * slope).sum().item() / steps
            found[sender, "logits"] = found.get((sender, "logits"), 0.0) + share
    return found


def sign(size: int) -> Tensor:
    direction = torch.zeros(size, dtype=torch.float64)
    direction[5], direction[9] = 1, -1
    return direction


@pytest.mark.parametrize("steps", [1, 4])
def test_estimates_are_those_of_hooks_on_transformers(steps: int) -> None:
    theirs, model, _, tokens = both("gpt2", "GPT2LMHeadModel")
    clean, corrupt = pair(model, tokens)
    found = edge_attribution(clean.text(0), corrupt.text(0), METRIC, steps=steps)
    expected = by_hooks(theirs, clean.tokens.ids[:1], corrupt.tokens.ids[:1], steps)
    assert len(expected) == int((~found.mean.isnan()).sum())
    for (sender, receiver), value in expected.items():
        ours = found.at(sender=sender, receiver=receiver).item()
        assert ours == pytest.approx(value, rel=1e-9, abs=1e-12), (sender, receiver)
    # Of a batch each pair is what it is alone.
    batch = edge_attribution(clean, corrupt, METRIC, steps=steps)
    torch.testing.assert_close(batch.values[0], found.values[0], equal_nan=True)


def without(edges: EdgeEstimates, sender: str, receiver: str) -> tuple[EdgeEstimates, int]:
    """Edges of which this one is the smallest, and how many the others are."""
    values = torch.ones_like(edges.values).masked_fill(edges.values.isnan(), torch.nan)
    values[:, edges.place("sender", sender), edges.place("receiver", receiver)] = 0
    return replace(edges, values=values), int((~values[0].isnan()).sum()) - 1


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3)
@given(data=st.data())
def test_one_edge_patched_is_a_direct_path(family: str, data: Any) -> None:
    _, model, _, tokens = both(family, FAMILIES[family])
    clean, corrupt = pair(model, tokens)
    edges = edge_attribution(clean, corrupt, METRIC)
    receivers = edges.labels["receiver"]
    # One norm of all heads together gives the others another query where one reads another stream.
    real = [
        (str(edges.labels["sender"][s]), str(receivers[r]))
        for s, r in (~edges.mean.isnan()).nonzero().tolist()
        if s and not (family == "olmo2" and str(receivers[r]).startswith(("query", "key")))
    ]
    sender, receiver = data.draw(st.sampled_from(real))
    others, count = without(edges, sender, receiver)
    found = faithfulness(others, clean, corrupt, METRIC, counts=[count])
    (kind, *place), (name, *there) = (
        label.replace("-", " ").split() for label in (sender, receiver)
    )
    points: list[Any] = ["logits"]
    if name != "logits":
        names = [name] if name != "mlp" else ["mlp_pre", "mlp_gate"]
        missing = model.config.absent_in(int(there[0]))
        points = [(each, *map(int, there)) for each in names if each not in missing]
    send = ("z" if kind == "head" else "mlp_out", *map(int, place))
    path = path_patching(clean, corrupt, METRIC, senders=[send], receivers=points, freeze_mlps=True)
    expected = path.values[send[1], :, send[2] if kind == "head" else -1]
    torch.testing.assert_close(found.metrics[0, 0], expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.clean, path.clean)


def lists(model: Any, texts: int) -> tuple[Trace, Trace, Any]:
    """Random lists that begin again, and the same with another word where the answer stood."""
    generator = torch.Generator().manual_seed(1)
    half = torch.stack([torch.randperm(3000, generator=generator)[:8] + 500 for _ in range(texts)])
    other = half.clone()
    other[:, 4] = torch.randperm(3000, generator=generator)[:texts] + 500
    clean, corrupt = (torch.cat([each, half[:, :4]], 1) for each in (half, other))
    metric = logit_difference(half[:, 4].tolist(), other[:, 4].tolist())
    return model.trace(clean), model.trace(corrupt), metric


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_few_edges_keep_the_metric_and_the_estimates_follow_exact_patches(name: str) -> None:
    model = minibert.load(name)
    clean, corrupt, metric = lists(model, 6)
    found, plain = (edge_attribution(clean, corrupt, metric, steps=steps) for steps in (8, 1))
    edges = int((~found.mean.isnan()).sum())
    assert [source for source, *_ in found.largest(1)] == ["embed"]
    # Found on some lists, and tested on others.
    fresh = lists(model, 12)
    curve = faithfulness(found, *fresh, counts=[0, 10, 40, edges])
    circuit, complement = curve.values.tolist()
    assert (circuit[0], circuit[-1]) == pytest.approx((0, 1), abs=1e-5)
    assert (complement[0], complement[-1]) == pytest.approx((1, 0), abs=1e-5)
    assert circuit[1] > 0.85
    assert complement[1] < 0.05
    assert circuit[2] > 0.95
    heads = [("z", 0, head) for head in range(model.config.n_heads)]
    exact, estimates = list[float](), ([], [])
    for head in range(model.config.n_kv_heads):
        path = path_patching(
            clean, corrupt, metric, senders=heads, receivers=[("value", 1, head)], freeze_mlps=True
        )
        exact += path.mean[0].tolist()
        for each, numbers in zip((found, plain), estimates, strict=True):
            own = each.mean[:, each.place("receiver", f"value 1-{head}")]
            numbers += own[1 : 1 + len(heads)].tolist()
    errors = [(torch.tensor(each) - torch.tensor(exact)).abs().mean() for each in estimates]
    assert errors[0] < errors[1]
    assert errors[0] < 0.25 * torch.tensor(exact).abs().mean()
    assert torch.corrcoef(torch.tensor([exact, estimates[0]]))[0, 1] > 0.98


def test_wrong_requests_are_refused() -> None:
    model = minibert.load("tiny-gpt2")
    clean, corrupt = model.trace("the horse ran"), model.trace("the boy ran")
    found = edge_attribution(clean, corrupt, METRIC)
    for words, call in {
        "steps=0": lambda: edge_attribution(clean, corrupt, METRIC, steps=0),
        "same length": lambda: edge_attribution(clean, model.trace("the boy"), METRIC),
        "from 0 to 479": lambda: found.circuit(480),
        "differ in the metric": lambda: faithfulness(found, clean, clean, METRIC, counts=[1]),
        "counts": lambda: faithfulness(found, clean, corrupt, METRIC, counts=5),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(EditError, match=words):
            call()
    with pytest.raises(TraceError, match="edits"):
        edge_attribution(clean.rerun({("z", 0): zero}), corrupt, METRIC)
