"""Fetches minigpt-nano-sort, the model of docs/lessons/sorting.md, as a folder minibert loads.

    python scripts/fetch_sorter.py FOLDER

It is a part of llm-viz by Brendan Bycroft (https://github.com/bbycroft/llm-viz, MIT licence).
"""

import base64
import hashlib
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

COMMIT = "a3613d777084b8010211b2d53b3d46d4ee6874ea"
ADDRESS = (
    f"https://raw.githubusercontent.com/bbycroft/llm-viz/{COMMIT}/public/gpt-nano-sort-model.json"
)
SHA256 = "a38d5f450e0c808305973c587cdd389ca4de92bbf60fa6a4482bf9a03f0a6051"


def config_of(theirs: dict[str, Any]) -> dict[str, Any]:
    """Their settings as a Hugging Face config."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": theirs["vocab_size"],
        "n_positions": theirs["block_size"],
        "n_embd": theirs["n_embd"],
        "n_layer": theirs["n_layer"],
        "n_head": theirs["n_head"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    }


def weights_of(stored: dict[str, Any]) -> dict[str, np.ndarray]:
    """Their tensors by Hugging Face's names, which store linear layers of GPT-2 transposed."""
    weights = {}
    for name, tensor in stored.items():
        if name == "config" or name.endswith(".attn.bias"):  # the causal mask
            continue
        array = np.frombuffer(base64.b64decode(tensor["data"]), "<f4").reshape(tensor["shape"])
        linear = ".c_" in name and name.endswith(".weight")
        weights[name] = np.ascontiguousarray(array.T if linear else array)
    return weights


def main(folder: Path) -> None:
    """Writes the model into `folder`."""
    with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{ADDRESS} is not the file this lesson was written with; nothing was saved.")
    stored = json.loads(data)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights_of(stored), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(stored["config"]), indent=2))
    print(f"{folder}: minigpt-nano-sort, MIT licence, copyright Brendan Bycroft")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the folder to write: python scripts/fetch_sorter.py minigpt-nano-sort")
    main(Path(sys.argv[1]))
