"""A saved trace has the page that the trace itself has, without torch and without the model."""

import numpy as np
import pytest
import torch

import minibert
from minibert.trace.container import write_container
from minibert.trace.read import Trace
from minibert.viz import view
from minibert.viz.saved_trace import saved_traces
from tests.attention_pages import header_of
from tests.small_traces import KINDS, OTHER_KINDS, other_model, small_trace
from tests.trace.test_file import DAMAGED, contents, random_model

# A page of a rotary model shows vectors before they are turned, if it knows by how much.
TURNS = ("rotary", "turned")


def traces(kind: str) -> list[Trace]:
    """Three texts of different lengths: as they are, and after edits of scores and weights."""
    model = small_trace(**KINDS[kind]).model if kind in KINDS else other_model(kind)
    rows = [[(13 * i + 5) % 41 for i in range(n)] for n in (13, 7, 2)]
    plain = model.trace(input_ids=rows)
    return [
        plain,
        plain.rerun({("scores", 1): lambda scores: scores / 2}),
        plain.rerun({("probs", 0, 1): lambda probs: probs / 2}),
    ]


@pytest.mark.parametrize("kind", [*KINDS, *(set(OTHER_KINDS) - set(KINDS))])
def test_the_page_of_a_saved_trace_is_that_of_the_trace(kind, tmp_path):
    for trace in traces(kind):
        saved = saved_traces(trace.save(tmp_path / "a.safetensors"))
        for i, (one, length) in enumerate(zip(saved, trace.tokens.lengths, strict=True)):
            for layer in range(len(trace)):
                wanted = trace[layer].probs[i, :, :length, :length].numpy()
                np.testing.assert_allclose(one[layer].probs[0], wanted, atol=2e-6)
        ours, theirs = (header_of(view(of, lens=False, why=False)) for of in (saved, trace))
        for example in theirs["examples"]:
            for name in TURNS:
                example.pop(name, None)
        assert ours == theirs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_in_another_precision_are_not_taken_for_edited_ones(dtype, tmp_path):
    # Its weights are large: what half precision rounds away is more than what a page rounds away.
    model = small_trace(causal=True).model.to(dtype)
    trace = model.trace(torch.arange(40)[None], keep=("probs",))
    path = trace.save(tmp_path / "a.safetensors")
    (example,) = header_of(view(saved_traces(path), lens=False, why=False))["examples"]
    assert not example["edited"]


def test_a_file_that_is_no_trace_or_does_not_fit_is_an_error_or_has_a_page(tmp_path):
    trace = random_model().trace(torch.arange(5)[None].expand(3, 5))
    changes = [change for change, _ in DAMAGED.values()]
    refused = [
        lambda _, about: about["tokens"].pop("raw"),
        lambda _, about: about["tokens"]["raw"][0].__setitem__(1, 5),
        lambda _, about: about["tokens"]["strings"][0].__setitem__(1, "\ud800"),
        lambda _, about: about["tokens"]["special"][0].pop(),
        lambda _, about: about["model"]["config"].update(n_kv_heads=0),
        lambda _, about: about.update(scales=["x"]),
        lambda _, about: about.update(windows=[5]),
        lambda tensors, _: tensors.pop("layers.1.key"),
        lambda tensors, _: tensors.update({"layers.1.query": torch.ones(3, 1, 5, 5)}),
    ]
    path = tmp_path / "a.safetensors"
    for change in (*changes, *refused):
        tensors, about = contents(trace.save(path))
        change(tensors, about)
        write_container(path, tensors, about)
        try:
            view(saved_traces(path), lens=False, why=False)
        except minibert.MinibertError:
            continue
        assert change not in refused
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(minibert.TraceError, match="not a complete trace file"):
        saved_traces(path)
