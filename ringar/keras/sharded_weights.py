"""Stage 3 of ZeRO: each rank keeps its slice of every weight only, and trains it.

The weights of a layer are gathered when it is called (`gathering.py`), and their gradients arrive
at the optimizer as reduced slices. On N ranks, with P parameters, a rank sends

    all-gather         of the weights, layer by layer          (N-1)/N P
    all-gather         again, in the backward pass             (N-1)/N P at most
    reduce-scatter     of the gradients, layer by layer        (N-1)/N P

which is 1.5 times what an allreduce sends. Two small messages come in front: whether a step begins,
and the rows of each rank, once they are known. A rank that has no data left repeats the
collectives of the step, with zeros for gradients, and takes the optimizer's step on its slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives import Max, branches, grouped_allreduce
from ringar.collectives import grouped_reducescatter as scatter
from ringar.collectives.shares import WHOLE
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import or_all
from ringar.keras import share
from ringar.keras.exchange import Variables
from ringar.keras.reduce_scatter import ReduceScatter
from ringar.keras.reduction import is_overwritten, spread_overflow, tensor_like
from ringar.keras.variable_slices import VariableSlices
from ringar.keras.zero import gathering, passes, units
from ringar.keras.zero.passes import Plan
from ringar.keras.zero.weight_slice import WeightSlice, is_of_keras, is_sharded, slice_of
from ringar.sharding.cut import cut_of
from ringar.sharding.variable_slice import VariableSlice


class WeightSlices(VariableSlices):
    """Let the optimizer train the slices of weights that this rank keeps.

    Attributes:
        trainer: reduces the gradients of the slices.
    """

    trainer: LayerReduceScatter

    def prepare(
        self, optimizer: keras.optimizers.Optimizer, model: keras.Model, inputs: Any
    ) -> None:
        """Make the weights that the first batch would make, and shard all before a step."""
        with tf.init_scope():
            if not all(layer.built for layer in model._flatten_layers()):
                model(tf.nest.map_structure(_symbol, inputs), training=True)
            if not optimizer.built and tf.executing_eagerly():
                optimizer.build(model.trainable_variables)

    def _part(self, variable: Any) -> Any:
        if isinstance(variable, VariableSlice) or is_overwritten(variable):
            return variable
        if cut_of(variable) is not None or not is_of_keras(variable):
            raise UnsupportedError(
                f'rank {place.rank()} | shard="weights": expected variables of layers that every '
                f"rank has whole, received {getattr(variable, 'path', variable)}; use "
                'shard="gradients" for a tf.Variable, and no `shard` for a split layer'
            )
        part = units.cut(variable, self.trainer.process_set)
        part.trainer = self.trainer
        passes.train_with(self.trainer)
        self._slices[part._unique_id] = part
        return part

    def clip(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        clip: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Clip by the norms of whole gradients, with the formulas of Keras."""
        clipped = super().clip(optimizer, gradients, clip)
        branches.note(clipped)  # perhaps in the branch of a step that is due
        return clipped

    def publish(self) -> None:
        """Do nothing: the optimizer trains the slices themselves."""

    def constrain(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Constrain whole variables, as Keras does after a step: gather them for a moment."""
        pairs = [(g, v) for g, v in zip(gradients, variables or (), strict=False) if g is not None]
        bound = [v for _, v in pairs if is_sharded(v) and v.constraint is not None]
        for variable in bound:
            part = slice_of(variable)
            # Otherwise TensorFlow would not keep this collective behind the last reduction.
            branches.note([g for g, _ in pairs])
            with branches.behind():
                (weight,) = gathering.gathered(
                    [part], [part.storage.dtype], "weights/constraint", self.trainer.process_set
                )
            variable.assign(variable.constraint(weight))
            branches.note([weight])


class LayerReduceScatter(ReduceScatter):
    """Reduce-scatter the gradients of each layer in the backward pass."""

    def __call__(
        self, gradients: Sequence[Any], variables: Variables = None, loss_scale: Any = None
    ) -> list[Any]:
        """Return this rank's slices of gradients, which are reduced, and reduce other gradients.

        Raises:
            ValueError: a gradient is not one of a sharded weight.
        """
        if self.is_alone or all(gradient is None for gradient in gradients):
            return self._reduction(gradients, variables, loss_scale)
        for gradient, variable in zip(gradients, variables or gradients, strict=True):
            if gradient is not None:
                self._check(gradient, variable)
        if self._answer is None:
            self._start = passes.end_pass(self, variables)
        reduced = list(gradients)
        overwritten = [i for i, v in enumerate(variables or ()) if reduced[i] is not None]
        overwritten = [i for i in overwritten if not is_sharded(variables[i])]  # type: ignore[index]
        if overwritten:
            maxima = grouped_allreduce(
                [tensor_like(variables[i], reduced[i]) for i in overwritten],  # type: ignore[index]
                op=Max,
                name="overwrites",
                process_set=self.process_set,
            )
            for i, maximum in zip(overwritten, maxima, strict=True):
                reduced[i] = maximum
        if loss_scale is not None:
            spread_overflow(reduced, range(len(reduced)), self.process_set)
        return reduced

    def _check(self, gradient: Any, variable: Any) -> None:
        is_ready = is_overwritten(variable) or (
            is_sharded(variable) and tuple(gradient.shape) == slice_of(variable).shape
        )
        if not is_ready:
            raise ValueError(
                f'rank {place.rank()} | DistributedOptimizer(shard="weights"): expected gradients '
                "of weights that were sharded before the step, from tape.gradient(loss, "
                f"model.trainable_weights), received one of shape {tuple(gradient.shape)} for "
                f"{getattr(variable, 'path', 'an unknown variable')}; call "
                "optimizer.build(model.trainable_variables) on every rank before the first step"
            )

    # What a pass asks of its trainer.

    def tell(self, plan: Plan) -> tf.Tensor:
        """Tell the other ranks that a step begins; record the step; return their answer."""
        wholes = [part.variable for part in self._slices]

        def repeat(_: Sequence[Any]) -> tf.Tensor:
            answer = self._ask(self._reduction.control(WHOLE, (), begins_step))
            # Where all ranks are idle, there is no step.
            is_step = answer[1] < float(or_all(self.process_set).size())
            branches.act_if(is_step, lambda: self._repeat(plan, answer))
            return answer[1]

        begins_step = share.record(repeat, [None] * len(wholes), wholes)
        step = share.current()
        plan.record = share.record_of(wholes[0]) if step is None else step.records[-1]
        return self._ask(self._reduction.control(WHOLE, (), begins_step))

    def _repeat(self, plan: Plan, answer: tf.Tensor) -> None:
        gradients = plan.repeat()
        if plan.variables is None:
            return
        slices = [
            gradients.get(slice_of(v)._unique_id)
            if is_sharded(v)
            else tf.zeros(v.shape, v.dtype)  # written over, with the maximum of all ranks
            for v in plan.variables
        ]
        self._answer = answer
        try:
            self._holder.apply(slices, plan.variables)
        finally:
            self._answer = None

    def weigh(self, plan: Plan) -> tf.Tensor:
        """Tell the other ranks this rank's rows, and return its weight in averages."""
        rows = share.rows()
        if plan.record is not None:
            plan.record.has_rows = isinstance(rows, tf.Tensor) or rows != WHOLE
        return self.repeat_rows()

    def repeat_rows(self) -> tf.Tensor:
        """Tell the other ranks the rows of this rank, if it has any; return its weight."""
        wholes = [part.variable for part in self._slices]
        return self._ask(self._reduction.control(share.rows(), wholes, False), "rows")[0]

    def scatter(
        self, slices: Sequence[WeightSlice], flat: list[tf.Tensor], weight: Any, name: str
    ) -> list[tf.Tensor]:
        """Return this rank's slices of reduced gradients.

        Args:
            slices: those of the weights.
            flat: the flat gradients of the whole weights on this rank.
            weight: the weight of this rank in averages; None: the gradients are zeros.
            name: that of the collective.
        """
        if not flat:
            return []
        reduced = scatter(
            flat if weight is None else self._weighted(flat, weight),
            self.op,
            compression=self._reduction.of_dense,
            prescale_factor=self._reduction.prescale_factor,
            postscale_factor=self._reduction.postscale_factor,
            name=name,
            process_set=self.process_set,
        )
        return [part.padded(tensor) for part, tensor in zip(slices, reduced, strict=True)]


def _symbol(tensor: Any) -> keras.KerasTensor:
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    is_ragged, is_sparse = (isinstance(tensor, t) for t in (tf.RaggedTensor, tf.SparseTensor))
    kinds = {"ragged": True} if is_ragged else {"sparse": is_sparse}
    return keras.KerasTensor(tensor.shape, dtype, **kinds)
