"""The weights of a layer, gathered while the layer needs them.

Weights are sharded: each rank keeps slices. The unit of gathering is a layer that a model calls,
with all layers inside it, or a group of layers that the user names. In a *pass*, a forward pass
with its backward pass, a unit costs

    forward     one grouped all-gather of its slices; the whole weights live until the call's end
    backward    a second all-gather of its matrices (`regather.py`), in graphs only
                one grouped reduce-scatter of their gradients: the gradient of the first one

Gatherings could all run when a step begins, and would hold all weights. So the gathering of a unit
waits for the input of the unit before it, and that of the backward pass for the gradient that
reaches the unit after it: one layer is prefetched. The last unit keeps its weights, since its
backward pass follows at once. Vectors are kept, too.

Every reading of a weight outside a unit is a gathering of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record as tape_record
from tensorflow.python.framework import ops as tf_ops

from ringar.collectives import grouped_allgather
from ringar.collectives.compiled import is_compiling
from ringar.job.process_sets import ProcessSet
from ringar.keras.zero import regather
from ringar.keras.zero.passes import Pass, Trainer, local_tensors
from ringar.keras.zero.weight_slice import WeightSlice, slice_of
from ringar.keras.zero.whole_weight import WholeWeight


class Unit:
    """Gather some weights in a pass.

    Args:
        pass_: the pass.
        variables: the sharded variables.
        dtypes: for each, the dtype in which it is needed.
        inputs: tensors that the unit needs, for the gathering of the unit after it.
        is_called: whether a layer, or several, are called with it.
        is_watched: whether a gradient by `inputs` may be asked for.
        reaches_back: whether the backward pass goes on to the unit before it.

    Attributes:
        weights: the whole weights, by the identities of the variables.
        calls_left: the calls of a group that are still to come.
    """

    calls_left = 0

    def __init__(
        self,
        pass_: Pass,
        variables: Sequence[Any],
        dtypes: Sequence[Any],
        inputs: Sequence[Any] = (),
        is_called: bool = False,
        is_watched: bool = False,
        reaches_back: bool = False,
    ) -> None:
        self._pass = pass_
        self._slices = [slice_of(variable) for variable in variables]
        self._dtypes = list(dtypes)
        self._number = next(pass_.numbers)
        self._before = pass_.units[-1] if pass_.units else None
        self.inputs = local_tensors(inputs)
        self._connected: set[int] = set()
        self._copies: dict[int, tf.Tensor] = {}
        self._backward: int | None = None
        self._is_trained = [bool(variable.trainable) for variable in variables]
        # Frozen weights at the beginning of a model have no backward pass.
        records = tape_record.could_possibly_record() and (is_watched or any(self._is_trained))
        with nullcontext() if records else tape_record.stop_recording():
            self._reads = [part.read() for part in self._slices]
        self._is_large = [len(part.variable.shape) > 1 for part in self._slices]
        self._drops = pass_.graph is not None and records and reaches_back and any(self._is_large)
        if is_called:
            pass_.units.append(self)
        after = [*([] if self._before is None else self._before.inputs), pass_.answer]
        self._wholes = self._link(after) if records else self._gather(self._reads, after)
        self.weights = {
            id(v): WholeWeight(v, tensor) for v, tensor in zip(variables, self._wholes, strict=True)
        }

    def leave(self, output: Any) -> Any:
        """Return an output of a layer of this unit, which tells when the backward pass comes."""
        is_tensor = isinstance(output, tf.Tensor) and output.dtype.is_floating
        if not self._drops or not is_tensor:
            return output

        @tf.custom_gradient
        def leave(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], Any]]:
            def backward(upstream: Any) -> Any:
                self._begin_backward(upstream)
                return upstream

            return tf.identity(x), backward

        outside = leave(output)
        if hasattr(output, "_keras_mask"):
            outside._keras_mask = output._keras_mask
        return outside

    def _link(self, after: Sequence[Any]) -> list[tf.Tensor]:
        """Return the whole weights; their gradients are reduced to gradients of the slices."""

        @tf.custom_gradient
        def gather(*reads: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            return self._gather(list(reads), after), self._reduce

        # A gradient of all weights has zeros for those that the loss does not depend on. The
        # links tell them apart: without an upstream gradient a link is not asked.
        def linked(number: int, tensor: tf.Tensor) -> tf.Tensor:
            @tf.custom_gradient
            def link(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], Any]]:
                def backward(upstream: Any) -> tf.Tensor:
                    self._connected.add(number)
                    return tf.ensure_shape(tf.convert_to_tensor(upstream), x.shape)

                return tf.identity(x), backward

            return link(tensor)

        return [linked(i, tensor) for i, tensor in enumerate(gather(*self._reads))]

    def _gather(self, reads: Sequence[Any], after: Sequence[Any]) -> list[tf.Tensor]:
        name = f"weights/gather_{self._number}"
        gather = functools.partial(
            gathered, self._slices, self._dtypes, name, self._pass.process_set
        )
        # Ranks must all compile a gathering, or none.
        is_compiled = is_compiling()
        self._pass.plan.gathers.append(
            tf.function(gather, jit_compile=True, autograph=False) if is_compiled else gather
        )
        self._pass.plan.entries.append(lambda _: gather())
        with tf.control_dependencies(local_tensors(after)):
            return gather(reads)

    def _begin_backward(self, upstream: Any) -> None:
        if tf.executing_eagerly() or tf_ops.get_default_graph() is not self._pass.graph:
            return  # the ops of the backward pass are in another graph
        for unit in (self, self._before):
            if unit is not None and unit._drops and unit is not self._pass.units[-1]:
                unit._gather_again(upstream)

    def _gather_again(self, upstream: Any) -> None:
        if self._backward is not None:
            return
        self._backward = regather.place()
        large = [i for i, is_large in enumerate(self._is_large) if is_large]
        gather = functools.partial(
            gathered,
            [self._slices[i] for i in large],
            [self._dtypes[i] for i in large],
            f"weights/gather_again_{self._number}",
            self._pass.process_set,
        )
        self._pass.plan.entries.append(lambda _: gather())
        with tf.control_dependencies([tf.convert_to_tensor(upstream)]):
            wholes = gather([self._reads[i] for i in large])
        self._copies = dict(zip(large, wholes, strict=True))

    def _reduce(self, *upstream: Any) -> list[Any]:
        """Return the gradients of the slices, reduced; None for frozen and unconnected weights."""
        for number, copy in self._copies.items():
            assert self._backward is not None
            regather.redirect(self._wholes[number], copy, self._backward)
        self._copies = {}
        trained = [i for i in sorted(self._connected) if self._is_trained[i]]
        reduced: list[Any] = [None] * len(self._slices)
        if not trained:
            return reduced
        trainer, weight = self._pass.trainer, self._pass.weight()
        assert trainer is not None
        slices = [self._slices[i] for i in trained]
        name = f"gradients/scatter_{self._number}"
        self._pass.plan.entries.append(functools.partial(_scatter_zeros, trainer, slices, name))
        flat = [
            tf.reshape(tf.cast(upstream[i], self._slices[i].storage.dtype), [-1]) for i in trained
        ]
        for i, gradient in zip(trained, trainer.scatter(slices, flat, weight, name), strict=True):
            reduced[i] = gradient
        return reduced


def gathered(
    slices: Sequence[WeightSlice],
    dtypes: Sequence[Any],
    name: str,
    process_set: ProcessSet | None,
    reads: Sequence[Any] | None = None,
) -> list[tf.Tensor]:
    """Return whole weights; without `reads`, from the present values of the slices."""
    # Compiled code knows the shapes before, and needs equal numbers of rows.
    is_padded, tensors = is_compiling(), []
    reads = reads or [part.read() for part in slices]
    for part, dtype, read in zip(slices, dtypes, reads, strict=True):
        tensor = tf.cast(read, dtype)
        tensors.append(tensor if is_padded or part.count == part.shape[0] else tensor[: part.count])
    flats = grouped_allgather(tensors, name=name, process_set=process_set)
    return [
        tf.reshape(part.joined(flat) if is_padded else flat, part.variable.shape)
        for part, flat in zip(slices, flats, strict=True)
    ]


def _scatter_zeros(
    trainer: Trainer, slices: Sequence[WeightSlice], name: str, gradients: dict[Any, tf.Tensor]
) -> None:
    zeros = [tf.zeros([part.elements], part.storage.dtype) for part in slices]
    for part, gradient in zip(slices, trainer.scatter(slices, zeros, None, name), strict=True):
        key = part._unique_id
        gradients[key] = gradients[key] + gradient if key in gradients else gradient
