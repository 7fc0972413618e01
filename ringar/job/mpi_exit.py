"""The end of a failed rank in an MPI job: with its exit code, and without MPI_Finalize."""

from __future__ import annotations

import os
import signal
import sys

from ringar.job import membership


class _ExitWhenDeleted:
    """End the process when Python deletes this object.

    Args:
        code: the exit code.
    """

    def __init__(self, code: int) -> None:
        # Python has cleared all modules by then, this one too.
        self._exit, self._code = os._exit, code
        self._kill, self._arguments = os.kill, (os.getpid(), signal.SIGKILL)
        self._as_failed = code != 0 and membership.is_by_mpi()

    def __del__(self) -> None:
        if self._as_failed:  # see `mpi_survivors`
            self._kill(*self._arguments)
        self._exit(self._code)


def end_without_finalize(code: int) -> None:
    """Make the process end with `code` before mpi4py calls MPI_Finalize.

    MPI_Finalize waits for all ranks, even for ranks that never call it. While it waits, no launcher
    sees that this rank has failed, nor its exit code.

    mpi4py calls MPI_Finalize after the end of the interpreter, which deletes the attributes of
    `sys` last. By then all handlers of `atexit` have run, whenever they were registered, files are
    closed, and output is written. The exit handlers of C libraries (`atexit` of C, destructors) do
    not run. `code` replaces the program's own exit code, which is not known here. The first call
    counts.
    """
    if "_ringar_exit" not in sys.__dict__:
        sys.__dict__["_ringar_exit"] = _ExitWhenDeleted(code)


def code_of_uncaught_exception() -> int:
    """Return the exit code of a program that ends by an uncaught exception; else 0.

    Call it when the interpreter ends. It cannot see an end by `sys.exit`.
    """
    trace = getattr(sys, "last_traceback", None)
    # In an interactive session any line may have left the traceback, and the session goes on.
    if trace is None or hasattr(sys, "ps1"):
        return 0
    # An uncaught exception has left all frames. Test runners and debuggers also store exceptions
    # here that an outer frame has caught.
    frame = trace.tb_frame
    if frame.f_back or frame.f_code.co_name not in ("<module>", "_run_module_as_main"):
        return 0
    # Python then ends by SIGINT, for which shells report 130.
    return 130 if isinstance(sys.last_value, KeyboardInterrupt) else 1
