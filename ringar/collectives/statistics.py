"""Counts of this rank's collectives and of the bytes that they send."""

from __future__ import annotations

import collections
import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

from ringar.job import native


@dataclass(frozen=True)
class Traffic:
    """Count the calls and the bytes of one name, layer or collective.

    Attributes:
        calls: the number of collectives that have succeeded.
        bytes: the bytes that this rank sends for them by an optimal algorithm, whichever ran. For
            K bytes on n ranks: 2 (n-1)/n K for an allreduce, (n-1)/n K for a reduce-scatter, the
            rows for other ranks in an all-to-all, (n-1) K for an all-gather of K bytes per rank,
            K on the root of a broadcast. A message counts on its sender.
    """

    calls: int
    bytes: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.calls + other.calls, self.bytes + other.bytes)


_KEYS = ("name", "layer", "collective", "staleness")
# Parameter servers, with their counts at the last reset.
_servers: weakref.WeakKeyDictionary[Any, collections.Counter[int]] = weakref.WeakKeyDictionary()


def count_staleness(server: Any) -> None:
    """Let `stats(by="staleness")` count the pushes of a parameter server.

    Args:
        server: an object whose `staleness()` returns the number of pushes of each staleness.
    """
    _servers[server] = collections.Counter()


def _by_staleness() -> dict[str, Traffic]:
    counts = collections.Counter[int]()
    for server, before in _servers.items():
        counts += server.staleness() - before
    return {str(tau): Traffic(counts[tau], 0) for tau in sorted(counts)}


def stats(by: str = "name") -> dict[str, Traffic]:
    """Return the calls and bytes of this rank's collectives, since the start or `reset_stats`.

    Args:
        by: the key. "name": the name as in errors and timelines, or the kind of a collective
            without a name. "layer": the layer; the gradients of all variables are under
            "gradients". "collective": the kind, such as "allreduce". "staleness": how many updates
            a push was late, of the pushes that the shards of a `ringar.ParameterServer` on this
            rank have applied; `calls` counts the pushes.

    Returns:
        For each name, layer or kind an object with two numbers. `calls` counts the collectives that
            have succeeded. `bytes` are the bytes that this rank sends for them by an optimal
            algorithm: 2 (n-1)/n K for an allreduce of K bytes on n ranks.

    Raises:
        ValueError: `by` has another value.

    Example:
    ```python
    ringar.reset_stats()
    model.fit(dataset)
    for layer, traffic in ringar.stats(by="layer").items():
        print(layer, traffic.calls, traffic.bytes)
    ```
    """
    if by not in _KEYS:
        raise ValueError(f"`by` must be one of {', '.join(_KEYS)}. Received: by={by!r}")
    size = ctypes.c_int64()
    if by == "staleness":
        return _by_staleness()
    address = native.library().ringar_stats(ctypes.byref(size))
    traffic: dict[str, Traffic] = {}
    for line in ctypes.string_at(address, size.value).decode().split("\0")[:-1]:
        collective, calls, count, name = line.split(" ", 3)
        label = {"name": name or collective, "collective": collective}.get(by)
        if label is None:
            label = name.split("/")[0] or collective
        traffic[label] = traffic.get(label, Traffic(0, 0)) + Traffic(int(calls), int(count))
    return traffic


def reset_stats() -> None:
    """Set the counts of `stats` to zero."""
    for server in _servers:
        _servers[server] = server.staleness()
    native.library().ringar_reset_stats()
