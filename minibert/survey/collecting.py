"""Values of a pass for every token of a corpus, in arrays on the disk that are read back mapped.

Probes and sparse autoencoders are trained on such arrays. The corpus is read in windows of
documents, the texts go through the model in packed passes, and an interrupted run resumes with
identical bytes.

resid_post-3.npy, z-3-5.npy   the values of each point: (token, ...)
token_ids, segments, words, spans, positions .npy   for each token; see `Collected`
starts.npy                    the token with which each text begins, and the number of tokens
texts.jsonl, text_starts.npy  the texts, and the byte with which each begins
manifest.json                 what was collected, of what, by which model; written at the end

During a run there is a file for each pass, piece-0.npz and so on. At the end they are joined, which
needs room for the values twice.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.errors import SurveyError, TokenizationError, check_index
from minibert.layers.config import Config
from minibert.layers.layer import absent_because
from minibert.model import Model
from minibert.quantities import QUANTITIES
from minibert.survey.documents import MOST_NAMED, Document, check_list
from minibert.survey.runs import (
    Read,
    RunFolder,
    Window,
    opened,
    told_of,
    unread,
    versions,
    write_json,
)
from minibert.survey.segments import Parts, grouped, joined, parts_of
from minibert.text.tokens import columns
from minibert.trace.identity import weights_digest
from minibert.trace.run import reads_single_positions
from minibert.untrusted import Json, guarded, open_regular, present, read_json
from minibert.writing import replacing

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Collected:
    """The values of a pass for every token of a corpus.

    >>> collected = Collected.read("vectors")  # doctest: +SKIP
    >>> collected.values("resid_post", 3)[collected.rows(7)]  # doctest: +SKIP

    folder     where it lies
    manifest   what was collected, of what, by which model
    starts     the token with which each text begins, and at the end the number of tokens

    For each token, mapped:

    tokens     its id in the model's vocabulary
    segments   its token type: 1 in the second text of a pair, where the model has it
    words      the number of its word within its text, or of the given word where the text was
               given as words; -1 for special tokens
    spans      (token, 2): its characters in the text, or in the given words joined by spaces; -1
               for tokens without characters
    positions  its position in the window that the model saw
    """

    folder: Path
    manifest: Json
    starts: Whole = field(repr=False)
    tokens: Whole = field(repr=False)
    segments: Whole = field(repr=False)
    words: Whole = field(repr=False)
    spans: Whole = field(repr=False)
    positions: Whole = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> "Collected":
        """The collection in a folder. Raises SurveyError where it is unfinished or damaged."""
        folder = Path(folder)
        if not present(folder / "manifest.json"):
            unfinished = present(folder / "unfinished.npz")
            raise SurveyError(
                f"{folder}: {'the collection is not finished' if unfinished else 'no collection'}"
                f"{'; run the same command again to resume' if unfinished else ' is there'}."
            )
        manifest = read_json(folder / "manifest.json", SurveyError)
        with guarded(folder / "manifest.json", SurveyError, "is not a manifest of collect"):
            n_texts, n_tokens = (manifest["counts"][name] for name in ("texts", "tokens"))
            points = list(manifest["options"]["points"])
        of_tokens = ("token_ids", "segments", "words", "spans", "positions")
        lengths = dict.fromkeys((*of_tokens, *points), n_tokens)
        for name, rows in {**lengths, "starts": n_texts + 1, "text_starts": n_texts + 1}.items():
            found = len(mapped(folder, name))
            if found != rows:
                raise SurveyError(
                    f"{folder / name}.npy has {found} rows, and manifest.json says {rows}: the "
                    "folder is damaged. Collect again."
                )
        return cls(folder, manifest, *(mapped(folder, name) for name in ("starts", *of_tokens)))

    def __len__(self) -> int:
        """The number of texts."""
        return int(self.manifest["counts"]["texts"])

    @property
    def points(self) -> tuple[str, ...]:
        """The points that were collected, as their files are named: "resid_post-3", "z-3-5"."""
        return tuple(self.manifest["options"]["points"])

    def values(self, name: str, layer: int | None = None, head: int | None = None) -> Floats:
        """The values of a point, mapped: (token, ...). Raises SurveyError where it is absent.

        (token, d_model) of a stream, (token, d_head) of one head, (token, head, d_head) of all.
        """
        point = "-".join(str(part) for part in (name, layer, head) if part is not None)
        if point in self.points:
            return self.array(point)
        if head is not None and f"{name}-{layer}" in self.points:
            whole = self.array(f"{name}-{layer}")
            if 0 <= head < whole.shape[1]:
                return whole[:, head]
        raise SurveyError(f"{self.folder} has no {point}; it has {', '.join(self.points)}.")

    def rows(self, index: int) -> slice:
        """The tokens of a text: a slice of every array."""
        index = self._index(index)
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    def text(self, index: int) -> Document:
        """The text as it was given."""
        index = self._index(index)
        first, end = (int(place) for place in self.array("text_starts")[index : index + 2])
        path = self.folder / "texts.jsonl"
        with open_regular(path, SurveyError) as file, guarded(f"{path}, text {index}", SurveyError):
            file.seek(first)
            about = json.loads(file.read(end - first))
            # JSON has no tuples.
            words, pair = (
                tuple(one) if isinstance(one, list) else one
                for one in (about["words"], about["pair"])
            )
            return Document(about["id"], about["text"], words, pair)

    def word_means(
        self,
        index: int,
        name: str,
        layer: int | None = None,
        head: int | None = None,
        *,
        segment: int = 0,
    ) -> Floats:
        """(word, ...): for each word of a text the mean over its tokens, in float64.

        Words that gave no token are NaN. `segment` 1 is the second text of a pair.
        """
        rows = self.rows(index)
        numbers = np.where(self.segments[rows] == segment, self.words[rows], -1)
        chosen = numbers >= 0
        values = np.asarray(self.values(name, layer, head)[rows][chosen], np.float64)
        text = self.text(index)
        given = text.pair if segment else text.words
        found = int(numbers.max(initial=-1)) + 1
        n_words = len(given) if isinstance(given, tuple) else found
        sums = np.zeros((n_words, *values.shape[1:]))
        np.add.at(sums, numbers[chosen], values)
        counts = np.bincount(numbers[chosen], minlength=n_words).astype(np.float64)
        counts[counts == 0] = np.nan
        return sums / counts.reshape(-1, *[1] * (values.ndim - 1))

    def _index(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise SurveyError(f"text {index}: there are {len(self)} texts.")
        return index % len(self)

    def array(self, name: str) -> np.ndarray:
        """The array in the file of that name, mapped."""
        return mapped(self.folder, name)


def mapped(folder: Path, name: str) -> np.ndarray:
    """The array in a file of a collection, mapped. Raises SurveyError where it cannot be read."""
    path = folder / f"{name}.npy"
    open_regular(path, SurveyError).close()
    with guarded(path, SurveyError):
        return np.load(path, mmap_mode="r", allow_pickle=False)


@dataclass(frozen=True)
class CollectedPoint:
    """A place in the pass whose values are collected: a quantity, its layer, one head or all."""

    name: str
    layer: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        return "-".join(str(p) for p in (self.name, self.layer, self.head) if p is not None)


def as_points(keys: Iterable[object], model: Model) -> tuple[CollectedPoint, ...]:
    """The points of keys such as ("resid_post", 3), ("z", 3, 5) and "embed"; each once.

    Raises SurveyError for what the model does not have, and for matrices.
    """
    points = tuple(_as_point(key, model) for key in keys)
    if not points:
        raise SurveyError('points=[]: expected at least one, such as ("resid_post", 3).')
    if len(set(points)) < len(points):
        twice = next(p for p in points if points.count(p) > 1)
        raise SurveyError(f"the point {twice} is named twice.")
    return points


def _as_point(key: object, model: Model) -> CollectedPoint:
    config: Config = model.config
    parts = (key,) if isinstance(key, str) else key
    # What there is one of in a text is not a token's; a norm after the layers is not computed
    # here.
    left_out = {"mask", "pooled", "final_norm_scale"}
    names = [n for n, q in QUANTITIES.items() if n not in left_out and "query" not in q.axes]
    if not isinstance(parts, tuple | list) or not 1 <= len(parts) <= 3 or parts[0] not in names:
        raise SurveyError(
            f"{key!r} cannot be collected; expected (name, layer) or (name, layer, head), the name "
            f"one of {', '.join(names)}."
        )
    name, quantity = parts[0], QUANTITIES[parts[0]]
    if name == "logits" and not reads_single_positions(model.head):
        raise SurveyError(f"logits of {model.name} belong to a whole text, not to its tokens.")
    if quantity.per_layer == (len(parts) == 1) or len(parts) > 2 + quantity.per_head:
        wanted = ["name", *["layer"] * quantity.per_layer, *["head"] * quantity.per_head]
        raise SurveyError(f"{key!r}: of {name} expected ({', '.join(wanted)}).")
    where = f"{key!r}: "
    numbers = [
        check_index(what, number, most, SurveyError, where)
        for what, number, most in zip(
            ("layer", "head"), parts[1:], (config.n_layers, config.n_heads), strict=False
        )
    ]
    absent = config.absent_in(numbers[0]) if numbers else frozenset[str]()
    if name in absent:
        raise SurveyError(f"{key!r} cannot be collected. {absent_because(name, config)}")
    return CollectedPoint(name, *numbers)


@dataclass(frozen=True, eq=False)
class CutText:
    """A document, and the parts of it that the model sees at once."""

    document: Document
    parts: Parts

    @property
    def size(self) -> int:
        """Tokens that the model computes."""
        return sum(map(len, self.parts.places))

    def index(self) -> dict[str, np.ndarray]:
        """What is known of each token of the parts, and which are kept always."""
        tokens, places = self.parts.tokens, np.concatenate(self.parts.places)
        spans = np.array([(-1, -1) if span is None else span for span in tokens.spans[0]])
        words = np.array([-1 if word is None else word for word in tokens.words[0]])
        return {
            "token_ids": tokens.ids[0].numpy()[places].astype(np.int32),
            "segments": tokens.segments[0].numpy()[places].astype(np.uint8),
            "words": words[places].astype(np.int32),
            "spans": spans[places].astype(np.int32),
            "positions": np.concatenate([np.arange(len(i)) for i in self.parts.places], dtype="i4"),
            "kept": spans[places, 0] >= 0,
        }

    def written(self) -> bytes:
        """The document as a line of the file of texts."""
        # The name of a file, which is in the id, need not be valid UTF-8.
        about = json.dumps(asdict(self.document), ensure_ascii=False)
        return about.encode(errors="surrogatepass") + b"\n"


@torch.no_grad()
def values_of(
    model: Model, points: Sequence[CollectedPoint], texts: Sequence[CutText], most: int
) -> dict[str, Floats]:
    """(token, ...) for each point, for the tokens of all parts of the texts, in order.

    The parts go through the model without padding, at most so many tokens at a time; a part that
    is longer is a pass of its own.
    """
    layers = [point.layer for point in points if point.layer is not None]
    whole = any(point.name == "logits" for point in points)
    found: dict[str, list[Floats]] = {str(point): [] for point in points}
    parts = [
        columns(text.parts.tokens, [place.tolist()])
        for text in texts
        for place in text.parts.places
    ]
    # A text may be a whole book, too long for one pass.
    for group in grouped(parts, most, lambda part: part.lengths[0]):
        until = None if whole else max(layers, default=0)
        trace = model.trace(joined(group), packed=True, until=until)
        for point in points:
            name, layer = point.name, point.layer
            value = getattr(trace, name) if layer is None else trace.read(name, layer)
            found[str(point)].append(_rows(value, point))
    return {name: np.concatenate(values) for name, values in found.items()}


def _rows(value: Tensor, point: CollectedPoint) -> Floats:
    """(token, ...) of a quantity of one row of packed tokens."""
    value = value[0]
    if QUANTITIES[point.name].per_head:
        value = value[point.head] if point.head is not None else value.transpose(0, 1)
    if value.dtype is torch.bfloat16:
        value = value.float()
    return value.cpu().numpy()


MANIFEST, PART, TEXTS = "manifest.json", "unfinished.npz", "texts.jsonl"
#: Arrays of where each text begins; of a piece the lengths of its texts.
STARTS = ("starts", "text_starts")
DTYPES = ("float32", "float16", "float64")


@dataclass(frozen=True)
class State:
    """How far a collection has come.

    read                      the windows of the corpus that are done
    documents                 in these, whether they have tokens or not
    texts, tokens, pieces     written; a piece is the file of one pass
    n_skipped, skipped        documents without tokens; the first hundred, and why
    """

    read: Read = field(default_factory=Read)
    documents: int = 0
    texts: int = 0
    tokens: int = 0
    pieces: int = 0
    n_skipped: int = 0
    skipped: tuple[tuple[str, str], ...] = ()


def collect(
    model: Model,
    texts: Iterable[object],
    points: Iterable[object],
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
                  list, a generator. A text longer than the model's positions is cut into parts
    points        ("resid_post", 3): a layer's quantity; ("z", 3, 5): of one head; "embed"
    dtype         of the arrays: float32, float16 or float64
    special       whether special tokens ([CLS], [SEP]) have rows
    batch_tokens  tokens that go through the model together
    on_error      what to do with a text that gives no token, and a pair longer than the model's
                  positions: "raise", or "skip" and count it in the manifest
    resume        continue where an interrupted run of the same call stopped, a window of documents
                  (runs.py) at a time; False starts over
    progress      show a progress bar

    Raises TraceError for anything but a model that minibert loads. Raises SurveyError before the
    first pass for points that the model does not have, options that do not fit and a folder that
    holds another collection; and during the run for a full disk. What is complete by then is kept,
    and the same call resumes.
    """
    check_model(model)
    if model.tokenizer is None:
        raise SurveyError(f"{model.name} has no tokenizer, which texts need.")
    for name, value, known in (("dtype", dtype, DTYPES), ("on_error", on_error, ("raise", "skip"))):
        if value not in known:
            raise SurveyError(f"{name}={value!r}: expected {', '.join(known)}.")
    if not isinstance(batch_tokens, int) or isinstance(batch_tokens, bool) or batch_tokens < 1:
        raise SurveyError(f"batch_tokens={batch_tokens!r}: expected a whole number of at least 1.")
    check_list(texts, "texts")
    chosen = as_points(points, model)
    options = {
        "points": [str(point) for point in chosen],
        "dtype": dtype,
        "special": bool(special),
        "batch_tokens": batch_tokens,
        "on_error": on_error,
    }
    about = {
        "model": {"name": model.name, "weights_sha256": weights_digest(model), "impl": model.impl},
        "options": options,
        "versions": {**versions(), "device": str(model.body.device)},
    }
    belonging = ("*.npy", "piece-*.npz", TEXTS)
    with opened(output, about, MANIFEST, PART, resume=resume, belonging=belonging) as folder:
        if not folder.finished(texts):
            state = _collected(model, texts, chosen, folder, progress=progress)
            corpus = told_of(texts, state.read)

            def write(place: Path) -> None:
                _join(place, state.pieces)
                write_json(place / MANIFEST, {**about, "counts": asdict(state), "corpus": corpus})

            folder.finish(write)
    for left in Path(output).glob("piece-*.npz"):
        left.unlink()
    return Collected.read(output)


