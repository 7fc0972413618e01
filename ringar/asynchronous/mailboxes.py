"""The memory through which workers and shards of a parameter server pass parameters and gradients.

Each rank has a part of two windows. The parts of a rank that serves shards have, per shard:

    data      values | values | mailbox of worker 0 | mailbox of worker 1 | ...
    control   published | header 0, ack 0 | header 1, ack 1 | ...

*Pull.* A shard has two buffers for its values, used in turn: each publication goes to the other
one. `published` tells the newest publication and its version, and which publication is being
written. So a worker has read one whole version if no later publication to its buffer has begun.

*Push.* A worker writes its gradients to its mailboxes, then a header with a new number to
`control`, and rings. The shard reads the gradients in place, and acknowledges the number: the
mailbox is free again. A worker that dies before the header has pushed nothing, one that dies after
it everything. Headers follow when all mailboxes are full: if one shard has got a push, all know of
it.

A header, an acknowledgement (ack) and `published` are one chunk of the window each, so that a
reader sees all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringar.asynchronous.gradients import Gradient, Rows
from ringar.asynchronous.partition import Piece
from ringar.collectives import Window
from ringar.collectives.mailbox import Records, aligned
from ringar.job.process_sets import ProcessSet

_ABSENT, _DENSE = -1, -2  # in place of a number of rows
_ANNOUNCED = 2  # numbers at the head of a mailbox, before those of rows

Arrays = list[np.ndarray]


class Published(NamedTuple):
    """Describe the contents of a shard's buffers.

    Attributes:
        version: that of the newest publication. A push may make several updates; the versions in
            between are not published.
        publication: the number of the newest publication.
        writing: the number of the one that is being written, or of the newest.
        failed: whether the shard has failed.
        is_left: whether the first worker has ended or died.
        final: 0 while workers push; else 1 more than the number of workers that were lost.
    """

    version: int
    publication: int
    writing: int
    failed: int = 0
    is_left: int = 0
    final: int = 0

    @property
    def place(self) -> int:
        """The buffer of the newest publication."""
        return self.publication % 2

    def is_overwritten(self, later: Published) -> bool:
        """Return whether publications up to `later` may have overwritten the buffer."""
        return later.writing >= self.publication + 2


class Header(NamedTuple):
    """Announce a push.

    Attributes:
        number: the number among the worker's headers to the shard, from 1.
        version: the version of the values that the gradients were computed from.
        step: the number of the worker's push, from 0.
        rate: the bits of the factor by which the worker has changed its learning rate.
        has_ended: whether the worker pushes no more, 2 if it has failed. Such a header comes
            without gradients.
    """

    number: int
    version: int
    step: int
    rate: int
    has_ended: int


PULLED = 5
"""The place in a header's record of the number of steps for which the worker has pulled.

