"""The placement of a sparse net's neurons on ranks, and the words that it makes them send.

The neurons of layer l and their inputs are a hypergraph: a net for each neuron of layer l - 1, with
its owner and the owners of all neurons that read it. If it connects lambda ranks, its state is sent
to lambda - 1 of them, once each. The words of a layer per example are therefore the sum of
lambda - 1 over all nets, the partition's km1. The way back sends as many: each receiving rank
returns the gradient of the state. (Çatalyürek and Aykanat 1999; for sparse nets Demirci and
Ferhatosmanoglu, "Partitioning sparse deep neural networks for scalable training and inference",
ICS 2021. Neurons of other ranks whose states a rank keeps are the ghosts of SPANN: Long and Gupta,
"Scalable massively parallel artificial neural networks", 2008.)

The net's inputs have no owner: all ranks of a model group have the same examples. The outputs are
gathered, which is not counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ringar.research.sparse import hypergraph
from ringar.research.sparse.matrices import csr_layers, offsets_of
from ringar.research.sparse.reading import readers, words_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array, sparray

METHODS = ("hypergraph", "block", "random")
MOST_SEED = np.iinfo(np.int32).max
"""METIS takes seeds of 32 bits."""


@dataclass(frozen=True)
class Partition:
    """Say which rank owns each neuron of a sparse net.

    Attributes:
        owners: for each layer the part of each of its neurons, int32 [neurons].
        parts: the number of parts.

    Raises:
        ValueError: an owner is no part.
    """

    owners: tuple[np.ndarray, ...]
    parts: int

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise ValueError(f"`parts` must be positive. Received: parts={self.parts}")
        layers = tuple(np.asarray(owners) for owners in self.owners)
        for number, owners in enumerate(layers):
            is_vector = owners.ndim == 1 and np.issubdtype(owners.dtype, np.integer)
            if not is_vector or (
                owners.size and not 0 <= owners.min() <= owners.max() < self.parts
            ):
                raise ValueError(
                    f"`owners[{number}]` must be whole numbers from 0 to {self.parts - 1}, one for "
                    f"each neuron. Received: dtype {owners.dtype}, shape {owners.shape}"
                    + (f", values from {owners.min()} to {owners.max()}" if owners.size else "")
                )
        object.__setattr__(self, "owners", tuple(of_layer.astype(np.int32) for of_layer in layers))

    def words(self, layers: Sequence[sparray]) -> list[int]:
        """Return the words that all ranks send per example before each layer: its km1.

        Args:
            layers: the net, as SciPy matrices.

        Returns:
            The words forward; backward there are as many. The first is 0, since inputs are on all
            ranks.

        Raises:
            ValueError: the partition does not fit the net.
        """
        checked = csr_layers(layers, "float32")
        self.check(checked)
        words = [0]
        for layer, before, owners in zip(checked[1:], self.owners, self.owners[1:], strict=False):
            words.append(words_of(readers(layer, owners, self.parts), before))
        return words

    def loads(self, layers: Sequence[sparray]) -> np.ndarray:
        """Return the weights of each rank in each layer, int64 [layers, parts].

        Args:
            layers: the net, as SciPy matrices.

        Raises:
            ValueError: the partition does not fit the net.
        """
        checked = csr_layers(layers, "float32")
        self.check(checked)
        pairs = zip(checked, self.owners, strict=True)
        return np.array(
            [
                np.bincount(owners, np.diff(layer.indptr), self.parts).astype(np.int64)
                for layer, owners in pairs
            ]
        )

    def check(self, layers: Sequence[csr_array]) -> None:
        """Raise a ValueError if the partition is none of a net with these layers."""
        expected = [layer.shape[0] for layer in layers]
        received = [len(owners) for owners in self.owners]
        if expected != received:
            raise ValueError(
                f"`partition` must have an owner for each neuron: {expected} in the layers of the "
                f"net. Received: {received}. Make it with ringar.parallel.sparse.partition(layers, "
                "parts)."
            )


def partition(
    layers: Sequence[sparray],
    parts: int,
    method: str = "hypergraph",
    *,
    imbalance: float = 0.03,
    seed: int = 0,
) -> Partition:
    """Place the neurons of a sparse net on ranks.

    Args:
        layers: the net, as SciPy matrices [neurons, neurons of the layer before].
        parts: the number of ranks that share the net.
        method: "hypergraph" minimizes the words that are sent, by Mt-KaHyPar, or METIS where that
            is missing; "block" gives each rank consecutive neurons with nearly equally many
            weights; "random" deals the neurons out in random order.
        imbalance: by how much a rank's weights in a layer may exceed the mean, with "hypergraph".
        seed: of the random numbers; the same arguments give the same partition.

    Raises:
        ValueError: an argument is out of range, or the layers are no net.
        ImportError: a partitioner is needed and there is none.
    """
    checked = csr_layers(layers, "float32")
    if method not in METHODS:
        names = ", ".join(f'"{name}"' for name in METHODS)
        raise ValueError(f"`method` must be one of {names}. Received: {method!r}")
    if not isinstance(parts, int | np.integer) or parts < 1:
        raise ValueError(f"`parts` must be a positive whole number. Received: parts={parts!r}")
    check_options(imbalance, seed)
    return place(checked, parts, method, imbalance, seed)


def check_options(imbalance: float, seed: int) -> None:
    """Raise a ValueError if an option of the placement is out of range."""
    if not 0 < imbalance < np.inf:
        raise ValueError(f"`imbalance` must be above 0 and finite. Received: imbalance={imbalance}")
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= MOST_SEED:
        raise ValueError(
            f"`seed` must be a whole number from 0 to {MOST_SEED}. Received: seed={seed!r}"
        )


def place(
    layers: Sequence[csr_array], parts: int, method: str, imbalance: float, seed: int
) -> Partition:
    """Place neurons as `partition` does; all arguments are checked."""
    if method == "random":
        rng = np.random.default_rng(seed)
        owners = [rng.permutation(np.arange(layer.shape[0]) % parts) for layer in layers]
    elif method == "block" or parts == 1:
        owners = [_blocks(np.diff(layer.indptr), parts) for layer in layers]
    else:
        owners = hypergraph.place(layers, int(parts), imbalance, seed)
    return Partition(tuple(owners), int(parts))


def _blocks(weights: np.ndarray, parts: int) -> np.ndarray:
    """Return the part of each neuron, so that the parts' weights are nearly equal."""
    before = offsets_of(weights)
    middles = (before[:-1] + before[1:]) / 2
    return np.minimum((middles * parts / before[-1]).astype(np.int32), parts - 1)
