"""`SparseNet`: a net of sparse layers whose neurons are placed on the ranks of a grid."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from ringar import errors
from ringar.collectives.agree import first
from ringar.job import place
from ringar.parallel.scan.computation import usable_threads
from ringar.research.sparse import checks, file
from ringar.research.sparse.exchange import Exchange, Join
from ringar.research.sparse.layer import SparseRows
from ringar.research.sparse.partition import Partition
from ringar.research.sparse.partition import place as place_neurons
from ringar.research.sparse.plan import LayerPlan, Pattern, plans
from ringar.sharding import grid as grids
from ringar.sharding import lineage
from ringar.sharding.cut import cut_of
from ringar.sharding.examples import Digest
from ringar.sharding.grid import Grid
from ringar.sharding.whole import whole_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array, sparray


class SparseNet(keras.Model):
    """Train a net of sparse layers, cut along its edges: each rank owns some of its neurons.

    A rank holds the weights of its neurons' inputs, and in each step receives the states of those
    inputs that other ranks own. A state is sent once to each rank that reads it. Zeros stay zeros:
    only the entries of the matrices are trained.

    All ranks make the same net and pass the same examples; with several model groups each group
    gets its own (`ringar.data.shard(dataset, grid=grid)`). Compile it with
    `ringar.DistributedOptimizer(optimizer, grid=grid)` and fit it with
    `ringar.callbacks.Distributed()`, as any model that is split. Weights are cut variables; the
    outputs, and with them loss and metrics, are whole on every rank. It must be the first layer of
    a model that contains it.

    Args:
        layers: the initial weights, a SciPy sparse matrix per layer, [neurons, neurons of the layer
            before], from `ringar.parallel.sparse.erdos_renyi`, `radix_net`, `communities` or your
            own. Entries that are stored are trained, zeros among them, too.
        activation: of all layers but the last, or a list with one per layer. Each must treat a
            neuron by itself.
        last_activation: of the last layer, unless `activation` is a list.
        use_bias: add a bias to each neuron.
        biases: the initial biases, [neurons] for each layer; by default 0.
        partition: "hypergraph", "block" or "random", as in `ringar.parallel.sparse.partition`, or a
            `ringar.parallel.sparse.Partition`.
        imbalance: by how much a rank's weights in a layer may exceed the mean, with "hypergraph".
        seed: of the partition.
        grid: a grid with as many parts as the partition; by default the current one, or a new one
            of all ranks.
        kernel: "native", or "scipy", the reference that tests and benchmarks compare with.
        threads: the threads of the native kernel; by default those of TensorFlow's pool.
        dtype: "float32" or "float64"; by default Keras' own.
        name: the name of the model.

    Attributes:
        grid: the grid.
        partition: the placement of the neurons.
        words: for each layer the states that all ranks of a model group together send before it,
            per example: the partition's km1. The way back sends as many.

    Input shape is (batch, columns of the first matrix), output shape (batch, rows of the last).

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: an argument is out of range, a layer has a row without entries, the partition
            does not fit the net or the grid, or ranks disagree.
        RankError: another rank has raised one of these.
        ImportError: SciPy or a partitioner is missing.
        OSError: on the other ranks, if rank 0 has failed to place the neurons.

    Example:
    ```python
    layers = ringar.parallel.sparse.communities([784, 4096, 64], communities=16, connections=32)
    net = ringar.parallel.SparseNet(layers)
    net.compile(ringar.DistributedOptimizer("adam", grid=net.grid), "mse")
    net.fit(x, y, callbacks=[ringar.callbacks.Distributed()])
    net.save("net.npz")
    ```
    """

    writes_channels = "whole"
    """The kind of its outputs, for `ringar.sharding.lineage`."""
    saves_on_all_ranks = True
    """Whether `save` is collective: no ModelCheckpoint of the first rank alone may call it."""

    def __init__(
        self,
        layers: Sequence[sparray],
        *,
        activation: str | Sequence[str] = "relu",
        last_activation: str = "linear",
        use_bias: bool = True,
        biases: Sequence[np.ndarray] | None = None,
        partition: str | Partition = "hypergraph",
        imbalance: float = 0.03,
        seed: int = 0,
        grid: Grid | None = None,
        kernel: str = "native",
        threads: int | None = None,
        dtype: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.supports_jit = False  # uneven messages are not compiled
        self.grid = _grid(grid)
        arguments = checks.Arguments(
            layers, activation, last_activation, use_bias, biases, partition, imbalance, seed,
            kernel, threads, self.compute_dtype, self.grid.model,
        )  # fmt: skip
        net = checks.checked_net(arguments)
        self.partition = self._placement(partition, net.layers, imbalance, seed)
        self.activations = net.activations
        self._label = self.grid.agree(self.name)
        threads = usable_threads(threads)
        self.rows = [
            self._rows(number, *parts, net.layers[number], net.biases[number], kernel, threads)
            for number, parts in enumerate(plans(net.layers, self.partition, self.grid.part))
        ]
        self.words = [rows.plan.words for rows in self.rows]
        with tf.init_scope():
            self._inputs = tf.constant(self.rows[0].plan.inputs.astype(np.int32))
        self._width = net.layers[0].shape[1]
        self._outputs = net.layers[-1].shape[0]
        self._join = Join(self.partition.owners[-1], self.grid, f"{self._label}/outputs")
        self.digest = Digest()
        self.built = True

    def _placement(
        self, partition: str | Partition, layers: list[csr_array], imbalance: float, seed: int
    ) -> Partition:
        """Return the placement of the neurons. Collective over all ranks: rank 0 partitions."""
        if isinstance(partition, Partition):
            return partition
        placement: Partition = first(
            lambda: place_neurons(layers, self.grid.model, partition, imbalance, seed),
            caller="SparseNet",
            deed="to place the neurons",
        )
        return placement

    def _rows(
        self,
        number: int,
        plan: LayerPlan,
        pattern: Pattern,
        layer: csr_array,
        bias: np.ndarray | None,
        kernel: str,
        threads: int,
    ) -> SparseRows:
        name = f"{self._label}_{number}"
        return SparseRows(
            plan,
            pattern,
            layer.data,
            bias,
            self.activations[number],
            exchange=Exchange(plan, self.grid, name) if number else None,
            kernel=kernel,
            threads=threads,
            grid=self.grid,
            name=name,
            dtype=self.compute_dtype,
        )

    # Called by Keras ----------------------------------------------------------------------------

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Train as any Keras model. Arrays are shuffled alike on all ranks; seed your datasets."""
        if place.size() > 1:
            tf.random.set_seed(self.grid.agree(int(np.random.randint(2**31))))
        return super().fit(*args, **kwargs)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the outputs, (batch, outputs), on every rank. Collective over the model group."""
        self.build(inputs.shape)  # the kernels rely on it
        if self.grid.model > 1:
            self.digest.take(inputs)
        x = tf.cast(inputs, self.compute_dtype)
        if len(self._inputs) < self._width:
            x = tf.gather(x, self._inputs, axis=1)
        states = tf.stop_gradient(tf.transpose(x))
        for layer in self.rows:
            states = layer(states)
        return self._join(states)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Check the shape of the inputs; the variables exist."""
        if len(input_shape) != 2 or input_shape[1] != self._width:
            raise ValueError(
                f"The inputs of {self.name} must have the shape (batch, {self._width}), a column "
                f"for each column of the first matrix. Received: shape {tuple(input_shape)}"
            )

    def compute_output_spec(
        self, inputs: keras.KerasTensor, training: bool | None = None
    ) -> keras.KerasTensor:
        """Return the shape of the outputs, and check that the net begins its model."""
        self.build(inputs.shape)
        made_by = getattr(inputs, "_keras_history", None)
        if made_by is not None and lineage.producer(inputs) is not None:
            raise ValueError(
                f"{self.name} must read the inputs of the model: it gives them no gradient. "
                f"Received: the output of {lineage.producer(inputs).name}"  # type: ignore[union-attr]
            )
        return keras.KerasTensor((inputs.shape[0], self._outputs), dtype=self.compute_dtype)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return (batch, outputs)."""
        return (input_shape[0], self._outputs)

    def get_config(self) -> NoReturn:
        """Refuse: a config has no place for the weights' pattern."""
        raise errors.UnsupportedError(
            f"{self.name}: expected `save`, received a request for its config, which has no place "
            "for the pattern of the weights; write it with net.save(path), read it with "
            "ringar.parallel.SparseNet.load(path)"
        )

    # More methods for users -----------------------------------------------------------------------

    def matrices(self) -> list[csr_array]:
        """Return the weights of the whole net as SciPy matrices. Collective over the model group.

        Returns:
            For each layer a CSR matrix [neurons, neurons of the layer before], on every rank.
        """
        return [rows.matrix() for rows in self.rows]

    def biases(self) -> list[np.ndarray] | None:
        """Return the biases of the whole net, [neurons] per layer. Collective over the model group.

        Returns:
            One array per layer, on every rank; None if the neurons have no biases.
        """
        biases = [rows.bias for rows in self.rows if rows.bias is not None]
        return [whole_of(bias, cut_of(bias)) for bias in biases] or None

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True) -> None:
        """Write the whole net to one file, from rank 0. Collective over all ranks.

        The file is the same whatever the partition and the number of ranks. It is an archive of
        NumPy arrays, with `data_0`, `indices_0`, `indptr_0` and `bias_0` of the first layer. The
        state of the optimizer is in it, if the net is compiled.

        Args:
            filepath: the file, `.npz`.
            overwrite: replace a file that exists.

        Raises:
            OSError: on every rank, if it cannot be written.
        """
        arrays = file.arrays_of(self)
        first(
            lambda: file.write(filepath, arrays, overwrite),
            caller="SparseNet.save",
            deed=f"to write {filepath!r}",
        )

    @classmethod
    def load(
        cls,
        filepath: str | os.PathLike[str],
        *,
        compile: bool = True,  # Keras' name
        partition: str | Partition = "hypergraph",
        imbalance: float = 0.03,
        seed: int = 0,
        grid: Grid | None = None,
        kernel: str = "native",
        threads: int | None = None,
        name: str | None = None,
    ) -> SparseNet:
        """Read a net from a file, under any partition and number of ranks. Collective.

        Rank 0 reads the file; the others receive it.

        Args:
            filepath: a file that `save` has written.
            compile: compile the net as it was when it was saved, with a distributed optimizer that
                goes on with its state.
            partition: as for a new net.
            imbalance: as for a new net.
            seed: as for a new net.
            grid: as for a new net.
            kernel: as for a new net.
            threads: as for a new net.
            name: as for a new net.

        Raises:
            OSError: on every rank, if the file cannot be read.
            ValueError: it is no such file, or an argument is out of range.
        """
        deed = f"to read {filepath!r}"
        arrays = first(lambda: file.read(filepath), caller="SparseNet.load", deed=deed)
        saved = file.Saved(arrays)
        net = cls(
            saved.layers(), activation=saved.activations, use_bias=saved.biases is not None,
            biases=saved.biases, partition=partition, imbalance=imbalance, seed=seed, grid=grid,
            kernel=kernel, threads=threads, dtype=saved.dtype, name=name,
        )  # fmt: skip
        for rows, trainable in zip(net.rows, saved.trainable, strict=True):
            rows.trainable = trainable
        if compile:
            saved.compile(net)
        return net


def _grid(grid: Grid | None) -> Grid:
    if grid is not None:
        return grids.resolve(grid, "SparseNet")
    return grids.current() or Grid(model=place.size())
