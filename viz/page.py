"""A page: attention as one HTML file that opens without a network.

trace or tensors -> inputs (checked) -> labels, payload -> bundle -> Page
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from minibert.errors import AttentionError
from minibert.viz.bundle import document
from minibert.viz.inputs import (
    attention_layers,
    checked_layer,
    checked_numbers,
    checked_tokens,
    to_array,
)
from minibert.viz.labels import (
    Label,
    TokensLike,
    is_cut,
    label_columns,
    labels_from_strings,
    labels_from_tokens,
    written_texts,
)
from minibert.viz.payload import Block, header_json, pack_layer
from minibert.viz.saving import write_page

__all__ = ["Page", "TraceLike", "attention_page", "head_page"]

# CSS pixels of a page in a notebook; a longer one scrolls in its frame.
_FRAME_HEIGHT = 720

if TYPE_CHECKING:
    Numbers = Iterable[int] | None
    Strings = Sequence[str]
else:
    # Checked in inputs.py, with an error that says what to do; a run-time type checker must
    # not get in before it.
    Numbers = Strings = object


@runtime_checkable
class _Sizes(Protocol):
    @property
    def n_layers(self) -> int: ...

    @property
    def n_heads(self) -> int: ...


@runtime_checkable
class TraceLike(Protocol):
    """What a page reads of a trace; `trace[layer].probs` is (batch, head, query, key)."""

    @property
    def model_name(self) -> str:
        """What the model was loaded as."""

    @property
    def tokens(self) -> TokensLike:
        """The sentences."""

    @property
    def config(self) -> _Sizes:
        """How many layers and heads the model has."""

    def __len__(self) -> int:
        """Layers that can be read."""

    def __getitem__(self, layer: int) -> Any: ...


@dataclass(frozen=True, repr=False)
class Page:
    """A picture as one self-contained HTML file: `html` is its text."""

    html: str

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        size = len(self.html.encode()) / 1000
        return f"<Page of {size:.0f} kB; save('attention.html') writes it to a file>"

    def _repr_html_(self) -> str:
        """The page in a frame, as notebooks show it; in the frame it reaches nothing outside."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="Attention"'
            f' style="width: 100%; height: {_FRAME_HEIGHT}px; border: 0">'
            f"{escape(repr(self))}</iframe>"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The path of the file, now written whole or not at all; see `saving.write_page`.

        Raises MinibertError when the folder is missing, may not be written to, or is full.
        """
        return write_page(self.html, path)


def head_page(
    trace: TraceLike,
    *,
    sentence: int = 0,
    layers: Numbers = None,
    heads: Numbers = None,
    title: str | None = None,
) -> Page:
    """The head view of one sentence of a trace: lines from each token to where it looks.

    `layers` and `heads` choose what the page holds, all by default; numbers count from 0.
    Probabilities on the page are within 4e-3 of the trace. The same trace gives the same
    bytes. Raises AttentionError naming the argument when one does not fit.
    """
    n_sentences = len(trace.tokens.raw)
    if not 0 <= sentence < n_sentences:
        raise AttentionError(f"sentence={sentence}, but the trace holds {n_sentences}, from 0")
    labels = labels_from_tokens(trace.tokens, sentence)
    if not labels:
        raise AttentionError(f"sentence {sentence} of the trace has no tokens")
    shown_layers = checked_numbers(layers, len(trace), "layers")
    shown_heads = checked_numbers(heads, trace.config.n_heads, "heads")
    length = len(labels)
    blocks = []
    for layer in shown_layers:
        probs = to_array(trace[layer].probs[sentence], f"trace[{layer}].probs")
        # An edit may have changed the sums of rows on purpose.
        probs = checked_layer(
            probs[:, :length, :length], f"trace[{layer}].probs[{sentence}]", row_sums=False
        )
        blocks.append(pack_layer(layer, probs[shown_heads]))
    known = trace.tokens.texts[sentence] if trace.tokens.texts else ()
    return _page(
        blocks,
        labels,
        texts=list(known) or written_texts(labels),
        cut=is_cut(trace.tokens, sentence),
        sizes={"n_layers": trace.config.n_layers, "n_heads": trace.config.n_heads},
        heads=shown_heads,
        model=_without_folder(trace.model_name),
        title=title,
    )


def attention_page(
    attention: Any,
    tokens: Strings,
    *,
    sentence_b_start: int | None = None,
    sentence: int = 0,
    layers: Numbers = None,
    heads: Numbers = None,
    model: str = "",
    title: str | None = None,
) -> Page:
    """The head view of attention weights from any model.

    attention         a list or tuple of (batch, head, query, key), one a layer, as
                      transformers returns it, or one (layer, head, query, key) array
    tokens            the tokenizer's strings, one a position
    sentence_b_start  the position of the second text's first token, where there are two
    sentence          which one of the batch

    Raises AttentionError naming the argument: a wrong shape, NaN, rows that do not add up to
    one (to 1e-2, for half precision), tokens that do not match, or nothing at all.
    """
    checked = attention_layers(attention, sentence)
    n_heads, n_tokens, _ = checked[0].shape
    strings = checked_tokens(tokens, n_tokens)
    if sentence_b_start is not None and not 0 < sentence_b_start < n_tokens:
        raise AttentionError(
            f"sentence_b_start={sentence_b_start}, expected a position from 1 to {n_tokens - 1}"
        )
    labels = labels_from_strings(strings, sentence_b_start)
    shown_heads = checked_numbers(heads, n_heads, "heads")
    shown_layers = checked_numbers(layers, len(checked), "layers")
    return _page(
        [pack_layer(layer, checked[layer][shown_heads]) for layer in shown_layers],
        labels,
        texts=written_texts(labels),
        cut=False,
        sizes={"n_layers": len(checked), "n_heads": n_heads},
        heads=shown_heads,
        model=model,
        title=title,
    )


def _without_folder(name: str) -> str:
    """A model's name; of a path only its end, since pages are passed on to others."""
    is_path = os.path.isabs(name) or name.startswith((".", "~"))
    return os.path.basename(os.path.normpath(name)) if is_path else name


def _page(
    blocks: Sequence[Block],
    labels: Sequence[Label],
    *,
    texts: list[str],
    cut: bool,
    sizes: dict[str, int],
    heads: list[int],
    model: str,
    title: str | None,
) -> Page:
    example = {
        "arrays": [block.entry for block in blocks],
        "causal": all(block.entry["triangle"] for block in blocks),
        "cut": cut,
        "edited": False,
        "heads": heads,
        "key_tokens": None,
        "layers": [block.entry["layer"] for block in blocks],
        "lens": None,
        "model": model,
        "name": "",
        "notes": [],
        "scale": None,
        "sizes": {"d_head": None, **sizes},
        "texts": texts,
        "tokens": label_columns(labels),
    }
    header = {"examples": [example], "format": 2, "title": title, "view": "head"}
    pieces = ((block.name, block.data) for block in blocks)
    return Page(document("main.js", header_json(header), pieces))
