"""The ranks among which variables are cut into slices, and those that hold the same slice.

Ranks that train equal copies of a variable may cut it among all of them, or, with
`shard_ranks="host"`, among those of each host. Then the ranks of equal number on their hosts are
replicas: they hold the same slice, and add up its gradient between the hosts.

               slice 0   slice 1
    host 0     rank 0    rank 1     the slices of one whole variable: its `among`
    host 1     rank 2    rank 3

              replicas  replicas

On a grid, a variable that is cut over the parts is sliced among the ranks that have the same part,
and any other among all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ringar.collectives import allgather_object
from ringar.job import place, process_sets
from ringar.job.process_sets import ProcessSet, add_process_set, or_all
from ringar.sharding.cut import cut_of
from ringar.sharding.grid import Grid

ShardRanks = Literal["host"]
"""The ranks among which variables are cut, if they are not all."""

_NAME = 'DistributedOptimizer(shard_ranks="host")'


@dataclass(frozen=True)
class SliceRanks:
    """Name the ranks that share the training of a variable.

    Attributes:
        copies: all ranks that train it; None: all ranks of the job.
        among: the ranks that have its slices, in the order of the slices, this rank included.
        replicas: the ranks that have the same slice as this rank; None: no other has.
        repeats: the number of copies that have the same gradient: on a grid, those of a whole
            variable on the ranks of a model group.
    """

    copies: ProcessSet | None
    among: ProcessSet | None
    replicas: ProcessSet | None = None
    repeats: int = 1

    @property
    def size(self) -> int:
        """The number of slices."""
        return or_all(self.among).size()

    @property
    def rank(self) -> int:
        """The number of this rank's slice."""
        return or_all(self.among).rank()


class Slicing:
    """Say among which ranks each variable of a model is cut.

    With `shard_ranks="host"` it is collective over all ranks of the job.

    Args:
        process_set: the ranks that train the model; None: all.
        grid: the grid on which they do, if it is split.
        shard_ranks: "host": cut among the ranks of each host, with replicas between hosts.

    Attributes:
        kinds: the different results of `of`, in an order that is the same on all ranks.
        once: the ranks that together have each slice of each variable once.

    Raises:
        ValueError: an argument is out of range, or hosts have different numbers of ranks.
    """

    def __init__(
        self,
        process_set: ProcessSet | None = None,
        grid: Grid | None = None,
        shard_ranks: ShardRanks | None = None,
    ) -> None:
        if shard_ranks not in (None, "host"):
            raise ValueError(
                f'`shard_ranks` must be None or "host". Received: shard_ranks={shard_ranks!r}'
            )
        self.process_set, self.grid, self.shard_ranks = process_set, grid, shard_ranks
        ranks_of_whole = SliceRanks(process_set, process_set)
        self.once = process_set
        if grid is not None:
            if process_set is not None or shard_ranks is not None:
                raise ValueError(
                    "`process_set` and `shard_ranks` must be None with `grid` and `shard`: slices "
                    "are those of the ranks that have the same part. Received: "
                    f"process_set={process_set}, shard_ranks={shard_ranks!r}"
                )
            ranks_of_whole = SliceRanks(None, None, repeats=grid.model)
            self._ranks_of_part = SliceRanks(grid.data_set, grid.data_set)
        elif shard_ranks == "host":
            ranks_of_whole = _by_host(process_set)
            self.once = ranks_of_whole.among
        self._ranks_of_whole = ranks_of_whole
        has_parts = grid is not None and grid.model > 1
        self.kinds: list[SliceRanks] = (
            [ranks_of_whole, self._ranks_of_part] if has_parts else [ranks_of_whole]
        )

    def of(self, variable: Any) -> SliceRanks:
        """Return the ranks that share the training of a variable.

        Raises:
            ValueError: it is cut, and not by this grid.
        """
        cut = cut_of(variable)
        if cut is None:
            return self._ranks_of_whole
        if cut.grid is not self.grid:
            raise ValueError(
                "`grid` must be the one that the layers were made in: "
                "ringar.DistributedOptimizer(..., grid=grid). Received: "
                f"{self.grid}, and a part of variable {variable.path} of {cut.grid}."
            )
        return self._ranks_of_part


def _by_host(process_set: ProcessSet | None) -> SliceRanks:
    """Add the sets of ranks by host and between hosts, for all sets of ranks that train models."""
    hosts, members = place.hosts(), or_all(process_set)
    of_ranks = allgather_object(list(members.ranks), name=_NAME)
    groups = sorted({tuple(ranks) for ranks in of_ranks})
    for ranks in groups:
        _check_even(ranks, hosts)
    result: SliceRanks | None = None
    for ranks in groups:
        inside = [[r for r in ranks if hosts[r] == h] for h in sorted({hosts[r] for r in ranks})]
        between = [list(peers) for peers in zip(*inside, strict=True)]
        sets = [_local_set(inside), _local_set(between)]
        if list(ranks) == list(members.ranks):
            among, replicas = sets
            result = SliceRanks(process_set, among, replicas if len(inside) > 1 else None)
    if result is None or result.among is None:
        raise ValueError(
            f"rank {place.rank()} | {_NAME}: expected a process set that this rank is in, "
            f"received the ranks {members.ranks}"
        )
    return result


def _check_even(ranks: Sequence[int], hosts: Sequence[int]) -> None:
    counts = {host: [hosts[r] for r in ranks].count(host) for host in sorted(set(hosts))}
    counts = {host: count for host, count in counts.items() if count}
    if len(set(counts.values())) > 1:
        received = ", ".join(f"{count} (host {host})" for host, count in counts.items())
        raise ValueError(
            f"rank {place.rank()} | {_NAME}: expected equally many ranks on every host, since "
            f"ranks of different hosts hold the same slices; received {received}. Start as many "
            "ranks on each (ringarrun -H host0:N,host1:N), or leave out `shard_ranks`."
        )


def _local_set(groups: Sequence[list[int]]) -> ProcessSet | None:
    """Add sets of ranks, and return the one that this rank is in."""
    added = [
        process_sets.global_process_set if len(ranks) == place.size() else add_process_set(ranks)
        for ranks in groups
    ]
    return next((process_set for process_set in added if process_set.included()), None)
