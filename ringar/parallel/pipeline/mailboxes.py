"""The mailboxes of the cuts between modules that do not wait for each other.

The mailbox of a cut lies in the memory of the lower module, the one before the cut:

    data      activations 0 | ... | activations A-1 | gradients 0 | ... | gradients A-1
    control   taken | drained | header of each slot of activations | header of each of gradients

Message n has slot n mod A of its direction, with A = `ahead`. A header holds the number of its
message, counted from 1, and is written after the data. `taken` counts the activations that the
upper module has read, `drained` the gradients that the lower one has read. A slot is written again
when its last message has been read.

The lower module touches only its own memory. So it goes on while the upper module is slow, stopped
or far away, until `ahead` batches have no gradient yet. The upper module comes to fetch activations
and to bring gradients. Each header or count is a chunk of the window, seen whole or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ringar.collectives import Window, mailbox
from ringar.collectives.call import Call
from ringar.collectives.mailbox import Records
from ringar.errors import DeadlineError
from ringar.job import place
from ringar.job.process_sets import ProcessSet
from ringar.job.stopwatch import Stopwatch

_TAKEN, _DRAINED, _HEADERS = 0, 1, 2  # records
_LOOK_AFTER_PEER = 0.2  # seconds
_REPORT = 256
"""The room for metrics in a message, in numbers. More of them wait for the end of the epoch."""

Arrays = list[np.ndarray]


class Activation(NamedTuple):
    """Hold a module's message forward for one batch.

    Attributes:
        number: the number of the batch, from 0.
        tensors: the tensors that cross the cut.
        penalty: the sum of the penalties of the modules so far.
    """

    number: int
    tensors: Arrays
    penalty: float


class Gradient(NamedTuple):
    """Hold a module's message back for one batch.

    Attributes:
        number: the number of the batch, from 0.
        tensors: the gradients of the floating tensors that cross the cut; None if the module has
            made no update with this batch.
        report: the latest metrics of the last module that the sender knows; may be empty.
    """

    number: int
    tensors: Arrays | None
    report: np.ndarray


class Layout:
    """Place the tensors of a message in a slot.

    Args:
        specs: the tensors, of known size per example.
        rows: the largest number of examples.
        room: further bytes, behind the tensors.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], rows: int, room: int = 0) -> None:
        self.specs = list(specs)
        sizes = [mailbox.aligned(rows * math.prod(s.shape[1:]) * s.dtype.size) for s in self.specs]
        ends = np.cumsum([0, *sizes])
        self.offsets, self.rest = [int(end) for end in ends[:-1]], int(ends[-1])
        self.bytes = self.rest + mailbox.aligned(room)

    def write(self, window: Window, rank: int, at: int, tensors: Sequence[Any], rows: int) -> None:
        """Write the tensors of a message.

        Raises:
            ValueError: a tensor does not have the expected shape.
        """
        for begin, spec, tensor in zip(self.offsets, self.specs, tensors, strict=True):
            array = np.ascontiguousarray(tensor)
            if array.shape != (rows, *spec.shape[1:]):
                raise ValueError(
                    "A tensor that crosses a cut must have a row per example with "
                    f'schedule="synthetic". Expected {(rows, *spec.shape[1:])}, received '
                    f"{array.shape}. Cut the model elsewhere (`cuts`)."
                )
            if array.size:
                window.put(rank, array.reshape(-1).view(np.uint8), at + begin)

    def read(self, window: Window, rank: int, at: int, rows: int) -> Arrays:
        """Return the tensors of a message."""
        arrays = []
        for begin, spec in zip(self.offsets, self.specs, strict=True):
            shape = (rows, *spec.shape[1:])
            raw = window.get(rank, at + begin, math.prod(shape) * spec.dtype.size)
            arrays.append(raw.view(spec.dtype.as_numpy_dtype).reshape(shape))
        return arrays


