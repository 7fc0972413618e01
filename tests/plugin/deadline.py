"""Ends a test that hangs: after its deadline every thread's stack is printed and the process exits.

A hung test often hangs in native code, where no exception can reach it, so the whole process goes;
under ringarrun that ends the job. What pytest had captured until then is printed too: the native
library's warnings are in it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Generator

import pytest

from tests.plugin import jobs
from tests.plugin.place import RANK, SIZE

DEFAULT_SECONDS = 120.0
EXIT_CODE = 124  # as timeout(1)
# A rank that only waits for the others gives those that hang the time to say where.
_GRACE = 10.0
# If not even a Python thread can run (somebody keeps the GIL), C code ends the process.
_LAST_RESORT = 2 * _GRACE


class Watchdog:
    """The deadline of the test that runs now."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # Capturing is suspended while plugins are configured: this is the real stderr.
        self._stderr = os.dup(2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        seconds = deadline_of(item)
        timer = threading.Timer(seconds, self._expire, [item.nodeid, seconds])
        timer.daemon = True
        timer.start()
        faulthandler.dump_traceback_later(seconds + _LAST_RESORT, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            timer.cancel()

    def _expire(self, nodeid: str, seconds: float) -> None:
        hub = getattr(self._config, "ringar_hub", None)
        if hub is not None and hub.waiting:
            time.sleep(_GRACE)
        self._say(f"\n{rank_prefix()}{nodeid} did not end in {seconds:g} s; its threads:\n")
        faulthandler.dump_traceback(file=self._stderr, all_threads=True)
        self._say(f"{rank_prefix()}captured until then:\n{self._captured()}\n")
        jobs.kill_all()
        os._exit(EXIT_CODE)

    def _captured(self) -> str:
        manager = self._config.pluginmanager.getplugin("capturemanager")
        # The process ends here: a captured text that cannot be had is no reason to stay.
        with contextlib.suppress(Exception):
            manager.suspend_global_capture(in_=True)
            return "".join(manager.read_global_capture())
        return "(not available)"

    def _say(self, text: str) -> None:
        os.write(self._stderr, text.encode(errors="replace"))


def deadline_of(item: pytest.Item) -> float:
    """Returns the seconds that `item` may take: its marker's, or the default."""
    marker = item.get_closest_marker("deadline")
    return float(marker.args[0]) if marker else DEFAULT_SECONDS


def rank_prefix() -> str:
    """Returns how messages of this process begin: with its rank, where there are several."""
    return f"rank {RANK} | " if SIZE > 1 else ""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(config), "ringar-watchdog")
