"""The launcher's information for the ranks of a job over several hosts without MPI.

The launcher hands each rank two open files (launchers/start/host_guard.py): one with the hosts and
addresses of all ranks and the secret of the job, and a socket that already listens. So a rank
announces nothing, and no two programs compete for a port. In an elastic job, each world has a file
and a secret of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringar.job import inherited

if TYPE_CHECKING:
    from ringar.job import membership, native

WORLD_VARIABLE = "RINGAR_WORLD_FD"
"""Tells a rank the file that describes the job."""

LISTENER_VARIABLE = "RINGAR_LISTENER_FD"
"""Tells a rank its socket."""

_MOST_BYTES = 1 << 26

_starts = 0  # of ringar in this process


def apply(environ: Mapping[str, str], config: native.Config) -> bool:
    """Write the launcher's information into `config`; return whether there is any."""
    global _starts
    if WORLD_VARIABLE not in environ:
        return False
    _starts += 1
    config.generation = _starts
    _set_link(_read(inherited.memory(WORLD_VARIABLE, environ)), environ, config)
    return True


def apply_world(
    world: membership.World, environ: Mapping[str, str], config: native.Config
) -> dict[int, str]:
    """Write the hosts of an elastic job's world, and this rank's place there, into `config`.

    Ranks of one host need no link.

    Returns:
        The address of a rank on each of the other hosts, by rank.
    """
    hosts, report = [0] * world.size, None
    if world.hosts >= 0:
        report = _read(world.hosts)
        hosts = report["hosts"]
    if report is not None and max(hosts) > 0:
        _set_link(report, environ, config)
    host_here = hosts[world.rank]
    config.local_rank, config.local_size = (
        hosts[: world.rank].count(host_here),
        hosts.count(host_here),
    )
    peers = [host for host in sorted(set(hosts)) if hosts.count(host) > config.local_rank]
    config.cross_rank, config.cross_size = peers.index(host_here), len(peers)
    ranks = {hosts.index(host) for host in hosts if host != host_here}
    return {} if report is None else {rank: report["addresses"][rank] for rank in sorted(ranks)}


def _set_link(world: Mapping[str, Any], environ: Mapping[str, str], config: native.Config) -> None:
    from ringar.job import cost_model  # needs NumPy, which the launcher does without

    config.set_hosts(world["hosts"])
    config.link_listener = inherited.socket(LISTENER_VARIABLE, environ)
    config.link_addresses = " ".join(world["addresses"]).encode()
    config.link_secret = world["secret"].encode()
    if values := world.get("cost_model"):
        parameters = cost_model.from_dict(values, cost_model.VARIABLE)
        counts = [world["hosts"].count(host) for host in set(world["hosts"])]
        network = cost_model.Network(parameters, len(counts), min(counts))
        config.set_tables(cost_model.tables(network))


def _read(fd: int) -> dict[str, Any]:
    world: dict[str, Any] = json.loads(os.pread(fd, _MOST_BYTES, 0))
    return world
