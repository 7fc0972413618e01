"""Logging: the logger `ringar`, and below it one for each module, with the rank in the record.

`RINGAR_LOG_LEVEL` sets the level; without it, that of the program's root logger holds, which is
WARNING unless the program has changed it. A program that configures `logging` gets the records like
those of any library, and may write `%(rank)d` in its format. Otherwise a handler in the manner of
`logging.lastResort` writes them to standard error, with the rank in front.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

VARIABLE = "RINGAR_LOG_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_ringar = logging.getLogger("ringar")
_rank = int(text) if (text := os.environ.get("RINGAR_RANK", "")).isdecimal() else 0


class _WithRank(logging.Filter):
    """Add the attribute `rank` to records."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank = _rank
        return True


class _LastResort(logging.StreamHandler):
    """Write to standard error as long as the program has no handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or _ringar.handlers != [self]:
            return
        self.stream = sys.stderr  # the current one: a notebook or a test may have replaced it
        super().emit(record)


_with_rank = _WithRank()
_last_resort = _LastResort()
_last_resort.setFormatter(logging.Formatter("rank %(rank)d | %(message)s"))
_ringar.addHandler(_last_resort)


def logger(name: str) -> logging.Logger:
    """Return the logger of a module.

    Args:
        name: its `__name__`, which begins with "ringar".
    """
    log = logging.getLogger(name)
    log.addFilter(_with_rank)
    return log


def set_level(environ: Mapping[str, str]) -> None:
    """Set the level that RINGAR_LOG_LEVEL asks for.

    Raises:
        ValueError: it is no level.
    """
    level = environ.get(VARIABLE, "")
    if not level:
        return
    if level.upper() not in LEVELS:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(LEVELS)}. Received: {level!r}")
    _ringar.setLevel(level.upper())


def set_rank(rank: int) -> None:
    """Set the rank that records of this process have."""
    global _rank
    _rank = rank
