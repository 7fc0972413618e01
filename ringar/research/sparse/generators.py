"""Sparse nets that are drawn: random ones, RadiX-Nets, and nets of planted communities.

Each function returns the layers as SciPy matrices, [neurons, neurons of the layer before], float32.
Weights are normal with mean 0 and variance 2 / (inputs of the neuron), for ReLU (He et al. 2015).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ringar.research.sparse.matrices import offsets_of, scipy_sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def erdos_renyi(units: Sequence[int], connections: float, seed: int = 0) -> list[csr_array]:
    """Draw a net in which each connection exists with the same probability.

    Erdős and Rényi, "On random graphs" (1959), layer by layer. A neuron that would have no input
    gets one.

    Args:
        units: the numbers of inputs, of neurons of each layer, and of outputs.
        connections: the mean number of inputs of a neuron.
        seed: of the random numbers.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_units(units)
    rng = np.random.default_rng(seed)
    layers = []
    for inputs, neurons in itertools.pairwise(units):
        _check_connections(connections, inputs)
        counts = np.maximum(rng.binomial(inputs, connections / inputs, neurons), 1)
        keys = _draw(rng, counts, np.zeros(neurons, np.int64), np.full(neurons, inputs), inputs)
        layers.append(_with_weights(rng, keys, counts, inputs))
    return layers


def radix_net(radices: Sequence[Sequence[int]], width: int = 1, seed: int = 0) -> list[csr_array]:
    """Build a RadiX-Net: between each input and each output there are equally many paths.

    Robinett and Kepner, "RadiX-Net: structured sparse matrices for deep neural networks" (2019).
    A mixed-radix system (r_1, …, r_k) with the product n gives k layers of n nodes. In layer i
    node j reads nodes j - m v_i (mod n) for m < r_i, v_i being the product of the radices before.
    The Kronecker product with a full matrix makes `width` neurons of each node.

    Args:
        radices: the mixed-radix systems, one after the other. All have the same product, but for
            the last, whose product divides it.
        width: the neurons of each node.
        seed: of the weights.

    Raises:
        ValueError: the products do not fit.
    """
    systems = [list(map(int, system)) for system in radices]
    products = [math.prod(system) for system in systems]
    fits = (
        systems
        and all(len(system) and min(system) > 1 for system in systems)
        and all(p == products[0] for p in products[:-1])
        and products[0] % products[-1] == 0
    )
    if not fits or width < 1:
        raise ValueError(
            "`radices` must be systems of radices above 1 with the same product, which the last "
            f"one's divides, and `width` positive. Received: radices={radices}, width={width}"
        )
    rng, nodes = np.random.default_rng(seed), products[0]
    layers = []
    for system in systems:
        place = 1
        for radix in system:
            steps = np.arange(radix) * place
            before = np.sort((np.arange(nodes)[:, None] - steps) % nodes, axis=1)
            columns = (before[:, :, None] * width + np.arange(width)).reshape(nodes, -1)
            rows = np.repeat(columns, width, axis=0)
            keys = rows + np.arange(nodes * width)[:, None] * (nodes * width)
            counts = np.full(nodes * width, radix * width)
            layers.append(_with_weights(rng, keys.ravel(), counts, nodes * width))
            place *= radix
    return layers


def communities(
    units: Sequence[int],
    communities: int,
    connections: int,
    outside: float = 0.01,
    seed: int = 0,
) -> list[csr_array]:
    """Draw a net of planted communities: most connections stay within a community.

    Each neuron, in each layer, belongs to one of some communities of equal size, in random order. A
    connection leaves the neuron's community with the probability `outside`.

    Args:
        units: the numbers of inputs, of neurons of each layer, and of outputs, each at least
            `communities`.
        communities: the number of communities.
        connections: the inputs of each neuron, of which a community has enough.
        outside: the fraction of connections to neurons of other communities.
        seed: of the random numbers.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_units(units)
    if not 1 <= communities <= min(units):
        raise ValueError(
            "`communities` must be positive and at most the number of neurons of each layer. "
            f"Received: communities={communities}, units={list(units)}"
        )
    if not 0 <= outside <= 1:
        raise ValueError(f"`outside` must be from 0 to 1. Received: outside={outside}")
    rng = np.random.default_rng(seed)
    members = [np.array_split(rng.permutation(count), communities) for count in units]
    layers = []
    for before, after in itertools.pairwise(members):
        inputs, neurons = sum(map(len, before)), sum(map(len, after))
        _check_connections(connections, min(map(len, before)))
        community = np.empty(neurons, np.int64)
        for number, group in enumerate(after):
            community[group] = number
        sizes = np.array([len(group) for group in before])
        starts = offsets_of(sizes)
        counts = np.full(neurons, connections)
        leaving = rng.binomial(connections, outside if communities > 1 else 0.0, neurons)
        # Inputs are drawn in the order of communities, in which each has a stretch.
        within = _draw(rng, counts - leaving, starts[community], sizes[community], inputs)
        away = _draw(rng, leaving, starts[community + 1], inputs - sizes[community], inputs)
        rows, columns = np.divmod(np.concatenate([within, away]), inputs)
        columns = np.concatenate(before)[columns]
        layers.append(_with_weights(rng, rows * inputs + columns, counts, inputs))
    return layers


def _draw(
    rng: np.random.Generator, counts: np.ndarray, starts: np.ndarray, sizes: np.ndarray, inputs: int
) -> np.ndarray:
    """Draw different inputs for each row, out of a stretch that may go on at input 0.

    Args:
        rng: the random numbers.
        counts: how many inputs each row gets, at most its size.
        starts: where the stretch of each row begins.
        sizes: how long it is.
        inputs: the number of all inputs.

    Returns:
        row * inputs + input, sorted, int64 [sum of counts].
    """
    keys = np.empty(0, np.int64)
    deficits = counts
    while deficits.any():
        rows = np.repeat(np.arange(len(counts)), deficits)
        draws = (starts[rows] + rng.integers(0, sizes[rows])) % inputs
        keys = np.unique(np.concatenate([keys, rows * inputs + draws]))
        deficits = counts - np.bincount(keys // inputs, minlength=len(counts))
    return keys


def _with_weights(
    rng: np.random.Generator, keys: np.ndarray, counts: np.ndarray, inputs: int
) -> csr_array:
    """Return the matrix with entries at `keys`, row * inputs + column, and random weights."""
    weights = rng.standard_normal(len(keys), np.float32)
    weights *= np.repeat(np.sqrt(2 / counts), counts).astype(np.float32)
    columns = (np.sort(keys) % inputs).astype(np.int32)
    offsets = offsets_of(counts).astype(np.int32)
    return scipy_sparse().csr_array((weights, columns, offsets), shape=(len(counts), inputs))


def _check_units(units: Sequence[int]) -> None:
    if len(units) < 2 or min(units) < 1:
        raise ValueError(
            "`units` must be at least two positive numbers: inputs, neurons of each layer. "
            f"Received: units={list(units)}"
        )


def _check_connections(connections: float, most: int) -> None:
    if not 0 < connections <= most:
        raise ValueError(
            f"`connections` must be above 0 and at most {most}, the neurons to choose from. "
            f"Received: connections={connections}"
        )
