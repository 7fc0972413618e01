"""Files of sharded models: they hold whole slots and weights, as those of a plain optimizer.

The first rank writes, and no rank ever holds more than one whole slot or weight. When Keras, on its
way through the model on the first rank, comes to one, that rank asks the others for it, and all
gather it; then it is in the file, and forgotten. The others answer until the first rank has ended,
with an error or without. A backup is restored in the same way, in the other direction. So all ranks
call `model.save` and `model.save_weights`. A rank that reads a file of its own accord, as
`model.load_weights` does, reads its slices of it, and needs no other rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ringar.collectives import broadcast, broadcast_object
from ringar.collectives.agree import first
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import share
from ringar.keras.exchange import Exchange
from ringar.keras.variable_slices import VariableSlices
from ringar.keras.zero.session import SESSION
from ringar.keras.zero.weight_slice import is_sharded, slice_of, whole_for_a_moment, whole_value
from ringar.sharding import slots
from ringar.sharding.cut import cut_of
from ringar.sharding.slots import inner_optimizer
from ringar.sharding.variable_slice import VariableSlice
from ringar.sharding.whole import joined

_NAME = "model.save (a sharded optimizer: call it on every rank)"


class Leader:
    """Ask the other ranks for slots, on the first rank; answer it, on the others.

    Args:
        model: the model that is saved or loaded; all ranks have the same.
        process_set: the ranks that train it.
    """

    def __init__(self, model: keras.Model, process_set: ProcessSet | None) -> None:
        self._sliced = _sliced(model)
        self._where: dict[str, Any] = {"name": _NAME, "process_set": process_set}
        self._root = or_all(process_set).ranks[0]

    def gather(self, slot: keras.Variable, part: VariableSlice) -> np.ndarray:
        """Return the whole slot of which `slot` is this rank's slice."""
        self._ask("gather", slot)
        return joined(slot, part, _NAME)

    def scatter(self, slot: keras.Variable, part: VariableSlice, value: np.ndarray) -> None:
        """Give each rank its slice of a whole slot."""
        self._ask("scatter", slot)
        value = np.asarray(value, np.asarray(slot.numpy()).dtype)
        _take(slot, part, value.reshape(part.variable.shape), self._root)

    def lead(self, action: Callable[[], Any]) -> Any:
        """Run an action that asks for slots, then let the other ranks go."""
        try:
            with SESSION.within(leader=self):
                return action()
        finally:
            broadcast_object(None, self._root, **self._where)

    def answer(self) -> None:
        """Take part in the requests of the first rank, until it has ended."""
        request: tuple[str, int] | None
        while (request := broadcast_object(None, self._root, **self._where)) is not None:
            verb, number = request
            slot, part = self._sliced[number]
            if verb == "gather":
                joined(slot, part, _NAME)
            else:
                shape = [int(d) for d in part.variable.shape]
                _take(slot, part, np.empty(shape, np.asarray(slot.numpy()).dtype), self._root)

    def _ask(self, verb: str, slot: keras.Variable) -> None:
        number = next(i for i, (other, _) in enumerate(self._sliced) if other is slot)
        broadcast_object((verb, number), self._root, **self._where)


def _sliced(model: keras.Model) -> list[tuple[Any, VariableSlice]]:
    """Return the variables that hold slices, weights and optimizers' slots, with the slices."""
    weights = [slice_of(weight) for weight in model.weights if is_sharded(weight)]
    return [(part.storage, part) for part in weights] + [
        (slot, part)
        for optimizer in map(inner_optimizer, share.optimizers_of(model))
        for slot, part in zip(optimizer.variables, slots.slices(optimizer), strict=True)
        if part is not None
    ]


def _take(slot: keras.Variable, part: VariableSlice, value: np.ndarray, root: int) -> None:
    """Take this rank's slice of the whole slot of `root`, if that is one of this rank's part."""
    if root in or_all(part.ranks.copies).ranks:
        value = np.asarray(broadcast(value, root, name=_NAME, process_set=part.ranks.copies))
        slot.assign(part.of_array(value))


def exchange_of(model: keras.Model) -> Exchange | None:
    """Return the exchange of an optimizer of `model` that is sharded over ranks, if one is."""
    for exchange in share.exchanges_of(model):
        if isinstance(exchange.slices, VariableSlices) and not exchange.reduction.is_alone:
            return exchange
    return None


def ranks_of(model: keras.Model) -> ProcessSet | None:
    """Return the ranks that have slices of weights or slots of `model`; None: it is whole."""
    exchange = exchange_of(model)
    if exchange is not None:
        return or_all(exchange.reduction.process_set)
    # A model without an optimizer, such as a part of one that is trained.
    part = next((slice_of(weight) for weight in model.weights if is_sharded(weight)), None)
    return None if part is None else or_all(part.process_set)


def only_answers(model: keras.Model) -> bool:
    """Return whether this rank takes part in saving `model`, and writes nothing itself."""
    ranks = ranks_of(model)
    return ranks is not None and ranks.rank() != 0


