"""A turnstile: the order of another run's pulls and pushes, forced onto this one."""

from __future__ import annotations

from collections.abc import Iterable

from ringar.asynchronous.log import Entry


class Turnstile:
    """Keep the order in which a shard takes pushes, by a schedule.

    A shard that takes pushes in the order of `next`, and serves each pull at the version of
    `version`, repeats the run of a log: before it takes a push, all of `readers(version)` must have
    pulled, since the version may change. A turnstile is for one shard, and holds plain data.

    Args:
        schedule: entries of a log, in any order; or pairs of a worker and its step, in the order in
            which they are to be taken.
        shard: the number of the shard whose entries count. None: there are no others.

    Raises:
        ValueError: if `schedule` has entries of several shards, and `shard` is None.
    """

    def __init__(
        self, schedule: Iterable[Entry | tuple[int, int]], shard: int | None = None
    ) -> None:
        items = list(schedule)
        log = [item for item in items if isinstance(item, Entry)]
        entries = [entry for entry in log if shard in (None, entry.shard)]
        if len({entry.shard for entry in entries}) > 1:
            raise ValueError(
                "`shard` must be given for a log of several shards. Received: shard=None, and "
                f"entries of the shards {sorted({entry.shard for entry in entries})}"
            )
        entries.sort()
        pairs = [(item[0], item[1]) for item in items if not isinstance(item, Entry)]
        self._order = pairs or [(entry.worker, entry.step) for entry in entries]
        self._versions = {(entry.worker, entry.step): entry.version for entry in entries}
        self._readers: dict[int, list[tuple[int, int]]] = {}
        for step, version in sorted(self._versions.items()):
            self._readers.setdefault(version, []).append(step)
        self._last = dict(self._order)
        self._position = 0

    def next(self) -> tuple[int, int] | None:
        """Return the worker and step of the next push, and go on; None after the last one."""
        if self._position == len(self._order):
            return None
        self._position += 1
        return self._order[self._position - 1]

    def has(self, worker: int) -> bool:
        """Return whether a worker has pushes in the schedule."""
        return worker in self._last

    def is_last(self, worker: int, step: int) -> bool:
        """Return whether a worker has no later push, so that it leaves after this one."""
        return self._last.get(worker) == step

    def version(self, worker: int, step: int) -> int | None:
        """Return the version to serve to a worker for its step; None if the schedule has none."""
        return self._versions.get((worker, step))

    def readers(self, version: int) -> list[tuple[int, int]]:
        """Return the workers and steps to which this version is to be served."""
        return self._readers.get(version, [])
