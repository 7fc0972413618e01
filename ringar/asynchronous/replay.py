"""Replay of an asynchronous run in one process, from the log of its shards.

An asynchronous run depends on when each push arrived. The log of the shards has all of that: which
pushes made which update, and the version from which each gradient was computed. So the run can be
repeated with shards that begin with the same values: a gradient is computed anew from the values
of exactly the versions that its worker had pulled, and the updates are applied in their order.

A worker pulls a version of each shard, and shards are independent of each other. So the updates of
one shard go on until they need a gradient that depends on a later version of another shard. A
version is kept from the time when it is reached until the last gradient that was computed from it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import numpy as np

from ringar.asynchronous.gradients import Gradient
from ringar.asynchronous.log import Entry
from ringar.asynchronous.shard import Push, Shard
from ringar.asynchronous.simulation import Gradients, Values, simulate
from ringar.errors import MismatchError

__all__ = ["Gradients", "Values", "replay", "simulate"]

_Step = tuple[int, int]  # of a worker: the worker's number, and the step's


def replay(
    log: Iterable[Entry],
    shards: Sequence[Shard],
    gradients: Gradients,
    rates: Sequence[Sequence[tuple[int, float]]] = (),
) -> list[list[np.ndarray]]:
    """Apply the updates of an asynchronous run again, in this process.

    The values are bit for bit those of the run, if `gradients` computes the same bits: on the same
    kind of device, with as many threads. Gradients that are in no update, because their push was
    dropped or is still held, are not computed. A push that reached only some of the shards, because
    its worker died, is applied to these.

    Args:
        log: the entries of all shards, in any order.
        shards: the shards as they were when the run began, in the order of their numbers 0, 1, ...
            They are updated.
        gradients: called as `gradients(worker, step, values)` with a list of arrays per shard:
            returns the gradients of that step of the worker, a list per shard. The steps of one
            worker come in their order.
        rates: per shard, the learning rates that were set: its `rates`.

    Returns:
        The values at the end, a list of arrays per shard.

    Raises:
        MismatchError: if an entry of the log does not fit the others or the shards; the message has
            the entry.
    """
    run = _Replay(list(log), list(shards), gradients, rates or [()] * len(shards))
    run.apply_all()
    return [shard.values() for shard in shards]


class _Replay:
    """Hold the updates that are left, and the values and gradients that they need."""

    def __init__(
        self,
        log: list[Entry],
        shards: list[Shard],
        gradients: Gradients,
        rates: Sequence[Sequence[tuple[int, float]]],
    ) -> None:
        self._shards, self._gradients = shards, gradients
        self._rates = [dict(of_shard) for of_shard in rates]
        for index, shard in enumerate(shards):
            if shard.number != index:
                raise ValueError(
                    "`shards` must be in the order of their numbers. "
                    f"Received: number {shard.number} at place {index}"
                )
        self._pulled = _pulled(log, shards)
        self._updates = [_updates(log, shard) for shard in shards]
        self._uses = collections.Counter((e.worker, e.step) for e in log if e.applied)
        self._readers = [
            collections.Counter(self._pulled[step][shard.number].version for step in self._uses)
            for shard in shards
        ]
        self._versions: list[dict[int, list[np.ndarray]]] = [{} for _ in shards]
        self._computed: dict[_Step, Sequence[Sequence[Gradient]]] = {}
        for shard in shards:
            self._keep(shard)

    def apply_all(self) -> None:
        """Apply all updates."""
        while any(self._updates):
            has_applied = False
            for shard in self._shards:
                while self._is_next_possible(shard):
                    self._apply_next(shard)
                    has_applied = True
            if not has_applied:
                self._raise_stuck()

    def _is_next_possible(self, shard: Shard) -> bool:
        """Return whether the versions that the next update depends on have been reached."""
        updates = self._updates[shard.number]
        return bool(updates) and all(self._blocker(entry) is None for entry in updates[0])

    def _blocker(self, entry: Entry) -> Entry | None:
        """Return the entry whose version keeps `entry`'s gradient from being computed."""
        step = (entry.worker, entry.step)
        if step in self._computed:
            return None
        pulled = zip(self._pulled[step], self._shards, strict=True)
        return next((other for other, shard in pulled if other.version > shard.version), None)

    def _apply_next(self, shard: Shard) -> None:
        entries = self._updates[shard.number].popleft()
        if shard.version in self._rates[shard.number]:
            shard.learning_rate = self._rates[shard.number][shard.version]
        pushes = [self._push(entry) for entry in sorted(entries, key=lambda e: (e.worker, e.step))]
        shard.update(pushes)
        self._keep(shard)

    def _push(self, entry: Entry) -> Push:
        step = (entry.worker, entry.step)
        if step not in self._computed:
            self._computed[step] = self._compute(step)
        gradients = self._computed[step][entry.shard]
        self._uses[step] -= 1
        if not self._uses[step]:
            del self._computed[step]
        return Push(entry.worker, entry.step, entry.version, gradients)

    def _compute(self, step: _Step) -> Sequence[Sequence[Gradient]]:
        """Compute the gradients of a worker's step, and drop the versions needed no longer."""
        values = []
        for entry in self._pulled[step]:
            versions, readers = self._versions[entry.shard], self._readers[entry.shard]
            readers[entry.version] -= 1
            is_last = not readers[entry.version]
            version = entry.version
            values.append(versions.pop(version) if is_last else _copies(versions[version]))
        computed = self._gradients(*step, values)
        if len(computed) != len(self._shards):
            raise MismatchError(
                f"`gradients` returned {len(computed)} lists for worker {step[0]}, step {step[1]}. "
                f"Expected: {len(self._shards)}, one per shard."
            )
        return computed

    def _keep(self, shard: Shard) -> None:
        """Keep the present values of a shard if a gradient was computed from them."""
        if self._readers[shard.number][shard.version]:
            self._versions[shard.number][shard.version] = shard.values()

    def _raise_stuck(self) -> None:
        """Report the first update that depends on itself."""
        entries = next(updates[0] for updates in self._updates if updates)
        entry, blocker = next((e, m) for e in entries if (m := self._blocker(e)) is not None)
        raise _misfit(
            entry,
            f"it was computed from version {blocker.version} of shard {blocker.shard}, which is "
            f"version {self._shards[blocker.shard].version} until this push is applied",
        )


