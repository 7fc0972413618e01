"""Run a function on ranks, from a script or a notebook: `ringar.run`.

The launcher runs as a process of its own: it needs signals, forks and one thread, and a notebook's
process has many. Its output comes through pipes and goes to `sys.stdout` and `sys.stderr`, which a
notebook shows below the cell; descriptor 1 of a notebook's process leads elsewhere. The function
and its results go through `rendezvous.py`.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import os
import pickle
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ringar.errors import DeadlineError, RankError
from ringar.job import nvidia
from ringar.launchers import allocation
from ringar.launchers import hosts as hosts_module
from ringar.launchers import options as options_module
from ringar.launchers.choose import Choice, choose
from ringar.launchers.errors import UsageError
from ringar.launchers.rendezvous import VARIABLE, Outcome, Server

Result = TypeVar("Result")

# The launcher ends with this process, or with the thread that waits for it.
_LAUNCHER = """
import signal, sys
from ringar.launchers.ranks import bound_to_launcher
bound_to_launcher(signal.SIGTERM, int(sys.argv.pop(1)))()
from ringar.launchers.cli import main
sys.exit(main())
"""

#: The launcher's message that names the rank whose failure ended the job.
_CAUSE = re.compile(r"rank (\d+) of \d+ ")


def run(
    function: Callable[..., Result],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    np: int | None = None,
    *,
    hosts: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    options: Sequence[str] = (),
) -> list[Result]:
    """Call a function on several ranks, from a script or a notebook, and return all results.

    Each rank is a new process, as `ringarrun` starts it. The function is what the script of such a
    job would be: it calls `ringar.init`, and imports what it needs or uses the caller's imports. It
    may be a lambda, a closure, or defined in a notebook; `cloudpickle` carries it to the ranks,
    with the variables that it uses. Lines that ranks print appear at once, after their rank.

    An interrupt (Ctrl-C, or "interrupt the kernel") ends all ranks, and so does the end of this
    process.

    Args:
        function: the function that every rank calls.
        args: its positional arguments, the same on each rank.
        kwargs: its keyword arguments.
        np: the number of ranks; by default the slots of `hosts` or of the scheduler's allocation,
            else the number of GPUs, and 2 without GPUs.
        hosts: the hosts and their slots, as in `ringarrun -H`: "h1:4,h2:4". They must be able to
            connect to a port of this host; they need no common disk.
        env: variables to set for the ranks.
        timeout: seconds after which the ranks are ended.
        options: further options of `ringarrun`, such as `["--bind-to", "none"]`.

    Returns:
        The results, in the order of ranks.

    Raises:
        DeadlineError: the ranks have not ended within `timeout`; the message names them.
        RankError: a rank was killed, its result cannot be pickled, or nothing could be started.
        RuntimeError: this process is a rank itself.
        TypeError: `function` or its arguments cannot be pickled.
        ValueError: an option of the launcher is wrong.
        Exception: the error of the rank that failed first, with its class. Its cause, a
            `RankError`, has the rank and its traceback.
    """
    _refuse_inside_a_job()
    payload = pickle.dumps((sys.path, _pickled(function, args, kwargs)))
    arguments = _arguments(np, hosts, env, options)
    choice = _choice(arguments)
    others = [host.name for host in choice.hosts if not hosts_module.is_this_host(host.name)]
    with Server(payload, others, local=choice.launcher == "local") as server:
        launcher = _Launcher(arguments, {**os.environ, **(env or {}), VARIABLE: server.variable})
        if not launcher.wait(timeout):
            late = sorted(set(range(choice.num_proc)) - server.outcomes.keys())
            raise DeadlineError(
                f"ringar.run: expected the function to end within {timeout:g} s on every rank, "
                f"still waiting for rank {', '.join(map(str, late))}"
            )
    outcomes = [server.outcomes.get(rank) for rank in range(choice.num_proc)]
    if launcher.code or any(outcome is None or outcome.trace for outcome in outcomes):
        _raise_first(server.outcomes, outcomes, launcher)
    return [_unpickled(rank, outcome) for rank, outcome in enumerate(outcomes)]


def _refuse_inside_a_job() -> None:
    from ringar.job import mpi  # needs NumPy

    if not {"RINGAR_JOB", "RINGAR_RANK"}.isdisjoint(os.environ) or mpi.started_by_mpi(os.environ):
        raise RuntimeError(
            "ringar.run: expected a process outside of any job, but this one is a rank "
            "(ringarrun, ringar.run, mpirun or srun has started it); call the function itself"
        )


def _pickled(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, object] | None
) -> bytes:
    import cloudpickle

    if not callable(function):
        raise TypeError(f"ringar.run: expected a function, received {function!r}")
    try:
        return bytes(cloudpickle.dumps((function, tuple(args), dict(kwargs or {}))))
    except Exception as error:
        raise TypeError(
            f"ringar.run: expected a function and arguments that can be pickled: {error}; make "
            "objects such as locks, files and compiled functions inside the function"
        ) from error


def _arguments(
    np: int | None, hosts: str | None, env: Mapping[str, str] | None, options: Sequence[str]
) -> list[str]:
    """Return the command line of `ringarrun`."""
    words = [] if hosts is None else ["-H", hosts]
    if np is None and hosts is None and allocation.find(os.environ) is None:
        np = len(nvidia.visible_gpus(os.environ)) or 2
    if np is not None:
        words += ["-np", str(np)]
    for name in env or ():
        words += ["-x", name]
    return [*words, *options, "-m", "ringar.launchers.worker"]


def _choice(arguments: Sequence[str]) -> Choice:
    """Return the choice that the launcher will make: whether on this host, and how many ranks.

    Raises:
        ValueError: the launcher would refuse `arguments`.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            request = options_module.request(options_module.parser().parse_args(arguments))
        return choose(request, os.environ)
    except UsageError as error:
        raise ValueError(f"ringar.run: {error}") from None
    except SystemExit:
        text = said.getvalue().strip().removeprefix("ringarrun: error: ")
        raise ValueError(f"ringar.run: {text}") from None


