"""docs/transformer_lens.md names what the cache has, model by model."""

import re
from pathlib import Path

import torch

import minibert
from minibert.loading import from_transformers
from tests.families import Sizes, hf_model
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain

ROTARY = ["gpt_neox", "llama", "gemma2", "olmo2"]


def test_the_table_in_the_docs_has_every_name_and_no_other() -> None:
    page = (Path(minibert.__file__).parents[1] / "docs" / "transformer_lens.md").read_text("utf-8")
    section = page.split("### All of them\n")[1].split("\n## ")[0]
    columns = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    models = {
        "gpt2": hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=1)),
        "bert": hf_model("bert", "BertForMaskedLM", Sizes(layers=1)),
    }
    models |= {name: rotary.model_of(plain(name), LANGUAGE[name]) for name in ROTARY}
    # By their columns behind the names.
    tables = {2: ["gpt2", "bert"], 4: ROTARY}
    told: dict[str, set[str]] = {family: set() for family in models}
    for _, theirs, *cells, _end in columns:
        for family, ours in zip(tables[len(cells)], cells, strict=True):
            if ours.strip() != "-":
                told[family] |= set(re.findall(r"`([\w.]*hook_\w+)`", theirs))
    for family, hf in models.items():
        model = from_transformers(hf)
        cache = model.trace(torch.arange(5)[None]).to_transformer_lens(attn_result=True)
        names = {re.sub(r"^blocks\.\d+\.", "", key) for key in cache}
        assert names == told[family], family
