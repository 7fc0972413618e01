"""`Sequential`: a Keras model whose backward pass is a scan over its layers' Jacobians."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives.dtypes import Examples
from ringar.job import threads
from ringar.job.process_sets import ProcessSet
from ringar.parallel.scan import counting, depth, stages
from ringar.parallel.scan.backward import Scan, add
from ringar.parallel.scan.elements import Element
from ringar.parallel.scan.sparse import csr, scipy_sparse


@keras.saving.register_keras_serializable(package="ringar")
class Sequential(keras.Sequential):
    """Train a `keras.Sequential` whose backward pass is a parallel scan.

    Back-propagation multiplies dl/dh by the transposed Jacobian of one layer after the other. The
    product is associative, so a scan needs only logarithmically many rounds of concurrent products
    (Wang, Bai and Pekhimenko, MLSys 2020, arXiv:1907.10134). Jacobians are sparse matrices, made by
    index arithmetic of weights and activations, and multiplied by SciPy on the processor's cores.
    The gradients are those of `keras.Sequential` but for rounding.

    Everything else is as in `keras.Sequential`: `compile`, `fit`, `evaluate`, `predict`, `save`,
    sample and class weights, regularizers of weights, and optimizers, distributed ones included
    (`ringar.DistributedOptimizer`). XLA cannot compile it: with `jit_compile=True` Keras warns.

    Each product of matrices has fewer zeros than its factors, and costs far more than a product
    with a vector. For most nets the plain chain, `levels=0`, is the fastest on a few cores, and
    `keras.Sequential` is faster still. `benchmarks.scan.analysis` counts the operations
    of a scan of a given net.

    With a `process_set`, such as `ringar.global_process_set`, its ranks share the backward pass of
    one model. All ranks must have the same examples and initial weights; both are checked. Each
    rank runs the forward pass, makes the Jacobians of a span of the layers and reduces them. All
    spans have about as many Jacobians. The ranks exchange products in ceil(log2(P)) rounds and
    finally gather the gradients of all weights, so that all apply the same bits. With three or more
    ranks, those in the middle always multiply matrices; `levels` applies to the sweep through each
    rank's span. The optimizer is an ordinary one; a distributed one may average over several such
    process sets. If a rank fails in a step, the others wait until it ends, or until the deadline.
    The process set is not saved: after loading a model, set `model.process_set`, then compile it.

    Args:
        layers: Dense, Conv2D (channels last), MaxPooling2D, Flatten, Reshape, Dropout, ReLU and
            Activation, with relu, tanh, sigmoid or linear as activation, and any in the last layer.
        levels: the number of levels of the scan, around a serial part. 0 is the plain chain. None:
            the number with the shortest critical path on this machine's cores, counted for the
            first example of the first batch, and for each rank's span by itself.
        process_set: the ranks that share the backward pass, each with a span of the layers; see
            above. None: each rank by itself.
        trainable: as in `keras.Sequential`.
        name: as in `keras.Sequential`.

    Attributes:
        levels: as given.
        process_set: as given.
        chosen_levels: the levels in use; None before the first step if `levels` is None.

    Raises:
        ImportError: SciPy is missing.
        OutOfMemoryError: in a step, if a product of matrices may be too large; `fit` raises
            TensorFlow's ResourceExhaustedError instead.
        ValueError: a layer is not supported (the error names it), or `levels` is out of range.

    Example:
    ```python
    model = ringar.parallel.scan.Sequential([
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, y)
    ```
    """

    def __init__(
        self,
        layers: Iterable[keras.layers.Layer] | None = None,
        levels: int | None = None,
        *,
        process_set: ProcessSet | None = None,
        trainable: bool = True,
        name: str | None = None,
    ) -> None:
        scipy_sparse()  # raise early if SciPy is missing
        self._check_levels(levels)
        if process_set is not None and not isinstance(process_set, ProcessSet):
            raise TypeError(
                "`process_set` must be a ringar.ProcessSet, such as ringar.global_process_set, or "
                f"None. Received: {process_set!r}"
            )
        super().__init__(trainable=trainable, name=name)
        # XLA cannot call SciPy: `jit_compile="auto"` then means False.
        self.supports_jit = False
        self.levels, self.chosen_levels, self.process_set = levels, levels, process_set
        for layer in layers or ():
            self.add(layer, rebuild=False)
        if self._layers:
            self._maybe_rebuild()

    def add(self, layer: keras.layers.Layer, rebuild: bool = True) -> None:
        """Add a layer, as in `keras.Sequential`.

        Raises:
            ValueError: the layer is not supported.
        """
        if isinstance(layer, keras.Layer):
            stages.check(layer)
        super().add(layer, rebuild=rebuild)

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        """Build, as in `keras.Sequential`.

        Raises:
            ValueError: a layer is not supported, or the shape of an example is not known.
        """
        super().build(input_shape)
        if self._functional is not None:
            self._scan_of()

    def train_step(self, data: Examples) -> Mapping[str, object]:
        """Take one step with the gradients of the scan."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if self._functional is None:
            (inputs,) = keras.tree.flatten(x)
            self.build((None, *inputs.shape[1:]))
        if self.process_set is not None:
            depth.check_optimizer(self.optimizer)
        scan = self._scan_of()
        forward = scan.forward(self._input(x))
        with tf.GradientTape() as tape:
            tape.watch(forward.outputs)
            predicted = scan.chain.finish(forward.outputs)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(forward.outputs)[0])
            loss = self.optimizer.scale_loss(loss)
        weights = self.trainable_weights
        if weights:
            # The direct gradients are those of regularizers.
            last, *direct = tape.gradient(loss, [forward.outputs, *weights])
            by_scan = scan.backward(forward, last)
            pairs = [
                (add(gradient, by_scan.get(id(w))), w)
                for gradient, w in zip(direct, weights, strict=True)
            ]
            self.optimizer.apply_gradients(pairs)
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        logs: dict[str, float] = self.compute_metrics(x, y, predicted, sample_weight=sample_weight)
        return logs

    def get_config(self) -> dict[str, object]:
        """Return the config of `keras.Sequential`, with `levels`."""
        return {**super().get_config(), "levels": self.levels}

    @classmethod
    def from_config(
        cls, config: Mapping[str, object], custom_objects: Mapping[str, object] | None = None
    ) -> Sequential:
        """Make the model from its config, as in `keras.Sequential`."""
        config = dict(config)
        levels: Any = config.pop("levels", None)
        model: Sequential = super().from_config(config, custom_objects=custom_objects)
        cls._check_levels(levels)
        model.levels = model.chosen_levels = levels
        return model

    @staticmethod
    def _check_levels(levels: Any) -> None:
        if levels is not None and not (isinstance(levels, int) and levels >= 0):
            raise ValueError(
                "`levels` must be a whole number that is not negative, or None to choose it by "
                f"counting operations. Received: levels={levels!r}"
            )

    def _scan_of(self) -> Scan:
        """Return the scan over the current layers, made again after a change."""
        scan = getattr(self, "_scan", None)
        ranks = self.process_set
        if scan is None or scan.functional is not self._functional or scan.ranks is not ranks:
            chain = stages.Chain.of(self.layers, self.input_shape[1:])
            scan = Scan(chain, self._functional, self._levels_for, ranks)
            # Keras must not track the scan as a layer or state of the model.
            object.__setattr__(self, "_scan", scan)
        return scan

    def _levels_for(self, elements: list[Element], rows: int) -> int:
        if self.chosen_levels is None:
            sample = [_first(element, rows) for element in elements]
            counter = counting.Counter(sample, scale=rows)
            self.chosen_levels = counting.choose(counter, workers=threads.usable_cpus())
        return self.chosen_levels

    def _input(self, x: Any) -> Any:
        flat = keras.tree.flatten(x)
        if len(flat) != 1:
            raise ValueError(f"`x` must be one array. Received: {len(flat)} of them")
        tensor = tf.cast(flat[0], self.inputs[0].dtype)
        if len(tensor.shape) == len(self.inputs[0].shape) - 1:
            tensor = tf.expand_dims(tensor, -1)
        return tensor


def _first(element: Element, rows: int) -> Element:
    """Return the matrix of the first example."""
    if not element.per_example:
        return element
    matrix = element.matrix
    height, width = (size // rows for size in matrix.shape)
    end = matrix.indptr[height]
    block = csr(
        matrix.data[:end], matrix.indices[:end], matrix.indptr[: height + 1], (height, width)
    )  # fmt: skip
    return dataclasses.replace(element, matrix=block)
