"""Run a notebook written for TransformerLens cell by cell, here or in TransformerLens itself.

    python -m tests.hooked.demo_runner NOTEBOOK FOLDER [--theirs]

FOLDER gets random models with the layout and the tokenizer of gpt2 under the names that the
notebooks load, and is the working directory, where a folder wins over a name of the Hub: the lines
that load a model stay as they are. Pictures are made and not shown. One line of JSON a cell: its
number, the lines that were changed, what it printed, and the error that ended it.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

# An import from TransformerLens, and what stands in its place. Nothing else is changed.
CHANGES = (
    (
        r"^(\s*)import transformer_lens\.util\w+ as utils",
        r"\1from minibert.transformer_lens import utils",
    ),
    (
        r"^(\s*)from transformer_lens\.model_bridge import",
        r"\1from minibert.transformer_lens import",
    ),
    (
        r"^(\s*)from transformer_lens\.HookedRootModule import",
        r"\1from minibert.transformer_lens import",
    ),
    (r"^(\s*)from transformer_lens\b", r"\1from minibert.transformer_lens"),
)
# The names that the notebooks load, and layers. Heads are narrow, so that hundreds of passes fit.
MODELS = {"gpt2": 12, "openai-community/gpt2": 12, "distilgpt2": 6}
HEADS, WIDTH = 12, 24


def make_models(folder: Path, tokenizer: Path) -> None:
    """Random models under the names of `MODELS`, the same in every run."""
    for name, layers in MODELS.items():
        # n_ctx stands in gpt2's own file, and TransformerLens reads it.
        config = transformers.GPT2Config(n_layer=layers, n_head=HEADS, n_embd=WIDTH, n_ctx=1024)
        model = transformers.GPT2LMHeadModel(config)
        generator = torch.Generator().manual_seed(layers)
        with torch.no_grad():
            for weight in model.parameters():
                noise = torch.randn(weight.shape, generator=generator)
                # Norms' weights stay about 1; wide enough that attention is not uniform.
                weight.copy_(weight + 0.1 * noise if weight.dim() == 1 else 0.4 * noise)
        model.save_pretrained(folder / name)
        transformers.GPT2TokenizerFast.from_pretrained(tokenizer).save_pretrained(folder / name)


def changed(source: str) -> tuple[str, list[str]]:
    """The cell with our imports, and the lines that were changed."""
    lines, found = source.splitlines(), []
    for number, line in enumerate(lines):
        for pattern, ours in CHANGES:
            other = re.sub(pattern, ours, line)
            if other != line:
                found.append(line.strip())
                lines[number] = other
                break
    return "\n".join(lines), found


def shell() -> Any:
    """IPython as Jupyter starts it, without pictures."""
    import plotly.basedatatypes
    from IPython.core.interactiveshell import InteractiveShell

    plotly.basedatatypes.BaseFigure.show = lambda self, *args, **options: None
    made = InteractiveShell.instance()
    made.extension_manager.load_extension("storemagic")
    return made


def run(notebook: Path, theirs: bool) -> None:
    """Run every cell of code, and print what became of it."""
    from IPython.utils.capture import capture_output

    running = shell()
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        if cell["cell_type"] != "code":
            continue
        source, lines = "".join(cell["source"]), []
        if not theirs:
            source, lines = changed(source)
        torch.manual_seed(number)
        with capture_output() as captured:
            result = running.run_cell(source)
        error = result.error_before_exec or result.error_in_exec
        told = {
            "cell": number,
            "changed": lines,
            "printed": captured.stdout,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:300],
        }
        print(json.dumps(told), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--theirs", action="store_true")
    asked = parser.parse_args()
    path = asked.notebook.resolve()
    os.chdir(asked.folder)
    run(path, asked.theirs)
