"""Ranks with different numbers of steps, and ranks that stop.

Ranks need not have equally many batches. A rank whose data has ended *joins*: it repeats the
collectives of the recorded step (`ringar.keras.share`) with zeros, which count nothing in the
averages, as long as another rank has data. It computes nothing, and so changes neither weights nor
moving averages. When all have ended, it receives the weights and the optimizers' state from a rank
that has taken every step.

A rank whose training is stopped leaves its loop at once. It joins too, and its control vector asks
all ranks to stop. They see that before their next batch, train it and leave their loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from ringar.collectives import allgather_object, shares
from ringar.collectives.call import Call
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import accumulation, share
from ringar.keras.exchange import Exchange
from ringar.keras.share import Record
from ringar.keras.state import State
from ringar.keras.tuning import fit as tuning
from ringar.sharding import slots
from ringar.sharding.slots import inner_optimizer
from ringar.sharding.variable_slice import wholes

_STEPS = Call("allgather_object", name="steps of the epoch")


def repeat(
    records: Sequence[Record],
    size: int,
    limit: int | None,
    before: Callable[[], None] | None = None,
) -> int:
    """Take part in steps of the other ranks until none of them has data.

    Args:
        records: the collectives of a step.
        size: the number of ranks.
        limit: the number of steps, if it is known.
        before: is called before each step.

    Returns:
        The number of steps in which a rank had data.
    """
    steps = 0
    while limit is None or steps < limit:
        if before is not None:
            before()
        for number, record in enumerate(records):
            if record.repeat() == size and number == 0:
                return steps
        steps += 1
    return steps


class Epochs:
    """Keep the ranks of a `fit` together that have different numbers of steps.

    Args:
        model: the model that is trained.
        steps: the number of steps of an epoch on each rank, None where it is not known.
        process_set: the ranks that train together; by default all.

    Attributes:
        limit: the number of steps of an epoch, those without data included; None if unknown.
        common: a number of steps that all ranks take.
        furthest: the place in `process_set` of a rank that has taken every step of the epoch.
    """

    def __init__(
        self,
        model: keras.Model,
        steps: Sequence[int | None],
        process_set: ProcessSet | None = None,
    ) -> None:
        self._model = model
        self._ranks = or_all(process_set)
        counts = [count for count in steps if count is not None]
        self.limit = max(counts) if len(counts) == len(steps) else None
        self.common = 1 if self.limit is None else min(counts)
        self.furthest = 0
        self._begun_at = 0
        self._has_left = True
        shares.begin_training()

    def begin(self) -> None:
        """Begin an epoch."""
        exchanges = share.exchanges_of(self._model)
        for exchange in exchanges:
            exchange.period.begin_epoch()
        self._begun_at = exchanges[0].steps
        self.furthest = 0
        self._has_left = False
        if (batches := share.batches_of(self._model)) is not None:
            batches.begin()

    def look(self) -> None:
        """Stop this rank's training if another rank has asked for it."""
        if shares.stop_was_seen():
            self._model.stop_training = True

    def leave(self) -> None:
        """Join the other ranks until the end of their epochs; the second call does nothing."""
        if self._has_left:
            return
        self._has_left = True
        before = tuning.leave(self._model)
        step = share.step_of(self._model)
        # A step may have no gradients that ringar reduces.
        records = step.records if step is not None and step.is_marked else []
        exchanges = share.exchanges_of(self._model)
        steps = exchanges[0].steps - self._begun_at
        shares.ask_to_stop(bool(self._model.stop_training))
        steps_to_go = None
        if self.limit is not None and all(e.period.in_every_step for e in exchanges):
            steps_to_go = max(self.limit - steps, 0)
        _finish(records, exchanges, self._ranks, steps_to_go, before)
        if not records:
            return
        self.look()
        if self._ranks.size() > 1:  # data may also end before `steps_per_epoch`
            self._catch_up(steps, exchanges)

    def _catch_up(self, step_count: int, exchanges: Sequence[Exchange]) -> None:
        """Give all ranks the state of one that has taken every step.

        Weights that no gradient changes are combined later (`ringar.keras.moving_statistics`).
        """
        batches = share.batches_of(self._model)
        report = (step_count, batches.rows() if batches is not None else None)
        of_ranks = allgather_object(report, name=_STEPS.name, process_set=self._ranks)
        steps = [count for count, _ in of_ranks]
        accumulation.check([rows for _, rows in of_ranks], self._ranks.ranks, _STEPS)
        if len(set(steps)) > 1:
            self.furthest = steps.index(max(steps))
            root = self._ranks.ranks[self.furthest]
            untrained = {id(v) for v in self._model.non_trainable_weights}
            state = State.of_model(self._model).without(lambda v: id(v) in untrained)
            _behind(exchanges, state).broadcast(root, self._ranks)


