"""What holds for every test: quiet libraries, hypothesis' settings, a fixed seed.

minibert is not imported here at the top: jaxtyping has to instrument it first.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# Without a GPU, Triton runs in its interpreter. Triton reads this when it is first imported, which
# parts of torch do.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Read when huggingface_hub, transformers and tokenizers are first imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Time says nothing about rightness on a shared machine, so examples have no deadline.
settings.register_profile(
    "local", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
# Always the same examples there, and so fewer of them: those who work here draw new ones.
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, max_examples=30)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same random numbers, whatever ran before it."""
    torch.manual_seed(0)
