"""Values of a pass for every token of a corpus, in arrays on the disk that are read back mapped.

What probes and sparse autoencoders are trained on. The corpus is streamed, the texts go through
the model in packed passes, and an interrupted run resumes with identical bytes.

resid_post-3.npy, z-3-5.npy   the values of each point: (token, ...)
token_ids, segments, words, spans, positions .npy   for each token; see `Collected`
starts.npy                    the token with which each text begins, and the number of tokens
texts.jsonl, text_starts.npy  the texts, and the byte with which each begins
manifest.json                 what was collected, of what, by which model; written at the end
progress.json                 how far an unfinished run has come
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import closing, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minibert.analysis.arguments import check_model
from minibert.errors import SurveyError, TokenizationError
from minibert.model import Model
from minibert.survey.collected import Collected
from minibert.survey.documents import Documents, corpus_hash
from minibert.survey.formats import Document, document_of
from minibert.survey.growing import LOCK, GrowingCollection, State
from minibert.survey.packed_pass import (
    PackedPass,
    TokenizedText,
    as_points,
    batches,
    tokenized,
)
from minibert.survey.versions import versions
from minibert.text.words import Words
from minibert.trace.identity import weights_digest
from minibert.training.lock import folder_locked

__all__ = ["DTYPES", "collect"]

DTYPES = ("float32", "float16", "float64")
#: A process that is killed loses at most what it did in so many seconds.
SECONDS_BETWEEN_SAVES = 5.0


def collect(
    model: Model,
    texts: Iterable[str | Words | Document],
    points: Iterable[Any],
    *,
    output: str | Path,
    dtype: str = "float32",
    special: bool = True,
    batch_tokens: int = 2048,
    on_error: str = "raise",
    resume: bool = True,
    progress: bool = False,
) -> Collected:
    """The values of points for every token of the texts, written to the folder `output`.

    texts         str, Words or Documents, one after the other: what `read_documents` gives, a
                  list, a generator. A text longer than the model's positions is cut into windows
    points        ("resid_post", 3): a layer's quantity; ("z", 3, 5): of one head; "embed"
    dtype         of the arrays: float32, float16 or float64
    special       whether special tokens ([CLS], [SEP]) have rows
    batch_tokens  a pass takes texts until it has so many tokens
    on_error      what to do with a text that gives no token, and a pair longer than the model's
                  positions: "raise", or "skip" and count it in the manifest
    resume        go on where an interrupted run of the same call stopped; False starts again
    progress      show a progress bar

    Raises TraceError for what is no model that minibert loads; SurveyError before the first pass
    for points the model does not have, options that do
    not fit and a folder that holds something else; while it runs for a full disk, after which what
    is complete is kept and the same call resumes.
    """
    check_model(model)
    if model.tokenizer is None:
        raise SurveyError(f"{model.name} has no tokenizer, which texts need.")
    for name, value, known in (("dtype", dtype, DTYPES), ("on_error", on_error, ("raise", "skip"))):
        if value not in known:
            raise SurveyError(f"{name}={value!r}: expected {', '.join(known)}.")
    if not isinstance(batch_tokens, int) or isinstance(batch_tokens, bool) or batch_tokens < 1:
        raise SurveyError(f"batch_tokens={batch_tokens!r}: expected a whole number from 1 on.")
    if isinstance(texts, str | Words):
        raise SurveyError("texts is one text; expected a list of texts, or read_documents(...).")
    chosen = as_points(points, model)
    options = {
        "model": {"name": model.name, "weights_sha256": weights_digest(model), "impl": model.impl},
        "points": [str(point) for point in chosen],
        "dtype": dtype,
        "special": bool(special),
        "batch_tokens": batch_tokens,
        "on_error": on_error,
    }
    passes = PackedPass(model, chosen, batch_tokens)
    folder = Path(output)
    with (
        folder_locked(folder, SurveyError, file=LOCK, work="collecting"),
        closing(GrowingCollection(folder, options, resume=resume)) as growing,
    ):
        reading = _Reading(texts, model, growing.state, skip=on_error == "skip")
        _go(reading, passes, growing, batch_tokens, show=progress)
        if not growing.finished:
            files = {"files": _files(texts)} if isinstance(texts, Documents) else {}
            device = str(model.body.word.weight.device)
            growing.finish({**files, "versions": {**versions(), "device": device}})
    return Collected.read(output)


def _go(
    reading: "_Reading",
    passes: PackedPass,
    growing: GrowingCollection,
    batch_tokens: int,
    *,
    show: bool,
) -> None:
    """Compute and write what is missing, and save now and then."""
    reading.pass_over(growing.state)
    if growing.finished:
        return reading.expect_end()
    growing.open({str(point): shape for point, shape in passes.shapes().items()})
    saved = time.monotonic()
    bar = _bar(reading.texts, show)
    try:
        for batch in batches(reading, batch_tokens, lambda text: text.size):
            values = {str(point): array for point, array in passes(batch).items()}
            growing.add(batch, values, reading.state)
            if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                growing.save()
                saved = time.monotonic()
            _advance(bar, reading.texts, growing.state)
    finally:
        bar.close()
        # What is complete is kept, whatever stopped the run.
        with suppress(SurveyError):
            growing.save()
    # There may be documents without tokens behind the last text.
    growing.count(reading.state)
    if not growing.state.texts:
        raise SurveyError("There is no text that has tokens; nothing was collected.")


class _Reading:
    """The documents of a corpus as tokens, and how many were read, of what hash."""

    def __init__(self, texts: Iterable[Any], model: Model, state: State, *, skip: bool) -> None:
        self.texts, self.model, self.skip = texts, model, skip
        self.state = deepcopy(state)
        self._hash = hashlib.sha256()
        self._items = enumerate(texts)

    def pass_over(self, state: State) -> None:
        """Read over the documents that were read already; SurveyError where they are others."""
        for _ in range(state.documents):
            if self._next() is None:
                break
        if state.documents and self._hash.hexdigest() != state.documents_sha256:
            raise self._others()

    def expect_end(self) -> None:
        """Raise SurveyError where there are more documents."""
        if self._next() is not None:
            raise self._others()

    def __iter__(self) -> Iterator[TokenizedText]:
        while (document := self._next()) is not None:
            self.state.documents += 1
            self.state.documents_sha256 = self._hash.hexdigest()
            try:
                text = tokenized(document, self.model)
            except TokenizationError as error:
                if not self.skip:
                    raise SurveyError(f"{document.id}: {error}") from None
                self.state.skip(document.id, str(error))
            else:
                yield text

    def _next(self) -> Document | None:
        number, item = next(self._items, (0, None))
        if item is None:
            return None
        document = document_of(item, number)
        content = [document.text, document.words, document.pair]
        self._hash.update(json.dumps(content).encode() + b"\n")
        return document

    def _others(self) -> SurveyError:
        return SurveyError(
            "The folder holds a collection of other texts: they are not the same in number, "
            "content or order. Choose another folder, or start again with resume=False."
        )


def _files(texts: Documents) -> dict[str, Any]:
    """What the manifest says of the files of a corpus."""
    return {
        "names": [path.name for path in texts.files],
        "sha256": corpus_hash(texts.files),
        "shorter": texts.n_short,
        "unreadable": texts.n_skipped,
        "first_unreadable": texts.skipped,
    }


def _bar(texts: Any, show: bool) -> Any:
    """A progress bar: of the bytes of files, else of texts."""
    options: dict[str, Any] = {
        "unit": " texts",
        "total": len(texts) if isinstance(texts, Sized) else None,
    }
    if isinstance(texts, Documents):
        options = {"unit": "B", "unit_scale": True, "total": texts.n_bytes}
    # tqdm shows no bar where standard error is no terminal.
    return tqdm(disable=None if show else True, **options)


def _advance(bar: Any, texts: Any, state: State) -> None:
    bar.update((texts.bytes_read if isinstance(texts, Documents) else state.documents) - bar.n)
    bar.set_postfix_str(f"{state.texts} texts, {state.tokens} tokens", refresh=False)
