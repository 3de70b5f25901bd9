"""A folder that is dropped on a page: its numbers are Python's, and no folder breaks the page."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from live.engines import EngineError, EngineProcess
from live.folders import DRAWN, HOSTILE, drawn_folder

import minibert
from minibert.checkpoint.config import CONTRACT, config_from_hf
from minibert.errors import MinibertError
from minibert.layers.bodies import Body
from minibert.layers.layer import layer_quantities
from minibert.viz.any_model import any_page
from minibert.viz.engine_edits import OFF_PAGES
from minibert.viz.live import _config

TABLES = json.loads(any_page().header)["live"]["tables"]
TEXT = "The horse pulled the cart up the hill. \u010d"


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    started = EngineProcess()
    yield started
    started.close()


def same_config(found: dict[str, Any], config: Any) -> bool:
    """Whether the engine reads of a config.json what a page from Python holds."""
    # No layers are made for the many configs here.
    body: Any = SimpleNamespace(
        config=config,
        dtype=torch.float32,
        embed_project=config.d_embed != config.d_model or config.family == "albert" or None,
        position=config.positions == "learned" or None,
    )
    body.word_scale = Body.word_scale.fget(body)  # type: ignore[attr-defined]
    model: Any = SimpleNamespace(config=config, body=body, name="dropped")
    expected = json.loads(json.dumps(_config(model)))
    return all(_near(found.get(name), value) for name, value in expected.items())


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(other, float):
        return isinstance(one, int | float) and abs(one - other) <= 1e-9 * max(1, abs(other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("model_type", "draw"),
    [(name, draw) for name, (_, ends, _) in DRAWN.items() for draw in range(max(3, len(ends)))],
)
def test_every_quantity_of_a_drawn_folder_is_python_s(
    engine: EngineProcess, model_type: str, draw: int, tmp_path: Path
) -> None:
    seed = random.Random(f"{model_type} {draw}").randrange(2**20) // 6 * 6 + draw
    _, ends, _ = DRAWN[model_type]
    theirs = drawn_folder(model_type, tmp_path, seed, ends[draw % len(ends)])
    raw = json.loads((tmp_path / "config.json").read_text())
    model = minibert.load(tmp_path)
    (found,) = engine.answer("configs", raws=[raw], tables=TABLES)["configs"]
    assert same_config(found["config"], model.config)
    # Without WebAssembly once.
    engine.answer("folder", path=str(tmp_path), tables=TABLES, slow=draw == 2)
    text = TEXT + " <mask> <pad>" if model_type == "roberta" else TEXT
    trace = model.trace(text)
    names = [one for one in layer_quantities(model.config) if one not in OFF_PAGES]
    layers = range(model.config.n_layers)
    everything = [("embed", None), *((one, n) for n in layers for one in names), ("logits", None)]
    answer, numbers, _ = engine.trace({"texts": [text], "edits": []}, everything)
    assert answer["header"]["tokens"]["text"] == list(trace.tokens.strings[0])
    for (name, layer), one in zip(everything, numbers, strict=True):
        expected = getattr(trace if layer is None else trace[layer], name)[0].numpy()
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4, err_msg=f"{name} {layer}")
    given = {"input_ids": trace.tokens.ids}
    with torch.no_grad():
        said = theirs(**given)
    logits = said.get("prediction_logits", said.get("logits", said.get("last_hidden_state")))
    np.testing.assert_allclose(numbers[-1], logits[0].numpy(), rtol=1e-3, atol=2e-4)


# Also what only the groups of fields read.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 7, -1, 0.5, 2.5, "gelu", "silu", "absolute", "x", [], {}),
    *([0], ["BertModel"], ["GPT2LMHeadModel"], {"rope_type": "yarn", "factor": 2.0}),
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0},
    {"type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0},
    {"full_attention": {"rope_theta": 2.0}},
    {"partial_rotary_factor": 0.5},
    ["full_attention", "sliding_attention"],
    *(["sliding_attention"] * 2, {"0": "one", "1": "two", "2": "three"}, {"1": "one"}),
    *("regression", "single_label_classification", {"AutoModel": "own.Model"}),
]


@pytest.mark.parametrize("model_type", DRAWN)
def test_a_field_is_honoured_or_refused_and_never_ignored(
    engine: EngineProcess, model_type: str, tmp_path: Path
) -> None:
    drawn_folder(model_type, tmp_path, 6 * 7 + 2)
    raw = json.loads((tmp_path / "config.json").read_text())
    more = ("auto_map", "rope_theta", "rope_scaling", "max_window_layers", "no such field")
    fields = sorted({*CONTRACT[model_type], *raw, *more})
    raws = [raw | {field: value} for field in fields for value in VALUES]
    raws += [{name: value for name, value in raw.items() if name != field} for field in raw]
    answers = engine.answer("configs", raws=raws, tables=TABLES)["configs"]
    honoured = 0
    for one, answer in zip(raws, answers, strict=True):
        changed = {
            name: one.get(name)
            for name in {*one, *raw}
            if repr(one.get(name, "-")) != repr(raw.get(name, "-"))
        }
        try:
            config = config_from_hf(one)
        except MinibertError:
            # Not read by the engine: how many labels a model of words has, and where texts end.
            assert "error" in answer or {*changed} <= {"eos_token_id", "num_labels"}, changed
            continue
        if "error" not in answer:
            assert same_config(answer["config"], config), changed
            honoured += 1
        else:
            assert any(name in answer["error"] for name in (*changed, "rope_type")), changed
    assert honoured > len(fields)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    drawn_folder("gpt2", folder, 0, "LMHeadModel")
    return folder


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_folder_is_refused_in_a_sentence(
    engine: EngineProcess, sound: Path, kind: str, tmp_path: Path
) -> None:
    damage, message = HOSTILE[kind]
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    damage(tmp_path)
    with pytest.raises(EngineError, match=message) as refused:
        engine.answer("folder", path=str(tmp_path), tables=TABLES)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
