"""`measuring`: statistics of every head while a model of transformers runs or generates.

    with minibert.measuring(hf_model, want=("entropy", "received")) as seen:
        hf_model.generate(**inputs, max_new_tokens=256)
    seen[3].entropy                     # (batch, head, position): the prompt and every new token

`minibert.attend` computes z and its statistics in one pass, in place of the model's own attention
and without an N x N matrix; only numbers of queries and keys are kept.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple, cast, overload
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from minibert.attached.attach import Attached, attach
from minibert.attached.call import Call, form_of
from minibert.attached.layout import crosses, pattern_of
from minibert.attached.read import attended
from minibert.attached.recording import Edits, Known, Pass, Recording
from minibert.doors import Page as Written
from minibert.doors import opened
from minibert.errors import TraceError, check_index, did_you_mean
from minibert.kernels.api import Attended
from minibert.kernels.call import RANKED, Want, most_ranks, parse_want, ranked
from minibert.quantities import HeadVectors
from minibert.result import Result

#: Numbers of a query, of which each token has one, and of a key, to which later tokens add.
OF_QUERIES = (
    "entropy", "max_prob", "row_max", "argmax", "key_mass", "offset_mass", "top_keys", "top_probs",
)  # fmt: skip
OF_KEYS = ("received",)
# Keys have no mean, and a row of padding has no finite largest score.
_PLACES = ("argmax", "top_keys", "row_max")
#: Files of a folder: what is measured, what a layer has, and how many tokens of it are there.
ABOUT, LAYER, COUNTS = "measured.json", "layer.json", "counts"
# Places for tokens in the first memory of a layer.
_LEAST = 64
# Numbers of a row that waits for those of other layers: of many layers they are some 100 MB.
_MOST = 1 << 18


def measuring(
    model: object,
    want: Iterable[object] = ("entropy", "received"),
    folder: str | Path | None = None,
) -> AbstractContextManager["Measured"]:
    """Measure every attention call of the model inside the block: `seen[layer].entropy`.

    `model` is a live model of transformers, or what `attach` made of it. `want` names statistics
    as `minibert.attend` does: entropy, max_prob, row_max, argmax, received, ("key_mass", keys) and
    ("offset_mass", offsets), with 0 for a key that is not there yet, ("top_keys", k) and
    ("top_probs", k). Keys and offsets count padding, as the model's own positions do.

    The numbers are written to memory allocated beforehand, one line for each token, layer and head.
    With `folder`, for long runs, they go to files there, which `minibert watch` draws and
    `minibert.attached.measured_files.read` reads, while the model runs and afterwards.

    A run is a pass with an empty cache and the passes that continue it, as `generate` makes them.
    The model continues with the z that was computed together with the statistics, which equals its
    own within rounding. It computes z itself where gradients are wanted, where a query is padding,
    and in the first call of each form, which is checked. A layer whose scores are unknown has no
    statistics, and reading them raises an error that says why. Each `with` starts again.

    Raises TraceError for a model that cannot be attached to, for dropout, for a statistic that is
    not of one query or one key, and where attention was not seen, as inside torch.compile.
    """
    attached = model if isinstance(model, Attached) else attach(model)
    return _Block(partial(_measured, attached, checked(want), folder))


@contextmanager
def _measured(attached: Attached, want: Want, folder: str | Path | None) -> "Iterator[Measured]":
    folder = None if folder is None else _begun(folder, attached, want)
    seen = Measured(attached.name, want, folder)
    with attached.listener(lambda known: _Measuring(known, want, seen)) as listener:
        yield seen
    listener.settle_left()
    if not seen.runs:
        raise attached.nothing(listener)
    listener.check_all_seen()


class _Block(AbstractContextManager["Measured"]):
    """A with block that may be entered again, which what `contextmanager` makes may not."""

    def __init__(self, begin: "Callable[[], AbstractContextManager[Measured]]") -> None:
        self._begin = begin

    def __enter__(self) -> "Measured":
        self._inside = self._begin()
        return self._inside.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._inside.__exit__(*error)


def _begun(folder: str | Path, attached: Attached, want: Want) -> Path:
    """The folder, which now says what is measured. Raises TraceError where it has other numbers."""
    folder = Path(folder)
    if (folder / ABOUT).exists():
        raise TraceError(f"{folder} has the numbers of another run; name another folder.")
    folder.mkdir(exist_ok=True)
    (folder / ABOUT).write_text(json.dumps({"model": attached.name, "want": [*want.items()]}))
    return folder


def checked(want: Iterable[object]) -> Want:
    """What is wanted, by name. Raises TraceError for what is not of one query or one key."""
    parsed = parse_want(want, n_keys=None)
    for name in parsed:
        if name not in OF_QUERIES + OF_KEYS:
            raise TraceError(
                f"want: {name!r} is not measured while a model runs; expected some of "
                f"{', '.join(OF_QUERIES + OF_KEYS)}."
            )
    if below := [key for key in parsed.get("key_mass", ()) if key < 0]:
        raise TraceError(f"want: key_mass of {below}: keys count from the first token, 0.")
    if not parsed:
        raise TraceError('want is empty; expected names of statistics, as ("entropy",).')
    return parsed


@dataclass(frozen=True)
class Numbers:
    """The statistics of one call."""

    values: dict[str, Tensor]
    past: int
    """Tokens in front of its first query."""
    n_queries: int
    first_key: int
    """The position of its first key: above 0 where a cache has let go of older ones."""
    n_real: Tensor | int
    """Its queries that are not padding, (batch), or one number for all sentences."""


class LayerMeasured:
    """The statistics of one layer over a run, by name: `seen[3].entropy`.

    Those of queries are (batch, head, position), with parameters (batch, head, position,
    parameter); received is (batch, head, key). Both count from the first token of the prompt.
    `minibert.kernels.api.Statistics` defines each number.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.problem = ""
        """Why this layer has no statistics; "" where it has."""
        self.n_queries = 0
        """Queries that were measured."""
        self.n_real: Tensor | int = 0
        """The queries among them that are not padding, (batch), or one number for all sentences."""
        self._kept: dict[str, Tensor] = {}
        self._lengths: dict[str, int] = {}
        self._counts: Any = None

    def add(self, found: Numbers) -> None:
        """Append the numbers of a call to those of earlier calls."""
        if found.past < self.n_queries and set(OF_KEYS) & found.values.keys():
            raise TraceError(
                f"The cache was cut back from {self.n_queries} tokens to {found.past}, as assisted "
                "decoding does, and received counts weights of what was taken back. Leave it out "
                "of want, or generate without an assistant."
            )
        for name, numbers in found.values.items():
            of_keys = name in OF_KEYS
            start = found.first_key if of_keys else found.past
            stop = start + numbers.shape[2]
            kept = self._kept[name] = self._with_room(name, stop, numbers)
            here = kept[:, :, start:stop]
            here.copy_(here + numbers.to(here.device) if of_keys else numbers)
            self._lengths[name] = max(self._lengths.get(name, 0), stop) if of_keys else stop
        self.n_queries, self.n_real = found.past + found.n_queries, self.n_real + found.n_real
        if self._folder is not None:
            self._tell(self._folder)

    def _tell(self, folder: Path) -> None:
        """Write how many tokens there are; a reader takes no number after them."""
        batch = len(next(iter(self._kept.values())))
        if self._counts is None:
            # The rows of a file are tokens: it grows at its end.
            rows = {name: one.movedim(2, 0)[0] for name, one in self._kept.items()}
            about = {name: [str(one.numpy().dtype), [*one.shape]] for name, one in rows.items()}
            (folder / LAYER).write_text(json.dumps(about))
            self._counts = np.memmap(folder / COUNTS, np.int64, "w+", shape=(2 + batch,))
        n_keys = max((self._lengths.get(name, 0) for name in OF_KEYS), default=0)
        real = torch.as_tensor(self.n_real).expand(batch)
        self._counts[:] = [self.n_queries, n_keys, *real.tolist()]

    @property
    def lacks_queries(self) -> bool:
        """Whether some rows have no query: padding, or what was computed before."""
        return bool((torch.as_tensor(self.n_real) < self.n_queries).any())

    def hold(self, kept: dict[str, Tensor], n_queries: int, n_keys: int, n_real: Tensor) -> None:
        """Take numbers that were measured before, with at least so many queries and keys."""
        self._kept, self.n_queries, self.n_real = kept, n_queries, n_real
        self._lengths = {name: n_keys if name in OF_KEYS else n_queries for name in kept}

    def _with_room(self, name: str, length: int, numbers: Tensor) -> Tensor:
        """The memory; where it is too short, one of twice the length with the same numbers."""
        kept = self._kept.get(name)
        if kept is not None and kept.shape[2] >= length:
            return kept
        room = max(_LEAST, 2 * length if kept is not None else length)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            kind = torch.empty(0, dtype=numbers.dtype).numpy().dtype
            shape = (room, *numbers.movedim(2, 0).shape[1:])
            path = self._folder / name
            rows = np.memmap(path, kind, "w+" if kept is None else "r+", shape=shape)
            return torch.from_numpy(rows).movedim(0, 2)
        grown = numbers.new_zeros((*numbers.shape[:2], room, *numbers.shape[3:]))
        if kept is not None:
            grown[:, :, : kept.shape[2]] = kept
        return grown

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.read(name)

    def read(self, name: str) -> Tensor:
        """A statistic by its name. Raises TraceError where it was not measured."""
        if self.problem:
            raise TraceError(f"{name} was not measured: {self.problem}.")
        if name not in self._kept:
            known = [*self._kept]
            raise TraceError(
                f"{name!r:.80} was not measured{did_you_mean(name, known)}; there are "
                f"{', '.join(known)}. Name it in want=."
            )
        return self._kept[name][:, :, : self._lengths[name]]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._kept]

    def __repr__(self) -> str:
        return f"LayerMeasured({self.problem or ', '.join(self._kept)}; {self.n_queries} tokens)"


