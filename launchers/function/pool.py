"""Ranks that stay, and call one function after the other."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringar.errors import DeadlineError, RankError
from ringar.launchers.elastic import first_plan
from ringar.launchers.function import outcomes
from ringar.launchers.function.process import Launcher
from ringar.launchers.function.rendezvous import VARIABLE, Server
from ringar.launchers.function.run import parsed

_TICK = 0.1
_END = 60.0  # seconds for the launcher to end ranks that do not end by themselves


class Pool:
    """The ranks of a job, as a context; they end with it, or with the first that fails.

    Args:
        words: the options of `ringarrun`.
        size: the number of ranks.
        hosts: the hosts that they run on; none: this one.
        env: variables to set for the ranks.

    Raises:
        ValueError: an option is wrong, or asks for an elastic job.
    """

    def __init__(
        self, words: Sequence[str], size: int, hosts: Sequence[str], env: Mapping[str, str]
    ) -> None:
        exported = [word for name in env for word in ("-x", name)]
        self._words = [*words, *exported, "-m", "ringar.launchers.function.worker"]
        request, _ = parsed(self._words)
        if first_plan.is_wanted(request):
            raise ValueError(
                "expected ranks that stay, received options of an elastic job (--min-np, "
                "--host-discovery-script); start elastic jobs by ringarrun"
            )
        self._size = size
        self._server = Server(hosts, local=not hosts).__enter__()
        self._environ = {**os.environ, **env, VARIABLE: self._server.variable}
        self._launcher: Launcher | None = None
        self._is_closed = False
        # The launcher ends with the thread that has started it.
        self._thread = threading.Thread(target=self._run, name="ringar pool", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._launcher = Launcher(self._words, self._environ)
        self._launcher.wait(None)

    @property
    def is_alive(self) -> bool:
        """Whether the ranks can be called."""
        return self._thread.is_alive()

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Call a function on all ranks; return their results, in the order of ranks.

        Raises:
            DeadlineError: not all ranks have returned within `timeout` seconds.
            RankError: the ranks have ended.
            TypeError: the function or its arguments cannot be pickled.
            Exception: the error of the rank that failed first. All ranks have ended then.
        """
        message = outcomes.message(function, args, kwargs)
        if not self.is_alive:
            raise RankError("expected ranks that run, but they have ended; start them again")
        self._server.call(message)
        try:
            self._wait(timeout)
        except BaseException:
            self._stop(signal.SIGINT)
            raise
        launcher = None if self.is_alive else self._launcher
        return outcomes.results(self._server.outcomes, self._size, launcher)

    def _wait(self, timeout: float | None) -> None:
        """Wait for all results, or the end of the job after an error."""
        begin = time.monotonic()
        while self.is_alive:
            complete = self._server.wait(self._size, _TICK)
            if complete and not any(outcome.trace for outcome in self._server.outcomes.values()):
                return
            if timeout is not None and time.monotonic() - begin > timeout:
                ranks = sorted(set(range(self._size)) - self._server.outcomes.keys())
                raise DeadlineError(
                    f"expected the function to return within {timeout:g} s on every rank, "
                    f"still waiting for rank {', '.join(map(str, ranks))}"
                )

    def _stop(self, number: int) -> None:
        if self._launcher is not None:
            self._launcher.signal(number)
        self._thread.join(_END)

    def close(self) -> None:
        """Let the ranks end, and wait for it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._server.end()
        self._thread.join(_END)
        if self.is_alive:
            self._stop(signal.SIGTERM)
        self._server.__exit__()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
