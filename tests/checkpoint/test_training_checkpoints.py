"""The checkpoints of one training, as Pythia's: branches of a repository, taken by `revision=`.

Biderman et al. 2023, "Pythia": step1000, step2000 and on are branches of each model's repository.
"""

from pathlib import Path

import pytest
import torch
from hub_client import Client
from hub_server import Hub
from torch import Tensor

import minibert
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model

STEPS = {"main": "lab/pythia", "step1000": "lab/pythia-1000", "step2000": "lab/pythia-2000"}
IDS = torch.tensor([[3, 5, 7, 11]])


@pytest.fixture
def trained(tmp_path: Path) -> dict[str, Tensor]:
    """What each of three checkpoints answers, whose folders lie under hub/."""
    config = Config(
        family="gpt_neox",
        task="causal-lm",
        vocab_size=23,
        n_positions=9,
        n_layers=2,
        n_heads=2,
        d_model=16,
        d_mlp=20,
        causal=True,
        tied=False,
        rotary=Rotary(2),
    )
    answers = {}
    for seed, (step, folder) in enumerate(STEPS.items()):
        model = Model.from_config(config, seed=seed)
        model.save(tmp_path / "hub" / folder)
        answers[step] = model(IDS)
    return answers


def test_each_revision_gives_its_own_weights_and_is_kept_in_the_cache(
    trained: dict[str, Tensor], tmp_path: Path
) -> None:
    hub = Hub(tmp_path / "hub", branches={k: v for k, v in STEPS.items() if k != "main"})
    options = {"cache_dir": str(tmp_path / "cache")}
    with hub.running(), Client(hub.url, tmp_path / "home") as client:
        for step, answer in trained.items():
            revision = {} if step == "main" else {"revision": step}
            folder = client.fetch("lab/pythia", **options, **revision)
            assert torch.equal(minibert.load(folder)(IDS), answer), step
        hub.log.clear()
        again = client.fetch("lab/pythia", **options, revision="step1000", offline=True)
        assert torch.equal(minibert.load(again)(IDS), trained["step1000"])
        assert hub.log == []
        assert "step7" in client.fail("lab/pythia", **options, revision="step7")
    assert not torch.equal(trained["step1000"], trained["step2000"])