class _Launcher:
    """The process of `ringarrun`, whose output goes to `sys.stdout` and `sys.stderr`.

    Attributes:
        code: its exit code, once it has ended.
        last: the last message of its own.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self.code = 0
        self.last = ""
        # A session of its own: Ctrl-C reaches it once, by way of this process.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(os.getpid()), *arguments],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._line = ""
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

    def wait(self, timeout: float | None) -> bool:
        """Show the output up to the end; return False if it did not come within `timeout`.

        Whatever is raised meanwhile, such as KeyboardInterrupt, all ranks have ended afterwards.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        try:
            in_time = self._show(end)
            if not in_time:
                self._stop(signal.SIGTERM)
        except BaseException as error:
            self._stop(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            raise
        finally:
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()  # the launcher ends all ranks if nobody reads
            self.code = self._process.wait()
        return in_time

    def _stop(self, number: int) -> None:
        self._process.send_signal(number)
        try:
            self._show(math.inf)
        except KeyboardInterrupt:
            self._stop(number)  # at the second signal the launcher kills
        except Exception:
            return  # what could not be shown before cannot be shown now

    def _show(self, end: float) -> bool:
        """Pass the output on until both pipes have ended; return False at the time `end`."""
        with selectors.DefaultSelector() as poll:
            for name in ("stdout", "stderr"):
                poll.register(getattr(self._process, name), selectors.EVENT_READ, name)
            while poll.get_map():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in poll.select(None if left == math.inf else left):
                    data = os.read(key.fd, 1 << 16)
                    self._write(key.data, self._decoders[key.data].decode(data, final=not data))
                    if not data:
                        poll.unregister(key.fileobj)
        return True

    def _write(self, name: str, text: str) -> None:
        if name == "stderr":
            *lines, self._line = (self._line + text).split("\n")
            for line in lines:
                if line.startswith("ringarrun: "):
                    self.last = line.removeprefix("ringarrun: ")
        stream = getattr(sys, name)
        stream.write(text)
        stream.flush()


def _raise_first(
    arrived: Mapping[int, Outcome], outcomes: Sequence[Outcome | None], launcher: _Launcher
) -> NoReturn:
    """Raise the error of the rank that the launcher calls the cause, or of the first to report."""
    size = len(outcomes)
    errors = [rank for rank, outcome in arrived.items() if outcome.trace]
    match = _CAUSE.match(launcher.last)
    first = int(match[1]) if match else next(iter(errors), None)
    if first is not None and first in errors:
        outcome = arrived[first]
        cause = RankError(f"rank {first} of {size} failed:\n{outcome.trace}")
        try:
            error = pickle.loads(outcome.value) if outcome.value else None
        except Exception:  # a class that only ranks can import
            error = None
        if error is None:
            raise cause
        raise error from cause
    silent = ", ".join(str(rank) for rank, outcome in enumerate(outcomes) if outcome is None)
    raise RankError(
        launcher.last
        or f"expected the results of {size} ranks, but rank {silent} ended without one "
        f"(the exit code of the job is {launcher.code})"
    )


def _unpickled(rank: int, outcome: Outcome | None) -> Any:
    assert outcome is not None
    try:
        return pickle.loads(outcome.value)
    except Exception as error:
        raise RankError(
            f"expected a result of rank {rank} that can be unpickled here: {error}; return "
            "numbers, NumPy arrays or containers of them"
        ) from error
