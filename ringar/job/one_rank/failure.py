"""Failures of calls, with the codes of ringar.h."""

from __future__ import annotations

MISMATCH, OUT_OF_MEMORY, NOT_INITIALIZED, UNSUPPORTED = 3, 8, 9, 12


class Failure(Exception):
    """Report that a call of the C interface fails.

    Args:
        code: the call's result.
        message: the text of its error.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