Run = dict[str, list[LayerMeasured]]
"""The layers of each stack."""


class Sink(NamedTuple):
    """A key to which a head gives much of its weight."""

    layer: int
    batch: int
    head: int
    key: int
    share: float


class Passage(NamedTuple):
    """The weight of some tokens in each head."""

    rows: list[dict[str, int | float]]
    """layer, batch, head and "", the mean weight."""
    told: str
    """Which queries the mean is over."""


class Measured:
    """The statistics of `measuring`: `seen[layer]` of the newest run; `seen.runs` are all runs.

    With several stacks, as an encoder and a decoder, `seen["decoder.self"][layer]`.
    """

    def __init__(self, model_name: str, want: Want, folder: Path | None = None) -> None:
        self.model_name, self.want, self.folder = model_name, want, folder
        self.runs: list[Run] = []

    @overload
    def __getitem__(self, key: int) -> LayerMeasured: ...

    @overload
    def __getitem__(self, key: str) -> list[LayerMeasured]: ...

    def __getitem__(self, key: int | str) -> LayerMeasured | list[LayerMeasured]:
        if isinstance(key, str):
            return self.layers(key)
        layers = self.layers(None)
        return layers[check_index("layer", key, len(layers))]

    def __repr__(self) -> str:
        if not self.runs:
            return f"Measured({self.model_name}: nothing yet)"
        newest = ", ".join(f"{stack}: {len(of)}" for stack, of in self.runs[-1].items())
        return f"Measured({self.model_name}: runs: {len(self.runs)}, the newest with {newest})"

    def result(self, name: str, stack: str | None = None) -> Result[Tensor]:
        """A statistic of all layers of the newest run, with `.table()`, `.largest()`, `.plot()`."""
        values = torch.stack([layer.read(name) for layer in self.layers(stack)])
        axes = f"layer batch head {'key' if name in OF_KEYS else 'position'}"
        axes += " parameter" * (values.ndim > 4)
        return Result(values, axes, title=f"{name} of {self.model_name}")

    def sinks(self, share: float = 0.3, stack: str | None = None) -> list[Sink]:
        """The keys to which a head gives at least this share of its weight, the largest first.

        The share is what the key received, divided by the number of queries that are not padding:
        the mean weight (Gu et al. 2025, "When attention sink emerges in language models", section
        3, which also has the 0.3; Xiao et al. 2024). `want` has to name "received".
        Raises TraceError for a share that is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise TraceError(f"share={share}: expected a number from 0 to 1.")
        found = self.result("received", stack).values
        n_real = torch.as_tensor(self.layers(stack)[0].n_real).to(found.device)
        shares = (found / n_real.view(-1, 1, 1)).cpu().numpy()
        rows = [
            Sink(layer, batch, head, key, float(mean))
            for (layer, batch, head, key), mean in np.ndenumerate(shares)
            if mean >= share
        ]
        return sorted(rows, key=lambda row: -row.share)

    def passage(
        self, start: int, stop: int, stack: str | None = None
    ) -> tuple[Passage, Tensor | None]:
        """The weight that tokens start to stop - 1 get in each head, and along the text.

        Where `want` has ("key_mass", keys) with all of them, the mean is over the queries after
        them, and the second is (layer, batch, head, position). Else it is taken from "received",
        over all queries, those of the passage included, and the second is None.
        Raises TraceError where neither was measured, and for tokens that are not in the run.
        """
        layers, keys = self.layers(stack), [*self.want.get("key_mass", ())]
        n_tokens = layers[0].n_queries
        if not 0 <= start < stop <= n_tokens:
            raise TraceError(f"passage {start} to {stop}: expected tokens of 0 to {n_tokens}.")
        weights, told = None, "all queries"
        if layers[0].lacks_queries:
            raise TraceError(
                "A passage needs a run in which each query was measured: without padding, and "
                "without a prefix that a server had computed before."
            )
        if {*range(start, stop)} <= {*keys}:
            places = [keys.index(key) for key in range(start, stop)]
            weights = self.result("key_mass", stack).values[..., places].sum(-1).cpu()
            # Without a query after it there is nothing to tell yet.
            means, told = weights[..., min(stop, n_tokens - 1) :].mean(-1), "the queries after it"
        elif "received" in self.want:
            received = self.result("received", stack).values[..., start:stop].sum(-1).cpu()
            means = received / n_tokens
        else:
            raise TraceError(
                'A passage needs "received", or ("key_mass", keys) with all its tokens, in want.'
            )
        rows: list[dict[str, int | float]] = [
            {"layer": layer, "batch": batch, "head": head, "": float(mean)}
            for (layer, batch, head), mean in np.ndenumerate(means.numpy())
        ]
        return Passage(rows, told), weights

    def table(self, stack: str | None = None) -> list[dict[str, int | float]]:
        """One row a layer, sentence and head of the newest run, as `pandas.DataFrame` takes it.

        The means over its queries that are not padding, of what is a number of a query ("entropy",
        "offset_mass -1"), and of received the key with the largest share and that share.
        """
        rows: list[dict[str, int | float]] = []
        for number, layer in enumerate(self.layers(stack)):
            means = self._means(layer)
            first = next(iter(means.values()))
            rows += [
                {"layer": number, "batch": batch, "head": head}
                | {name: one[batch, head].item() for name, one in means.items()}
                for batch, head in np.ndindex(*first.shape)
            ]
        return rows

    def _means(self, layer: LayerMeasured) -> dict[str, Tensor]:
        """The columns of the table, (batch, head) each."""
        n_real = torch.as_tensor(layer.n_real).view(-1, 1)
        found: dict[str, Tensor] = {}
        for name, of in self.want.items():
            if name in _PLACES:
                continue
            # Rows of padding are 0.
            mean = layer.read(name).cpu() if name in OF_KEYS else layer.read(name).cpu().sum(2)
            mean = mean / (n_real[..., None] if mean.ndim > 2 else n_real)
            if name in OF_KEYS:
                share, key = mean.max(-1)
                found |= {"sink": key, "sink share": share}
            elif of:
                places = range(of[0]) if name == "top_probs" else of
                found |= {f"{name} {at}": mean[..., i] for i, at in enumerate(places)}
            else:
                found[name] = mean
        return found or {"queries": n_real.expand(*layer.read(next(iter(self.want))).shape[:2])}

    def folder_of(self, run: Run, stack: str, layer: int) -> Path | None:
        """Where the files of a layer are; None where all numbers stand in memory."""
        number = next((i for i, one in enumerate(self.runs) if one is run), 0)
        return None if self.folder is None else self.folder / f"{number}" / stack / f"{layer}"

    def page(self, stack: str | None = None) -> Written:
        """The newest run as one HTML file: the table as shades, and every layer along the text."""
        page: Written = opened("measured")(self, stack)
        return page

    def along(self, stack: str | None = None) -> dict[str, Tensor]:
        """The mean over heads of each statistic of queries: (layer, batch, position), by name."""
        layers = self.layers(stack)
        return {
            name: torch.stack([layer.read(name).mean(1).cpu() for layer in layers])
            for name, of in self.want.items()
            if name not in (*_PLACES, *OF_KEYS) and not of
        }

    def layers(self, stack: str | None) -> list[LayerMeasured]:
        """The layers of a stack of the newest run. Raises TraceError where there is none."""
        if not self.runs:
            raise TraceError("Nothing was measured yet: call the model inside the with block.")
        run = self.runs[-1]
        if stack is None and len(run) == 1:
            return next(iter(run.values()))
        if stack not in run:
            raise TraceError(
                f"There is no stack {stack!r:.80}; choose one of {', '.join(map(repr, run))}, as "
                f"seen[{next(iter(run))!r}][0]."
            )
        return run[stack]


@dataclass
class _OfPass:
    """What a pass began with, and the numbers of each of its calls."""

    past: int = 0
    """Tokens in the cache."""
    cache: object = None
    encoded: object = None
    """What an encoder gave before, where the model was handed that."""
    found: "list[Numbers | Row | str]" = field(default_factory=list)
    """A text says why there are no numbers."""


class _Measuring(Recording):
    """The listener of a model: it computes z with its statistics and keeps only numbers."""

    keeps = False

    def __init__(self, known: Known, want: Want, seen: Measured) -> None:
        super().__init__(known, Edits())
        self.want, self.seen = want, seen
        self._known_passes = dict[Pass, _OfPass]()
        self._runs = WeakKeyDictionary[object, Run]()
        """The run that continues with a cache."""
        self._encoder: tuple[object, Run] = (None, {})
        """What the newest encoder gave, and its layers."""
        self._ends = WeakKeyDictionary[Any, int]()
        """How many tokens a cache held after its newest pass."""

    def _begin(
        self, model: nn.Module, inputs: tuple[object, ...], keywords: Mapping[str, object]
    ) -> None:
        if get_ident() != self._thread:
            return
        self.settle_left()
        super()._begin(model, inputs, keywords)
        cache = keywords.get("past_key_values")
        past = _length(cache)
        if past and cache not in self._ends:
            raise TraceError(
                f"The cache holds {past} tokens that were not measured: run them inside the with "
                "block, or begin with an empty cache."
            )
        encoded = keywords.get("encoder_outputs")
        self._known_passes[self.passes[-1]] = _OfPass(past, cache, encoded)

    def settle_left(self) -> None:
        """Settle what ran outside the model's own call, as an encoder that `generate` calls."""
        for one in [*self.passes]:
            if one.done:
                # An error ended it.
                self.passes.remove(one)
            else:
                self.settle(one)

    @property
    def _here(self) -> "_OfPass":
        """What is known of the pass of a call."""
        return self._known_passes.setdefault(self._current(), _OfPass())

    def instead(self, call: Call) -> Tensor | None:
        """z of a call whose form is known to hold, computed with its statistics."""
        wants_gradient = torch.is_grad_enabled() and call.query.requires_grad
        padded = call.real_queries is not None and not bool(call.real_queries.all())
        call.real_queries = call.real_queries if padded else None
        if wants_gradient or padded or self.known.forms.get(form_of(call), "not known"):
            return None
        here = self._here
        z, found = self._measured(call, here)
        large = isinstance(found, Row) and found.probs.numel() > _MOST
        here.found += counted([found], self.want) if large else [found]
        return z

    def after(self, call: Call) -> None:
        """Measure what the model computed itself."""
        here = self._here
        measured = len(here.found) == len(self._current().calls)
        if measured and self.known.ran:
            # By `instead`, of a form that was checked.
            return
        super().after(call)
        if not measured:
            here.found.append(call.untrue or self._measured(call, here)[1])

    def settle(self, one: Pass) -> None:
        """Append the numbers of a pass to those of its run; nothing else of it is kept."""
        known, counts = self._known_passes.pop(one, _OfPass()), dict[str, int]()
        patterns, names = [pattern_of(module) for module, _ in one.calls], self.known.stack_names
        checked_before = all(isinstance(found, Row) for found in known.found)
        if not (checked_before and names.keys() >= {*patterns}):
            super().settle(one)
        known.cache = _cache_of(one.output) if known.cache is None else known.cache
        stacks = [self.known.stack_names[pattern] for pattern in patterns]
        run = self._run_of(known, stacks) if stacks else {}
        for stack, found in zip(stacks, counted(known.found, self.want), strict=False):
            layers, layer = run.setdefault(stack, []), counts.get(stack, 0)
            counts[stack] = layer + 1
            if layer == len(layers):
                layers.append(LayerMeasured(self.seen.folder_of(run, stack, layer)))
            if isinstance(found, str):
                layers[layer].problem = found
            else:
                layers[layer].add(found)
        if known.cache is not None:
            self._ends[known.cache] = _length(known.cache)
        self.passes.remove(one)

    def check_all_seen(self) -> None:
        """Raise TraceError for a cache that holds more than the passes that were seen put there."""
        for cache, end in self._ends.items():
            if (length := _length(cache)) > end:
                raise TraceError(
                    f"A cache holds {length} tokens, of which the first {end} were measured: the "
                    "others ran in another thread, or in a model that torch.compile made, where "
                    "attention is not seen. Run the model uncompiled inside the with block."
                )

    def _run_of(self, known: "_OfPass", stacks: list[str]) -> Run:
        """The run that a pass continues, or a new one.

        A decoder continues the run of the encoder that ran before it. Without a cache every token
        is a run, and each has that encoder.
        """
        if known.past and known.cache in self._runs:
            return self._runs[known.cache]
        if not self.seen.runs or self.seen.runs[-1].keys() & set(stacks):
            encoded, encoder = self._encoder
            self.seen.runs.append({**encoder} if known.encoded is encoded else {})
        run = self.seen.runs[-1]
        if known.cache is not None:
            self._runs[known.cache] = run
        if known.encoded is not None:
            own = {stack: layers for stack, layers in run.items() if stack not in stacks}
            self._encoder = (known.encoded, own)
        return run

    def _measured(self, call: Call, here: _OfPass) -> "tuple[Tensor, Numbers | Row]":
        """z and the statistics of a call, or the row that they are counted from."""
        crossed = crosses(pattern_of(self.known.names[id(call.module)]))
        return measured_call(call, self.want, here.past, crossed=crossed)


