"""The sockets between the processes of an elastic job and the launcher or guard on their host.

ringar/job/membership.py has the messages.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ringar.job import membership

Watch = Callable[[int, int, Callable[[], object]], None]


class MemberSockets:
    """One socket for each process, by slot.

    Args:
        watch: `(fd, events, action)`: calls an action when a descriptor is ready.
        take: `(slot, message)`: takes a message.
    """

    def __init__(self, watch: Watch, take: Callable[[int, Mapping[str, Any]], None]) -> None:
        self._watch, self._take = watch, take
        self._sockets: dict[int, socket.socket] = {}

    @contextlib.contextmanager
    def opened(self, slot: int) -> Iterator[int]:
        """Make the socket of a process that starts in this context; it inherits the descriptor."""
        parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child:
            try:
                yield child.fileno()
            except BaseException:
                parent.close()
                raise
        parent.setblocking(False)
        self._sockets[slot] = parent
        self._watch(parent.fileno(), selectors.EVENT_READ, lambda: self._read(slot))

    def tell(self, slot: int, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message, and file descriptors with it, if the process has not closed its end."""
        if slot in self._sockets:
            # If it cannot be told, the process has ended, which is noticed next.
            with contextlib.suppress(OSError):
                membership.send(self._sockets[slot], message, files)

    def hang_up(self, slot: int) -> None:
        """Close the socket of a process that has ended."""
        if slot in self._sockets:
            parent = self._sockets.pop(slot)
            self._watch(parent.fileno(), 0, lambda: None)
            parent.close()

    def close(self) -> None:
        """Close all sockets."""
        for slot in list(self._sockets):
            self._sockets.pop(slot).close()

    def _read(self, slot: int) -> None:
        try:
            message, _ = membership.receive(self._sockets[slot])
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self.hang_up(slot)  # its process ends, or has closed its files
            return
        self._take(slot, message)