def on_first_rank_of(
    model: keras.Model,
    action: Callable[[], Any],
    caller: str,
    deed: str,
    process_set: ProcessSet | None = None,
) -> Any:
    """Run `first` with an action that saves or loads a model. Collective.

    Args:
        model: the model, on every rank.
        action: as for `first`, as all others.
        caller: the public name of the function that the user has called.
        deed: the deed, for errors.
        process_set: the ranks concerned.
    """
    where: dict[str, Any] = {"caller": caller, "deed": deed, "process_set": process_set}
    if ranks_of(model) is None:
        return first(action, **where)

    return first(
        lambda: Leader(model, process_set).lead(action),
        **where,
        meanwhile=lambda: Leader(model, process_set).answer(),
    )


def save(optimizer: Any, store: Any, plainly: Callable[[Any], None]) -> None:
    """Put the variables of an optimizer into a store of Keras, slots whole.

    Args:
        optimizer: the optimizer, or a `LossScaleOptimizer` around it.
        store: a store, by the numbers of variables.
        plainly: Keras' own function, for an optimizer that is not sharded.
    """
    slices = slots.slices(optimizer)
    if not any(slices):
        plainly(store)
        return
    for number, (slot, part) in enumerate(zip(optimizer.variables, slices, strict=True)):
        # Without a leader every rank makes a copy, for a pickle, for example.
        value = slot.numpy() if part is None else whole_value(slot, part, _NAME)
        store[str(number)] = value


def load(optimizer: Any, store: Any, plainly: Callable[[Any], None]) -> None:
    """Take the variables of an optimizer from a store of Keras, and this rank's slices of slots.

    Args:
        optimizer: the optimizer, or a `LossScaleOptimizer` around it.
        store: a store, by the numbers of variables.
        plainly: Keras' own function, for an optimizer that is not sharded.

    Raises:
        ValueError: a slot in the store has another shape than its variable.
    """
    slices = slots.slices(optimizer)
    # With another number of variables Keras' function warns, and loads nothing.
    if not any(slices) or len(store.keys()) != len(slices):
        plainly(store)
        return
    leader = SESSION.scope.leader
    for number, (slot, part) in enumerate(zip(optimizer.variables, slices, strict=True)):
        value = store[str(number)]
        if part is None:
            slot.assign(value)
            continue
        if tuple(value.shape) != tuple(part.variable.shape):
            raise ValueError(
                f"rank {place.rank()} | {slot.path}: expected a slot of the shape of its variable, "
                f"{tuple(part.variable.shape)}, received {tuple(value.shape)}; load the file of a "
                "model of the same shapes"
            )
        if leader is not None:
            leader.scatter(slot, part, np.asarray(value))
        else:
            slot.assign(part.of_array(value))


def on_all_ranks(original: Any) -> Any:
    """Let the first rank save a sharded model, with the help of the others."""

    def save_together(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        ranks = ranks_of(self)
        if ranks is None or SESSION.scope.leader is not None:
            original(self, filepath, *args, **kwargs)
            return
        _check_whole(self)

        def write() -> None:
            original(self, filepath, *args, **kwargs)

        deed = f"to write {str(filepath)!r}"
        on_first_rank_of(self, write, f"model.{original.__name__}", deed, ranks)

    return save_together


def exporting(original: Any) -> Any:
    """Let the first rank export a model with sharded weights, while they are whole."""

    def export(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        def write() -> None:
            with whole_for_a_moment(self.weights):
                original(self, filepath, *args, **kwargs)

        if any(map(is_sharded, self.weights)):
            deed = f"to export to {str(filepath)!r}"
            on_first_rank_of(self, write, "export", deed, ranks_of(self))
        else:
            original(self, filepath, *args, **kwargs)

    return export


def _check_whole(model: keras.Model) -> None:
    if any(cut_of(weight) is not None for weight in model.weights):
        raise UnsupportedError(
            f"rank {place.rank()} | model.save: expected a model whose layers are whole on every "
            "rank, received one with split layers, of which the first rank has a part; save "
            "ringar.parallel.merge(model), or a SparseNet as it is"
        )


def saving_slots(original: Any) -> Any:
    """Let a `LossScaleOptimizer` save whole slots."""
    return lambda self, store: save(self, store, functools.partial(original, self))


def loading_slots(original: Any) -> Any:
    """Let a `LossScaleOptimizer` load whole slots."""
    return lambda self, store: load(self, store, functools.partial(original, self))


def refusing(original: Any) -> Any:
    """Refuse the older format for a sharded optimizer."""

    def refuse(hdf5_group: Any, optimizer: Any) -> None:
        if any(slots.slices(optimizer)):
            raise UnsupportedError(
                f"rank {place.rank()} | model.save: expected a file that ends in .keras or "
                ".weights.h5 for a sharded optimizer, received the older format .h5, which "
                "takes all slots at once"
            )
        original(hdf5_group, optimizer)

    return refuse