@dataclass(frozen=True)
class Row:
    """The weights of one query of each sentence, (batch, head, 1, key); scores where wanted."""

    probs: Tensor
    scores: Tensor
    past: int
    first_key: int

    @property
    def form(self) -> tuple[object, ...]:
        """What rows of several layers have in common that are counted together."""
        return (self.probs.shape, self.probs.dtype, self.probs.device, self.first_key)


def measured_call(
    call: Call, want: Want, past: int, *, crossed: bool
) -> tuple[HeadVectors, Numbers | Row]:
    """z of a call with so many tokens in front of its queries, and its statistics.

    `crossed` says that the keys are those of another text. A step of a generation is short, and the
    checks and blocks of `attend` cost more than its sums: it gives its row, of which `counted`
    takes those of all layers at once.
    """
    n_queries = call.query.shape[2]
    total = past + n_queries
    if not crossed:
        call = _without_unused(call, total)
    n_keys = call.key.shape[2]
    first_key = 0 if crossed else max(0, total - n_keys)
    if n_queries == 1 and call.is_plain_row:
        probs, scores = call.row()
        z = call.weighted_row(probs)
        return z, Row(probs, scores if _OF_SCORES & want.keys() else probs, past, first_key)
    z, values = of_queries(partial(attended, call), want, first_key, n_keys)
    real = call.real_queries
    n_real = n_queries if real is None else real.sum(-1)
    return z, Numbers(_at_positions(values, first_key), past, n_queries, first_key, n_real)


