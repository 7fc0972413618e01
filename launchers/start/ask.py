"""Run a command and collect its answer, with a timeout."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

TIMEOUT = 60.0
"""Seconds for an answer; a cold network disk and a busy controller are slow."""


def ask(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command without input and return its output.

    Args:
        words: the command line.
        environ: its environment.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: no answer within `TIMEOUT`.
    """
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT,
        check=False,
    )