class Mailboxes:
    """Open the mailboxes of all cuts of a model. Collective over the model group.

    Args:
        ranks: the ranks of the model group, in the order of the modules.
        sends: the tensors that cross the cut after this rank's module; empty in the last one.
        receives: the tensors that cross the cut before it.
        rows: the largest number of examples of a batch.
        ahead: the number of batches that may be without a gradient.
    """

    def __init__(
        self,
        ranks: ProcessSet,
        sends: Sequence[tf.TensorSpec],
        receives: Sequence[tf.TensorSpec],
        rows: int,
        ahead: int,
    ) -> None:
        self.rows, self.ahead, self.module = rows, ahead, ranks.rank()
        self._deadline = place.require("a pipelined model").deadline
        above, below = _Cut(sends, rows, ahead), _Cut(receives, rows, ahead)
        is_last = self.module == ranks.size() - 1
        self.data = Window(0 if is_last else above.bytes, "uint8", ranks, name="pipeline/data")
        self.control = Records(_HEADERS + 2 * ahead, ranks, "pipeline/control")
        self.above = None if is_last else Above(self, above)
        self.below = None if self.module == 0 else Below(self, below)

    def close(self) -> None:
        """Close the windows. Collective over the model group."""
        self.data.close()
        self.control.close()

    def wait(
        self,
        ready: Callable[[], bool],
        peer: int,
        action: str,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Wait for another module.

        Args:
            ready: tells whether the wait is over.
            peer: the module that is waited for.
            action: the action that it is expected to take, in the error.
            meanwhile: is called again and again.

        Raises:
            DeadlineError: it did not come in time.
            PeerLostError: its rank died or left.
        """
        stopwatch, last_look = Stopwatch(), 0.0
        while not ready():
            if meanwhile is not None:
                meanwhile()
            seconds = stopwatch.seconds()
            if seconds - last_look > _LOOK_AFTER_PEER:
                self.control.read(peer, _TAKEN)
                last_look = seconds
            if seconds > self._deadline:
                raise DeadlineError(
                    Call("window", name="pipeline").refusal(
                        f"module {peer} to {action} within {self._deadline:g} s",
                        "nothing",
                        "If it is only slow, raise the deadline (ringar.init(deadline=...), "
                        "RINGAR_DEADLINE or ringarrun --deadline).",
                    )
                )
            mailbox.pause(seconds)


class _Cut:
    """Place the messages of a cut in its mailbox."""

    def __init__(self, specs: Sequence[tf.TensorSpec], rows: int, ahead: int) -> None:
        self.activations = Layout(specs, rows)
        floating = [spec for spec in specs if spec.dtype.is_floating]
        self.gradients = Layout(floating, rows, 4 * _REPORT)
        self._ahead = ahead
        self.bytes = ahead * (self.activations.bytes + self.gradients.bytes)

    def activation(self, number: int) -> tuple[int, int]:
        """Return the first byte of an activation's slot, and the record of its header."""
        slot = number % self._ahead
        return slot * self.activations.bytes, _HEADERS + slot

    def gradient(self, number: int) -> tuple[int, int]:
        """Return the first byte of a gradient's slot, and the record of its header."""
        slot = number % self._ahead
        begin = self._ahead * self.activations.bytes + slot * self.gradients.bytes
        return begin, _HEADERS + self._ahead + slot


class Above:
    """Send activations to the module above, and take the gradients that come back."""

    def __init__(self, boxes: Mailboxes, cut: _Cut) -> None:
        self._boxes, self._cut = boxes, cut
        self._me, self._peer = boxes.module, boxes.module + 1
        self._sent_count = self._taken_count = self._drained_count = 0

    def send(
        self,
        number: int,
        rows: int,
        tensors: Sequence[Any],
        penalty: float,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Send activations; wait until those in their slot, `ahead` batches older, are read."""
        boxes, me = self._boxes, self._me
        if number >= self._taken_count + boxes.ahead:
            boxes.wait(lambda: self._room(number), self._peer, "take an activation", meanwhile)
        at, header = self._cut.activation(number)
        self._cut.activations.write(boxes.data, me, at, tensors, rows)
        bits = int(np.float64(penalty).view(np.int64))
        boxes.control.write(me, header, [number + 1, rows, bits])
        self._sent_count += 1

    def gradients(self, through: int) -> list[Gradient]:
        """Return the gradients that have come since the last call, in order.

        It leaves those of batches that were not sent yet: with synthetic inputs the module above
        may be ahead.

        Args:
            through: the number of a batch for whose gradient the call waits. With -1 it does not
                wait.
        """
        messages: list[Gradient] = []
        while self._drained_count < self._sent_count:
            if not self._has_come():
                if self._drained_count > through:
                    break
                self._boxes.wait(self._has_come, self._peer, "send a gradient")
            at, header = self._cut.gradient(self._drained_count)
            record = self._boxes.control.read(self._me, header)
            messages.append(self._read(at, *map(int, record[1:4])))
            self._drained_count += 1
            self._boxes.control.write(self._me, _DRAINED, [self._drained_count])
        return messages

    def _read(self, at: int, rows: int, is_there: int, length: int) -> Gradient:
        boxes, layout = self._boxes, self._cut.gradients
        tensors = layout.read(boxes.data, self._me, at, rows) if is_there else None
        raw = boxes.data.get(self._me, at + layout.rest, 4 * length)
        return Gradient(self._drained_count, tensors, raw.view(np.float32))

    def _has_come(self) -> bool:
        _, header = self._cut.gradient(self._drained_count)
        return int(self._boxes.control.read(self._me, header)[0]) == self._drained_count + 1

    def _room(self, number: int) -> bool:
        self._taken_count = int(self._boxes.control.read(self._me, _TAKEN)[0])
        return number < self._taken_count + self._boxes.ahead


class Below:
    """Take activations from the module below, and send gradients back."""

    def __init__(self, boxes: Mailboxes, cut: _Cut) -> None:
        self._boxes, self._cut = boxes, cut
        self._peer = boxes.module - 1
        self._taken_count = self._drained_count = 0

    def activations(
        self, through: int, last: int, meanwhile: Callable[[], object] | None = None
    ) -> list[Activation]:
        """Return the activations that have come since the last call, in order.

        Args:
            through: the number of a batch for whose activations the call waits. With -1 it does
                not wait.
            last: the last batch whose activations are returned.
            meanwhile: is called again and again while it waits.
        """
        messages: list[Activation] = []
        boxes, peer = self._boxes, self._peer
        while self._taken_count <= last:
            if not self._has_come():
                if self._taken_count > through:
                    break
                boxes.wait(self._has_come, peer, "send activations", meanwhile)
            at, header = self._cut.activation(self._taken_count)
            record = boxes.control.read(peer, header)
            tensors = self._cut.activations.read(boxes.data, peer, at, int(record[1]))
            messages.append(
                Activation(self._taken_count, tensors, float(record[2:3].view(np.float64)[0]))
            )
            self._taken_count += 1
            boxes.control.write(peer, _TAKEN, [self._taken_count])
        return messages

    def send(
        self,
        number: int,
        rows: int,
        tensors: Sequence[Any] | None,
        report: np.ndarray,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Send the gradients of a batch, or word that there are none.

        It waits only for a module that is behind with its own steps, which happens with synthetic
        inputs.
        """
        boxes, peer = self._boxes, self._peer
        if number >= self._drained_count + boxes.ahead:
            boxes.wait(lambda: self._room(number), peer, "take a gradient", meanwhile)
        at, header = self._cut.gradient(number)
        layout = self._cut.gradients
        if tensors is not None:
            layout.write(boxes.data, peer, at, tensors, rows)
        numbers = np.asarray(report, np.float32) if len(report) <= _REPORT else np.zeros(0, "f4")
        if numbers.size:
            boxes.data.put(peer, numbers.view(np.uint8), at + layout.rest)
        boxes.control.write(
            peer, header, [number + 1, rows, int(tensors is not None), numbers.size]
        )

    def _has_come(self) -> bool:
        _, header = self._cut.activation(self._taken_count)
        return int(self._boxes.control.read(self._peer, header)[0]) == self._taken_count + 1

    def _room(self, number: int) -> bool:
        self._drained_count = int(self._boxes.control.read(self._peer, _DRAINED)[0])
        return number < self._drained_count + self._boxes.ahead
