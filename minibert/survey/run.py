"""`survey`: what every head of a model does, over a corpus of any size; its options, checked."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minibert.attached.attach import Attached
from minibert.errors import SurveyError
from minibert.model import Model
from minibert.survey.document_rows import surveyable
from minibert.survey.documents import check_list
from minibert.survey.live import AttachedStack, Surveyable
from minibert.survey.measures import BY_NORM, measures_of
from minibert.survey.rows import OFFSETS, AttachedMasses, PassMasses
from minibert.survey.runs import (
    CHARACTERS,
    DOCUMENTS,
    RunFolder,
    Window,
    opened,
    told_of,
    unread,
    versions,
)
from minibert.survey.segments import Segmenter
from minibert.survey.sums import Masses, Measured, WindowSurvey
from minibert.survey.tables import MANIFEST, PART, Survey, parquet
from minibert.trace.file import identity_of


@dataclass(frozen=True)
class Options:
    """The options of a survey; `survey` explains each of them.

    Raises SurveyError for impossible values.
    """

    measures: Sequence[str] | None = None
    offsets: Sequence[int] = OFFSETS
    tokens: Sequence[str] = ()
    by_norm: bool = True
    profile: bool = True
    limit: int | None = None
    longest: int | None = None
    batch_tokens: int = 4096
    on_error: str = "raise"

    def __post_init__(self) -> None:
        for name, least in {"limit": 1, "longest": 8, "batch_tokens": 1}.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and (not whole or value < least):
                raise SurveyError(f"{name}={value!r}: expected a whole number from {least} on.")
        if any(isinstance(n, bool) or not isinstance(n, int) for n in self.offsets):
            raise SurveyError(f"offsets={self.offsets!r:.80}: expected whole numbers, as (-2, 2).")
        for name in ("measures", "tokens"):
            if isinstance(getattr(self, name), str):
                raise SurveyError(f"{name}={getattr(self, name)!r:.80}: expected several texts.")
        if self.on_error not in ("raise", "skip"):
            raise SurveyError(f'on_error={self.on_error!r:.80}: expected "raise" or "skip".')

    @property
    def every_offset(self) -> tuple[int, ...]:
        """The offsets that are measured."""
        return tuple(dict.fromkeys((*OFFSETS, *sorted(self.offsets))))

    def measuring(self, model: Surveyable) -> WindowSurvey:
        """What measures windows with this model.

        Raises SurveyError for an unknown measure, a model without a tokenizer, and tokens that the
        tokenizer does not have.
        """
        chosen = measures_of(
            offsets=self.every_offset, tokens=self.tokens, by_norm=self.by_norm, names=self.measures
        )
        offsets, profile = self.every_offset, self.profile
        by_norm = any(one.name.endswith(BY_NORM) for one in chosen)
        segmenter = Segmenter(model, chosen=tuple(self.tokens), longest=self.longest)
        masses: Masses
        if isinstance(model, AttachedStack):
            masses = AttachedMasses(model, offsets=offsets, by_norm=by_norm, profile=profile)
        else:
            masses = PassMasses(model, offsets=offsets, by_norm=by_norm, profile=profile)
        return WindowSurvey(
            model, segmenter, masses, chosen, batch_tokens=self.batch_tokens, profile=profile
        )

    def told(self, model: Surveyable, measure: WindowSurvey) -> dict[str, object]:
        """Everything the numbers depend on, for JSON; defaults of the model are filled in."""
        return {
            "measures": [one.name for one in measure.measures],
            "offsets": list(self.every_offset),
            "tokens": list(self.tokens),
            "profile": self.profile,
            "limit": self.limit,
            "longest": self.longest or model.config.n_positions,
            "dtype": str(model.dtype).removeprefix("torch."),
            "impl": model.impl,
            "batch_tokens": self.batch_tokens,
            "window": {"characters": CHARACTERS, "documents": DOCUMENTS},
            "on_error": self.on_error,
        }


#: 2: rows and documents are counted for each measure and layer.
FORMAT = 2


def survey(
    model: Model | Attached,
    documents: Iterable[object],
    *,
    output: str | Path | None = None,
    measures: Sequence[str] | None = None,
    offsets: Sequence[int] = OFFSETS,
    tokens: Sequence[str] = (),
    by_norm: bool = True,
    profile: bool = True,
    stack: str | None = None,
    limit: int | None = None,
    longest: int | None = None,
    batch_tokens: int = 4096,
    on_error: str = "raise",
    resume: bool = True,
    progress: bool = False,
) -> Survey:
    """Measure every head of a model over documents: a `Survey`, and tables in a folder.

    model         from minibert.load, or from minibert.attach with a tokenizer; then a live model of
                  transformers runs unchanged (live.py)
    documents     what `read_documents` gives, or any texts or pairs of texts, read one after the
                  other; Clark et al. 2019 took each two paragraphs as a pair: zip(a[::2], a[1::2])
    output        a folder for tables and manifest; while it runs it holds what is done so far
    measures      names of measures (`minibert.survey.measures.measures_of`); by default all
    offsets       offsets that are measured in addition to −1, 0 and 1
    tokens        tokens as a person reads them; each gets its own measure
    by_norm       measure everything again with rows weighted by norms (Kobayashi et al. 2020)
    profile       keep the mass at every distance
    stack         of an attached model with several: "encoder", "decoder.self", ... A decoder reads
                  the tokens of the text, as the encoder does
    limit         measure at most so many documents
    longest       tokens of a segment, by default the model's positions; longer texts are cut into
                  windows that do not overlap
    batch_tokens  tokens that go through the model together
    on_error      "raise", or "skip" documents that cannot become tokens, and count them
    resume        continue where an interrupted run into this folder stopped, with bit-identical
                  tables. A finished survey with the same options is read, not measured again.
                  False starts over
    progress      show a bar

    Raises SurveyError before anything is computed for options that do not fit, a folder with other
    content, and a folder without pyarrow installed; during the run, for files that cannot be read
    or written.
    """
    check_list(documents, "documents")
    options = Options(
        measures=measures, offsets=offsets, tokens=tokens, by_norm=by_norm, profile=profile,
        limit=limit, longest=longest, batch_tokens=batch_tokens, on_error=on_error,
    )  # fmt: skip
    subject = surveyable(model, stack, longest)
    measure = options.measuring(subject)
    about = {
        "format": FORMAT,
        "model": identity_of_surveyed(subject),
        "options": options.told(subject, measure),
        "versions": versions(),
    }
    if output is not None:
        parquet()
    reasons = ("*why*", "moved.parquet")
    with opened(output, about, MANIFEST, PART, resume=resume, belonging=reasons) as folder:
        if folder.finished(documents, limit=limit):
            return Survey.read(Path(str(output)))
        measured = _measured(documents, options, measure, folder, progress=progress)
        # As it is read from its file, where a tuple is a list.
        found = json.loads(json.dumps({**about, "corpus": _told(measured, documents)}))
        result = _result(measure, measured, found)
        folder.finish(result.write)
    return result


def identity_of_surveyed(subject: Surveyable) -> dict[str, object]:
    """The manifest's description of the model, ready for JSON."""
    return subject.identity() if isinstance(subject, AttachedStack) else identity_of(subject)


