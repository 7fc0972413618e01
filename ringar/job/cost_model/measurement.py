"""The parameters of a job's network as MPI's messages measure them, and its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringar.job import link_probe, log
from ringar.job.cost_model.choice import ALWAYS, Tables, tables
from ringar.job.cost_model.network import Network
from ringar.job.cost_model.parameters import Parameters, from_environment

if TYPE_CHECKING:
    from mpi4py import MPI

_log = log.logger(__name__)


def measure(comm: MPI.Intracomm, hosts: Sequence[int]) -> Parameters:
    """Measure the parameters in a fraction of a second; see `ringar.job.link_probe`. Collective.

    Args:
        comm: an mpi4py communicator of all ranks, without other messages under way.
        hosts: for each rank, the number of its host.

    Returns:
        The parameters, the same on every rank.

    Raises:
        ValueError: `comm` has only one rank, or `hosts` has another length.
    """
    return Parameters(**link_probe.measure(comm, hosts))


def tables_of_job(world: MPI.Intracomm, hosts: list[int]) -> Tables:
    """Return the tables for a job's hosts; only rank 0 reads a file of parameters. Collective."""
    count = len(set(hosts))
    if count == 1:
        return Tables([], [])
    parameters, error = None, None
    if world.Get_rank() == 0:
        try:
            parameters = from_environment(os.environ)
        except ValueError as fault:
            error = fault
    parameters, error = world.bcast((parameters, error))
    if error:
        raise error
    if parameters is None:
        parameters = measure(world, hosts)
    fewest = min(hosts.count(host) for host in set(hosts))
    sizes = tables(Network(parameters, count, fewest))
    _log.info(
        "allreduce over %d hosts: recursive doubling up to %d bytes, halving and doubling up to "
        "%s, the ring beyond, by %s",
        count,
        sizes.recursive_doubling[-1],
        "any size" if sizes.halving_doubling[-1] == ALWAYS
        else sizes.halving_doubling[-1],
        parameters,
    )  # fmt: skip
    return sizes