def _at_positions(values: dict[str, Tensor], first_key: int) -> dict[str, Tensor]:
    """The statistics with keys counted from the first of the text."""
    for name in {"argmax", "top_keys"} & values.keys() if first_key else ():
        values[name] = values[name].add(first_key).masked_fill(values[name] < 0, -1)
    return values


def of_queries(
    compute: Callable[..., Attended], want: Want, first_key: int, n_keys: int
) -> tuple[HeadVectors, dict[str, Tensor]]:
    """z and what is wanted of any call; `compute` is `minibert.attend` with all but want."""
    keys = [key - first_key for key in want.get("key_mass", ())]
    asked = want | ({"key_mass": tuple(key % n_keys for key in keys)} if keys else {})
    found = compute(want=[(name, of) if of else name for name, of in asked.items()])
    values = {name: cast(Tensor, getattr(found.statistics, name)) for name in want}
    if keys:
        there = torch.tensor([0 <= key < n_keys for key in keys], device=found.z.device)
        values["key_mass"] = values["key_mass"] * there
    return found.z, values


_OF_SCORES = {"row_max", "argmax", *RANKED}


def counted(found: "Sequence[Numbers | Row | str]", want: Want) -> "list[Numbers | str]":
    """The statistics of the calls of a pass; rows of one form are counted together."""
    alike: dict[object, list[int]] = {}
    for place, one in enumerate(found):
        if isinstance(one, Row):
            alike.setdefault(one.form, []).append(place)
    numbers = cast("list[Numbers | str]", [*found])
    for places in alike.values():
        rows = [cast(Row, found[place]) for place in places]
        past, first_key = rows[0].past, rows[0].first_key
        probs = torch.stack([row.probs for row in rows])
        scores = torch.stack([row.scores for row in rows]) if _OF_SCORES & want.keys() else probs
        values = _at_positions(_of_rows(probs, scores, want, first_key), first_key)
        parts = {name: one.unbind() for name, one in values.items()}
        for layer, place in enumerate(places):
            of_layer = {name: one[layer] for name, one in parts.items()}
            numbers[place] = Numbers(of_layer, past, 1, first_key, 1)
    return numbers