def _measured(
    documents: Iterable[object],
    options: Options,
    measure: WindowSurvey,
    folder: RunFolder,
    *,
    progress: bool,
) -> Measured:
    """The sums of the whole corpus, kept in the folder after each window."""
    kept = folder.kept()
    found = Measured(measure.empty()) if kept is None else Measured.of(*kept)
    new = unread(documents, found.read, limit=options.limit, progress=progress)
    for window, measured in measure.in_order(new):
        _check(window, measured, options)
        found = found.with_window(window, measured)
        folder.keep(found.told(), vars(found.sums))
    return found


def _check(window: Window, measured: Measured, options: Options) -> None:
    """Raise SurveyError for a document that has no tokens, and for results that are not numbers."""
    if measured.wrong and options.on_error == "raise":
        place, reason = measured.wrong[0]
        hint = 'Leave such documents out with on_error="skip".'
        raise SurveyError(f"{place}: {reason.removesuffix('.')}. {hint}")
    if not np.isfinite(measured.sums.total).all():
        first, last = window.documents[0].id, window.documents[-1].id
        raise SurveyError(
            f"Between {first} and {last} the model gave NaN or infinity: its weights are broken, "
            "or too large for its dtype. Compute in a wider one, such as float64."
        )


def _told(found: Measured, documents: Iterable[object]) -> dict[str, object]:
    """The manifest's description of the corpus."""
    return {
        **told_of(documents, found.read),
        "documents": found.documents,
        "segments": found.segments,
        "tokens": found.tokens,
        "pairs_cut": found.pairs_cut,
        "without_tokens": {"count": found.n_wrong, "first": [list(one) for one in found.wrong]},
    }


def _result(measure: WindowSurvey, found: Measured, manifest: dict[str, object]) -> Survey:
    if not found.documents:
        reasons = "".join(f" {place}: {reason}" for place, reason in found.wrong[:3])
        raise SurveyError(f"There is no document that can be measured.{reasons}")
    names = tuple(one.name for one in measure.measures)
    return Survey(names, found.sums, found.ids, manifest)
