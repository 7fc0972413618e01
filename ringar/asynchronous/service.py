"""The thread of a rank that serves shards: takes pushes, applies, publishes, acknowledges.

It waits for its doorbell, takes the pushes that have come, one at a time, and hands each to its
shard (`ringar.asynchronous.shard`), which applies, holds or drops it. New values are published
before the acknowledgement, so that a worker that has got it finds them.

The thread ends when all workers have ended or died. An error of a shard ends it, too, and tells the
workers in `published`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ringar.asynchronous.mailboxes import (
    PULLED,
    Ack,
    Header,
    Mailboxes,
    Published,
    ShardPlace,
)
from ringar.asynchronous.shard import Push, Shard
from ringar.asynchronous.turnstile import Turnstile
from ringar.collectives import mailbox
from ringar.collectives.mailbox import RECORD
from ringar.errors import DeadlineError, NotInitializedError, PeerLostError
from ringar.job import log
from ringar.job.stopwatch import Stopwatch

_log = log.logger(__name__)

_SHORTEST, _LONGEST = 50e-6, 2e-3  # seconds between looks at the doorbell
_LOOK_AFTER_WORKERS = 0.5  # seconds


class Service:
    """Serve the shards of this rank in a thread.

    Args:
        mailboxes: the windows.
        shards: the shards of this rank, by number.
        workers: the rank of each worker in the process set of the windows.
        rank: this rank.
        turnstiles: for each shard of the server the order of another run, if it is to be that of
            this one.
        after_update: called with a shard after each of its updates.
        hosts: the number of each worker's host.
        host: that of this rank.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        shards: dict[int, Shard],
        workers: Sequence[int],
        rank: int,
        turnstiles: Sequence[Turnstile] = (),
        after_update: Callable[[Shard], None] | None = None,
        *,
        hosts: Sequence[int],
        host: int,
    ) -> None:
        self._mailboxes, self._rank, self._workers = mailboxes, rank, list(workers)
        self._after_update = after_update
        self._shards = [
            _Served(mailboxes, shard, len(workers), turnstiles[number] if turnstiles else None)
            for number, shard in shards.items()
        ]
        # Workers that have neither ended nor died. A rank that serves nothing waits for none.
        self._participants = set(range(len(workers))) if shards else set()
        self._dead: dict[int, PeerLostError] = {}  # found by the watch, not yet left out
        self.failure: Exception | None = None
        self.since_push = Stopwatch()
        self._thread = threading.Thread(target=self._run, name="ringar shards", daemon=True)
        for served in self._shards:
            served.publish()
            served.acknowledge()
        self._thread.start()
        # A look at another host waits for the rank there, which may have stopped.
        neighbors = [worker for worker, number in enumerate(hosts) if number == host]
        groups = [[worker] for worker, number in enumerate(hosts) if number != host]
        for group in groups + ([neighbors] if neighbors else []):
            watch = threading.Thread(
                target=self._watch, args=[group], name="ringar watch", daemon=True
            )
            watch.start()

    @property
    def participants(self) -> list[int]:
        """The ranks of the workers that have neither ended nor died."""
        return [self._workers[worker] for worker in sorted(self._participants)]

    def join(self, seconds: float) -> bool:
        """Wait for the end of all workers; return whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Publish the final values of all shards, after the end of all workers."""
        for served in self._shards:
            if served.shard.take_averages():
                served.publish()
            served.tell_final()

    def wait_for_readers(self, deadline: float) -> None:
        """Wait until all live workers have read the final values; then this rank may end."""
        stopwatch = Stopwatch()
        while stopwatch.seconds() < deadline:
            if all(map(self._has_read, range(len(self._workers)))):
                return
            time.sleep(_LONGEST)

    def _has_read(self, worker: int) -> bool:
        has_left = all(served.has_left(worker) for served in self._shards)
        return has_left or self._death_of(worker) is not None

    def _death_of(self, worker: int) -> PeerLostError | None:
        """Return the error that shows a worker's death; None if it seems to live."""
        rank = self._workers[worker]
        try:
            if rank != self._rank:
                self._mailboxes.control.version(rank, 0)
        except PeerLostError as error:
            return error
        except DeadlineError:
            pass  # it is slow, or stopped
        return None

    def _run(self) -> None:
        try:
            self._serve()
        except NotInitializedError:
            return  # ringar was shut down
        except Exception as error:
            self.failure = error
            _log.error("The shards of this rank have failed: %s", error, exc_info=error)
            for served in self._shards:
                served.tell_failure()

    def _serve(self) -> None:
        doorbell = self._mailboxes.control.local[:1]
        former_rings, since = -1, time.monotonic()
        while self._participants:
            self._leave_out_dead()
            rings = int(doorbell[0])
            if rings != former_rings and self._take_pushes():
                since, self.since_push = time.monotonic(), Stopwatch()
                continue  # look again: there may be more
            former_rings = rings
            waited = time.monotonic() - since
            mailbox.pause(waited, _SHORTEST, _LONGEST)

    def _take_pushes(self) -> bool:
        """Take a push to each shard; return whether there was one."""
        has_pushes = False
        for served in self._shards:
            worker = served.next()
            if worker is not None:
                has_pushes = True
                self._take(served, worker)
        return has_pushes

    def _take(self, served: _Served, worker: int) -> None:
        served.take(worker)
        if self._after_update is not None:
            self._after_update(served.shard)
        if all(served_shard.has_ended[worker] for served_shard in self._shards):
            self._participants.discard(worker)

    def _leave_out_dead(self) -> None:
        """Go on without workers that have died. Their complete pushes count."""
        while self._dead:
            worker, error = self._dead.popitem()
            if worker not in self._participants:
                continue
            rank = self._workers[worker]
            _log.warning("The shards of this rank go on without rank %d: %s", rank, error)
            for served in self._shards:
                if served.has_push(worker):
                    self._take(served, worker)
                served.note_lost(worker)
                served.leave(worker, is_lost=True)
            self._participants.discard(worker)

    def _watch(self, workers: Sequence[int]) -> None:
        """Check from time to time whether workers are alive."""
        while self._participants.intersection(workers) and self._thread.is_alive():
            for worker in self._participants.intersection(workers):
                try:
                    death = self._death_of(worker)
                except NotInitializedError:
                    return
                if death is not None:
                    self._dead[worker] = death
            time.sleep(_LOOK_AFTER_WORKERS)


