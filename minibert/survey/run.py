"""`survey`: what every head of a model does, over a corpus of any size; its options, checked."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NoReturn, overload

import numpy as np
import torch
from tqdm import tqdm

from minibert.attached.attach import Attached
from minibert.errors import SurveyError, how_to_install
from minibert.kernels.registry import check_name
from minibert.layers.linear import values_of
from minibert.model import Model
from minibert.survey.document_rows import surveyable
from minibert.survey.documents import Document, Documents, check_list, document_of
from minibert.survey.live import AttachedStack, Surveyable
from minibert.survey.loss_gradients import LossGradients, Objective, with_gradients
from minibert.survey.measures import BY_NORM, GRADIENT, Measure
from minibert.survey.measures import measures as all_measures
from minibert.survey.rows import OFFSETS, AttachedMasses, PassMasses
from minibert.survey.segments import Segmenter, in_pairs
from minibert.survey.tables import OutputFolder, Survey, opened, versions
from minibert.survey.windows import (
    CHARACTERS,
    DOCUMENTS,
    Masses,
    Measured,
    Part,
    Window,
    WindowSurvey,
    document_means,
    hash_documents,
    windows,
)
from minibert.trace.file import identity_of

ENGINES = ("local", "ray")
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Options:
    """How a survey is made; `survey` says what each means.

    Raises SurveyError for what cannot be.
    """

    measures: Sequence[str] | None = None
    offsets: Sequence[int] = OFFSETS
    tokens: Sequence[str] = ()
    by_norm: bool = True
    gradients: bool = False
    profile: bool = True
    pairs: bool = False
    limit: int | None = None
    longest: int | None = None
    dtype: torch.dtype | None = None
    impl: str | None = None
    batch_tokens: int = 4096
    on_error: str = "raise"
    engine: str = "local"
    workers: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        whole_numbers = {"limit": 1, "longest": 8, "batch_tokens": 1, "workers": 1, "threads": 1}
        for name, least in whole_numbers.items():
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
        self._check_engine()
        if self.dtype is not None and self.dtype not in _DTYPES:
            known = ", ".join(map(str, _DTYPES))
            raise SurveyError(f"dtype={self.dtype!r}: expected one of {known}.")
        if self.impl is not None:
            check_name(self.impl)

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise SurveyError(f"engine={self.engine!r:.80}: expected {' or '.join(ENGINES)}.")
        if self.engine == "ray":
            try:
                import ray  # noqa: F401
            except ImportError:
                raise SurveyError(f'engine="ray" needs Ray: {how_to_install("ray")}.') from None
        for name in ("workers", "threads"):
            if self.engine == "local" and getattr(self, name) is not None:
                raise SurveyError(f'{name}= is for engine="ray"; leave it out.')

    def chosen(self) -> tuple[Measure, ...]:
        """The measures. Raises SurveyError for a name that is none of them."""
        return all_measures(
            offsets=self.every_offset,
            tokens=self.tokens,
            by_norm=self.by_norm,
            gradients=self.gradients,
            names=self.measures,
        )

    @property
    def every_offset(self) -> tuple[int, ...]:
        """The offsets that are measured."""
        return tuple(dict.fromkeys((*OFFSETS, *sorted(self.offsets))))

    def window_survey(self, model: Surveyable) -> WindowSurvey:
        """What measures windows with this model.

        Raises SurveyError for a model without a tokenizer, and for tokens it does not have.
        """
        chosen = self.chosen()
        return WindowSurvey(
            model,
            Segmenter(model, chosen=tuple(self.tokens), longest=self.longest),
            self._masses(model, chosen),
            chosen,
            batch_tokens=self.batch_tokens,
            profile=self.profile,
            gradients=self.gradients,
        )

    def measuring(self, model: Model) -> WindowSurvey:
        """The same with a copy of the model in the dtype that is computed in."""
        return self.window_survey(in_dtype(model, self.dtype))

    def _masses(self, model: Surveyable, chosen: Sequence[Measure]) -> Masses:
        offsets, profile = self.every_offset, self.profile
        by_norm = any(one.name.endswith(BY_NORM) for one in chosen)
        if isinstance(model, AttachedStack):
            return AttachedMasses(model, offsets=offsets, by_norm=by_norm, profile=profile)
        masses: Masses = PassMasses(
            model, offsets=offsets, by_norm=by_norm, profile=profile, impl=self.impl
        )
        if self.gradients and any(one.name.startswith(GRADIENT) for one in chosen):
            gradients = LossGradients(model, offsets=offsets, impl=self.impl)
            masses = with_gradients(masses, gradients)
        return masses

    def check_attached(self, name: str, dtype: torch.dtype) -> None:
        """Raise SurveyError for what a survey of a live model in this dtype does not do."""
        why = {
            "gradients=True": "the loss of a text is known of models that minibert.load reads; "
            "leave gradients out" if self.gradients else "",
            f"impl={self.impl!r}": "the model attends by its own implementation: call "
            "hf_model.set_attn_implementation, and leave impl out" if self.impl else "",
            f"engine={self.engine!r}": "a live model stays in its process; leave engine out"
            if self.engine != "local" else "",
            f"dtype={self.dtype}": f"the model is in {dtype}: load it in the other one"
            if self.dtype not in (None, dtype) else "",
        }  # fmt: skip
        for option, reason in why.items():
            if reason:
                raise SurveyError(f"{option} of the attached model {name}: {reason}.")

    def dtype_of(self, model: Surveyable) -> torch.dtype:
        """The one that is computed in."""
        return model.dtype if self.dtype is None else self.dtype

    def told(self, model: Surveyable) -> dict[str, object]:
        """What the numbers depend on, for JSON; what was left to the model is filled in.

        The engine is not among it: tables are the same with each.
        """
        return {
            "measures": [one.name for one in self.chosen()],
            "offsets": list(self.every_offset),
            "tokens": list(self.tokens),
            "gradients": self._gradients_told(model),
            "profile": self.profile,
            "pairs": self.pairs,
            "limit": self.limit,
            "longest": self.longest or model.config.n_positions,
            "dtype": str(self.dtype_of(model)).removeprefix("torch."),
            "impl": self.impl or model.impl,
            "batch_tokens": self.batch_tokens,
            "window": {"characters": CHARACTERS, "documents": DOCUMENTS},
            "on_error": self.on_error,
        }

    def _gradients_told(self, model: Surveyable) -> dict[str, object] | None:
        if not self.gradients or isinstance(model, AttachedStack):
            return None
        return Objective.of(model).told()


@overload
def in_dtype(model: Model, dtype: torch.dtype | None) -> Model: ...
@overload
def in_dtype(model: Surveyable, dtype: torch.dtype | None) -> Surveyable: ...
def in_dtype(model: Surveyable, dtype: torch.dtype | None) -> Surveyable:
    """The model, or a copy of it in another dtype."""
    if dtype is None or dtype == model.dtype:
        return model
    if isinstance(model, AttachedStack):
        return model.in_dtype(dtype)
    copy = Model(model.config, tokenizer=model.tokenizer, name=model.name)
    copy.impl = model.impl
    device = model.body.word.weight.device
    state = {name: values_of(one) for name, one in model.named_parameters()}
    with torch.no_grad():
        for name, one in copy.named_parameters():
            one.copy_(state[name])
    copy.to(device=device, dtype=dtype)
    copy.pack()
    return copy


class Bar:
    """A bar by bytes of the corpus; by documents where a number of these is the limit.

    The estimate is from the windows that this run measured: what an earlier run did costs no time.
    """

    def __init__(self, documents: Iterable[object], limit: int | None, *, shown: bool) -> None:
        self._files = documents if isinstance(documents, Documents) and limit is None else None
        self._total = limit if self._files is None else self._files.n_bytes
        self._shown, self._skipped = shown, 0
        self._bar: tqdm[NoReturn] | None = None

    def close(self) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.close()

    def skip(self) -> None:
        """A window was measured by an earlier run."""
        self._skipped = 0 if self._files is None else self._files.bytes_read

    def begin(self) -> None:
        """The first window that is new was read."""
        if self._bar is None:
            self._bar = tqdm(
                total=self._total, initial=self._skipped,
                unit=" documents" if self._files is None else "B", unit_scale=True,
                disable=not self._shown, mininterval=0,
            )  # fmt: skip

    def show(self, measured: Measured) -> None:
        """So much was measured by now."""
        assert self._bar is not None
        done = measured.documents if self._files is None else self._files.bytes_read
        self._bar.set_postfix(documents=measured.documents, tokens=measured.tokens, refresh=False)
        self._bar.update(done - self._bar.n)


MeasureAll = Callable[[Iterator[Window]], Iterator[tuple[Window, Measured]]]

#: 2: rows and documents are counted in each layer.
FORMAT = 2
#: Documents on which a narrower dtype is compared with float32.
COMPARED = 16


def survey(
    model: Model | Attached,
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
                  transformers runs as it is (live.py)
    documents     what `read_documents` gives, or any documents or texts, read one after the other
    output        a folder for tables and manifest; while it runs it holds what is done so far
    measures      names of measures (`minibert.survey.measures.measures`); all where none are given
    offsets       offsets that are measured beside −1, 0 and 1
    tokens        tokens as a person reads them, each with a measure of its own
    by_norm       measure everything again with rows weighed by norms (Kobayashi et al. 2020)
    gradients     measure how much the loss changes with a weight of attention, by kind of key
                  (Clark et al. 2019, §3.3): the mean of |∂L/∂α|, with L the sum of −ln p of the
                  tokens that the model predicts (loss_gradients.py; the manifest says it, too). A
                  second pass, forward and backward
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
    options = Options(
        measures=measures, offsets=offsets, tokens=tokens, by_norm=by_norm, gradients=gradients,
        profile=profile, pairs=pairs, limit=limit, longest=longest, dtype=dtype, impl=impl,
        batch_tokens=batch_tokens, on_error=on_error, engine=engine, workers=workers,
        threads=threads,
    )  # fmt: skip
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


def _subject(model: Model | Attached, stack: str | None, options: Options) -> Surveyable:
    """The model, or the stack of an attached one."""
    if isinstance(model, Attached):
        weight = next(model.model.parameters(), torch.empty(0))
        options.check_attached(model.name, weight.dtype)
    return surveyable(model, stack, options.longest)


def identity_of_surveyed(subject: Surveyable) -> dict[str, object]:
    """What the manifest says of the model, ready for JSON."""
    return subject.identity() if isinstance(subject, AttachedStack) else identity_of(subject)


def _measured(
    model: Surveyable,
    documents: Iterable[Document | str],
    options: Options,
    measure: WindowSurvey,
    folder: OutputFolder,
    *,
    progress: bool,
) -> Part:
    """The sums of the whole corpus, each window kept in the folder when it is merged."""
    part = folder.part() or Part(Measured(measure.empty()))
    with (
        _engine(model, options, measure) as measure_all,
        closing(Bar(documents, options.limit, shown=progress)) as bar,
    ):
        unread = windows(_documents(documents, options))
        for window, measured in measure_all(_new(unread, part, bar)):
            _check(window, measured, options)
            if window.number == 0:
                part = replace(part, drift=_drift(measure, model, options, window))
            part = part.with_window(window, measured)
            folder.keep(part)
            bar.show(part.measured)
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
        bar.begin()
        yield window
        seen += 1
    if seen < part.windows:
        raise _another_corpus()


@contextmanager
def _engine(model: Surveyable, options: Options, measure: WindowSurvey) -> Iterator[MeasureAll]:
    """What measures windows, in their order: this process, or workers of Ray."""
    if options.engine == "ray" and not isinstance(model, AttachedStack):
        from minibert.survey.ray_workers import ray_workers

        with ray_workers(
            model, options.measuring, workers=options.workers, threads=options.threads
        ) as workers:
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
    measure: WindowSurvey, model: Surveyable, options: Options, window: Window
) -> dict[str, float] | None:
    """By measure the largest difference of a head that a narrow dtype makes; None for others."""
    if options.dtype_of(model) not in (torch.bfloat16, torch.float16):
        return None
    few = Window(0, 0, window.documents[:COMPARED])
    wide = options.window_survey(in_dtype(model, torch.float32))
    narrow_means, wide_means = (document_means(one(few).sums) for one in (measure, wide))
    largest = np.abs(narrow_means - wide_means).max((1, 2))
    return {one.name: float(n) for one, n in zip(measure.measures, largest, strict=True) if n == n}


def _told(part: Part, documents: Iterable[object]) -> dict[str, object]:
    """What the manifest says of the corpus."""
    told = part.measured
    found: dict[str, object] = {
        "sha256": part.corpus,
        "documents": told.documents,
        "segments": told.segments,
        "tokens": told.tokens,
        "pairs_cut": told.pairs_cut,
        "without_tokens": {"count": told.n_wrong, "first": [list(one) for one in told.wrong]},
    }
    if isinstance(documents, Documents):
        found["files"] = [path.name for path in documents.files]
        found["too_short"] = documents.n_short
        skipped = [list(one) for one in documents.skipped]
        found["skipped"] = {"count": documents.n_skipped, "first": skipped}
    if part.drift is not None:
        found["drift"] = {"documents": COMPARED, "largest_difference": part.drift}
    return found


def _result(measure: WindowSurvey, part: Part, manifest: dict[str, object]) -> Survey:
    found = part.measured
    if not found.documents:
        reasons = "".join(f" {place}: {reason}" for place, reason in found.wrong[:3])
        raise SurveyError(f"There is no document that can be measured.{reasons}")
    names = tuple(one.name for one in measure.measures)
    return Survey(names, found.sums, found.ids, manifest)
