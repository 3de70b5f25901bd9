"""Class "vocabulary": tokenizer files of every kind, honest or with other parts and values.

Oracle: the tokenizers library itself reads and splits what is no special token.
"""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer as Backend

import minibert
from minibert.text.tokenizer import Tokenizer
from tests.siege import material
from tests.siege.judge import DiffersError, tolerate
from tests.siege.mutations import HOSTILE, change_value, mutate

TEXTS = [
    "The quick fox",
    "\u202e\x1b[31m \u00bd \u6211",
    "a [MASK] b <s> ##x",
    " ",
    "\u0301 e\u0301",
    "\U0001f642" * 9,
]
PARTS: dict[str, list[Any]] = {
    "normalizer": [
        {"type": "NFC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True},
        {"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": {"Regex": "(a+)+$"}},
        {"type": "Replace", "pattern": {"String": ""}, "content": "ab"}, {"type": "Nmt"},
        {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}, {"type": "ByteLevel"},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "StripAccents"},
        {"type": "Precompiled", "precompiled_charsmap": "/////w=="},
        {"precompiled_charsmap": "BAAAAP////8="},
    ],
    "pre_tokenizer": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False},
        {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always", "split": True},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": False},
        {"type": "Digits", "individual_digits": True}, {"type": "UnicodeScripts"},
        {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Removed", "invert": True},
        {"type": "CharDelimiterSplit", "delimiter": "e"}, {"type": "FixedLength", "length": 0},
        {"type": "FixedLength", "length": 3}, {"type": "Sequence", "pretokenizers": []},
    ],
    "decoder": [
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "CTC", "pad_token": "", "cleanup": 1},
        {"type": "Strip", "content": "T", "start": 2**40, "stop": 1}, {"type": "BPEDecoder"},
        {"type": "WordPiece", "prefix": "", "cleanup": True}, {"type": "Strip", "content": "ab"},
    ],
    "post_processor": [
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
         "pair": [], "special_tokens": {}},
        {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 9}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 2**31}}], "special_tokens": {}},
        {"type": "BertProcessing", "sep": ["[SEP]", 2**31], "cls": ["nobody", 0]},
        {"type": "ByteLevel", "trim_offsets": True}, {"type": "Sequence", "processors": []},
    ],
    "truncation": [
        {"max_length": 0, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        {"max_length": 4, "strategy": "OnlyFirst", "stride": 9, "direction": "Left"},
    ],
    "padding": [
        {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None,
         "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    ],
}  # fmt: skip


def build(folder: Path, random: Random) -> str:
    """A folder with nothing but the files of a tokenizer."""
    base = random.choice(material.vocabularies)
    folder.mkdir()
    for path in base.iterdir():
        if path.name not in ("config.json", "generation_config.json") and path.suffix in (
            ".json", ".txt",
        ):  # fmt: skip
            shutil.copy(path, folder)
    whole = folder / "tokenizer.json"
    kind = random.choice(("honest", "damage", "values", "part", "part"))
    if kind == "damage" or (kind != "honest" and not whole.exists()):
        return f"{base.name}: {mutate(folder, random)}"
    if kind == "honest":
        return f"{base.name}: honest"
    value = json.loads(whole.read_text("utf-8"))
    said = []
    for _ in range(random.choice((1, 1, 2))):
        if kind == "part":
            part = random.choice(sorted(PARTS))
            value[part] = random.choice(PARTS[part])
            said.append(f"{part} {json.dumps(value[part])[:80]}")
        else:
            inner = [value.get(name) for name in ("model", "added_tokens")]
            inner = [one for one in inner if one and isinstance(one, dict | list)]
            said.append(change_value(random.choice([value, *inner]), random))
    if random.random() < 0.2 and isinstance(value.get("added_tokens"), list):
        value["added_tokens"].append(_added(random))
    whole.write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))
    return f"{base.name}: {'; '.join(said)}"


def _added(random: Random) -> dict[str, Any]:
    flags = {name: random.random() < 0.5 for name in ("single_word", "lstrip", "rstrip", "special")}
    content = random.choice([one for one in HOSTILE if isinstance(one, str)] + ["the", "e"])
    number = random.choice((0, 5, 10**3, 2**32 - 1, -1))
    return {"id": number, "content": content, "normalized": True, **flags}


def use(folder: Path) -> None:
    """Tokenize and decode with it; what the library splits must be split so here."""
    honest = Tokenizer.from_folder(folder)
    theirs = _by_the_library(folder, honest)
    for text in TEXTS:
        try:
            tokens = honest(text)
            honest(text, "e")
            honest.decode(tokens.ids[0])
            tokens.strings[0]
            ids = honest.encode(text)
        except minibert.MinibertError as error:
            tolerate(error)
            continue
        if theirs is not None and ids != theirs.encode(text, add_special_tokens=False).ids:
            raise DiffersError(f"{text!a}: other ids than the library gives")


def _by_the_library(folder: Path, ours: Tokenizer) -> Backend | None:
    """The library's own tokenizer, where the special tokens are the same."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    theirs = Backend.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    mine = Backend.from_str(ours.to_json()).get_added_tokens_decoder()
    same = {i: str(token) for i, token in mine.items()} == {
        i: str(token) for i, token in theirs.get_added_tokens_decoder().items()
    }
    return theirs if same else None
