"""Values of a pass for every token of a corpus, in arrays on the disk that are read back mapped.

What probes and sparse autoencoders are trained on. The corpus is read in windows of documents, the
texts go through the model in packed passes, and an interrupted run resumes with identical bytes.

resid_post-3.npy, z-3-5.npy   the values of each point: (token, ...)
token_ids, segments, words, spans, positions .npy   for each token; see `Collected`
starts.npy                    the token with which each text begins, and the number of tokens
texts.jsonl, text_starts.npy  the texts, and the byte with which each begins
manifest.json                 what was collected, of what, by which model; written at the end
progress.json                 how far an unfinished run has come
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from io import BufferedRandom, TextIOWrapper
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.analysis.arguments import check_model
from minibert.errors import SurveyError, TokenizationError, check_index
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer import absent_because
from minibert.layers.layer_pass import LayerPass
from minibert.model import Model
from minibert.quantities import QUANTITIES, TokenIds
from minibert.survey.collected import Collected
from minibert.survey.documents import Document, check_list
from minibert.survey.segments import Parts, grouped, parts_of
from minibert.survey.tables import versions
from minibert.survey.windows import (
    LOCK,
    MOST_NAMED,
    Bar,
    Read,
    Window,
    check_same,
    files_told,
    folder_locked,
    unread,
    windows,
)
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens, padded
from minibert.trace.identity import weights_digest
from minibert.trace.run import embedded, logits_of, reads_single_positions, run_layers
from minibert.untrusted import guarded, read_json
from minibert.writing import made, replacing

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.int64]


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
    # What there is one of in a text is no token's; a norm behind the layers is not computed here.
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
            "token_ids": tokens.ids[0].numpy()[places],
            "segments": tokens.segments[0].numpy()[places],
            "words": words[places],
            "spans": spans[places],
            "positions": np.concatenate([np.arange(len(part)) for part in self.parts.places]),
            "kept": spans[places, 0] >= 0,
        }

    def written(self) -> bytes:
        """The document as a line of the file of texts."""
        # The name of a file, which is in the id, need not be valid UTF-8.
        about = json.dumps(asdict(self.document), ensure_ascii=False)
        return about.encode(errors="surrogatepass") + b"\n"


class PackedPass:
    """Computes the values of points for texts, without padding, at most so many tokens at a time.

    A part that is longer is a pass of its own.
    """

    def __init__(self, model: Model, points: Sequence[CollectedPoint], most: int) -> None:
        self.model, self.points, self.most = model, points, most
        layers = [p.layer for p in points if p.layer is not None]
        whole = any(p.name == "logits" for p in points)
        self._stop = model.config.n_layers if whole else max(layers, default=-1) + 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one token's value at each point."""
        found = self._values(torch.zeros(1, 1, dtype=torch.int64), None, [1])
        return {name: value.shape[1:] for name, value in found.items()}

    def __call__(self, texts: Sequence[CutText]) -> dict[str, Floats]:
        """(token, ...) for each point, for the tokens of all parts of the texts, in order."""
        parts = [(text.parts.tokens, place) for text in texts for place in text.parts.places]
        # A text may be a whole book, too long for one pass.
        groups = grouped(parts, self.most, lambda one: len(one[1]))
        found = [self._of_parts(group) for group in groups]
        return {
            name: np.concatenate([one[name] for one in found]) for name in map(str, self.points)
        }

    def _of_parts(self, parts: Sequence[tuple[Tokens, Whole]]) -> dict[str, Floats]:
        ids = padded([tokens.ids[0][place].tolist() for tokens, place in parts], 0)
        kinds = padded([tokens.segments[0][place].tolist() for tokens, place in parts], 0)
        return self._values(ids, kinds, [len(place) for _, place in parts])

    @torch.no_grad()
    def _values(
        self, ids: TokenIds, kinds: TokenIds | None, lengths: list[int]
    ) -> dict[str, Floats]:
        model, device = self.model, self.model.body.word.weight.device
        mask = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
        inputs = Inputs(
            ids.to(device), mask.to(device), None if kinds is None else kinds.to(device)
        ).checked(model.config, model.name)
        allowed = AllowedKeys(1, sum(lengths), device, model.config.causal, packed=tuple(lengths))
        found: dict[str, Floats] = {}

        def visit(at: LayerPass) -> None:
            for point in self.points:
                if point.layer == at.index:
                    found[str(point)] = _rows(getattr(at, point.name), point)

        embed = embedded(model.body, inputs, allowed)
        hidden = run_layers(
            model.body,
            embed,
            Evaluation(allowed, model.impl),
            stop=self._stop,
            keep=lambda layer: frozenset(p.name for p in self.points if p.layer == layer),
            visit=visit,
        )
        for point in self.points:
            if point.name == "embed":
                found[str(point)] = _rows(embed, point)
            elif point.name == "logits":
                final = model.body.final(hidden)
                found[str(point)] = _rows(logits_of(model, final, inputs, allowed), point)
        return found


