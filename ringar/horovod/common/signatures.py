"""Functions that take the arguments of another one, as several of Horovod's modules have them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


def with_parameters(
    function: Callable[..., Result], parameters: Iterable[inspect.Parameter], module: str
) -> Callable[..., Result]:
    """Return a function with other parameters, which it passes by name.

    Args:
        function: the function.
        parameters: those of the result.
        module: the module that has the result, for pickles.
    """
    signature = inspect.signature(function).replace(parameters=list(parameters))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        return function(**signature.bind(*args, **kwargs).arguments)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__module__, call.__qualname__ = module, call.__name__
    return call


def arranged(function: Callable[..., Result], module: str, names: str) -> Callable[..., Result]:
    """Return a function that takes some arguments of another one, in an order of its own.

    Args:
        function: the function; the arguments that are not named have its defaults.
        module: the module that has the result.
        names: the names of the arguments, between blanks.
    """
    parameters = inspect.signature(function).parameters
    return with_parameters(function, [parameters[name] for name in names.split()], module)


def stack_level() -> int:
    """Return the `stacklevel` of a warning that is for the first caller outside of ringar."""
    level, frame = 1, sys._getframe().f_back
    while frame and str(frame.f_globals.get("__name__")).startswith("ringar."):
        level, frame = level + 1, frame.f_back
    return level
