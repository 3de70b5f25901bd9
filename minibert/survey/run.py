"""`survey`: what every head of a model does, over a corpus of any size."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from minibert.attached.attach import Attached
from minibert.errors import SurveyError
from minibert.survey.attached_stack import AttachedStack
from minibert.survey.document_rows import surveyable
from minibert.survey.documents import Documents
from minibert.survey.formats import Document, check_list, document_of
from minibert.survey.options import Options, in_dtype
from minibert.survey.output_folder import OutputFolder, opened
from minibert.survey.parts import Part, hash_documents
from minibert.survey.progress import Bar
from minibert.survey.rows import OFFSETS
from minibert.survey.segments import in_pairs
from minibert.survey.sums import document_means
from minibert.survey.tables import Survey
from minibert.survey.versions import versions
from minibert.survey.windows import Measured, Window, WindowSurvey, windows
from minibert.trace.identity import identity_of

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.options import Surveyable

__all__ = ["identity_of_surveyed", "survey"]

MeasureAll = Callable[[Iterator[Window]], Iterator[tuple[Window, Measured]]]

#: 2: rows and documents are counted in each layer.
FORMAT = 2
#: Documents on which a narrower dtype is compared with float32.
COMPARED = 16


def survey(
    model: "Model | Attached",
    documents: Iterable[Document | str],
    *,
    output: str | Path | None = None,
    measures: Sequence[str] | None = None,
    offsets: Sequence[int] = OFFSETS,
    tokens: Sequence[str] = (),
    by_norm: bool = True,
    gradients: bool = False,
    profile: bool = True,
    pairs: bool = False,
    stack: str | None = None,
    limit: int | None = None,
    longest: int | None = None,
    dtype: torch.dtype | None = None,
    impl: str | None = None,
    batch_tokens: int = 4096,
    on_error: str = "raise",
    resume: bool = True,
    engine: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    progress: bool = False,
) -> Survey:
    """What every head of a model does, over documents: a `Survey`, and tables in a folder.

    model         one of minibert.load, or of minibert.attach with a tokenizer: then a live model of
                  transformers runs as it is (attached_stack.py)
    documents     what `read_documents` gives, or any documents or texts, read one after the other
    output        a folder for tables and manifest; while it runs it holds what is done so far
    measures      names of measures (`minibert.survey.measures.measures`); all where none are given
    offsets       offsets that are measured beside −1, 0 and 1
    tokens        tokens as a person reads them, each with a measure of its own
    by_norm       measure everything again with rows weighed by norms (Kobayashi et al. 2020)
    gradients     measure how much the loss changes with a weight of attention, by kind of key
                  (Clark et al. 2019, §3.3): the mean of |∂L/∂α|, with L the sum of −ln p of the
                  tokens that the model predicts (objective.py; the manifest says it, too). A second
                  pass, forward and backward
    profile       keep the mass at every distance
    pairs         take each two documents in a row as one with two texts (Clark et al. 2019)
    stack         of an attached model with several: "encoder", "decoder.self", ... A decoder reads
                  the tokens of the text, as the encoder does
    limit         measure so many documents
    longest       tokens of a segment, by default the model's positions; what is longer is cut into
                  windows, of which none has a token of another
    dtype         compute in this one; of a narrower one than float32 the drift is measured on the
                  first 16 documents and stands in the manifest
    impl          the implementation of attention
    batch_tokens  tokens that go through the model together
    on_error      "raise", or "skip" documents that cannot become tokens, and count them
    resume        go on where an interrupted run into this folder stopped; the tables are the same
                  to the last bit
    engine        "local" measures in this process, "ray" by workers of Ray (the extra `ray`): those
                  of the cluster that Ray is connected to or finds, else of this machine. The tables
                  are the same to the last bit, on the same kind of processor
    workers       of Ray, by default as many as it has processor cores for
    threads       that each of them computes with, by default as many as this process does
    progress      show a bar

    Raises SurveyError before anything is computed for options that do not fit, gradients of a
    model that predicts no tokens, a folder with a survey that is finished or of something else, and
    without pyarrow where a folder is given or without Ray where it is asked for; while it runs, for
    what cannot be read or written, and where one window loses five workers in a row.
    """
    check_list(documents, "documents")
    chosen = (measures, offsets, tokens, by_norm, gradients, profile, pairs, limit, longest)
    options = Options(*chosen, dtype, impl, batch_tokens, on_error, engine, workers, threads)
    subject = _subject(model, stack, options)
    measure = options.window_survey(in_dtype(subject, dtype))
    about = {
        "format": FORMAT,
        "model": identity_of_surveyed(subject),
        "options": options.told(subject),
        "versions": versions(),
    }
    with opened(output, about, resume=resume) as folder:
        part = _measured(subject, documents, options, measure, folder, progress=progress)
        found = {**about, "corpus": _told(part, documents)}
        # As it is read from its file, where a tuple is a list.
        result = _result(measure, part, json.loads(json.dumps(found)))
        folder.finish(result)
    return result


def _subject(model: "Model | Attached", stack: str | None, options: Options) -> "Surveyable":
    """The model, or the stack of an attached one."""
    if isinstance(model, Attached):
        weight = next(model.model.parameters(), torch.empty(0))
        options.check_attached(model.name, weight.dtype)
    return surveyable(model, stack, options.longest)


def identity_of_surveyed(subject: "Surveyable") -> dict[str, Any]:
    """What the manifest says of the model, ready for JSON."""
    return subject.identity() if isinstance(subject, AttachedStack) else identity_of(subject)


def _measured(
    model: "Surveyable",
    documents: Iterable[Document | str],
    options: Options,
    measure: WindowSurvey,
    folder: OutputFolder,
    *,
    progress: bool,
) -> Part:
    """The sums of the whole corpus, each window kept in the folder when it is merged."""
    part = folder.part() or Part(measure.empty(), "")
    with (
        _engine(model, options, measure) as measure_all,
        Bar(documents, options.limit, shown=progress) as bar,
    ):
        unread = windows(_documents(documents, options))
        for window, measured in measure_all(_new(unread, part, bar)):
            _check(window, measured, options)
            if window.number == 0:
                part = replace(part, drift=_drift(measure, model, options, window))
            part = part.with_window(window, measured)
            folder.keep(part)
            bar.show(part)
    return part


def _documents(documents: Iterable[Document | str], options: Options) -> Iterator[Document]:
    named = (document_of(one, number) for number, one in enumerate(documents))
    return islice(in_pairs(named) if options.pairs else named, options.limit)


def _new(all_windows: Iterator[Window], part: Part, bar: Bar) -> Iterator[Window]:
    """The windows that are not in the part yet; raises where the corpus is another."""
    corpus, seen = "", 0
    for window in all_windows:
        if window.number < part.windows:
            corpus, seen = hash_documents(corpus, window.documents), seen + 1
            if seen == part.windows and corpus != part.corpus:
                raise _another_corpus()
            bar.skip()
            continue
        bar.begin(window)
        yield window
        seen += 1
    if seen < part.windows:
        raise _another_corpus()


@contextmanager
def _engine(model: "Surveyable", options: Options, measure: WindowSurvey) -> Iterator[MeasureAll]:
    """What measures windows, in their order: this process, or workers of Ray."""
    if options.engine == "ray" and not isinstance(model, AttachedStack):
        from minibert.survey.ray_workers import ray_workers

        with ray_workers(model, options) as workers:
            yield workers.measured
    else:
        yield measure.in_order


def _another_corpus() -> SurveyError:
    return SurveyError(
        "The documents are not those that the interrupted survey in this folder began with. Give "
        "those, or begin anew with resume=False."
    )


def _check(window: Window, measured: Measured, options: Options) -> None:
    """Raise SurveyError for a document that has no tokens, and for results that are no numbers."""
    if measured.wrong and options.on_error == "raise":
        place, reason = measured.wrong[0]
        hint = 'Leave such documents out with on_error="skip".'
        raise SurveyError(f"{place}: {reason.removesuffix('.')}. {hint}")
    if not np.isfinite(measured.sums.total).all():
        first, last = window.documents[0].id, window.documents[-1].id
        raise SurveyError(
            f"Between {first} and {last} the model gave numbers that are not finite; its dtype "
            "may be too narrow. Compute in float32."
        )


def _drift(
    measure: WindowSurvey, model: "Surveyable", options: Options, window: Window
) -> dict[str, float] | None:
    """By measure the largest difference of a head that a narrow dtype makes; None for others."""
    if options.dtype_of(model) not in (torch.bfloat16, torch.float16):
        return None
    few = Window(0, 0, window.documents[:COMPARED])
    wide = options.window_survey(in_dtype(model, torch.float32))
    narrow_means, wide_means = (document_means(one(few).sums) for one in (measure, wide))
    largest = np.abs(narrow_means - wide_means).max((1, 2))
    return {one.name: float(n) for one, n in zip(measure.measures, largest, strict=True) if n == n}


def _told(part: Part, documents: Iterable[Any]) -> dict[str, Any]:
    """What the manifest says of the corpus."""
    found: dict[str, Any] = {
        "sha256": part.corpus,
        "documents": part.documents,
        "segments": part.segments,
        "tokens": part.tokens,
        "pairs_cut": part.pairs_cut,
        "without_tokens": {"count": part.n_wrong, "first": [list(one) for one in part.wrong]},
    }
    if isinstance(documents, Documents):
        found["files"] = [path.name for path in documents.files]
        found["too_short"] = documents.n_short
        skipped = [list(one) for one in documents.skipped]
        found["skipped"] = {"count": documents.n_skipped, "first": skipped}
    if part.drift is not None:
        found["drift"] = {"documents": COMPARED, "largest_difference": part.drift}
    return found


def _result(measure: WindowSurvey, part: Part, manifest: dict[str, Any]) -> Survey:
    if not part.documents:
        reasons = "".join(f" {place}: {reason}" for place, reason in part.wrong[:3])
        raise SurveyError(f"There is no document that can be measured.{reasons}")
    names = tuple(one.name for one in measure.measures)
    return Survey(names, part.sums, part.ids, manifest)
