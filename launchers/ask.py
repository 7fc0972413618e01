"""Asking another program something, with a deadline."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

PATIENCE = 60.0
"""Seconds for an answer: a cold network disk and a busy controller are slow."""


def ask(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command with nothing to read, and returns what it wrote.

    Args:
        words: the command line.
        environ: its environment.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: no answer within `PATIENCE`.
    """
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
        check=False,
    )