Only runs with a `ringar.asynchronous.Turnstile` write it.
"""


class Ack(NamedTuple):
    """Tell a worker which header was taken last, and before which push it must wait."""

    header: int
    limit: int


class ShardPlace:
    """Locate one shard in the windows of its rank.

    Args:
        rank: the rank that serves it.
        pieces: the pieces of the shard.
        workers: the number of workers.
        data: the first byte of the shard in the rank's part of the data.
        control: its first record.
    """

    def __init__(
        self, rank: int, pieces: Sequence[Piece], workers: int, data: int, control: int
    ) -> None:
        self.rank, self.pieces, self.workers = rank, list(pieces), workers
        ends = np.cumsum([0, *(aligned(piece.bytes) for piece in pieces)])
        self._starts, self.values_bytes = [int(end) for end in ends[:-1]], int(ends[-1])
        self._head_bytes = aligned(8 * (_ANNOUNCED + len(self.pieces)))
        self._mailbox_bytes = self._head_bytes + self.values_bytes
        self._data, self._control = data, control
        self.data_end = data + 2 * self.values_bytes + workers * self._mailbox_bytes
        self.control_end = control + 1 + 2 * workers

    def values_at(self, place: int) -> int:
        """Return the first byte of the values in a place, 0 or 1."""
        return self._data + place * self.values_bytes

    def mailbox_at(self, worker: int) -> int:
        """Return the first byte of a worker's mailbox."""
        return self._data + 2 * self.values_bytes + worker * self._mailbox_bytes

    def published_at(self) -> int:
        """Return the record of `published`."""
        return self._control

    def header_at(self, worker: int) -> int:
        """Return the record of a worker's header; its acknowledgement follows."""
        return self._control + 1 + 2 * worker

    def ack_at(self, worker: int) -> int:
        """Return the record of the acknowledgement to a worker."""
        return self.header_at(worker) + 1

    def views(self, memory: np.ndarray) -> Arrays:
        """Return an array per piece on bytes that hold values."""
        return [
            memory[begin : begin + piece.bytes].view(piece.description.dtype).reshape(piece.shape)
            for begin, piece in zip(self._starts, self.pieces, strict=True)
        ]

    def offsets(self, values: Arrays) -> list[tuple[int, np.ndarray]]:
        """Return the bytes to write to a buffer for values, with their offsets in it."""
        return [(at, _bytes_of(value)) for at, value in zip(self._starts, values, strict=True)]

    def parts(
        self, gradients: Sequence[Gradient], step: int, version: int
    ) -> list[tuple[int, np.ndarray]]:
        """Return the bytes to write to a mailbox for a push, with their offsets in it."""
        head = np.full(_ANNOUNCED + len(self.pieces), _ABSENT, np.int64)
        head[:_ANNOUNCED] = step + 1, version
        counts = head[_ANNOUNCED:]
        body = self._head_bytes
        pieces: list[tuple[int, np.ndarray]] = [(0, head.view(np.uint8))]
        for i, (piece, gradient) in enumerate(zip(self.pieces, gradients, strict=True)):
            at = body + self._starts[i]
            if isinstance(gradient, Rows) and 8 * gradient.indices.size + gradient.values.nbytes > (
                piece.bytes
            ):
                gradient = _dense(gradient, piece)
            if isinstance(gradient, Rows):
                counts[i] = gradient.indices.size
                pieces.append((at, _bytes_of(gradient.indices)))
                pieces.append((at + 8 * gradient.indices.size, _bytes_of(gradient.values)))
            elif gradient is not None:
                counts[i] = _DENSE
                pieces.append((at, _bytes_of(gradient)))
        return pieces

    def gradients(self, mailbox: np.ndarray) -> list[Gradient]:
        """Return the gradients in the bytes of a mailbox, as arrays on them."""
        counts = self._head(mailbox)[_ANNOUNCED:]
        body = mailbox[self._head_bytes :]
        return [
            _read(body[begin:], piece, int(count))
            for begin, piece, count in zip(self._starts, self.pieces, counts, strict=True)
        ]

    def announced(self, mailbox: np.ndarray) -> tuple[int, int]:
        """Return the step and the version of the push in a mailbox; step -1: there was none."""
        step, version = self._head(mailbox)[:_ANNOUNCED]
        return int(step) - 1, int(version)

    def _head(self, mailbox: np.ndarray) -> np.ndarray:
        return mailbox[: 8 * (_ANNOUNCED + len(self.pieces))].view(np.int64)

    def mailbox(self, memory: np.ndarray, worker: int) -> np.ndarray:
        """Return a worker's mailbox in the part of the rank that serves the shard."""
        begin = self.mailbox_at(worker)
        return memory[begin : begin + self._mailbox_bytes]


class Mailboxes:
    """Open the windows of a parameter server. Collective.

    Args:
        shards: the pieces of each shard.
        servers: the rank of each shard, in the process set.
        workers: the number of workers.
        process_set: all ranks, those that serve and those that work.
        name: the name of the windows.
    """

    def __init__(
        self,
        shards: Sequence[Sequence[Piece]],
        servers: Sequence[int],
        workers: int,
        process_set: ProcessSet,
        name: str,
    ) -> None:
        self.shards: list[ShardPlace] = []
        ends = dict.fromkeys(range(process_set.size()), (0, 1))  # the first record is the doorbell
        for pieces, rank in zip(shards, servers, strict=True):
            shard = ShardPlace(rank, pieces, workers, *ends[rank])
            ends[rank] = shard.data_end, shard.control_end
            self.shards.append(shard)
        data, control = ends[process_set.rank()]
        self.data = Window(data, "uint8", process_set, name=f"{name}/data")
        self.control = Records(control, process_set, f"{name}/control")

    def tell_pulled(self, shard: ShardPlace, worker: int, steps: int) -> None:
        """Tell a shard for how many steps a worker has pulled."""
        self.control.write(shard.rank, shard.header_at(worker), [steps], PULLED)
        self.ring(shard.rank)

    def ring(self, rank: int) -> None:
        """Tell a rank that there is a push."""
        self.control.fetch_add(rank, 0, 1)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _dense(rows: Rows, piece: Piece) -> np.ndarray:
    dense = np.zeros(piece.shape, piece.description.dtype)
    dense[rows.indices] = rows.values
    return dense


def _read(body: np.ndarray, piece: Piece, count: int) -> Gradient:
    if count == _ABSENT:
        return None
    if count == _DENSE:
        return body[: piece.bytes].view(piece.description.dtype).reshape(piece.shape)
    row = piece.bytes // max(piece.end - piece.begin, 1)
    values = body[8 * count : 8 * count + row * count].view(piece.description.dtype)
    return Rows(body[: 8 * count].view(np.int64), values.reshape(count, *piece.shape[1:]))