def _collected(
    model: Model,
    texts: Iterable[object],
    points: Sequence[CollectedPoint],
    folder: RunFolder,
    *,
    progress: bool,
) -> State:
    """Compute and write what is missing, and keep the state after each window."""
    options = folder.about["options"]
    most = options["batch_tokens"]
    kept, state = folder.kept(), State()
    if kept is not None:
        state = State(**kept[0] | {"read": Read(**kept[0]["read"])})
    for window in unread(texts, state.read, progress=progress):
        state, cut = _cut(window, model, state, skip=options["on_error"])
        for batch in grouped(cut, most, lambda text: text.size):
            piece = _piece(batch, values_of(model, points, batch, most), options)
            place = Path(str(folder.folder)) / f"piece-{state.pieces}.npz"
            with folder.writing(), replacing(place) as fresh, fresh.open("wb") as file:
                np.savez(file, allow_pickle=False, **piece)
            state = replace(
                state,
                pieces=state.pieces + 1,
                texts=state.texts + len(batch),
                tokens=state.tokens + len(piece["token_ids"]),
            )
        folder.keep(asdict(state))
    if not state.texts:
        raise SurveyError("No text has a token; nothing was collected.")
    return state


def _cut(window: Window, model: Model, state: State, *, skip: str) -> tuple[State, list[CutText]]:
    """The documents of a window as tokens; the state counts them, and those that are skipped."""
    assert model.tokenizer is not None
    found, skipped = [], []
    for document in window.documents:
        try:
            parts = parts_of(document, model.tokenizer, model.config.n_positions)
        except TokenizationError as error:
            if skip != "skip":
                raise SurveyError(f"{document.id}: {error}") from None
            skipped.append((document.id, str(error)))
        else:
            found.append(CutText(document, parts))
    read, documents = state.read.with_window(window), state.documents + len(window.documents)
    named = (*state.skipped, *skipped)[:MOST_NAMED]
    count = state.n_skipped + len(skipped)
    return replace(state, read=read, documents=documents, n_skipped=count, skipped=named), found


