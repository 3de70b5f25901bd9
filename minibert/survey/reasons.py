"""Which heads feed which, in data: what makes heads look and what they move, over a corpus.

`minibert.analysis.why_heads` says it of a trace. Here its tables are summed over all tokens of a
corpus, with no matrix of query and key: one attention a component of the stream. Composition scores
say the same of the weights alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minibert.analysis.composition import composition_scores
from minibert.analysis.head_reasons import HeadSums, heads_over_text, written_below
from minibert.errors import SurveyError, TokenizationError, TraceError, check_index
from minibert.model import Model
from minibert.result import Place, Result
from minibert.survey.document_rows import text_parts
from minibert.survey.documents import check_list
from minibert.survey.run import Options
from minibert.survey.runs import (
    Arrays,
    Read,
    Window,
    opened,
    read_manifest,
    told_of,
    unread,
    versions,
    write_json,
)
from minibert.survey.tables import parquet
from minibert.text.tokens import Tokens
from minibert.trace.file import identity_of
from minibert.untrusted import Json
from minibert.writing import replacing

Floats = npt.NDArray[np.float64]
#: The heads of each layer that is asked about.
Heads = Mapping[int, Sequence[int]]

PAIRS, MOVED, TOLD, PART = "why.parquet", "moved.parquet", "why.json", "unfinished_why.npz"

# Title and unit of both results.
_PAIRS = ("What makes the heads of layer {} look", "score")
_MOVED = ("What the heads of layer {} move", "share of z")


class Edge(NamedTuple):
    """The contribution of one component to one head.

    side      "query" or "key": how much the component's output there adds to the score of the
              tokens that the head looks at, less that of all tokens it may see; "value": its share
              of what the head moves
    weights   the composition score of the two heads; nan for what is not a head, and where there is
              none (`composition_scores`)
    """

    side: str
    source: str
    layer: int
    head: int
    number: float
    weights: float


@dataclass(frozen=True, eq=False)
class Reasons:
    """What makes heads look where they look, and what they move: means over a corpus's tokens.

    pairs   for each layer (head, query_component, key_component), as of `why_heads`
    moved   for each layer (head, component): the share of z that the component wrote
    told    the model, the corpus and the options, as why.json has them
    """

    pairs: Mapping[int, Result[Floats]]
    moved: Mapping[int, Result[Floats]]
    told: Json

    def of_head(self, layer: int, head: int) -> Result[Floats]:
        """The table of one head, (query_component, key_component).

        Raises TraceError for a head that was not asked about.
        """
        if layer not in self.pairs:
            raise TraceError(f"Layer {layer} was not asked about; {list(self.pairs)} were.")
        table = self.pairs[layer]
        labels = {axis: names for axis, names in table.labels.items() if axis != "head"}
        title = f"What makes head {layer}-{head} look"
        return Result(table.at(head=head), " ".join(labels), title, table.unit, labels, signed=True)

    def edges(self, model: Model, count: int = 30) -> list[Edge]:
        """For each side the largest numbers between a component and a head, largest first."""
        found = list[Edge]()
        for side in ("query", "key", "value"):
            each = [edge for layer in self.pairs for edge in self._edges(side, layer)]
            found += sorted(each, key=lambda edge: -abs(edge.number))[:count]
        scores = {side: _composition(model, side[0].upper()) for side in ("query", "key", "value")}
        return [edge._replace(weights=_of_weights(scores[edge.side], edge)) for edge in found]

    def _edges(self, side: str, layer: int) -> Iterator[Edge]:
        if side == "value":
            table, axis = self.moved[layer], "component"
            numbers = table.values
        else:
            table, axis = self.pairs[layer], f"{side}_component"
            numbers = table.values.sum(2 if side == "query" else 1)
        for row, head in zip(numbers, table.labels["head"], strict=True):
            for source, number in zip(table.labels[axis], row, strict=True):
                yield Edge(side, str(source), layer, int(head), float(number), np.nan)

    def write(self, folder: Path) -> None:
        """Write why.parquet, moved.parquet and why.json, each whole or not at all."""
        arrow, files = parquet()
        for name, results in ((PAIRS, self.pairs), (MOVED, self.moved)):
            rows = [{"layer": n} | row for n, one in results.items() for row in one.table()]
            with replacing(folder / name) as fresh:
                files.write_table(arrow.Table.from_pylist(rows), fresh)
        write_json(folder / TOLD, self.told)

    @classmethod
    def read(cls, folder: str | Path) -> "Reasons":
        """Read the tables of a folder. Raises SurveyError where it has no finished ones."""
        path = Path(folder)
        _, files = parquet()
        try:
            told = read_manifest(path / TOLD)
            tables = {name: files.read_table(path / name).to_pylist() for name in (PAIRS, MOVED)}
        except Exception as error:  # pyarrow raises errors of many families
            raise SurveyError(
                f"{path}: no finished tables of reasons ({error}). Write them with minibert survey "
                "CORPUS -o DIR --why LAYER."
            ) from error
        return cls(
            _results(tables[PAIRS], ("head", "query_component", "key_component"), _PAIRS),
            _results(tables[MOVED], ("head", "component"), _MOVED),
            told,
        )


def _result(
    layer: int, values: Floats, labels: Mapping[str, Sequence[Place]], said: tuple[str, str]
) -> Result[Floats]:
    """The numbers of a layer; the labels are in the order of the axes."""
    title, unit = said
    return Result(values, " ".join(labels), title.format(layer), unit, labels, signed=True)


def _results(
    rows: list[Json], axes: tuple[str, ...], said: tuple[str, str]
) -> dict[int, Result[Floats]]:
    """The results of a table, by layer."""
    found = dict[int, Result[Floats]]()
    for layer in dict.fromkeys(row["layer"] for row in rows):
        own = [row for row in rows if row["layer"] == layer]
        labels = {axis: tuple(dict.fromkeys(row[axis] for row in own)) for axis in axes}
        values = np.array([row["value"] for row in own]).reshape(*map(len, labels.values()))
        found[layer] = _result(layer, values, labels, said)
    return found


def _composition(model: Model, kind: str) -> Tensor | None:
    """The composition scores of neighbours; None where the model has none."""
    try:
        return composition_scores(model, kind, fold_norm=True).values
    except TraceError:
        return None


def _of_weights(scores: Tensor | None, edge: Edge) -> float:
    kind, _, place = edge.source.partition(" ")
    if scores is None or kind != "head":
        return np.nan
    layer, head = map(int, place.split("-"))
    return float(scores[layer, head, edge.layer, edge.head])


@dataclass(frozen=True, eq=False)
class _Sums:
    """What some windows gave: for each layer the sums of `HeadSums`, in float64."""

    layers: Mapping[int, tuple[Floats, Floats]]
    names: Mapping[int, tuple[tuple[str, ...], ...]]
    documents: int = 0
    tokens: int = 0
    read: Read = field(default_factory=Read)

    def kept(self) -> tuple[Json, Arrays]:
        """What a run keeps of them."""
        told = {name: one for name, one in vars(self).items() if name != "layers"}
        arrays = {f"pairs_{n}": pairs for n, (pairs, _) in self.layers.items()}
        arrays |= {f"moved_{n}": moved for n, (_, moved) in self.layers.items()}
        return told | {"read": vars(self.read)}, arrays

    @classmethod
    def of(cls, told: Json, arrays: Arrays) -> "_Sums":
        """What `kept` gave."""
        names = {int(n): tuple(map(tuple, sides)) for n, sides in told["names"].items()}
        layers: Any = {n: (arrays[f"pairs_{n}"], arrays[f"moved_{n}"]) for n in names}
        return cls(layers, **told | {"names": names, "read": Read(**told["read"])})


def survey_reasons(
    model: Model,
    documents: Iterable[object],
    heads: Heads,
    *,
    output: str | Path | None = None,
    limit: int | None = None,
    longest: int | None = None,
    on_error: str = "raise",
    resume: bool = True,
    progress: bool = False,
) -> Reasons:
    """Compute what makes these heads look, and what they move, over documents.

    heads    the heads of each layer, as {1: (2, 3)}
    output   a folder for the tables; while it runs it holds what is done so far
    limit    read at most so many documents
    longest  tokens of a part, by default the model's positions; parts are read one by one
    on_error "raise", or "skip" documents that cannot become tokens
    resume   continue where an interrupted run into this folder stopped, with bit-identical tables.
             A finished run with the same options is read. False starts over

    It takes the time of `why_heads` on each layer for each part. Raises SurveyError for a model
    that minibert did not load, and for a folder with other content; TraceError for a layer or head
    that does not exist.
    """
    check_list(documents, "documents")
    if not isinstance(model, Model):
        raise SurveyError("why: expected a model of minibert.load; an attached one has no parts.")
    Options(limit=limit, longest=longest, on_error=on_error)
    if not isinstance(heads, Mapping) or not heads or not all(heads.values()):
        raise SurveyError(f"heads={heads!r:.80}: expected heads of each layer, as {{1: (2, 3)}}.")
    config = model.config
    heads = {
        check_index("layer", layer, config.n_layers): tuple(
            check_index("head", head, config.n_heads) for head in some
        )
        for layer, some in sorted(heads.items())
    }
    options = {
        "heads": {str(layer): list(some) for layer, some in heads.items()},
        "limit": limit,
        "longest": longest or config.n_positions,
        "on_error": on_error,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    about = {"model": identity_of(model), "options": options, "versions": versions()}
    if output is not None:
        parquet()
    with opened(output, about, TOLD, PART, resume=resume) as folder:
        if folder.finished(documents, limit=limit):
            return Reasons.read(Path(str(output)))
        kept = folder.kept()
        sums = _Sums({}, {}) if kept is None else _Sums.of(*kept)
        for window in unread(documents, sums.read, limit=limit, progress=progress):
            sums = _with_window(model, window, heads, sums, longest, on_error == "skip")
            folder.keep(*sums.kept())
        if not sums.tokens:
            raise SurveyError("There is no document that can be measured.")
        counts = {"documents": sums.documents, "tokens": sums.tokens}
        found = _reasons(sums, heads, {**about, "corpus": told_of(documents, sums.read) | counts})
        folder.finish(found.write)
    return found


def _with_window(
    model: Model, window: Window, heads: Heads, found: _Sums, longest: int | None, skip: bool
) -> _Sums:
    layers, names = dict(found.layers), dict(found.names)
    documents, tokens = found.documents, found.tokens
    for document in window.documents:
        try:
            parts = list(text_parts(model, [document], longest=longest))
        except TokenizationError as error:
            if skip:
                continue
            hint = 'Leave such documents out with on_error="skip".'
            raise SurveyError(f"{document.id}: {error} {hint}") from error
        documents += 1
        for part in parts:
            tokens += part.tokens.lengths[0]
            for layer, sums in _of_part(model, part.tokens, heads):
                both = (sums.pairs.double().cpu().numpy(), sums.moved.double().cpu().numpy())
                before = layers.get(layer)
                layers[layer] = (
                    both if before is None else (before[0] + both[0], before[1] + both[1])
                )
                names[layer] = sums.components
    return _Sums(layers, names, documents, tokens, found.read.with_window(window))


def _of_part(model: Model, tokens: Tokens, heads: Heads) -> Iterator[tuple[int, HeadSums]]:
    """The sums of each layer for one part."""
    text = model.trace(tokens, until=max(heads))
    written = written_below(text, max(heads))
    for layer, some in heads.items():
        yield layer, heads_over_text(text, layer, some, written.below(layer))


def _reasons(sums: _Sums, heads: Heads, told: Json) -> Reasons:
    pairs, moved = dict[int, Result[Floats]](), dict[int, Result[Floats]]()
    for layer, (table, shares) in sums.layers.items():
        query, key, value = sums.names[layer]
        head = tuple(heads[layer])
        labels: dict[str, Sequence[Place]] = {
            "head": head,
            "query_component": query,
            "key_component": key,
        }
        pairs[layer] = _result(layer, table / sums.tokens, labels, _PAIRS)
        shares = shares / shares.sum(-1, keepdims=True)
        moved[layer] = _result(layer, shares, {"head": head, "component": value}, _MOVED)
    return Reasons(pairs, moved, told)
