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
class Arguments:
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
class CheckedNet:
    """Hold a net that is fit to train.

    Attributes:
        layers: the weights, CSR with sorted rows.
        activations: of each layer, by name.
        biases: of each layer, None without.
    """

    layers: list[csr_array]
    activations: list[str]
    biases: list[np.ndarray | None]


def checked_net(arguments: Arguments) -> CheckedNet:
    """Return the net, after checks on every rank. Collective over all ranks.

    Raises:
        ValueError: an argument is out of range here, or ranks disagree.
        RankError: an argument is out of range on another rank.
    """
    nets: list[CheckedNet] = []

    def check() -> dict[str, object]:
        nets.append(_check(arguments))
        return _description(arguments, nets[0])

    deed = "to have a net that can be trained"
    descriptions = together(check, caller="SparseNet", deed=deed)
    compare(
        descriptions,
        caller="SparseNet",
        remedy="Make the same net on every rank: draw it with the same seed, or broadcast it from "
        "rank 0 with ringar.broadcast_object.",
    )
    return nets[0]


def _check(arguments: Arguments) -> CheckedNet:
    for name, choices in (("kernel", KERNELS), ("dtype", DTYPES)):
        value = getattr(arguments, name)
        if value not in choices:
            texts = ", ".join(f'"{choice}"' for choice in choices)
            raise ValueError(f"`{name}` must be one of {texts}. Received: {name}={value!r}")
    usable_threads(arguments.threads)
    layers = csr_layers(arguments.layers, arguments.dtype)
    _check_partition(arguments, layers)
    return CheckedNet(layers, _activations(arguments, len(layers)), _biases(arguments, layers))


def _check_partition(arguments: Arguments, layers: Sequence[csr_array]) -> None:
    partition = arguments.partition
    if isinstance(partition, str) and partition in METHODS:
        check_options(arguments.imbalance, arguments.seed)
        return
    if not isinstance(partition, Partition):
        names = ", ".join(f'"{name}"' for name in METHODS)
        raise ValueError(
            f"`partition` must be one of {names} or a ringar.parallel.sparse.Partition. "
            f"Received: {partition!r}"
        )
    if partition.parts != arguments.parts:
        raise ValueError(
            "`partition` must have as many parts as the grid: "
            f"{arguments.parts}. Received: {partition.parts} parts. Make it with "
            f"ringar.parallel.sparse.partition(layers, {arguments.parts}), or start "
            f"{partition.parts} ranks for each model."
        )
    partition.check(layers)


def _activations(arguments: Arguments, count: int) -> list[str]:
    names = arguments.activation
    if isinstance(names, str):
        names = [names] * (count - 1) + [arguments.last_activation]
    if not isinstance(names, list | tuple) or len(names) != count:
        raise ValueError(
            f"`activation` must be a name, or a list of {count}, one for each layer. "
            f"Received: {arguments.activation!r}"
        )
    for name in names:
        if not isinstance(name, str) or keras.activations.get(name) in MIXING_ACTIVATIONS:
            raise ValueError(
                "`activation` must be the name of a function that treats each neuron by itself. "
                f"Received: {name!r}. Put a softmax behind the net, or into a loss with "
                "from_logits=True."
            )
    return list(names)


def _biases(arguments: Arguments, layers: Sequence[csr_array]) -> list[np.ndarray | None]:
    if not arguments.use_bias and arguments.biases is not None:
        raise ValueError("`biases` must be None with use_bias=False. Received: biases, too")
    if not arguments.use_bias:
        return [None] * len(layers)
    if arguments.biases is None:
        return [np.zeros(layer.shape[0], arguments.dtype) for layer in layers]
    expected = [(layer.shape[0],) for layer in layers]
    received = [np.shape(bias) for bias in arguments.biases]
    if expected != received:
        raise ValueError(
            f"`biases` must have an array for each layer, of the shapes {expected}. "
            f"Received: shapes {received}"
        )
    biases = [np.asarray(bias, arguments.dtype) for bias in arguments.biases]
    for number, bias in enumerate(biases):
        if not np.isfinite(bias).all():
            raise ValueError(
                f"`biases[{number}]` must be finite. Received: NaN or infinity in "
                f"{np.count_nonzero(~np.isfinite(bias))} of them"
            )
    return list(biases)


def _description(arguments: Arguments, net: CheckedNet) -> dict[str, object]:
    """Return the properties that must be the same on all ranks."""
    partition = arguments.partition
    if isinstance(partition, Partition):
        placement = f"owners with the digest {digest(partition.owners):08x}"
    else:
        placement = f"{partition}, imbalance={arguments.imbalance}, seed={arguments.seed}"
    described: dict[str, object] = {
        "number of layers": len(net.layers),
        "dtype": arguments.dtype,
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
