"""Placement of neurons by hypergraph partitioning, layer after layer.

All layers in one hypergraph would be balanced together only: the partitioner would give one rank
the lower layers and the other the upper ones, which must wait for each other. Each layer is
therefore partitioned by itself, into parts of equal work, and sees what is placed around it:

1. From the first layer to the last: a net for each neuron of the layer before, with those that read
   it and its owner. Owners are vertices that are fixed to their parts. In the first layer, inputs
   have no owner, and their nets keep together what reads the same inputs, which the next layer
   probably does, too.
2. From the last layer but one to the first: again, with the nets of the layer's own neurons and
   the owners of their readers, which step 1 did not know, until a layer gains nothing.

The weight of a vertex is the number of the neuron's inputs. Mt-KaHyPar (Gottesbüren, Heuer, Maas,
Sanders and Schlag 2024) minimizes km1 itself, with a preset that gives the same result in each run.
METIS (Karypis and Kumar 1998) partitions graphs, in which a net is a star: it minimizes the edges
that are cut, which is near.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.job import threads
from ringar.research.sparse.matrices import offsets_of, scipy_sparse
from ringar.research.sparse.reading import readers, words_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class Hypergraph:
    """Hold the input of a partitioner: for each part p, vertex p, fixed to it; then the neurons.

    Attributes:
        parts: the number of parts.
        weights: of the vertices, int64.
        starts: where the pins of each net begin, and their end, int64 [nets + 1].
        pins: the vertices of the nets, each of them once per net.
    """

    parts: int
    weights: np.ndarray
    starts: np.ndarray
    pins: np.ndarray


Solver = Callable[[Hypergraph, float, int], np.ndarray]
"""From a hypergraph, an imbalance and a seed to the part of each vertex."""


def place(
    layers: Sequence[csr_array],
    parts: int,
    imbalance: float,
    seed: int,
    solve: Solver | None = None,
) -> list[np.ndarray]:
    """Return the part of each neuron of each layer.

    Args:
        layers: the weights, [neurons, neurons of the layer before] each.
        parts: the number of parts.
        imbalance: by how much the weights of a part may exceed the mean of the layer.
        seed: of the partitioner.
        solve: the partitioner; by default Mt-KaHyPar, or METIS where that is missing.

    Raises:
        ImportError: there is no partitioner.
    """
    solve = solve or installed()
    owners: list[np.ndarray] = []
    for number, layer in enumerate(layers):
        before = owners[-1] if number else None
        graph = _graph(layer, before, None, parts, inputs_count=True)
        owners.append(solve(graph, imbalance, seed)[parts:])
    for number in reversed(range(len(layers) - 1)):
        before = owners[number - 1] if number else None
        reads = readers(layers[number + 1], owners[number + 1], parts)
        graph = _graph(layers[number], before, reads, parts, inputs_count=False)
        candidate = solve(graph, imbalance, seed)[parts:]

        def words(placement: np.ndarray, at: int = number, reads: np.ndarray = reads) -> int:
            into = words_of(readers(layers[at], placement, parts), owners[at - 1]) if at else 0
            return into + words_of(reads, placement)

        if words(candidate) >= words(owners[number]):
            break
        owners[number] = candidate
    return owners


def _graph(
    layer: csr_array,
    before: np.ndarray | None,
    reads: np.ndarray | None,
    parts: int,
    inputs_count: bool,
) -> Hypergraph:
    """Return the hypergraph of one layer.

    Args:
        layer: its weights.
        before: the owners of the neurons before; None for the net's inputs, which have none.
        reads: which part reads which neuron of the layer, bool [neurons, parts], if it is known.
        parts: the number of parts.
        inputs_count: whether inputs without owners have nets.
    """
    neurons = layer.shape[0]
    nets: list[np.ndarray] = []  # rows of (net, pin)
    count = 0
    if before is not None or inputs_count:
        rows = np.repeat(np.arange(neurons), np.diff(layer.indptr)) + parts
        nets.append(np.stack([layer.indices.astype(np.int64), rows]))
        if before is not None:
            nets.append(np.stack([np.arange(len(before)), before]))
        count = layer.shape[1]
    if reads is not None:
        read, by = np.nonzero(reads)
        nets.append(np.stack([count + read, by]))
        nets.append(np.stack([count + np.arange(neurons), np.arange(neurons) + parts]))
        count += neurons
    net, pins = np.concatenate(nets, axis=1)
    sizes = np.bincount(net, minlength=count)
    keep = sizes[net] > 1  # a net of one pin is never cut
    order = np.argsort(net[keep], kind="stable")
    # Partitioners treat a vertex without weight as if it were not fixed.
    weights = np.concatenate([np.ones(parts, np.int64), np.diff(layer.indptr).astype(np.int64)])
    return Hypergraph(parts, weights, offsets_of(sizes[sizes > 1]), pins[keep][order])


def installed() -> Solver:
    """Return the partitioner that is installed.

    Raises:
        ImportError: there is none; the error says how to install one.
    """
    for module, solver in (("mtkahypar", by_mtkahypar), ("pymetis", by_metis)):
        try:
            __import__(module)
        except ImportError:
            continue
        return solver
    raise ImportError(
        'partition="hypergraph" needs Mt-KaHyPar or METIS, which are missing. Install one with: '
        'pip install mtkahypar, or choose partition="block"'
    )


@functools.cache
def _mtkahypar() -> Any:
    """Return the initializer of Mt-KaHyPar, of which a process has one."""
    import mtkahypar

    if not hasattr(os, "sched_getaffinity"):  # on other systems than Linux
        return mtkahypar.initialize(threads.usable_cpus(), False)
    cores = os.sched_getaffinity(0)
    instance = mtkahypar.initialize(len(cores), False)
    os.sched_setaffinity(0, cores)  # it binds the thread that calls it
    return instance


def by_mtkahypar(graph: Hypergraph, imbalance: float, seed: int) -> np.ndarray:
    """Return the part of each vertex, by Mt-KaHyPar's deterministic preset."""
    import mtkahypar

    library = _mtkahypar()
    context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(graph.parts, imbalance, mtkahypar.Objective.KM1)
    context.logging = False
    mtkahypar.set_seed(seed)
    starts, pins = graph.starts.tolist(), graph.pins.tolist()
    nets = [pins[a:b] for a, b in itertools.pairwise(starts)]
    weights = graph.weights.tolist()
    native_graph = library.create_hypergraph(
        context, len(weights), len(nets), nets, weights, [1] * len(nets)
    )
    fixed = list(range(graph.parts)) + [-1] * (len(weights) - graph.parts)
    native_graph.add_fixed_vertices(fixed, graph.parts)
    return np.array(native_graph.partition(context).get_partition(), np.int32)


