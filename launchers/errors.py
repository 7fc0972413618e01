"""The error of the launcher."""

from __future__ import annotations


class UsageError(Exception):
    """A request that cannot be carried out; `code` is the exit code, as in a shell."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code
