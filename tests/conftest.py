"""What holds for every test: quiet libraries, hypothesis' settings, a fixed seed.

minibert is not imported here at the top: jaxtyping has to instrument it first.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# Read when huggingface_hub, transformers and tokenizers are first imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Time says nothing about rightness on a shared machine, so examples have no deadline.
settings.register_profile(
    "local", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same random numbers, whatever ran before it."""
    import torch

    torch.manual_seed(0)
