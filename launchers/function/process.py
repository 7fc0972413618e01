"""The launcher as a process of its own, for `ringar.run` and executors.

It needs signals, forks and one thread, and a notebook's process has many. Its output comes through
pipes and goes to `sys.stdout` and `sys.stderr`, which a notebook shows below the cell; descriptor 1
of a notebook's process leads elsewhere.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ringar.launchers.supervise import clock, job_control

# The launcher ends with this process, or with the thread that waits for it.
_LAUNCHER = """
import signal, sys
from ringar.launchers.supervise.ranks import bound_to_launcher
bound_to_launcher(signal.SIGTERM, int(sys.argv.pop(1)))()
from ringar.launchers.command_line.cli import main
sys.exit(main())
"""


class Launcher:
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

        All ranks have ended afterwards, also after an exception such as KeyboardInterrupt.
        """
        end = math.inf if timeout is None else clock.now() + timeout
        try:
            with job_control.shared_with(self._process):
                in_time = self._show(end)
            if not in_time:
                self._stop(signal.SIGTERM)
        except BaseException as error:
            self._stop(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            raise
        finally:
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()  # the launcher ends all ranks without a reader
            self.code = self._process.wait()
        return in_time

    def signal(self, number: int) -> None:
        """Send a signal to the launcher."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _stop(self, number: int) -> None:
        self.signal(number)
        try:
            self._show(math.inf)
        except KeyboardInterrupt:
            self._stop(number)  # at the second signal the launcher kills
        except Exception:
            return  # output that could not be shown before cannot be shown now

    def _show(self, end: float) -> bool:
        """Pass the output on until both pipes have ended; return False at the time `end`."""
        with selectors.DefaultSelector() as poll:
            for name in ("stdout", "stderr"):
                poll.register(getattr(self._process, name), selectors.EVENT_READ, name)
            while poll.get_map():
                left = end - clock.now()
                if left <= 0:
                    return False
                for key, _ in clock.select(poll, None if left == math.inf else left):
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
