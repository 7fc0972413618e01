"""Horovod's distributed gradient tapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.horovod.common.process_sets import global_process_set
from ringar.horovod.common.reduce_op import Average, ReduceOp
from ringar.horovod.tensorflow import joining
from ringar.horovod.tensorflow.compression import Compression
from ringar.horovod.tensorflow.gradients import GradientReduction, Groups, Settings, groups_of
from ringar.horovod.tensorflow.optimizer import layers_of, weights_of
from ringar.horovod.tensorflow.reductions import Compressor
from ringar.job.process_sets import ProcessSet
from ringar.keras import first_step
from ringar.keras import tape as tapes


class _Tape(tapes.DistributedGradientTape):
    """Record like a `tf.GradientTape`, and return gradients that are reduced."""

    def __init__(self, tape: tf.GradientTape, reduction: GradientReduction) -> None:
        super().__init__(tape)
        self._reduction, self._exchange = reduction, reduction.exchange()

    def register_local_source(self, source: Any) -> None:
        """Keep the gradients of a variable on this rank."""
        self._reduction.register_local_var(source)

    def gradient(  # type: ignore[override]  # Horovod's arguments
        self,
        target: tf.Tensor | Sequence[tf.Tensor],
        sources: Any,
        output_gradients: tf.Tensor | Sequence[tf.Tensor | None] | None = None,
        use_generic_names: bool = False,
    ) -> Any:
        """Compute gradients, and reduce them over the ranks.

        Args:
            target: the tensor to differentiate, or several, whose gradients are added up.
            sources: a variable, or a structure of them.
            output_gradients: as for `tf.GradientTape.gradient`.
            use_generic_names: no effect.
        """
        del use_generic_names
        gradients = self._tape.gradient(target, sources, output_gradients)
        variables = tf.nest.flatten(sources)
        joining.note(joining.Taped(variables, self._exchange))
        if self._exchange.period.meets:
            first_step.begin(variables, self._exchange)
        reduced = self._reduction(tf.nest.flatten(gradients), variables)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: tf.Tensor | Sequence[tf.Tensor],
        sources: Sequence[Any],
        output_gradients: tf.Tensor | Sequence[tf.Tensor | None] | None = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Compute gradients as `gradient` does, and separate those of local variables.

        Norms, for example, are computed for each kind by itself.

        Args:
            target: as for `gradient`.
            sources: a list of variables.
            output_gradients: as for `gradient`.
            use_generic_names: no effect.

        Returns:
            Pairs of a variable and its gradient, in the order of `sources`: those of local
            variables, and the others.
        """
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(sources, gradients, strict=True))
        is_local = self._reduction.is_local
        return (
            [pair for pair in pairs if is_local(pair[0])],
            [pair for pair in pairs if not is_local(pair[0])],
        )


def DistributedGradientTape(  # Horovod's name, for a function that returns an object
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Return a tape whose `gradient` reduces gradients over the ranks.

    Args:
        gradtape: a `tf.GradientTape`, before or after it has recorded.
        device_dense: no effect.
        device_sparse: no effect.
        compression: how gradients travel.
        sparse_as_dense: return dense gradients in place of `tf.IndexedSlices`.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: of an average, divide by it before the sum, multiply after it.
        num_groups: deprecated; `groups` takes its place.
        groups: the number of groups of gradients, or a list of variables for each group.
        process_set: the ranks that reduce; others get their own gradients.
        scale_local_gradients: divide gradients of local variables by the number of ranks.
    """
    del device_dense, device_sparse
    settings = Settings(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        groups_of(num_groups, groups),
        process_set,
        scale_local_gradients,
    )
    return _Tape(gradtape, GradientReduction(settings, in_tape=True))


def PartialDistributedGradientTape(  # Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Sequence[keras.layers.Layer] | keras.layers.Layer | None = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Return a tape that reduces all gradients but those of `local_layers`.

    The other arguments are those of `DistributedGradientTape`.

    Raises:
        ValueError: an item of `local_layers` is no layer.
    """
    weights = weights_of(layers_of(local_layers))
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for weight in weights:
        tape.register_local_source(weight)
    return tape
