"""The launcher as the first process of a container (`docker run image ringarrun …`).

The kernel makes the first process the parent of all orphans, and keeps signals from it for which it
has no handler. So the launcher runs in a child: the first process only passes signals on, and reaps
processes that have ended.
"""

from __future__ import annotations

import contextlib
import os
import signal

_FROM_TERMINAL = 0x80  # SI_KERNEL, <bits/siginfo-consts.h>: the child has got it, too


def reap() -> int | None:
    """Fork, and serve as the first process up to the end of the child.

    Returns:
        The exit code of the child; in the child, None.
    """
    everything = signal.valid_signals()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return None
    while True:
        received = signal.sigwaitinfo(everything)
        if received.si_signo == signal.SIGCHLD:
            code = _reap_all(child)
            if code is not None:
                return code
        elif received.si_code != _FROM_TERMINAL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, received.si_signo)


def _reap_all(child: int) -> int | None:
    """Reap all processes that have ended; return the exit code of `child` if it is one of them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            if end[0] == child:
                code = os.waitstatus_to_exitcode(end[1])
    return 128 - code if code is not None and code < 0 else code
