"""The sparse nets of `benchmarks.sparse`, drawn alike in every process."""

from __future__ import annotations

from typing import Any

OUTSIDE = {"communities": 0.002, "communities, 10% outside": 0.1}
"""Which fraction of the connections leave their community."""
NAMES = (*OUTSIDE, "RadiX-Net", "Erdős-Rényi")
METHODS = ("hypergraph", "block", "random")


def make_net(name: str, units: int, layers: int, connections: int) -> list[Any]:
    """Returns a net whose layers have so many neurons, with so many inputs each.

    Args:
        name: one of NAMES.
        units: the neurons of a layer: a power of two for the RadiX-Net.
        layers: how many.
        connections: inputs of a neuron: for the RadiX-Net a power of two, for nets of communities
            at most a sixteenth of the units.
    """
    from ringar.parallel import sparse

    sizes = [units] * (layers + 1)
    if name == "Erdős-Rényi":
        return sparse.erdos_renyi(sizes, connections, seed=1)
    if name == "RadiX-Net":
        return radix_net(units, layers, connections)
    return sparse.communities(sizes, 16, connections, OUTSIDE[name], seed=1)


def radix_net(units: int, layers: int, connections: int) -> list[Any]:
    """Returns as many layers as asked for of mixed-radix systems of the radix `connections`."""
    from ringar.parallel import sparse

    system, product = [], 1
    while product < units:
        system.append(min(connections, units // product))
        product *= system[-1]
    systems = [system] * -(-layers // len(system))
    return sparse.radix_net(systems, seed=1)[:layers]
