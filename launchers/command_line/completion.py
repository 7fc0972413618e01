"""The completion of a shell, which shtab writes from the parser."""

from __future__ import annotations

import argparse

from ringar.launchers.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script by which a shell completes the options of `parser`.

    Raises:
        UsageError: shtab is absent.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise UsageError(
            "--print-completion: expected the package shtab, found none; run: pip install shtab "
            "(the extra `launcher` has it)"
        ) from None
    for action in parser._actions:
        metavar = str(action.metavar)
        if metavar.startswith("{"):  # its type says what is meant of other words
            action.choices = metavar.strip("{}").split(",")
        elif metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif metavar in ("FILE", "PROGRAM") or action.nargs == argparse.REMAINDER:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)