def _piece(
    texts: Sequence[CutText], values: Mapping[str, Floats], options: Json
) -> dict[str, np.ndarray]:
    """What is known of the tokens of some texts, the values, and the texts as bytes."""
    index = [text.index() for text in texts]
    kept = [one.pop("kept") | options["special"] for one in index]
    every, written = np.concatenate(kept), [text.written() for text in texts]
    piece = {name: np.concatenate([one[name] for one in index])[every] for name in index[0]}
    for name, array in values.items():
        with np.errstate(over="ignore"):
            piece[name] = array[every].astype(options["dtype"])
        if not np.array_equal(np.isfinite(piece[name]), np.isfinite(array[every])):
            raise SurveyError(
                f"{name}: a value of {np.abs(array).max():.6g} does not fit {options['dtype']}; "
                "store float32."
            )
    lengths = ([mine.sum() for mine in kept], [len(one) for one in written])
    piece |= {name: np.array(each) for name, each in zip(STARTS, lengths, strict=True)}
    return piece | {TEXTS: np.frombuffer(b"".join(written), np.uint8)}


def _join(folder: Path, count: int) -> None:
    """Write the arrays and the texts, from those of the pieces."""

    def pieces(name: str) -> Iterator[np.ndarray]:
        for number in range(count):
            with np.load(folder / f"piece-{number}.npz", allow_pickle=False) as piece:
                yield piece[name]

    with np.load(folder / "piece-0.npz", allow_pickle=False) as piece:
        shapes = {name: (piece[name].dtype, piece[name].shape[1:]) for name in piece.files}
    for name, (dtype, shape) in shapes.items():
        place = folder / (name if name == TEXTS else f"{name}.npy")
        with replacing(place) as fresh, fresh.open("wb") as file:
            if name in STARTS:
                np.save(file, np.concatenate([[0], np.cumsum(np.concatenate([*pieces(name)]))]))
                continue
            if name != TEXTS:
                rows = sum(map(len, pieces("token_ids")))
                about = {"descr": dtype.str, "fortran_order": False, "shape": (rows, *shape)}
                np.lib.format.write_array_header_1_0(file, about)
            for array in pieces(name):
                file.write(array.tobytes())
