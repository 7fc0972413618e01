"""`DistributedGradientTape`: reduced gradients for custom training loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from ringar import hooks
from ringar.collectives import Average
from ringar.collectives.compression import Compression, Compressor, checked
from ringar.keras import first_step, share
from ringar.keras.grid_reduction import reducing
from ringar.keras.reduction import Reduction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from ringar.collectives.ops import ReduceOp
    from ringar.job.process_sets import ProcessSet
    from ringar.sharding.grid import Grid

Sources = TypeVar("Sources")


class DistributedGradientTape:
    """Record like a `tf.GradientTape` and return gradients reduced over the ranks.

    Apply the gradients with a plain optimizer: a `DistributedOptimizer` would reduce them again.

    Args:
        tape: the `tf.GradientTape`, before or after it has recorded.
        op: `ringar.Average` or `ringar.Sum`.
        compression: the form in which gradients are sent. `ringar.Compression.none`: unchanged.
            `.fp16` or `.bf16`: float32 gradients in that dtype between hosts, unchanged inside a
            host. For PowerSGD, which has state, use a plain tape and a `DistributedOptimizer`: a
            tape lives for one step only.
        algorithm: the algorithm of allreduces between hosts, as for `ringar.allreduce`.
        process_set: the ranks that train together; by default all.
        grid: a `ringar.parallel.Grid`, for a model with split layers.
        bucket_bytes: the largest size of a bucket of gradients, which one collective reduces. By
            default 8 MiB; between hosts up to 64 MiB where latencies would take a large part of the
            time, as on many hosts. A larger gradient has a bucket of its own.
        prescale_factor: multiplies gradients before the reduction.
        postscale_factor: multiplies gradients after the reduction.
        sparse_as_dense: return dense gradients instead of `tf.IndexedSlices`, without gathering the
            slices of all ranks. Slices have one slice per row: equal rows are added.

    Example:
    ```python
    with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = loss_of(model(x), y)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    ```
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        *,
        op: ReduceOp = Average,
        compression: type[Compressor] = Compression.none,
        algorithm: str | None = None,
        process_set: ProcessSet | None = None,
        grid: Grid | None = None,
        bucket_bytes: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        sparse_as_dense: bool = False,
    ) -> None:
        if isinstance(tape, DistributedGradientTape):
            raise ValueError(
                "`tape` must not be distributed already: its gradients would be reduced twice."
            )
        checked(compression)
        self._tape = tape
        reduction = Reduction(
            op,
            compression,
            algorithm,
            process_set,
            bucket_bytes,
            prescale_factor,
            postscale_factor,
            sparse_as_dense,
        )
        self._exchange = reducing(reduction, grid)
        hooks.install("distributed training")

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        if (step := share.current()) is not None and step.exchange is None:
            step.exchange = self._exchange
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tape.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:
        # watch, reset, stop_recording, jacobian and so on are those of the tape.
        return getattr(self._tape, name)

    def gradient(
        self,
        target: tf.Tensor | Sequence[tf.Tensor],
        sources: Sources,
        output_gradients: tf.Tensor | Sequence[tf.Tensor | None] | None = None,
        unconnected_gradients: tf.UnconnectedGradients | str = tf.UnconnectedGradients.NONE,
    ) -> Sources:
        """Compute gradients as `tf.GradientTape.gradient` does, and reduce them over the ranks.

        Args:
            target: the tensor to differentiate, or several, whose gradients are added up.
            sources: a tensor or variable, or a structure of them, to differentiate by.
            output_gradients: as for `tf.GradientTape.gradient`.
            unconnected_gradients: as for `tf.GradientTape.gradient`.

        Returns:
            A structure like `sources`.

        Raises:
            NotInitializedError: before `ringar.init()`.
        """
        gradients = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        variables = tf.nest.flatten(sources)
        first_step.begin(variables, self._exchange)
        # Composite tensors such as IndexedSlices stay whole; None is a leaf.
        reduced = self._exchange.reduction(tf.nest.flatten(gradients), variables)
        return tf.nest.pack_sequence_as(sources, reduced)
