"""The first error of a rank, told to the ranks that depend on it.

A rank that fails writes its error into the memory of all others before it leaves. A rank that then
finds it gone, in a step or at the end, raises that error and not its own.
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress

import numpy as np
import tensorflow as tf

from ringar.collectives import Window, host_call
from ringar.collectives.agree import Failure
from ringar.errors import DeadlineError, PeerLostError, RingarError
from ringar.job.process_sets import ProcessSet, or_all

_BYTES = 4096
_CHARACTERS = 1000
"""Of a message and of the end of a traceback: with JSON's escapes they fit into the bytes."""


class Failures:
    """Tell the errors of ranks. Collective when it is made.

    Args:
        process_set: the ranks.
        caller: the public name of the function that the user has called.
        name: the name of the memory, equal on all ranks.
    """

    def __init__(self, process_set: ProcessSet | None, caller: str, name: str) -> None:
        self._ranks, self._caller = or_all(process_set), caller
        self._window = Window(_BYTES * self._ranks.size(), "uint8", process_set, name=name)

    def tell(self, error: BaseException) -> None:
        """Tell all others the error of this rank, unless it follows from that of another."""
        if isinstance(_cause(error), PeerLostError | DeadlineError):
            return
        report = Failure.of(error)
        report = dataclasses.replace(
            report, text=report.text[:_CHARACTERS], trace=report.trace[-_CHARACTERS:]
        )
        text = json.dumps(dataclasses.asdict(report)).encode("ascii")[: _BYTES - 1]
        record, me = np.frombuffer(text + b"\0", np.uint8), self._ranks.rank()
        for rank in range(self._ranks.size()):
            if rank != me:
                with suppress(RingarError):  # of a rank that has left
                    self._window.put(rank, record, me * _BYTES)

    def first(self, error: BaseException) -> BaseException:
        """Return another rank's error if `error` may follow from it, else the cause of `error`."""
        cause = _cause(error)
        if not isinstance(cause, RingarError | tf.errors.OpError):
            return error
        for rank, record in zip(
            self._ranks.ranks, self._window.local.reshape(-1, _BYTES), strict=True
        ):
            if record[0]:
                with suppress(ValueError):  # cut off
                    report = Failure(**json.loads(bytes(record).split(b"\0", 1)[0]))
                    return report.on_another_rank(rank, self._caller, "to go on")
        return cause


def _cause(error: BaseException) -> BaseException:
    """Return the Python error that ended a step of TensorFlow, or the error itself."""
    return host_call.cause_of(error) or error