class _Served:
    """Serve one shard."""

    def __init__(
        self, mailboxes: Mailboxes, shard: Shard, workers: int, turnstile: Turnstile | None
    ) -> None:
        self.shard = shard
        self._turnstile = turnstile
        self._scheduled = turnstile.next() if turnstile else None
        self.has_ended = [False] * workers
        self._mailboxes, self._workers = mailboxes, workers
        self._place: ShardPlace = mailboxes.shards[shard.number]
        self._headers = np.zeros(workers, np.int64)
        self._lost_workers: set[int] = set()
        self._last = -1  # the worker whose push was taken last
        self._published = Published(0, -1, -1)
        self._rate, self._factor = shard.learning_rate, 1.0
        self._acks = [Ack(0, 0)] * workers
        # The numbers of the workers' headers, where they are written.
        first = self._place.header_at(0) * RECORD
        headers = mailboxes.control.local[first : first + 2 * RECORD * workers]
        headers = headers.reshape(workers, 2 * RECORD)
        self._numbers, self._pulled = headers[:, 0], headers[:, PULLED]

    def next(self) -> int | None:
        """Return the worker whose push is taken next; None if there is none yet.

        Workers take turns: the next one is the first behind the last one that has pushed.
        """
        waiting = [int(w) for w in np.flatnonzero(self._numbers != self._headers)]
        waiting = [worker for worker in waiting if not self.has_ended[worker]]
        if not waiting or self._turnstile is None:
            return min(waiting, key=lambda w: (w <= self._last, w), default=None)
        for worker in waiting:
            if self._has_done_all(worker, self._turnstile):
                return worker  # its last header
        if self._scheduled is None or self._scheduled[0] not in waiting:
            return None
        readers = self._turnstile.readers(self.shard.version)
        if any(self._pulled[reader] <= step for reader, step in readers):
            return None
        worker, self._scheduled = self._scheduled[0], self._turnstile.next()
        return worker

    def has_push(self, worker: int) -> bool:
        """Return whether a worker has a push that was not taken, and has not ended."""
        return bool(self._numbers[worker] != self._headers[worker]) and not self.has_ended[worker]

    def take(self, worker: int) -> None:
        """Take a worker's push, or its end."""
        place, memory = self._place, self._mailboxes.data.local
        try:
            header = Header(
                *self._mailboxes.control.numbers(place.rank, place.header_at(worker), 5)
            )
        except PeerLostError:
            self._headers[worker] = self._numbers[worker]  # it died while it wrote the header
            return
        self._last, self._headers[worker] = worker, header.number
        if header.has_ended:
            self.note_lost(worker)  # it may have left without waiting for the shard
            self.leave(worker, is_lost=header.has_ended == 2)
            return
        self._set_rate(_factor(header.rate))
        gradients = place.gradients(place.mailbox(memory, worker))
        if self.shard.take(Push(worker, header.step, header.version, gradients)):
            self.publish()
        self.acknowledge()

    def note_lost(self, worker: int) -> None:
        """Note a push that a worker may have sent to other shards before it died."""
        step, version = self._place.announced(
            self._place.mailbox(self._mailboxes.data.local, worker)
        )
        if not self.has_ended[worker] and step == self.shard.pushes(worker):
            self.shard.note_lost(worker, version)

    def leave(self, worker: int, is_lost: bool) -> None:
        """Go on without a worker, which has ended or was lost."""
        if self.has_ended[worker]:
            return
        if is_lost:
            self._lost_workers.add(worker)
        self.has_ended[worker] = True
        if self.shard.leave(worker):
            self.publish()
        if worker == 0:
            self._tell(self._published._replace(is_left=1))
        self.acknowledge()

    def publish(self) -> None:
        """Write the values to the other buffer, and announce them."""
        place, number = self._place, self._published.publication + 1
        self._tell(self._published._replace(writing=number))
        begin = place.values_at(number % 2)
        for offset, value in place.offsets(self.shard.arrays()):
            self._mailboxes.data.put(place.rank, value, begin + offset)
        done = self._published._replace(version=self.shard.version, publication=number)
        self._tell(done)

    def has_left(self, worker: int) -> bool:
        """Return whether a worker was lost, or has read the final values."""
        return worker in self._lost_workers or bool(self._numbers[worker] != self._headers[worker])

    def tell_final(self) -> None:
        """Tell that the published values are final."""
        self._tell(self._published._replace(final=1 + len(self._lost_workers)))

    def tell_failure(self) -> None:
        """Tell the workers that there will be no acknowledgement."""
        self._tell(self._published._replace(failed=1))

    def _has_done_all(self, worker: int, turnstile: Turnstile) -> bool:
        """Return whether a worker has pushed all that the schedule has of it."""
        pushed = self.shard.pushes(worker)
        return (pushed == 0 and not turnstile.has(worker)) or (
            pushed > 0 and turnstile.is_last(worker, pushed - 1)
        )

    def _set_rate(self, factor: float) -> None:
        """Change the learning rate as a worker has changed its own."""
        if factor != self._factor:
            self._factor = factor
            self.shard.learning_rate = self._rate * factor

    def acknowledge(self) -> None:
        """Tell each worker which of its headers was taken, and before which push it must wait."""
        for worker in range(self._workers):
            ack = Ack(int(self._headers[worker]), self.shard.limit(worker))
            if ack != self._acks[worker]:
                self._acks[worker] = ack
                self._mailboxes.control.write(self._place.rank, self._place.ack_at(worker), ack)

    def _tell(self, published: Published) -> None:
        self._published = published
        self._mailboxes.control.write(self._place.rank, self._place.published_at(), published)


def _factor(bits: int) -> float:
    """Return the number that has these bits, a float64."""
    return float(np.int64(bits).view(np.float64))
