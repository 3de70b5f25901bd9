"""The options of a survey, checked, and what measures windows by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch

from minibert.attached.attach import Attached
from minibert.errors import SurveyError, how_to_install
from minibert.kernels.registry import check_name
from minibert.survey import windows
from minibert.survey.attached_masses import AttachedMasses
from minibert.survey.attached_stack import AttachedStack
from minibert.survey.loss_gradients import LossGradients, with_gradients
from minibert.survey.measures import BY_NORM, GRADIENT, Measure
from minibert.survey.measures import measures as all_measures
from minibert.survey.objective import Objective
from minibert.survey.pass_masses import PassMasses
from minibert.survey.rows import OFFSETS
from minibert.survey.segments import Segmenter
from minibert.survey.windows import WindowSurvey

if TYPE_CHECKING:
    from minibert.model import Model

    Surveyable = Model | AttachedStack
    Given = Model | Attached | AttachedStack

__all__ = ["Options", "in_dtype"]

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

    def window_survey(self, model: "Surveyable") -> WindowSurvey:
        """What measures windows with this model.

        Raises SurveyError for a model without a tokenizer, and for tokens it does not have.
        """
        chosen = self.chosen()
        return WindowSurvey(
            Segmenter(model, chosen=tuple(self.tokens), longest=self.longest),
            self._masses(model, chosen),
            chosen,
            size=(model.config.n_layers, model.config.n_heads),
            batch_tokens=self.batch_tokens,
            profile=self.profile,
            device=_device(model),
            equal_lengths=isinstance(model, AttachedStack),
            layer_windows=self._layer_windows(model),
        )

    def _masses(self, model: "Surveyable", chosen: Sequence[Measure]) -> windows.Masses:
        offsets, profile = self.every_offset, self.profile
        by_norm = any(one.name.endswith(BY_NORM) for one in chosen)
        if isinstance(model, AttachedStack):
            return AttachedMasses(model, offsets=offsets, by_norm=by_norm, profile=profile)
        masses: windows.Masses = PassMasses(
            model, offsets=offsets, by_norm=by_norm, profile=profile, impl=self.impl
        )
        if self.gradients and any(one.name.startswith(GRADIENT) for one in chosen):
            gradients = LossGradients(model, offsets=offsets, impl=self.impl)
            masses = with_gradients(masses, gradients)
        return masses

    def _layer_windows(self, model: "Surveyable") -> list[tuple[int, int] | None]:
        """The window of each layer, where measures of gradients ask what a row sees."""
        if isinstance(model, AttachedStack) or not self.gradients:
            return []
        return [model.config.window(layer) for layer in range(model.config.n_layers)]

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

    def dtype_of(self, model: "Surveyable") -> torch.dtype:
        """The one that is computed in."""
        return model.dtype if self.dtype is None else self.dtype

    def told(self, model: "Surveyable") -> dict[str, Any]:
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
            "window": {"characters": windows.CHARACTERS, "documents": windows.DOCUMENTS},
            "on_error": self.on_error,
        }

    def _gradients_told(self, model: "Surveyable") -> dict[str, Any] | None:
        if not self.gradients or isinstance(model, AttachedStack):
            return None
        return Objective.of(model).told()


def _device(model: "Surveyable") -> torch.device:
    return model.device if isinstance(model, AttachedStack) else model.body.word.weight.device


@overload
def in_dtype(model: "Model", dtype: torch.dtype | None) -> "Model": ...
@overload
def in_dtype(model: "Surveyable", dtype: torch.dtype | None) -> "Surveyable": ...
def in_dtype(model: "Surveyable", dtype: torch.dtype | None) -> "Surveyable":
    """The model, or a copy of it in another dtype."""
    if dtype is None or dtype == model.dtype:
        return model
    if isinstance(model, AttachedStack):
        return model.in_dtype(dtype)
    from minibert.model import Model

    copy = Model(model.config, tokenizer=model.tokenizer, name=model.name)
    copy.impl = model.impl
    device = model.body.word.weight.device
    # Not tensor.detach(): a packed layer answers that by dropping its packed copy.
    state = {name: torch.Tensor.detach(one) for name, one in model.named_parameters()}
    with torch.no_grad():
        for name, one in copy.named_parameters():
            one.copy_(state[name])
    copy.to(device=device, dtype=dtype)
    copy.pack()
    return copy