def by_metis(graph: Hypergraph, imbalance: float, seed: int) -> np.ndarray:
    """Return the part of each vertex, by METIS.

    METIS knows no fixed vertices: the parts are named afterwards, so that as many pins as possible
    are in nets with the fixed vertex of their part.
    """
    import pymetis

    parts, vertices, nets = graph.parts, len(graph.weights), len(graph.starts) - 1
    stars = np.repeat(np.arange(nets), np.diff(graph.starts)) + vertices
    size = vertices + nets
    edges = (np.ones(len(stars), np.int32), (stars, graph.pins))
    half = scipy_sparse().coo_array(edges, shape=(size, size))
    adjacency = scipy_sparse().csr_array(half + half.T)
    _, owners = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(adjacency.indptr.astype(np.int32), adjacency.indices.astype(np.int32)),
        vweights=np.concatenate([graph.weights, np.zeros(nets)]).astype(np.int32),
        options=pymetis.Options(ufactor=max(1, round(1000 * imbalance)), seed=seed),
    )
    part = np.asarray(owners, np.int32)[:vertices]
    return _names(graph, part)[part]


def _names(graph: Hypergraph, part: np.ndarray) -> np.ndarray:
    """Return which fixed vertex each part is named after."""
    from scipy.optimize import linear_sum_assignment

    parts, net = graph.parts, np.repeat(np.arange(len(graph.starts) - 1), np.diff(graph.starts))
    fixed = graph.pins < parts
    pins = scipy_sparse().coo_array(
        (np.ones(np.count_nonzero(~fixed)), (part[graph.pins[~fixed]], net[~fixed])),
        shape=(parts, len(graph.starts) - 1),
    )
    owners = scipy_sparse().coo_array(
        (np.ones(np.count_nonzero(fixed)), (net[fixed], graph.pins[fixed])),
        shape=(len(graph.starts) - 1, parts),
    )
    together = (pins.tocsr() @ owners.tocsr()).toarray()
    return linear_sum_assignment(together, maximize=True)[1].astype(np.int32)
