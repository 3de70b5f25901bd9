"""What each layer would predict, by the engine of a live page and by Python."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from live.engine_process import EngineProcess
from test_front_end import node

import minibert
from minibert.analysis.lens import logit_lens
from minibert.trace.edit import zero
from minibert.viz.live import live_page

TEXTS = (
    "The boys [MASK] very tired.",
    "Once upon a time there was a little girl who lived near the sea.",
    "Bees make honey",
)
# Probabilities are written with five decimals.
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=("tiny-bert", "tiny-gpt2"))
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Any, EngineProcess]]:
    """A model, and the engine of its page."""
    model = minibert.load(request.param)
    page = live_page(model)
    engine = EngineProcess(node())
    engine.open(page.header, page.weights)
    yield model, engine
    engine.close()


def compare(engine: EngineProcess, request: dict[str, Any], trace: Any) -> None:
    answer, _, _ = engine.trace(request)
    block = answer["header"]["lens"]["block"]
    _, _, (data,) = engine.trace(request, blocks=[block])
    found = json.loads(data)
    expected = logit_lens(trace, points=("embed", "resid_post"), top=5)
    assert found["points"] == list(expected.rows)
    probs = expected.probs[:, 0].numpy()
    assert np.allclose(found["probs"], probs, rtol=0, atol=TOLERANCE)
    for point, rows in enumerate(expected.strings):
        for position, strings in enumerate(rows[0]):
            # Two tokens as probable as one another may stand in either order.
            near = np.diff(probs[point, position]) > -2 * TOLERANCE
            loose = {rank + one for rank in np.flatnonzero(near) for one in (0, 1)}
            for rank in set(range(5)) - loose:
                assert found["strings"][point][position][rank] == strings[rank]


@pytest.mark.parametrize("text", TEXTS)
def test_the_lens_is_that_of_python(both: tuple[Any, EngineProcess], text: str) -> None:
    model, engine = both
    compare(engine, {"texts": [text], "edits": []}, model.trace(text))


def test_after_an_edit_the_lens_is_that_of_the_edited_pass(both: tuple[Any, EngineProcess]) -> None:
    model, engine = both
    edit = {"quantity": "mlp_out", "change": "zero", "layer": 1}
    edited = model.trace(TEXTS[0]).rerun({("mlp_out", 1): zero})
    compare(engine, {"texts": [TEXTS[0]], "edits": [edit]}, edited)
