"""The state of sharded weights in a process: the phase, the passes, the plans, the visible weights.

A weight is read as an attribute of a layer, which passes no arguments. So the reader asks the
session of the process. Its `Scope` holds in one place of the program only, such as the call of a
layer. All else holds everywhere.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import keras
import tensorflow as tf
from tensorflow.python.eager import record as tape_record

from ringar.keras import share

if TYPE_CHECKING:
    from ringar.keras.zero.passes import Pass, Plan, Trainer
    from ringar.keras.zero.slot_files import Leader
    from ringar.keras.zero.whole_weight import WholeWeight


class Phase(enum.Enum):
    """What a rank does while it reads a sharded weight."""

    IDLE = "idle"
    """No layer is called, and no step runs: a read is a collective of its own."""

    FORWARD = "forward"
    """A forward pass without gradients: evaluation, prediction, the call of a layer."""

    TRAINING = "training"
    """A training step, or code under a gradient tape."""


Passes = dict[tuple["Trainer | None", Phase], "Pass"]
"""The passes of a graph, or of eager code, by trainer and phase."""


@dataclass
class Call:
    """Hold the outermost call of a layer.

    Attributes:
        batch: the tensors among its arguments.
        graph: the graph in which it is traced; None: it runs in eager code.
        passes: the forward passes of an eager call.
    """

    batch: Sequence[Any]
    graph: Any
    passes: Passes = field(default_factory=dict)


class Meeting:
    """Hold whether this rank has come to the end of its forward passes, in a loop of batches."""

    has_ended = False


@dataclass(frozen=True)
class Scope:
    """Describe what holds in one place of a program.

    Attributes:
        cut: cuts new weights; None: they stay whole.
        leader: the leader while this rank writes or reads a file for all.
        function: the model that runs forward passes, and the name of its method.
        meeting: the loop over batches at whose end ranks wait for each other.
        call: the outermost call of a layer.
        weights: the whole weights of the layers that are called, by the identities of variables.
    """

    cut: Callable[[Any], Any] | None = None
    leader: Leader | None = None
    function: tuple[keras.Model, str] | None = None
    meeting: Meeting | None = None
    call: Call | None = None
    weights: Mapping[int, WholeWeight] | None = None


_NOTHING = Scope()


class Session:
    """Hold the state of sharded weights in this process.

    Attributes:
        passes: those of eager training steps.
        trainers: the trainer of weights by the ranks that have slices.
        plans: the plans of the last passes, by model and function.
        sharded: whether weights were sharded when Keras made a function, by model and function.
        storages: the number of storages that variables were given.
    """

    def __init__(self) -> None:
        self.passes: Passes = {}
        self.trainers: dict[tuple[int, ...], ref[Trainer]] = {}
        self.plans: WeakKeyDictionary[keras.Model, dict[str, Plan]] = WeakKeyDictionary()
        self.sharded: WeakKeyDictionary[keras.Model, dict[str, bool]] = WeakKeyDictionary()
        self.storages = 0
        self._scope: ContextVar[Scope] = ContextVar("scope", default=_NOTHING)

    @property
    def scope(self) -> Scope:
        """What holds in this place of the program."""
        return self._scope.get()

    @contextmanager
    def within(self, **fields: Any) -> Iterator[None]:
        """Return a context in which fields of the scope have other values."""
        before = {name: getattr(self.scope, name) for name in fields}
        self._scope.set(replace(self.scope, **fields))
        try:
            yield
        finally:
            self._scope.set(replace(self.scope, **before))

    @property
    def phase(self) -> Phase:
        """The phase in this place of the program."""
        if share.current() is not None or tape_record.could_possibly_record():
            return Phase.TRAINING
        is_idle = tf.executing_eagerly() and self.scope.call is None
        return Phase.IDLE if is_idle else Phase.FORWARD


SESSION = Session()
