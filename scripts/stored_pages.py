"""Writes viz/stored.json, of which `minibert live` makes pages without torch: see viz/stored.py.

    python -m scripts.stored_pages

Run it after a change of what a live page says of a model, of a family or of a quantity.
"""

import json
from pathlib import Path
from typing import Any

import minibert
from minibert.checkpoint.files import read_safetensors
from minibert.checkpoint.headers import EMBEDDED
from minibert.checkpoint.names import sources
from minibert.viz.any_model import any_page
from minibert.viz.live import live_page
from minibert.viz.stored import STORED_MODELS

FILE = Path(__file__).resolve().parents[1] / "viz" / "stored.json"


def stored() -> str:
    """The text of the file."""
    found: dict[str, Any] = {"any": json.loads(any_page().header)["live"]}
    for name in STORED_MODELS:
        model = minibert.load(name)
        live = json.loads(live_page(model).header)["live"]
        del live["vocabulary"]["tokenizer"]
        tensors, places = (
            read_safetensors(EMBEDDED / name / "model.safetensors"),
            sources(model.config),
        )
        weights = [_place(places[one["name"]], one["shape"][0], tensors) for one in live["entries"]]
        found[name] = {"live": live, "weights": weights}
    return json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n"


def _place(source: Any, rows: int, tensors: Any) -> tuple[str, bool, int, int]:
    """The tensor, whether it is stored transposed, its first row and how many, in our order."""
    (tensor,) = [one for one in tensors if one.endswith(source.names)]
    return tensor, source.transposed, source.part.start if source.part else 0, rows


if __name__ == "__main__":
    FILE.write_text(stored(), encoding="utf-8")
    print(FILE)