def _pulled(log: list[Entry], shards: list[Shard]) -> dict[_Step, list[Entry]]:
    """Return for each step that is part of an update its entries, one per shard."""
    entries: dict[_Step, dict[int, Entry]] = collections.defaultdict(dict)
    for entry in log:
        if not 0 <= entry.shard < len(shards):
            raise _misfit(entry, f"there are shards 0 to {len(shards) - 1}")
        of_step = entries[entry.worker, entry.step]
        if entry.shard in of_step:
            raise _misfit(
                entry, f"the step has another entry of this shard, {of_step[entry.shard]}"
            )
        of_step[entry.shard] = entry
    steps = {(entry.worker, entry.step): entry for entry in log if entry.applied}
    for step, entry in steps.items():
        for shard in shards:
            _check_pull(entry, entries[step].get(shard.number), shard)
    return {step: [entries[step][shard.number] for shard in shards] for step in steps}


def _check_pull(entry: Entry, of_shard: Entry | None, shard: Shard) -> None:
    """Raise an error if the version of a shard that a step was computed from is not known."""
    if of_shard is None:
        raise _misfit(
            entry,
            f"shard {shard.number} has no entry of this step, which would say from which of its "
            "versions the gradients were computed. Give the entries of all shards",
        )
    if of_shard.version < shard.version:
        raise _misfit(
            of_shard, f"shard {shard.number} begins with version {shard.version}, which is later"
        )


def _updates(log: list[Entry], shard: Shard) -> collections.deque[list[Entry]]:
    """Return the pushes of each update of a shard, in the order of the updates."""
    entries: dict[int, list[Entry]] = collections.defaultdict(list)
    for entry in log:
        if entry.shard != shard.number or not entry.applied:
            continue
        if entry.staleness != entry.update - entry.version or entry.staleness < 0:
            raise _misfit(entry, "the staleness must be `update` - `version`, and not negative")
        entries[entry.update].append(entry)
    in_order = sorted(entries)
    for expected, number in enumerate(in_order, shard.version):
        if number != expected:
            raise _misfit(entries[number][0], f"update {expected} of the shard has no entry")
    return collections.deque(entries[number] for number in in_order)


def _misfit(entry: Entry, problem: str) -> MismatchError:
    return MismatchError(f"The log does not fit. Received: {entry}. Expected another: {problem}.")


def _copies(values: Iterable[np.ndarray]) -> list[np.ndarray]:
    return [value.copy() for value in values]
