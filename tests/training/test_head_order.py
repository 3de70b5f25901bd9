"""Other indices for heads: the model computes the same, and every record of it follows."""

import json
from pathlib import Path

import pytest
import torch

import minibert
from minibert.analysis import head_scores
from minibert.checkpoint.save import save
from minibert.model import Model
from scripts.order_heads import main, reorder_heads

ORDERS = {0: [2, 0, 3, 1], 3: [1, 0, 2, 3]}
TEXT = "the old horse looked over the gate and saw the boys come down the road ."


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_heads_change_places_and_the_logits_stay(name: str) -> None:
    model, other = minibert.load(name), minibert.load(name)
    reorder_heads(other, ORDERS)
    before, after = model.trace(TEXT), other.trace(TEXT)
    # Sums over heads run in another order.
    assert (after.logits - before.logits).abs().max() <= 2e-5
    for layer in range(model.config.n_layers):
        order = ORDERS.get(layer, [0, 1, 2, 3])
        for quantity in ("query", "probs", "z"):
            expected = getattr(before[layer], quantity)[:, order]
            assert (getattr(after[layer], quantity) - expected).abs().max() <= 2e-5


@pytest.mark.parametrize(
    ("orders", "message"),
    [({4: [0, 1, 2, 3]}, "layer 4: expected 0 to 3"), ({0: [0, 1, 2, 2]}, "each of the 4 heads")],
)
def test_an_order_that_the_model_does_not_have_is_an_error(
    orders: dict[int, list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reorder_heads(minibert.load("tiny-bert"), orders)


def test_heads_that_share_keys_stay() -> None:
    with pytest.raises(ValueError, match="share keys"):
        reorder_heads(minibert.load("tiny-llama"), ORDERS)


def test_the_records_of_the_training_follow(tmp_path: Path) -> None:
    model: Model = minibert.load("tiny-bert")
    save(model, tmp_path, dtype=torch.float16)
    line = {"step": 1, "heads": head_scores(model, TEXT).by_pattern()}
    (tmp_path / "scores.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "training.json").write_text(json.dumps({"seconds": 1, "last": line}))
    assert main([str(tmp_path), "0=2,0,3,1", "3=1,0,2,3"]) == 0
    measured = head_scores(minibert.load(tmp_path), TEXT).by_pattern()
    written = json.loads((tmp_path / "scores.jsonl").read_text())["heads"]
    facts = json.loads((tmp_path / "training.json").read_text())
    assert facts["head_order"] == {"0": [2, 0, 3, 1], "3": [1, 0, 2, 3]}
    for pattern in ("previous", "next", "delimiter"):
        assert torch.tensor(written[pattern]) == pytest.approx(
            torch.tensor(measured[pattern]), abs=1e-4
        )
        assert facts["last"]["heads"][pattern] == written[pattern]