def _rows(value: Tensor, point: CollectedPoint) -> Floats:
    """(token, ...) of a quantity of one row of packed tokens."""
    value = value[0]
    if QUANTITIES[point.name].per_head:
        value = value[point.head] if point.head is not None else value.transpose(0, 1)
    if value.dtype is torch.bfloat16:
        value = value.float()
    return value.cpu().numpy()


_HEADER = 256


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file that grows along its first axis.

    rows   what of the state is counted by that axis; `extra` rows of 0 come first
    """

    dtype: str
    shape: tuple[int, ...] = ()
    rows: str = "tokens"
    extra: int = 0

    def header(self, count: int) -> bytes:
        """The first bytes of the file, where there are so many rows."""
        about = {
            "descr": np.dtype(self.dtype).newbyteorder("<").str,
            "fortran_order": False,
            "shape": (count + self.extra, *self.shape),
        }
        start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
        return start + repr(about).encode().ljust(_HEADER - 11) + b"\n"

    def size(self, count: int) -> int:
        """The bytes of the file, where there are so many rows."""
        row = np.dtype(self.dtype).itemsize * int(np.prod(self.shape))
        return _HEADER + (count + self.extra) * row

    def empty(self) -> bytes:
        """The file without rows."""
        return self.header(0).ljust(self.size(0), b"\0")

    def bytes(self, values: np.ndarray) -> bytes:
        """Rows, (row, *shape), as they are in the file."""
        return np.ascontiguousarray(values, np.dtype(self.dtype).newbyteorder("<")).tobytes()


#: What is known of each token, and of each text.
INDEX = {
    "token_ids": ArrayFile("int32"),
    "segments": ArrayFile("uint8"),
    "words": ArrayFile("int32"),
    "spans": ArrayFile("int32", (2,)),
    "positions": ArrayFile("int32"),
    "starts": ArrayFile("int64", rows="texts", extra=1),
    "text_starts": ArrayFile("int64", rows="texts", extra=1),
}


MANIFEST, PROGRESS, TEXTS = "manifest.json", "progress.json", "texts.jsonl"
#: 2: what was read is counted in windows.
_FORMAT = 2


def _opened(path: Path, size: int, empty: bytes) -> BufferedRandom:
    """The file cut to so many bytes, which grows from there; OSError where it is shorter."""
    if size <= len(empty):
        path.unlink(missing_ok=True)
        made(path)
        path.write_bytes(empty)
    file = path.open("r+b")
    length = file.seek(0, os.SEEK_END)
    if length < size:
        file.close()
        raise OSError(f"{path.name} is {length} bytes long, {size} were written")
    file.truncate(size)
    file.seek(size)
    return file


def _on_disk(file: BufferedRandom | TextIOWrapper) -> None:
    file.flush()
    os.fsync(file.fileno())


@dataclass
class State:
    """How far a collection has come.

    read                               the windows of the corpus that are done
    documents                          in these, whether they have tokens or not
    texts, parts, tokens, text_bytes   written
    n_skipped, skipped                 documents without tokens; the first hundred, and why
    """

    read: Read = field(default_factory=Read)
    documents: int = 0
    texts: int = 0
    parts: int = 0
    tokens: int = 0
    text_bytes: int = 0
    n_skipped: int = 0
    skipped: list[list[str]] = field(default_factory=list)

    def skip(self, document: str, reason: str) -> None:
        """Count a document that has no tokens."""
        self.n_skipped += 1
        if len(self.skipped) < MOST_NAMED:
            self.skipped.append([document, reason])


class GrowingCollection:
    """The files of one collection; `state` is how far they are complete.

    Raises SurveyError where the folder holds anything but a collection with these options.
    """

    def __init__(self, folder: Path, options: Mapping[str, object], *, resume: bool) -> None:
        self.folder, self.options, self.dtype = folder, options, str(options["dtype"])
        self.state, self.finished = State(), False
        self._arrays: dict[str, ArrayFile] = {}
        self._files: dict[str, BufferedRandom] = {}
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            here = set(os.listdir(folder)) - {LOCK}
        name = next((name for name in (MANIFEST, PROGRESS) if name in here), None)
        if name is not None:
            self._take_up(name, resume)
        elif here:
            raise SurveyError(
                f"{folder}: has other files ({', '.join(sorted(here)[:3])}); expected a new or "
                "empty folder."
            )

    def _take_up(self, name: str, resume: bool) -> None:
        path = self.folder / name
        about = read_json(path, SurveyError)
        with guarded(path, SurveyError, "is not of this version of minibert"):
            options = about["options"]
            if not resume:
                arrays = [f"{one}.npy" for one in (*INDEX, *map(str, options["points"]))]
                for other in (*arrays, TEXTS, MANIFEST, PROGRESS):
                    (self.folder / Path(other).name).unlink(missing_ok=True)
                return
            if about["format"] != _FORMAT:
                raise ValueError(f"format {about['format']}")
            counts = about["counts"]
            state = State(**counts | {"read": Read(**counts["read"])})
        for key, wanted in self.options.items():
            if options.get(key) != wanted:
                raise SurveyError(
                    f"{self.folder}: holds a collection with {key} {options.get(key)!r:.300}, not "
                    f"{wanted!r:.300}. Choose another folder, or start again with resume=False."
                )
        self.state, self.finished = state, name == MANIFEST

    def open(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Open the files, cut to what is complete; `shapes` are those of one token's values."""
        values = {name: ArrayFile(self.dtype, shape) for name, shape in shapes.items()}
        self._arrays = {**INDEX, **values}
        with self._writing():
            for name, array in self._arrays.items():
                size, path = array.size(self._rows(array)), self.folder / f"{name}.npy"
                self._files[name] = _opened(path, size, array.empty())
            self._files[TEXTS] = _opened(self.folder / TEXTS, self.state.text_bytes, b"")
        self.save(self.state)

    def _rows(self, array: ArrayFile) -> int:
        return self.state.texts if array.rows == "texts" else self.state.tokens

    def add(self, state: State, texts: Sequence[CutText], values: Mapping[str, Floats]) -> None:
        """Write some texts, which `state` counts; they are complete once it is saved."""
        kept = []
        with self._writing():
            for text in texts:
                rows = text.index()
                mine = rows.pop("kept") | self.options["special"]
                kept.append(mine)
                state.texts += 1
                state.parts += len(text.parts.places)
                state.tokens += int(mine.sum())
                state.text_bytes += self._files[TEXTS].write(text.written())
                for name, column in rows.items():
                    self._append(name, column[mine])
                self._append("starts", np.array([state.tokens]))
                self._append("text_starts", np.array([state.text_bytes]))
            every = np.concatenate(kept)
            for name, array in values.items():
                self._append(name, self._converted(name, array[every]))

    def _append(self, name: str, rows: np.ndarray) -> None:
        self._files[name].write(self._arrays[name].bytes(rows))

    def _converted(self, name: str, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            found = values.astype(self.dtype)
        if not np.array_equal(np.isfinite(found), np.isfinite(values)):
            raise SurveyError(
                f"{name}: a value of {np.abs(values).max():.6g} does not fit {self.dtype}; store "
                "float32."
            )
        return found

    def save(self, state: State) -> None:
        """Have what was written up to this state on the disk, and `progress.json` say so."""
        with self._writing():
            for file in self._files.values():
                _on_disk(file)
            self._replace(PROGRESS, {"counts": asdict(state)})
        self.state = state

    def finish(self, about: Mapping[str, object]) -> None:
        """Complete the files and write the manifest, `about` in it."""
        with self._writing():
            for name, array in self._arrays.items():
                self._files[name].seek(0)
                self._files[name].write(array.header(self._rows(array)))
                _on_disk(self._files[name])
            self._replace(MANIFEST, {"counts": asdict(self.state), **about})
            (self.folder / PROGRESS).unlink()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            try:
                file.close()
            except OSError:
                # The rest of a buffer that the disk has no room for; closed it is in any case.
                file.raw.close()

    def _replace(self, name: str, content: Mapping[str, object]) -> None:
        path = self.folder / name
        about = {"format": _FORMAT, "options": self.options, **content}
        with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
            file.write(json.dumps(about, indent=1) + "\n")
            _on_disk(file)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SurveyError(
                f"{self.folder}: cannot be written to ({error.strerror or error}). What is "
                f"complete is kept ({self.state.texts} texts); make room, or give the folder its "
                "rights, and the same call goes on from there."
            ) from error


DTYPES = ("float32", "float16", "float64")


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
    resume        go on where an interrupted run of the same call stopped, a window of documents
                  (windows.py) at a time; False starts again
    progress      show a progress bar

    Raises TraceError for what is no model that minibert loads; SurveyError before the first pass
    for points the model does not have, options that do not fit and a folder that holds something
    else; while it runs for a full disk, after which what is complete is kept and the same call
    resumes.
    """
    check_model(model)
    if model.tokenizer is None:
        raise SurveyError(f"{model.name} has no tokenizer, which texts need.")
    for name, value, known in (("dtype", dtype, DTYPES), ("on_error", on_error, ("raise", "skip"))):
        if value not in known:
            raise SurveyError(f"{name}={value!r}: expected {', '.join(known)}.")
    if not isinstance(batch_tokens, int) or isinstance(batch_tokens, bool) or batch_tokens < 1:
        raise SurveyError(f"batch_tokens={batch_tokens!r}: expected a whole number from 1 on.")
    check_list(texts, "texts")
    chosen = as_points(points, model)
    options = {
        "model": {"name": model.name, "weights_sha256": weights_digest(model), "impl": model.impl},
        "points": [str(point) for point in chosen],
        "dtype": dtype,
        "special": bool(special),
        "batch_tokens": batch_tokens,
        "on_error": on_error,
    }
    folder = Path(output)
    with (
        folder_locked(folder, "collecting"),
        closing(GrowingCollection(folder, options, resume=resume)) as growing,
    ):
        if growing.finished:
            check_same(windows(texts), growing.state.read.sha256)
        else:
            passes = PackedPass(model, chosen, batch_tokens)
            _collect_windows(texts, passes, growing, progress=progress)
            about = {**versions(), "device": str(model.body.word.weight.device)}
            growing.finish({"corpus": files_told(texts), "versions": about})
    return Collected.read(output)


def _collect_windows(
    texts: Iterable[object], passes: PackedPass, growing: GrowingCollection, *, progress: bool
) -> None:
    """Compute and write what is missing, and save after each window."""
    growing.open(passes.shapes())
    skip = growing.options["on_error"] == "skip"
    with closing(Bar(texts, shown=progress)) as bar:
        for window in unread(windows(texts), growing.state.read, bar):
            state = deepcopy(growing.state)
            state.read = state.read.with_window(window)
            state.documents += len(window.documents)
            cut = _cut(window, passes.model, state, skip=skip)
            for batch in grouped(cut, passes.most, lambda text: text.size):
                growing.add(state, batch, passes(batch))
            growing.save(state)
            bar.show(state.documents, state.tokens)
    if not growing.state.texts:
        raise SurveyError("There is no text that has tokens; nothing was collected.")


def _cut(window: Window, model: Model, state: State, *, skip: bool) -> Iterator[CutText]:
    """The documents of a window as tokens; the state counts those that are skipped."""
    assert model.tokenizer is not None
    for document in window.documents:
        try:
            parts = parts_of(document, model.tokenizer, model.config.n_positions)
        except TokenizationError as error:
            if not skip:
                raise SurveyError(f"{document.id}: {error}") from None
            state.skip(document.id, str(error))
        else:
            yield CutText(document, parts)
