"""FILE.py:function, loaded and called. It runs in the worker, never beside the judge.

The function is of one of the conventions of `signatures`; what it gives is handed on as a
dictionary with z, and with lse and the statistics of `OUTPUTS` where it gave a dictionary.
"""

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from minibert.bench.signatures import (
    HEAD_COUNTS,
    KNOWN,
    MASK_NAMES,
    OTHER,
    SIGNATURES,
    Parameters,
    Signature,
    Way,
    guessed_by,
    is_counted,
    parameters_of,
    roles_of,
)
from minibert.errors import MinibertError, how_to_install
from minibert.kernels.check.gradients import gradients_of
from minibert.kernels.check.parity import one_line
from minibert.kernels.check.problem import Problem
from minibert.kernels.interpreter import prepare_once_a_launch

_Given = TypeVar("_Given")

#: What the dictionary may hold; offset_mass is at the offsets −1, 0 and 1.
OUTPUTS = (
    "z", "lse", "row_max", "max_prob", "entropy", "argmax", "received", "offset_mass", "scores",
    "probs",
)  # fmt: skip


@dataclass(frozen=True)
class UserFunction:
    """A function of a user's file, how it is called, and the options that it takes."""

    # None for a function of an installed module.
    path: Path | None
    function: Callable[..., object]
    signature: Signature
    parameters: Parameters
    triton: bool
    way: Way
    #: Options that its code reads of what it is handed, and shapes that its text speaks of.
    more: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The options and shapes of a call that it can be told."""
        taken = self.signature.taken(self.parameters, self.way)
        return tuple(dict.fromkeys((*taken, *self.signature.shapes, *self.more)))

    @property
    def takes(self) -> list[str]:
        """What changes how it is judged: a "mask", a "cache", a "counted window", "heads"."""
        read = self.signature.read(self.parameters)
        names = {one.name for one in read}
        found = {"mask": MASK_NAMES & names, "cache": "cache_seqlens" in names}
        found["heads"] = HEAD_COUNTS & names
        counted = any(is_counted(one) for one in read if one.name != "sliding_window")
        return [name for name, there in (found | {"counted window": counted}).items() if there]

    def called(self, way: Way) -> "UserFunction":
        """The function, called in this way."""
        return replace(self, way=way)

    def about(self) -> dict[str, object]:
        """The facts about it that the judge needs; `unknown` parameters stay at their defaults."""
        read = self.signature.read(self.parameters)
        known = {*roles_of(read), *KNOWN}
        return {
            "options": self.options,
            "triton": self.triton,
            "signature": self.signature.name,
            "takes": self.takes,
            "unknown": [one.name for one in read if one.name not in known],
        }

    def bound(self, problem: Problem) -> Callable[[], dict[str, Tensor]]:
        """A call with these inputs, and the gradients where the problem has one of z.

        The inputs are put into the form of the convention here, once. The call raises
        MinibertError, in one line, for anything that the function does instead of returning
        tensors.
        """
        run = self.signature.bind(self.function, problem, self.parameters, self.way)

        def call() -> dict[str, Tensor]:
            found = _checked(self.way.read(self._result(run), problem), problem.query)
            if problem.z_gradient is None:
                return found
            z = found["z"]
            return {"z": z.detach()} | self._result(lambda: gradients_of(z, problem))

        return call

    def _result(self, run: Callable[[], _Given]) -> _Given:
        try:
            return run()
        except SystemExit as error:
            raise MinibertError(f"calls sys.exit(){self._line(error)}") from error
        except MinibertError:
            raise
        except Exception as error:
            raise MinibertError(f"raised {self._told(error)}{_without_gpu(error)}") from error
        # What else is not an Exception would pass by everything that looks after errors.
        except BaseException as error:
            raise MinibertError(f"raises {self._told(error)}, which is not an Exception") from error

    def _told(self, error: BaseException) -> str:
        """The error in one line, with the line of the file where it arose."""
        text = one_line(error)
        if isinstance(error, AssertionError) and not text:
            # What was asserted says as much as a message.
            text = traceback.extract_tb(error.__traceback__)[-1].line or ""
        return f"{type(error).__name__}{': ' if text else ''}{text}{self._line(error)}"

    def _line(self, error: BaseException) -> str:
        lines = [] if self.path is None else _lines(error, self.path)
        return f" (line {lines[-1]} of {self.path.name})" if lines and self.path else ""


def _without_gpu(error: Exception) -> str:
    """The hint for a function that asks for a GPU where there is none; "" for other errors."""
    asks = re.search(r"cuda|\bgpu\b", str(error), re.IGNORECASE)
    there = torch.cuda.is_available()
    return "; it needs a GPU, and there is none here" if asks and not there else ""


def target_parts(target: str) -> tuple[Path | str, str]:
    """The file and the function of "FILE.py:function", or the module of "package.module:function".

    Raises MinibertError for another text, and where there is no such file.
    """
    source, colon, name = target.rpartition(":")
    if not colon or not source or not name.isidentifier():
        raise MinibertError(f'"{target}" names no function; expected FILE.py:function.')
    path = Path(source)
    dotted = all(part.isidentifier() for part in source.split("."))
    if dotted and path.suffix != ".py" and not path.exists():
        return source, name
    if not path.is_file():
        raise MinibertError(f"There is no file {source}.")
    return path.resolve(), name


def load_function(source: Path | str, name: str, signature: str | None = None) -> UserFunction:
    """The function of this name; its parameters tell the convention where none is named.

    A file is run, with its folder on sys.path; a module, by its dotted name, is imported. Raises
    MinibertError when there is no such function or when the file fails.
    """
    known = set(sys.modules)
    path = source if isinstance(source, Path) else None
    told = str(source) if path is None else path.name
    module = _module(source, told)
    function = _function(module, told, name)
    # torch.compile imports Triton's parts of torch, on a CPU too.
    new = [
        vars(sys.modules[one])
        for one in set(sys.modules) - known
        if one in sys.modules and one.split(".")[0] not in ("torch", "triton")
    ]
    triton = path is not None and any(map(_uses_triton, (vars(module), *new)))
    if triton:
        prepare_once_a_launch()
    function = _callable(function, told, name)
    parameters = parameters_of(function)
    chosen = _signature(parameters, told, name, signature)
    text = _text(function)
    whole = path.read_text(encoding="utf-8", errors="replace") if path else text
    more = ["groups"] if chosen.open and _GROUPS.search(whole) else []
    if "module" in {one.name for one in chosen.read(parameters)} and ".sinks" in text:
        more.append("sinks")
    return UserFunction(path, function, chosen, parameters, triton, chosen.way, tuple(more))


def _callable(found: object, told: str, name: str) -> Callable[..., object]:
    """The callable itself: a function, a module's forward, or `apply` with named arguments."""
    owner = found if isinstance(found, type) else getattr(found, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        # `apply` takes no keywords; its parameters are those of `forward` after the context.
        context = owner.setup_context is torch.autograd.Function.setup_context
        return _with_parameters(owner.apply, owner.forward, int(context))
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            raise MinibertError(
                f"{name} in {told} is a class that cannot be made without arguments ({error}); "
                f"make one in the file, attention = {name}(...), and name that."
            ) from error
    if isinstance(found, torch.nn.Module):
        found.eval()
        # What the module itself is called with is *args.
        return _with_parameters(found, found.forward)
    if not callable(found):
        raise MinibertError(f"{name} in {told} is of type {type(found).__name__}, not a function.")
    called: Callable[..., object] = found
    return called


def _with_parameters(
    called: Callable[..., object], known: Callable[..., object], skipped: int = 0
) -> Callable[..., object]:
    """A function with the parameters of `known` after the skipped ones, passed by position."""
    whole = inspect.signature(known)
    signature = whole.replace(parameters=[*whole.parameters.values()][skipped:])

    def function(*given: object, **named: object) -> object:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        return called(*bound.args, **bound.kwargs)

    function.__wrapped__ = known  # type: ignore[attr-defined]
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


#: What a text says where a function takes fewer key heads than query heads.
_GROUPS = re.compile(r"gqa|mqa|groups?\b|n_?rep|kv_?heads|heads?_kv|n_?kv|hkv|repeat", re.I)


def _text(function: Callable[..., object]) -> str:
    """The text of a function; "" where there is none."""
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


def _signature(parameters: Parameters, told: str, name: str, signature: str | None) -> Signature:
    """The convention; raises MinibertError where it would give a parameter that nobody knows."""
    if signature is None and parameters is None:
        raise MinibertError(
            f"{name} in {told}: expected {name}(query, key, value, lengths, causal), a Python "
            "function; the arguments of this one cannot be read. A Triton kernel needs a Python "
            "function that launches it; for others say how they are called: --signature NAME. "
            "See docs/kernels.md#other-peoples-functions"
        )
    names = [one.name for one in parameters or ()]
    try:
        chosen = SIGNATURES[signature or guessed_by(names)]
    except MinibertError as error:
        raise MinibertError(f"{name} in {told}: {error}.") from error
    try:
        known = chosen.read(parameters)
        roles = roles_of(known)
        for one in known:
            if one.default is one.empty and one.name not in {*roles, *KNOWN}:
                raise MinibertError(f"wants {one.name}, which is not known")
    except MinibertError as error:
        given = inspect.Signature(list(parameters or ()))
        raise MinibertError(
            f"{name} in {told}: expected {name}(query, key, value, lengths, causal); it is "
            f"{name}{given}, which {error}. See docs/kernels.md#the-function"
        ) from error
    return chosen


def _checked(result: object, query: Tensor) -> dict[str, Tensor]:
    """The result. Raises MinibertError unless it is a dict of plain tensors under known names."""
    if type(result) is not dict:
        raise MinibertError(f'gave a {type(result).__name__}; expected a dict: return {{"z": z}}')
    names = ", ".join(map(str, result)) or "an empty dictionary"
    if "z" not in result:
        raise MinibertError(f'gave {names}; expected at least z: return {{"z": z}}')
    known = (*OUTPUTS, *(one for one in result if str(one).startswith(OTHER)))
    if unknown := [str(name) for name in result if name not in known]:
        raise MinibertError(f"gave {', '.join(unknown)}; known are {', '.join(OUTPUTS)}")
    for name, one in result.items():
        # A subclass can put off its work until it is read, which is after the clock.
        if type(one) not in (Tensor, torch.nn.Parameter):
            raise MinibertError(f"gave {name} as a {type(one).__name__}; expected a plain tensor")
        if own := [attribute for attribute in vars(one) if hasattr(Tensor, attribute)]:
            raise MinibertError(f"gave {name} with its own {own[0]}; expected a plain tensor")
        if one.layout != torch.strided or one.device != query.device:
            raise MinibertError(
                f"gave {name} as a tensor of layout {one.layout} on {one.device}; expected a dense "
                f"one on {query.device}"
            )
    return result


def _module(source: Path | str, told: str) -> ModuleType:
    """The module of a file, which is run, or of a dotted name."""
    if isinstance(source, Path) and source.suffix != ".py":
        raise MinibertError(f"{told} is not a Python file; expected FILE.py:function.")
    try:
        return importlib.import_module(source) if isinstance(source, str) else _executed(source)
    except BaseException as error:
        lines = _lines(error, source) if isinstance(source, Path) else []
        if isinstance(error, SyntaxError) and isinstance(source, Path):
            raise MinibertError(f"{told}, line {error.lineno}: {error.msg}.") from error
        where = f", line {lines[-1]}" if lines else ""
        said = f"{told}{where}: {type(error).__name__}: {one_line(error)}."
        advice = f" Install it: {how_to_install('triton')}." if "'triton'" in said else ""
        raise MinibertError(f"{said}{advice}") from error


def _executed(path: Path) -> ModuleType:
    name = f"minibert_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _lines(error: BaseException, path: Path) -> list[int | None]:
    """The lines of this file that the error went through, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno for frame in frames if frame.filename == str(path)]


def _function(module: ModuleType, told: str, name: str) -> Any:
    function = getattr(module, name, None)
    if function is None:
        there = [
            one
            for one, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        found = f"it has {', '.join(there)}" if there else "it has none"
        raise MinibertError(f"{told} has no function {name}; {found}.")
    return function


def _uses_triton(names: dict[str, object]) -> bool:
    modules = (str(type(one).__module__) for one in list(names.values()))
    return any(one.startswith("triton.runtime") for one in modules)
