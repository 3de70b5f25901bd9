"""The run-time type checker of the tests, named in pyproject.toml."""

from collections.abc import Callable
from typing import TypeVar

from beartype import beartype

Checked = TypeVar("Checked", bound=Callable[..., object])


def checked(function: Checked) -> Checked:
    """The function or class, checked by beartype when it is called.

    A function inside of another is left as it is: it is made anew at each call, and making its
    check takes beartype a hundred times as long as the call.
    """
    return function if "<locals>" in function.__qualname__ else beartype(function)
