"""A checkpoint of hundreds of megabytes loads within its size, in a process of its own."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.loading_at_size import measured, write
from benchmarks.session import REPOSITORY

SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 3584,
    "vocab_size": 32064,
}


def memory(process: int) -> dict[str, int]:
    """Bytes that a process holds of its own and of files of weights, by Linux's names.

    Pages of libraries, which come as they are needed, are left out.
    """
    found = {"RssAnon": 0, "RssFile": 0}
    weights = False
    try:
        lines = Path(f"/proc/{process}/smaps").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        name, *rest = line.split()
        if not name.endswith(":"):
            weights = line.endswith(".safetensors")
        elif name == "Anonymous:" or (name == "Rss:" and weights):
            found["RssAnon" if name == "Anonymous:" else "RssFile"] += int(rest[0]) * 1024
    return {**found, "VmHWM": sum(found.values())}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_held_once_at_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.loading_at_size.memory", memory)
    marks, size = write(tmp_path / "model", SIZES)
    # Packed weights are another matter: they are copies, for which pages are given back.
    own = {"PYTHONPATH": str(REPOSITORY), "MINIBERT_LINEAR": "torch", "OMP_NUM_THREADS": "2"}
    environment = os.environ | own
    mapped = measured("minibert", tmp_path / "model", environment, marks, size)
    assert 0.9 * size <= mapped["peak_mapped_bytes"]
    assert mapped["peak_bytes"] - mapped["before_anonymous_bytes"] <= 1.05 * size
    assert mapped["peak_anonymous_bytes"] - mapped["before_anonymous_bytes"] <= 0.05 * size
    wide = measured("minibert", tmp_path / "model", environment, marks, size, "float32")
    held = wide["peak_bytes"] - wide["before_anonymous_bytes"]
    assert size * 2 <= held <= 1.05 * size * 2
