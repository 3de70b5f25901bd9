"""Which heads feed which, in data: what makes heads look and what they move, over a corpus.

`minibert.analysis.why_heads` says it of a trace. Here its tables are summed over all tokens of a
corpus, with no matrix of query and key: one attention a component of the stream. Composition scores
say the same of the weights alone.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minibert.analysis.composition import composition_scores
from minibert.analysis.reasons import HeadSums, heads_over_text, written_below
from minibert.errors import SurveyError, TokenizationError, TraceError, check_index
from minibert.model import Model
from minibert.result import Place, Result
from minibert.survey.document_rows import text_parts
from minibert.survey.documents import check_list
from minibert.survey.run import Options
from minibert.survey.tables import REASONS, parquet, versions
from minibert.survey.windows import Bar, Read, Window, check_same, folder_locked, unread, windows
from minibert.text.tokens import Tokens
from minibert.trace.file import identity_of
from minibert.untrusted import Json
from minibert.writing import replacing

Floats = npt.NDArray[np.float64]
#: The heads of each layer that is asked about.
Heads = Mapping[int, Sequence[int]]

PAIRS, MOVED, TOLD, PART = REASONS

# Title and unit of both results.
_PAIRS = ("What makes the heads of layer {} look", "score")
_MOVED = ("What the heads of layer {} move", "share of z")


class Edge(NamedTuple):
    """What one component does for one head.

    side      "query" or "key": what the component wrote there adds to the score of the tokens that
              the head looks at, less that of all it may see; "value": its share of what the head
              moves
    weights   the composition score of the two heads; nan for what is no head, and where there is
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
    """What makes heads look, and what they move, a mean over the tokens of a corpus.

    pairs   for each layer (head, query_component, key_component), as of `why_heads`
    moved   for each layer (head, component): the share of z that the component wrote
    told    the model, the corpus and the options, as why.json has them
    """

    pairs: Mapping[int, Result[Floats]]
    moved: Mapping[int, Result[Floats]]
    told: Mapping[str, object]

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
        with replacing(folder / TOLD) as fresh:
            fresh.write_text(json.dumps(self.told, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> "Reasons":
        """Those of a folder. Raises SurveyError where it has none that are finished."""
        path = Path(folder)
        _, files = parquet()
        try:
            told = json.loads((path / TOLD).read_text(encoding="utf-8"))
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
        turned = kind != "V" and model.config.rotary is not None
        return composition_scores(
            model, kind, fold_norm=True, distance=0 if turned else None
        ).values
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
    """What makes these heads look, and what they move, over documents.

    heads    the heads of each layer, as {1: (2, 3)}
    output   a folder for the tables; while it runs it holds what is done so far
    limit    read so many documents
    longest  tokens of a part, by default the model's positions; parts are read one by one
    on_error "raise", or "skip" documents that cannot become tokens
    resume   go on where an interrupted run into this folder stopped; the tables are the same to the
             last bit. A finished run of the same is read. False begins anew

    Time: `why_heads` of each layer for each part. Raises SurveyError for a model that minibert did
    not load, and for a folder with something else; TraceError for a layer or head that does not
    exist.
    """
    check_list(documents, "documents")
    if not isinstance(model, Model):
        raise SurveyError("why: expected a model of minibert.load; an attached one has no parts.")
    Options(limit=limit, longest=longest, on_error=on_error)
    if not isinstance(heads, Mapping) or not heads or not all(heads.values()):
        raise SurveyError(
            f"heads={heads!r:.80}: expected the heads of each layer, as {{1: (2, 3)}}."
        )
    config = model.config
    heads = {
        check_index("layer", layer, config.n_layers): tuple(
            check_index("head", head, config.n_heads) for head in some
        )
        for layer, some in sorted(heads.items())
    }
    about: dict[str, object] = {
        "model": identity_of(model),
        "heads": {str(layer): list(some) for layer, some in heads.items()},
        "limit": limit,
        "longest": longest or config.n_positions,
        "on_error": on_error,
        "dtype": str(model.dtype).removeprefix("torch."),
        "versions": versions(),
    }
    if output is None:
        return _reasons(_summed(model, documents, heads, about, None, progress=progress), about)
    folder = Path(output)
    parquet()
    with folder_locked(folder, "surveying"):
        for name in () if resume else (TOLD, PART):
            (folder / name).unlink(missing_ok=True)
        if (folder / TOLD).exists():
            return _finished(folder, about, windows(documents, limit=limit))
        sums = _summed(model, documents, heads, about, folder, progress=progress)
        found = _reasons(sums, about)
        found.write(folder)
        (folder / PART).unlink(missing_ok=True)
    return found


def _finished(folder: Path, about: Mapping[str, object], read: Iterable[Window]) -> Reasons:
    """The result of an earlier run. Raises SurveyError for one of something else."""
    found = Reasons.read(folder)
    mine: dict[str, Any] = json.loads(json.dumps(about))
    there: dict[str, Any] = dict(found.told)
    # A model has as many names as there are ways to it.
    for one in (mine, there):
        one["model"] = {**one["model"], "name": ""}
    other = [name for name in mine if name != "versions" and there.get(name) != mine[name]]
    if other:
        raise SurveyError(
            f"{folder}: has finished tables of reasons with other {' and '.join(other)}. Name "
            "another folder, or replace them with resume=False."
        )
    corpus = found.told["corpus"]
    assert isinstance(corpus, dict)
    check_same(read, corpus["sha256"])
    return found


def _summed(
    model: Model,
    documents: Iterable[object],
    heads: Heads,
    about: Mapping[str, object],
    folder: Path | None,
    *,
    progress: bool,
) -> _Sums:
    """The sums of the whole corpus, kept in the folder after each window."""
    identity = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    found = _kept(folder, identity) or _Sums({}, {})
    limit, longest = about["limit"], about["longest"]
    assert isinstance(limit, int | None)
    assert isinstance(longest, int)
    all_windows = windows(documents, limit=limit)
    with closing(Bar(documents, limit, shown=progress)) as bar:
        for window in unread(all_windows, found.read, bar):
            found = _with_window(model, window, heads, found, longest, about["on_error"] == "skip")
            _keep(folder, identity, found)
            bar.show(found.documents, found.tokens)
    if not found.tokens:
        raise SurveyError("There is no document that can be measured.")
    return found


def _with_window(
    model: Model, window: Window, heads: Heads, found: _Sums, longest: int, skip: bool
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
    text = model.trace(tokens)
    written = written_below(text, max(heads))
    for layer, some in heads.items():
        yield layer, heads_over_text(text, layer, some, written.below(layer))


def _reasons(sums: _Sums, about: Mapping[str, object]) -> Reasons:
    pairs, moved = dict[int, Result[Floats]](), dict[int, Result[Floats]]()
    wanted = about["heads"]
    assert isinstance(wanted, dict)
    for layer, (table, shares) in sums.layers.items():
        query, key, value = sums.names[layer]
        head = tuple(wanted[str(layer)])
        labels = {"head": head, "query_component": query, "key_component": key}
        pairs[layer] = _result(layer, table / sums.tokens, labels, _PAIRS)
        shares = shares / shares.sum(-1, keepdims=True)
        moved[layer] = _result(layer, shares, {"head": head, "component": value}, _MOVED)
    counts = {"documents": sums.documents, "tokens": sums.tokens, "sha256": sums.read.sha256}
    return Reasons(pairs, moved, {**about, "corpus": counts})


def _kept(folder: Path | None, identity: str) -> _Sums | None:
    """What an interrupted run has left, where there is one to go on with."""
    if folder is None or not (folder / PART).exists():
        return None
    path = folder / PART
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            told = json.loads(str(arrays["told"]))
            layers = {int(n): (arrays[f"pairs_{n}"], arrays[f"moved_{n}"]) for n in told["names"]}
    except Exception as error:  # a damaged zip file raises errors of many families
        raise SurveyError(
            f"{path}: cannot be read ({error}). Remove it, or begin anew with resume=False."
        ) from error
    if told["identity"] != identity:
        raise SurveyError(
            f"{path}: belongs to another model or other options. Run it with those, or begin anew "
            "with resume=False."
        )
    names = {int(n): tuple(map(tuple, sides)) for n, sides in told["names"].items()}
    return _Sums(layers, names, told["documents"], told["tokens"], Read(**told["read"]))


def _keep(folder: Path | None, identity: str, found: _Sums) -> None:
    """Replace the file of what is done so far as a whole."""
    if folder is None:
        return
    told: dict[str, object] = {"identity": identity, "names": found.names}
    told |= {"read": vars(found.read), "documents": found.documents, "tokens": found.tokens}
    arrays = {"told": np.array(json.dumps(told))}
    arrays |= {f"pairs_{n}": pairs for n, (pairs, _) in found.layers.items()}
    arrays |= {f"moved_{n}": moved for n, (_, moved) in found.layers.items()}
    with replacing(folder / PART) as fresh, fresh.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
