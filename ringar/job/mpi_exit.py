"""How a rank of an MPI job ends after a failure: with its exit code, and without MPI_Finalize."""

from __future__ import annotations

import os
import sys


class _ExitWhenDeleted:
    """End the process when Python lets go of it.

    Args:
        code: the exit code.
    """

    def __init__(self, code: int) -> None:
        # Modules are gone by then, this one among them.
        self._exit, self._code = os._exit, code

    def __del__(self) -> None:
        self._exit(self._code)


def end_without_finalize(code: int) -> None:
    """Have the process end with `code` where mpi4py would call MPI_Finalize.

    MPI_Finalize waits for all ranks, also for those that never come, and while it waits no launcher
    sees that this rank has failed, or with which code.

    mpi4py calls it when the interpreter is gone. The last that goes of that are the attributes of
    `sys`: by then all handlers of `atexit` have run, those that were registered before this call
    and before ringar was imported, too, files are closed, and output is written. What C libraries
    do at the end of a process (`atexit` of C, destructors) is left out. The exit code that the
    program has chosen is not known here, and gives way to `code`.
    """
    sys.__dict__["_ringar_exit"] = _ExitWhenDeleted(code)


def code_of_uncaught_exception() -> int:
    """Return the exit code of a program that ends by an exception which nothing has caught; else 0.

    To be asked when the interpreter ends. `sys.exit` leaves no trace that could be seen there.
    """
    trace = getattr(sys, "last_traceback", None)
    # In an interactive session it is that of any line, and the session goes on.
    if trace is None or hasattr(sys, "ps1"):
        return 0
    # Python has left all frames. Test runners and debuggers keep exceptions there, too, that they
    # have caught, further up.
    frame = trace.tb_frame
    if frame.f_back or frame.f_code.co_name not in ("<module>", "_run_module_as_main"):
        return 0
    # Python ends by the signal in that case, which shells tell as the same number.
    return 130 if isinstance(sys.last_value, KeyboardInterrupt) else 1
