"""Which ranks read which neurons: the cost of a partition, and the messages of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def readers(layer: csr_array, owners: np.ndarray, parts: int) -> np.ndarray:
    """Return whether a rank reads the state of a neuron of the layer before.

    Args:
        layer: the weights, [neurons, neurons before].
        owners: the part of each neuron of the layer.
        parts: the number of parts.

    Returns:
        bool [neurons before, parts].
    """
    reads = np.zeros((layer.shape[1], parts), bool)
    reads[layer.indices, np.repeat(owners, np.diff(layer.indptr))] = True
    return reads


def words_of(reads: np.ndarray, owners: np.ndarray) -> int:
    """Return the number of states that are sent: the sum of lambda - 1 over all neurons.

    Args:
        reads: whether a rank reads a neuron, bool [neurons, parts].
        owners: the part of each neuron.
    """
    on_owner = reads[np.arange(len(owners)), owners]
    return int(np.count_nonzero(reads)) - int(np.count_nonzero(on_owner))