def _finish(
    records: Sequence[Record],
    exchanges: Sequence[Exchange],
    ranks: ProcessSet,
    limit: int | None = None,
    before: Callable[[], None] | None = None,
) -> int:
    """Join the other ranks at the end of this rank's data, as `repeat` does."""
    for exchange in exchanges:
        exchange.period.flush()
    steps = repeat(records, ranks.size(), limit, before) if records and ranks.size() > 1 else 0
    for exchange in exchanges:
        exchange.period.settle()
    return steps


def _behind(exchanges: Sequence[Exchange], state: State) -> State:
    """Return the part of `state` that ranks with fewer steps lack."""
    if all(exchange.period.in_every_step for exchange in exchanges):
        return state
    return State.of([counter for exchange in exchanges for counter in exchange.period.counters])


def join(*optimizers: keras.optimizers.Optimizer, process_set: ProcessSet | None = None) -> int:
    """Take part in the steps of other ranks, without data, until all ranks have come here.

    Call it on every rank after a loop of training steps, so that ranks may have different numbers
    of steps. Afterwards all ranks have the same weights and optimizers' state. `fit` needs no such
    call: `ringar.callbacks.Distributed` joins.

    Args:
        *optimizers: the optimizers of a step, distributed or used with a
            `ringar.DistributedGradientTape`, on a rank that has taken a step.
        process_set: the ranks that train together; by default all.

    Returns:
        The number of steps that this rank took part in without data.

    Raises:
        ValueError: on this rank alone, if it has taken no step that it could repeat.

    Example:
    ```python
    for x, y in own_batches:
        train(x, y)
    ringar.join(optimizer)
    ```
    """
    ranks = or_all(process_set)
    records = _records(optimizers)
    exchanges = share.exchanges_among(optimizers)
    if not any(exchange.period.meets for exchange in exchanges):
        for exchange in exchanges:
            exchange.period.settle()
        return 0
    if not records and ranks.size() > 1:
        raise ValueError(
            "ringar.join() expected optimizers whose gradients were reduced on this rank before; "
            f"received {len(optimizers)} without a step. A rank without any data cannot join: give "
            "every rank at least one batch."
        )
    joined = _finish(records, exchanges, ranks)
    if ranks.size() == 1:
        return 0
    in_step = exchanges[0].period.in_every_step
    progress = -joined if in_step else exchanges[0].steps
    steps = allgather_object(progress, name="joined steps", process_set=ranks)
    if len(set(steps)) > 1:
        root = ranks.ranks[steps.index(max(steps))]
        _behind(exchanges, State.of(_variables(optimizers))).broadcast(root, ranks)
    return joined


def _records(optimizers: Sequence[Any]) -> list[Record]:
    records = {
        id(record): record
        for optimizer in optimizers
        for variable in wholes(getattr(inner_optimizer(optimizer), "_trainable_variables", ()))
        if (record := share.record_of(variable)) is not None
    }
    return sorted(records.values(), key=lambda record: record.number)


def _variables(optimizers: Sequence[Any]) -> list[Any]:
    variables: dict[int, Any] = {}
    for optimizer in optimizers:
        trained = wholes(inner_optimizer(optimizer)._trainable_variables)
        for variable in [*trained, *slots.common(optimizer)]:
            variables[id(variable)] = variable
    return list(variables.values())