def _of_rows(probs: Tensor, scores: Tensor, want: Want, first_key: int) -> dict[str, Tensor]:
    """What is wanted of rows of weights, (layer, batch, head, 1, key)."""
    n_keys, ranks, found = probs.shape[-1], most_ranks(want), dict[str, Tensor]()
    keys = probs
    if ranks:
        best, keys = scores.topk(min(ranks, n_keys), -1)
        keys = pad(
            keys.masked_fill(~(best > -torch.inf), -1), (0, ranks - best.shape[-1]), value=-1
        )
        best = probs.gather(-1, keys.clamp_min(0)).masked_fill(keys < 0, 0)
        found = ranked(want, keys, best)
    for name, of in want.items():
        if name == "entropy":
            found[name] = torch.special.entr(probs).sum(-1)
        elif name == "max_prob":
            found[name] = probs.amax(-1)
        elif name == "row_max":
            found[name] = scores.amax(-1)
        elif name == "argmax":
            largest, at = scores.max(-1)
            found[name] = at.masked_fill(~(largest > -torch.inf), -1)
        elif name == "received":
            found[name] = probs[..., 0, :]
        elif name not in RANKED:
            start = -first_key if name == "key_mass" else n_keys - 1
            there = [
                probs[..., start + place]
                if 0 <= start + place < n_keys
                else probs.new_zeros(probs.shape[:-1])
                for place in of
            ]
            found[name] = torch.stack(there, -1)
    return found


def _length(cache: object) -> int:
    """The tokens in a cache; 0 without one."""
    return int(getattr(cache, "get_seq_length", int)())


def _cache_of(output: object) -> object:
    """The cache that a model made itself, as in a loop that starts without one."""
    parts = output if isinstance(output, tuple) else (getattr(output, "past_key_values", None),)
    return next((part for part in parts if hasattr(part, "get_seq_length")), None)


def _without_unused(call: Call, total: int) -> Call:
    """The call without the places of a static cache that nothing was written to yet."""
    if call.key.shape[2] <= total or not (call.mask is not None or call.softens):
        return call
    shorter = copy(call)
    shorter.key, shorter.value = call.key[:, :, :total], call.value[:, :, :total]
    return shorter
