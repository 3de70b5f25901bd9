"""Live pages without torch: those of the embedded models, the story, and the page for any folder.

stored.json, and the weights and the tokenizer in embedded/ -> the file that live.py or any_model.py
makes, byte for byte

stored.json has what those two say about a model, and where in model.safetensors each weight lies.
`python -m scripts.stored_pages` writes it.
"""

import base64
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from minibert.untrusted import Json
from minibert.viz.document import (
    LIVE_PARTS,
    STORY_PARTS,
    Written,
    document,
    packed_text,
    page_header,
    worker_block,
)

#: The models whose live pages are stored: those that the story runs, in its order.
STORED_MODELS = ("tiny-bert", "tiny-gpt2")


@dataclass(frozen=True, repr=False)
class StoredPage(Written):
    """One HTML file that runs models; `.save(path)` writes it."""

    header: str
    blocks: tuple[tuple[str, str], ...]
    parts: tuple[str, ...]
    language: str = "en"

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        blocks = (worker_block(), *self.blocks)
        return document(self.header, blocks, parts=self.parts, language=self.language)


def stored_live(name: str, language: str = "en") -> StoredPage:
    """The live page of one of `STORED_MODELS`."""
    live, weights = _held(name)
    block = ("weights", base64.b64encode(weights).decode("ascii"))
    return StoredPage(page_header(live=live), (block,), LIVE_PARTS, language)


def stored_story(language: str = "en") -> StoredPage:
    """The page that tells how a transformer chooses a word."""
    held = [_held(name) for name in STORED_MODELS]
    header = page_header(story=[live for live, _ in held])
    blocks = ((f"weights{i}", packed_text(weights)) for i, (_, weights) in enumerate(held))
    return StoredPage(header, tuple(blocks), STORY_PARTS, language)


def stored_any(language: str = "en") -> StoredPage:
    """The page that opens with a place to drop a Hugging Face folder on."""
    return StoredPage(page_header(live=_stored()["any"]), (), LIVE_PARTS, language)


def _stored() -> Json:
    return dict(json.loads((files("minibert.viz") / "stored.json").read_text(encoding="utf-8")))


def _held(name: str) -> tuple[Json, bytes]:
    """What the engine and the page read of a model, and its weights, as `live._held` gives them."""
    stored, folder = _stored()[name], files("minibert") / "embedded" / name
    live = stored["live"]
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    live["vocabulary"]["tokenizer"] = tokenizer
    content = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    about = json.loads(content[8:start])
    parts = [_part(about[tensor], content[start:], *rest) for tensor, *rest in stored["weights"]]
    return live, b"".join(part + b"\0" * (-len(part) % 4) for part in parts)


def _part(about: Json, content: bytes, transposed: bool, first: int, rows: int) -> bytes:
    """Rows of a tensor of halves, or of its transpose."""
    begin, end = about["data_offsets"]
    data, shape = content[begin:end], about["shape"]
    if transposed:
        numbers = array("H", data)
        data = b"".join(numbers[column :: shape[1]].tobytes() for column in range(shape[1]))
        shape = shape[::-1]
    width = len(data) // shape[0]
    return data[first * width : (first + rows) * width]
