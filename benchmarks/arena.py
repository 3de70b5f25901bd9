"""Which cells of ARENA 2.0's first chapter run here with TransformerLens' numbers.

    python -m benchmarks.arena CHECKOUT FOLDER transformer_lens theirs.json
    python -m benchmarks.arena CHECKOUT FOLDER minibert.transformer_lens ours.json
    python -m benchmarks.arena --compare theirs.json ours.json counts.json

Run where TransformerLens 3.9, plotly, scikit-learn and ipython are. A few numbers of every name
that a cell sets are kept. CHECKOUT also holds what cells would download. In both engines FOLDER
stands in for GPT-2, mocks for packages that draw or log, and small sizes for large.
"""

import contextlib
import importlib.machinery
import json
import os
import random
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

MOCKS = ("circuitsvis", "gdown", "ipywidgets", "mingpt", "neel_plotly", "wandb")
CHANGES = {
    "[\"']cuda[\"']": "'cpu'", r"\.cuda\(\)": "", r"get_ipython\(\)": "MagicMock()",
    "!git.*": "pass", r"\b768\b": "48", r"\b3072\b": "192", "(d_head(?:: int = |=))64": r"\g<1>4",
    "num_workers=4": "num_workers=0", "num_proc=4": "num_proc=None", "_size=1000": "_size=8",
    "size = 32\n": "size = 2\n", "epoch = 500": "epoch = 3", r"N = 25\b": "N = 6", "=50, ": "=4, ",
    "N = 10_?000": "N = 300", r"S = 5000\b": "S = 600", "int = 50000": "int = 50",
    "epochs: int = 8": "epochs: int = 1", r"range\(100\)": "range(10)", r"\[400\]": "[-1]",
}  # fmt: skip
Numbers = dict[str, list[float]]


def add(kept: Numbers, name: str, value: Any, depth: int = 0) -> None:
    """Put the shape, the sum of magnitudes and a few entries of every number into `kept`."""
    value = getattr(value, "cache_dict", value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).numpy()
    if hasattr(value, "mdim"):
        value = [value.S, *value.shape]
    if isinstance(value, str):
        kept[name] = list(map(float, value[:200].encode()))
    elif isinstance(value, bool | int | float | np.ndarray | np.number):
        if (flat := np.asarray(value).ravel()).dtype.kind in "biuf":
            flat = np.nan_to_num(flat.astype(float), posinf=1e4, neginf=-1e4)
            some = flat[:: flat.size // 5 + 1].tolist()
            kept[name] = [*map(float, np.shape(value)), float(np.abs(flat).sum()), *some]
    elif depth < 3 and isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in list(pairs)[:400]:
            add(kept, f"{name}.{key}", each, depth + 1)


def prepare(engine: str, gpt2: str) -> None:
    """Give the engine the name that cells import, and the folder for GPT-2 and its tokenizer."""
    packages: Any = map(importlib.import_module, ("datasets", "tqdm.notebook", "transformers"))
    datasets, notebook, transformers = packages
    for name in ("", ".hook_points", ".utils", ".components", ".patching"):
        sys.modules[f"transformer_lens{name}"] = importlib.import_module(engine + name)
    for name in MOCKS:
        sys.modules[name] = MagicMock(__spec__=importlib.machinery.ModuleSpec(name, None))
    sys.modules["transformers.models.gpt2.tokenization_gpt2_fast"] = transformers
    notebook.tqdm = importlib.import_module("tqdm").tqdm
    lens: Any = sys.modules["transformer_lens"]
    tokenizer = transformers.GPT2TokenizerFast.from_pretrained(gpt2)
    hf = transformers.GPT2LMHeadModel.from_pretrained(gpt2)
    hf.config.n_ctx = hf.config.n_positions
    transformers.AutoConfig.from_pretrained = lambda *_, **__: hf.config
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: tokenizer
    made, load = lens.HookedTransformerConfig.__init__, lens.HookedTransformer.from_pretrained
    lens.HookedTransformer.from_pretrained = partial(load, hf_model=hf, tokenizer=tokenizer)

    def of_folder(self: Any, **options: Any) -> None:
        made(self, **options | ({"tokenizer_name": gpt2} if options.get("tokenizer_name") else {}))

    lens.HookedTransformerConfig.__init__ = of_folder
    torch.load = partial(torch.load, map_location="cpu")
    lens.utils.download_file_from_hf = lambda folder, name: torch.load(name)
    random.seed(0)
    drawn = partial(random.choices, sorted(tokenizer.get_vocab()), k=300)
    rows = [{"text": " ".join(drawn()), "meta": ""} for _ in range(40)]
    datasets.load_dataset = lambda *_, **__: datasets.Dataset.from_list(rows)


def run(folder: Path) -> list[dict[str, Any]]:
    """The cells of a part: their number and last line, error if any, and numbers."""
    sys.path[:0] = [str(folder.parent), str(folder)]
    os.chdir(folder)
    source = (folder / "solutions.py").read_text()
    for old, new in CHANGES.items():
        source = re.sub(old, new, source)
    place = {"__name__": "__main__", "__file__": str(folder / "solutions.py")}
    names, cells = {**place, "MagicMock": MagicMock}, []
    for number, cell in enumerate(re.split("(?m)^# %%.*$", source)):
        if not (lines := re.findall(r"(?m)^\s*([^#\s].*)$", cell)):
            continue
        for seeding in (torch.manual_seed, np.random.seed, random.seed):
            seeding(number)
        before, kept, error = dict(names), Numbers(), ""
        try:
            with contextlib.redirect_stdout(None):
                exec(compile(cell, f"{folder.name}, cell {number}", "exec"), names)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"[:200]
        for name, value in names.items():
            if before.get(name) is not value and name[0] != "_":
                add(kept, name, value)
        cells.append({"cell": f"{number}: {lines[-1]}", "error": error, "numbers": kept})
    return cells


def apart(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """What a cell gives else here: an error or the names of numbers; "" where all are the same."""
    close = partial(np.allclose, rtol=2e-3, atol=2e-4)
    pairs = {name: (x, ours["numbers"].get(name, [])) for name, x in theirs["numbers"].items()}
    differ = [n for n, (x, y) in pairs.items() if len(x) != len(y) or not close(x, y)]
    return ours["error"] or ", ".join(differ)[:200]


def compared(theirs: Any, ours: Any) -> dict[str, Any]:
    """Of each part how many cells there are, run there, and give the same here; and the others."""
    found: dict[str, Any] = {}
    for part, cells in theirs.items():
        pairs = zip(cells, ours[part], strict=True)
        ran = [(cell["cell"], apart(cell, own)) for cell, own in pairs if not cell["error"]]
        others = {cell: why for cell, why in ran if why}
        found[part] = {"cells": len(cells), "run": len(ran), "same": len(ran) - len(others)}
        found[part]["others"] = others
    return found


if __name__ == "__main__":
    *given, last = sys.argv[1:]
    out = Path(last).resolve()
    if given[0] == "--compare":
        runs = [json.loads(Path(path).read_text()) for path in given[1:]]
        out.write_text(json.dumps(compared(*runs), indent=1) + "\n")
    else:
        checkout, gpt2, engine, *part = given
        prepare(engine, gpt2)
        parts = Path(checkout).resolve().glob(f"chapter1_*/exercises/part[1-6]*{''.join(part)}*")
        out.write_text(json.dumps({each.name: run(each) for each in sorted(parts)}))
