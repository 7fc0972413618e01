"""Checks of a sparse net before any rank trains it: of its arguments, and that ranks agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np

from ringar.collectives.agree import compare, together
from ringar.collectives.digest import digest
from ringar.parallel.scan.computation import usable_threads
from ringar.research.sparse.kernels import KERNELS
from ringar.research.sparse.matrices import csr_layers
from ringar.research.sparse.partition import METHODS, Partition, check_options
from ringar.sharding.lineage import MIXING_ACTIVATIONS

if TYPE_CHECKING:
    from scipy.sparse import csr_array, sparray

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Given:
    """Hold the arguments of a net as the user gives them; see `SparseNet`."""

    layers: Sequence[sparray]
    activation: str | Sequence[str]
    last_activation: str
    use_bias: bool
    biases: Sequence[np.ndarray] | None
    partition: str | Partition
    imbalance: float
    seed: int
    kernel: str
    threads: int | None
    dtype: str
    parts: int


@dataclass(frozen=True)
class Checked:
    """Hold a net that is fit to train.

    Attributes:
        layers: the weights, CSR with sorted rows.
        activations: of each layer, by name.
        biases: of each layer, None without.
    """

    layers: list[csr_array]
    activations: list[str]
    biases: list[np.ndarray | None]


def checked(given: Given) -> Checked:
    """Return the net, after checks on every rank. Collective over all ranks.

    Raises:
        ValueError: an argument is out of range here, or ranks disagree.
        RankError: an argument is out of range on another rank.
    """
    nets: list[Checked] = []

    def check() -> dict[str, object]:
        nets.append(_check(given))
        return _description(given, nets[0])

    deed = "to have a net that can be trained"
    descriptions = together(check, caller="SparseNet", deed=deed)
    compare(
        descriptions,
        caller="SparseNet",
        remedy="Make the same net on every rank: draw it with the same seed, or broadcast it from "
        "rank 0 with ringar.broadcast_object.",
    )
    return nets[0]


def _check(given: Given) -> Checked:
    for name, value, allowed in (("kernel", given.kernel, KERNELS), ("dtype", given.dtype, DTYPES)):
        if value not in allowed:
            texts = ", ".join(f'"{one}"' for one in allowed)
            raise ValueError(f"`{name}` must be one of {texts}. Received: {name}={value!r}")
    usable_threads(given.threads)
    layers = csr_layers(given.layers, given.dtype)
    _check_partition(given, layers)
    return Checked(layers, _activations(given, len(layers)), _biases(given, layers))


def _check_partition(given: Given, layers: Sequence[csr_array]) -> None:
    partition = given.partition
    if isinstance(partition, str) and partition in METHODS:
        check_options(given.imbalance, given.seed)
        return
    if not isinstance(partition, Partition):
        names = ", ".join(f'"{name}"' for name in METHODS)
        raise ValueError(
            f"`partition` must be one of {names} or a ringar.parallel.sparse.Partition. "
            f"Received: {partition!r}"
        )
    if partition.parts != given.parts:
        raise ValueError(
            "`partition` must have as many parts as the grid: "
            f"{given.parts}. Received: {partition.parts} parts. Make it with "
            f"ringar.parallel.sparse.partition(layers, {given.parts}), or start "
            f"{partition.parts} ranks for each model."
        )
    partition.check(layers)


def _activations(given: Given, count: int) -> list[str]:
    names = given.activation
    if isinstance(names, str):
        names = [names] * (count - 1) + [given.last_activation]
    if not isinstance(names, list | tuple) or len(names) != count:
        raise ValueError(
            f"`activation` must be a name, or a list of {count}, one for each layer. "
            f"Received: {given.activation!r}"
        )
    for name in names:
        if not isinstance(name, str) or keras.activations.get(name) in MIXING_ACTIVATIONS:
            raise ValueError(
                "`activation` must be the name of a function that treats each neuron by itself. "
                f"Received: {name!r}. Put a softmax behind the net, or into a loss with "
                "from_logits=True."
            )
    return list(names)


def _biases(given: Given, layers: Sequence[csr_array]) -> list[np.ndarray | None]:
    if not given.use_bias and given.biases is not None:
        raise ValueError("`biases` must be None with use_bias=False. Received: biases, too")
    if not given.use_bias:
        return [None] * len(layers)
    if given.biases is None:
        return [np.zeros(layer.shape[0], given.dtype) for layer in layers]
    expected = [(layer.shape[0],) for layer in layers]
    received = [np.shape(bias) for bias in given.biases]
    if expected != received:
        raise ValueError(
            f"`biases` must have an array for each layer, of the shapes {expected}. "
            f"Received: shapes {received}"
        )
    biases: list[np.ndarray | None] = [np.asarray(bias, given.dtype) for bias in given.biases]
    for number, bias in enumerate(biases):
        if not np.isfinite(bias).all():  # type: ignore[arg-type]
            raise ValueError(
                f"`biases[{number}]` must be finite. Received: NaN or infinity in "
                f"{np.count_nonzero(~np.isfinite(bias))} of them"  # type: ignore[arg-type]
            )
    return biases


def _description(given: Given, net: Checked) -> dict[str, object]:
    """Return what must be the same on all ranks."""
    partition = given.partition
    if isinstance(partition, Partition):
        placement = f"owners with the digest {digest(partition.owners):08x}"
    else:
        placement = f"{partition}, imbalance={given.imbalance}, seed={given.seed}"
    described: dict[str, object] = {
        "number of layers": len(net.layers),
        "dtype": given.dtype,
        "activations": net.activations,
        "partition": placement,
    }
    for number, layer in enumerate(net.layers):
        described[f"shape of layer {number}"] = layer.shape
        pattern = f"{digest([layer.indptr, layer.indices]):08x}"
        described[f"pattern (digest) of layer {number}"] = pattern
        described[f"weights (digest) of layer {number}"] = f"{digest([layer.data]):08x}"
    biases = [bias for bias in net.biases if bias is not None]
    described["biases (digest)"] = f"{digest(biases):08x}"
    return described
