"""A worker's end of a parameter server: pulls values, pushes gradients, waits where it must."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from ringar.asynchronous.gradients import Gradient, Rows, merged
from ringar.asynchronous.mailboxes import Ack, Header, Mailboxes, Published, ShardPlace
from ringar.asynchronous.partition import Description, whole_values
from ringar.asynchronous.turnstile import Turnstile
from ringar.collectives import empty, mailbox
from ringar.collectives.call import Call
from ringar.errors import DeadlineError, MismatchError, PeerLostError
from ringar.job.stopwatch import Stopwatch

_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between looks


class Pulled(NamedTuple):
    """Hold the values of all variables, and the version of each shard that they are of."""

    values: list[np.ndarray]
    versions: list[int]


def _copied(pulled: Pulled) -> Pulled:
    return Pulled([value.copy() for value in pulled.values], pulled.versions)


class Replica:
    """Pull from all shards, and push to them.

    Args:
        mailboxes: the windows.
        variables: the variables that are served.
        worker: the number of this worker.
        deadline: seconds that it waits for a shard.
        name: that of the server, in errors.
        turnstiles: for each shard the order of another run, if this run has to repeat it.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        variables: Sequence[Description],
        worker: int,
        deadline: float,
        name: str,
        turnstiles: Sequence[Turnstile] = (),
    ) -> None:
        self._mailboxes, self._variables, self._worker = mailboxes, list(variables), worker
        self._deadline, self._call = deadline, Call("window", name=name)
        self._turnstiles = turnstiles
        self._headers, self._has_ended = 0, False  # headers to each shard
        self.pushes = 0
        self._scheduled: tuple[int, Pulled] | None = None  # the number of a push, and its pull

    def pull(self) -> Pulled:
        """Return the newest values of all variables, when it is this worker's turn.

        They contain the last push of this worker. By a schedule, all pulls before a push return the
        same.
        """
        self.wait_until_taken()
        self.wait_for_turn()
        if self._scheduled is not None and self._scheduled[0] == self.pushes:
            return _copied(self._scheduled[1])
        versions: list[int] = []
        values: list[list[np.ndarray]] = []
        for number, shard in enumerate(self._mailboxes.shards):
            if self._turnstiles:
                self._wait_for_scheduled(shard, self._turnstiles[number])
            version, of_shard = self._pull(shard)
            versions.append(version)
            values.append(of_shard)
            if self._turnstiles:
                self._mailboxes.tell_pulled(shard, self._worker, self.pushes + 1)
        pieces = [shard.pieces for shard in self._mailboxes.shards]
        pulled = Pulled(whole_values(pieces, values), versions)
        if any(t.version(self._worker, self.pushes) is not None for t in self._turnstiles):
            self._scheduled = self.pushes, _copied(pulled)
        return pulled

    def push(
        self, gradients: Sequence[Gradient], versions: Sequence[int], rate: float = 1.0
    ) -> None:
        """Push gradients to all shards, when it is this worker's turn.

        It returns before they are applied.

        Args:
            gradients: one for each variable; None if the loss does not depend on it.
            versions: those of the shards which the gradients were computed from.
            rate: the factor by which this worker's learning rate has changed since its beginning.

        Raises:
            MismatchError: on this rank, for a gradient that does not fit.
        """
        if self._has_ended:
            raise self._refusal("a push before the server is closed", "one behind that")
        if len(gradients) != len(self._variables):
            raise self._refusal(f"{len(self._variables)} gradients", str(len(gradients)))
        gradients = [self._checked(g, v) for g, v in zip(gradients, self._variables, strict=True)]
        self.wait_until_taken()
        self.wait_for_turn()
        bits = int(np.float64(rate).view(np.int64))
        self._headers += 1
        for shard, version in zip(self._mailboxes.shards, versions, strict=True):
            pieces = [piece.of_gradient(gradients[piece.variable]) for piece in shard.pieces]
            mailbox = shard.mailbox_at(self._worker)
            for offset, array in shard.parts(pieces, self.pushes, version):
                self._mailboxes.data.put(shard.rank, array, mailbox + offset)
        for shard, version in zip(self._mailboxes.shards, versions, strict=True):
            self._send(shard, Header(self._headers, version, self.pushes, bits, 0))
        self.pushes += 1

    def end(self, wait: bool = True) -> None:
        """Tell all shards that this worker pushes no more.

        Args:
            wait: whether its last push has to count. Otherwise the worker has failed, and the push
                may be left out.
        """
        if wait:
            self.wait_until_taken()
        self._headers, self._has_ended = self._headers + 1, True
        for shard in self._mailboxes.shards:
            self._send(shard, Header(self._headers, 0, self.pushes, 0, 1 if wait else 2))

    def wait_until_taken(self) -> None:
        """Wait until the shards have taken this worker's last push."""
        for shard in self._mailboxes.shards:
            self._wait(shard, lambda ack: ack.header >= self._headers, "take a push")

    def wait_for_turn(self) -> None:
        """Wait until this worker may compute its next gradient: others may be too far behind."""
        for shard in self._mailboxes.shards:
            self._wait(
                shard,
                lambda ack: ack.limit > self.pushes,
                "let this worker go on, which the others' pushes must do",
            )

    def wait_for_version(self, version: int) -> None:
        """Wait until all shards have this version, or the first worker has left them.

        Raises:
            DeadlineError: they make no progress.
        """
        newest, stopwatch = -1, Stopwatch()
        while True:
            published = [self._published(shard) for shard in self._mailboxes.shards]
            versions = [record.version for record in published]
            if min(versions) >= version or all(record.is_left for record in published):
                return
            if sum(versions) != newest:
                newest, stopwatch = sum(versions), Stopwatch()
            elif stopwatch.seconds() > self._deadline:
                slowest = versions.index(min(versions))
                self._give_up(self._mailboxes.shards[slowest], f"come to version {version}")
            time.sleep(_LONGEST)

    def final(self) -> tuple[list[np.ndarray], bool]:
        """Wait until all workers have ended; return the final values, and if workers were lost.

        Raises:
            DeadlineError: the shards neither change nor end.
        """
        newest, stopwatch = -1, Stopwatch()
        while True:
            published = [self._published(shard) for shard in self._mailboxes.shards]
            if all(record.final for record in published):
                break
            progress = sum(record.publication + record.final for record in published)
            if progress != newest:
                newest, stopwatch = progress, Stopwatch()
            elif stopwatch.seconds() > self._deadline:
                slowest = next(i for i, record in enumerate(published) if not record.final)
                self._give_up(self._mailboxes.shards[slowest], "end with all workers")
            time.sleep(_LONGEST)
        values = [self._pull(shard)[1] for shard in self._mailboxes.shards]
        pieces = [shard.pieces for shard in self._mailboxes.shards]
        return whole_values(pieces, values), any(record.final > 1 for record in published)

    def leave(self) -> None:
        """Tell the shards that this worker has read the final values.

        A server looks for these headers without a doorbell, and may end when it has seen them.
        """
        self._headers += 1
        header = Header(self._headers, 0, self.pushes, 0, 1)
        for shard in self._mailboxes.shards:
            with contextlib.suppress(PeerLostError):
                self._mailboxes.control.write(shard.rank, shard.header_at(self._worker), header)

    def _send(self, shard: ShardPlace, header: Header) -> None:
        self._mailboxes.control.write(shard.rank, shard.header_at(self._worker), header)
        self._mailboxes.ring(shard.rank)

    def _pull(self, shard: ShardPlace) -> tuple[int, list[np.ndarray]]:
        memory = empty(shard.values_bytes, np.uint8)
        while True:
            before = self._published(shard)
            begin = shard.values_at(before.place)
            if memory.size:
                self._mailboxes.data.get(shard.rank, begin, memory.size, out=memory)
            if not before.is_overwritten(self._published(shard)):
                return before.version, shard.views(memory)

    def _wait_for_scheduled(self, shard: ShardPlace, turnstile: Turnstile) -> None:
        """Wait for the version which this worker pulls for its next step."""
        version = turnstile.version(self._worker, self.pushes)
        if version is None:
            return
        stopwatch = Stopwatch()
        while (newest := self._published(shard).version) < version:
            if stopwatch.seconds() > self._deadline:
                self._give_up(shard, f"come to version {version} of the schedule")
            time.sleep(_SHORTEST)
        if newest > version:
            raise self._refusal(
                f"version {version} for step {self.pushes}, by the schedule",
                f"a pull that was late: the shard has version {newest}",
            )

    def _published(self, shard: ShardPlace) -> Published:
        record = Published(*self._mailboxes.control.numbers(shard.rank, shard.published_at(), 6))
        if record.failed:
            raise PeerLostError(
                self._call.refusal(
                    f"the shard of rank {shard.rank} to serve",
                    "an error of that rank",
                    "See its message there.",
                )
            )
        return record

    def _wait(self, shard: ShardPlace, is_done: Callable[[Ack], bool], action: str) -> None:
        stopwatch = Stopwatch()
        looks = 0
        while True:
            ack = Ack(*self._mailboxes.control.numbers(shard.rank, shard.ack_at(self._worker), 2))
            if is_done(ack):
                return
            waited = stopwatch.seconds()
            looks += 1
            if looks % 64 == 0:
                self._published(shard)
            if waited > self._deadline:
                self._give_up(shard, action)
            mailbox.pause(waited)

    def _give_up(self, shard: ShardPlace, action: str) -> NoReturn:
        raise DeadlineError(
            self._call.refusal(
                f"the shard of rank {shard.rank} to {action} within {self._deadline:g} s",
                f"no acknowledgement of push {self.pushes}",
                "If it is only slow, raise the deadline (ringar.init(deadline=...), "
                "RINGAR_DEADLINE or ringarrun --deadline).",
            )
        )

    def _checked(self, gradient: Gradient, variable: Description) -> Gradient:
        """Return a gradient in the variable's dtype, after a look at its shape."""
        if gradient is None:
            return None
        if isinstance(gradient, Rows):
            gradient = self._merged(gradient, variable)
            shape: tuple[int, ...] = (variable.rows, *gradient.values.shape[1:])
            rows = gradient.indices
            if rows.size and not 0 <= rows.min() <= rows.max() < variable.rows:
                raise self._refusal(
                    f"rows of {variable.name!r} from 0 to {variable.rows - 1}",
                    f"rows from {rows.min()} to {rows.max()}",
                )
        else:
            shape = gradient.shape
        if shape != variable.shape:
            raise self._refusal(
                f"a gradient of {variable.name!r} of shape {variable.shape}", f"shape {shape}"
            )
        if isinstance(gradient, Rows):
            return Rows(
                gradient.indices.astype(np.int64, copy=False),
                gradient.values.astype(variable.dtype, copy=False),
            )
        return gradient.astype(variable.dtype, copy=False)

    def _merged(self, rows: Rows, variable: Description) -> Rows:
        """Return a sparse gradient with its equal rows added up, after a look at its shape."""
        if rows.indices.ndim != 1 or len(rows.indices) != len(rows.values):
            raise self._refusal(
                f"as many rows of {variable.name!r} as numbers of rows",
                f"values of shape {rows.values.shape} for numbers of shape {rows.indices.shape}",
            )
        return merged(rows)

    def _refusal(self, expected: str, received: str) -> MismatchError:
        return MismatchError(self._call.refusal(expected, received, "Nothing was pushed."))
