"""The types of `ringarrun`'s options: each turns a word into a value, or raises an error."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable

from ringar.launchers.errors import UsageError
from ringar.launchers.plan.job_plan import MAX_LOCAL_RANKS, check_num_proc
from ringar.launchers.plan.suggest import close_to, did_you_mean


def num_proc(text: str) -> int:
    """Read the number of ranks."""
    try:
        number = int(text)
    except ValueError:
        raise UsageError(
            f"-np: expected the number of ranks to start, from 1 to {MAX_LOCAL_RANKS}, "
            f"received {text!r}; "
            "for example: ringarrun -np 2 train.py"
        ) from None
    # The upper limit depends on the machine and is checked with the plan.
    check_num_proc(min(number, 1))
    return number


def whole_number(text: str) -> int:
    """Read a whole number, 0 or more."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, received {text!r}")
    return int(text)


def count(text: str) -> int:
    """Read a whole number, 1 or more."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, received {text!r}")
    return number


def seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number < math.inf):
        raise argparse.ArgumentTypeError(
            f"expected a positive number of seconds, received {text!r}"
        )
    return number


def port(text: str) -> int:
    """Read the number of a port."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"expected a port, from 1 to 65535, received {text!r}")
    return int(text)


def words(text: str) -> tuple[str, ...]:
    """Read the arguments in a word, as a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected arguments as in a shell, received {text!r}: {error}"
        ) from None


def one_of(*names: str) -> Callable[[str], str]:
    """Return the type of an option that takes one of `names`."""

    def convert(text: str) -> str:
        if text in names:
            return text
        raise argparse.ArgumentTypeError(
            f"expected {', '.join(names[:-1])} or {names[-1]}, received {text!r}"
            + did_you_mean(close_to(text, names))
        )

    return convert
