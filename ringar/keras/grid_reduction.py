"""The reduction of gradients on a grid.

The gradient of a cut variable is averaged over its data set, the gradient of a whole variable over
all ranks. Both averages are right: after a join all ranks of a model group hold the same gradient,
and within a split each rank holds the gradient of its own part (`ringar.parallel.exchange`). With
`op=ringar.Sum` both are the sum over the model groups: that of a whole variable over all ranks,
divided by the number of parts.

A norm that an optimizer computes here is the norm of one part, and differs between the ranks of a
model group. `clip` therefore clips before the optimizer, by the norms of the whole variables.
Optimizers whose updates depend on norms are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives import Sum, allreduce
from ringar.keras.exchange import Exchange, Reducer, Variables
from ringar.keras.reduction import Reduction, all_finite, spread_overflow
from ringar.sharding.cut import cut_of
from ringar.sharding.grid import Grid
from ringar.sharding.slots import NOT_ELEMENTWISE, inner_optimizer, with_nested

#: The class, which Keras 3.12 lacks.
_MULTI_OPTIMIZER = getattr(keras.optimizers, "MultiOptimizer", ())


class GridReduction(Reducer):
    """Reduce gradients as `ringar.keras.reduction.Reduction` does, on a grid.

    Args:
        over_all: the reduction of variables that every rank has whole.
        grid: the grid.
    """

    grid: Grid

    def __init__(self, over_all: Reduction, grid: Grid) -> None:
        if over_all.process_set is not None:
            raise ValueError("`process_set` must be None with `grid`, which has its own.")
        self.grid = grid
        self._over_data = dataclasses.replace(over_all, process_set=grid.data_set)
        if over_all.op is Sum:
            # All ranks of a model group have the gradient of a whole variable: it counts once.
            postscale = over_all.postscale_factor / grid.model
            over_all = dataclasses.replace(over_all, postscale_factor=postscale)
        self._over_all = over_all
        self.op, self.process_set = over_all.op, None

    def __call__(
        self, gradients: Sequence[Any], variables: Variables = None, loss_scale: Any = None
    ) -> list[Any]:
        """Reduce as `Reduction` does; `variables` must be given."""
        if self.grid.model == 1:
            return self._over_all(gradients, variables, loss_scale)
        if variables is None:
            raise ValueError(
                "`trainable_variables` must be passed with the gradients, or the optimizer be "
                "built: on a grid they tell what is cut. Received: trainable_variables=None"
            )
        reduced: list[Any] = list(gradients)
        cut: list[int] = []
        rest: list[int] = []
        for i, variable in enumerate(variables):
            axis = cut_of(variable)
            (rest if axis is None else cut).append(i)
            if axis is not None and axis.grid is not self.grid:
                raise ValueError(
                    "`grid` must be the one that the layers were made in. Received: "
                    f"{self.grid}, and a variable {variable.path} of another grid."
                )
        states = []
        for reduction, indices in ((self._over_all, rest), (self._over_data, cut)):
            results, save_state = reduction.reduce(
                [reduced[i] for i in indices], [variables[i] for i in indices], loss_scale
            )
            states.append(save_state)
            for i, result in zip(indices, results, strict=True):
                reduced[i] = result
        if loss_scale is not None:
            # A gradient of one part may overflow: all ranks of the model group skip the step.
            spread_overflow(reduced, cut, self.grid.model_set)
        for save_state in filter(None, states):  # after all ranks know whether to skip the step
            save_state(all_finite(reduced))
        return reduced

    def clip(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None,
    ) -> list[Any]:
        """Clip by norms as `optimizer` would if the variables were whole.

        The optimizer then clips nothing more: a part's norm is at most that of the whole.

        Raises:
            ValueError: the optimizer depends on norms in a way that is not supported on a grid.
        """
        cut = [i for i, v in enumerate(variables or ()) if cut_of(v) is not None]
        if self.grid.model == 1 or not cut:
            return list(gradients)
        inner = inner_optimizer(optimizer)
        self._check(inner)
        self._check_held(inner, list(variables or ()))
        if not inner.clipnorm and not inner.global_clipnorm:
            return list(gradients)
        # The gradients still have these factors.
        scale: Any = inner.loss_scale_factor or 1.0
        if inner is not optimizer:
            scale = scale * tf.convert_to_tensor(optimizer.dynamic_scale)
        limit, global_limit = inner.clipnorm, inner.global_clipnorm
        clipped: list[Any] = list(gradients)
        present = [i for i, g in enumerate(gradients) if g is not None]
        squares = {i: _square_sum(gradients[i]) for i in present}
        parts = [i for i in present if i in cut]
        of_parts = allreduce(
            tf.stack([squares[i] for i in parts]),
            Sum,
            name="gradients/norms",
            process_set=self.grid.model_set,
        )
        squares.update(zip(parts, tf.unstack(of_parts), strict=True))
        if limit:
            for i in parts:
                clipped[i] = _limit(clipped[i], tf.sqrt(squares[i]), limit * scale)
        else:
            norm = tf.sqrt(tf.add_n([squares[i] for i in present]))
            for i in present:
                clipped[i] = _limit(clipped[i], norm, global_limit * scale)
        return clipped

    def _check(self, optimizer: keras.optimizers.Optimizer) -> None:
        name = optimizer.__class__.__name__
        if name in NOT_ELEMENTWISE:
            raise ValueError(
                "`optimizer` must treat each element by itself where variables are cut: "
                f"{name} uses norms of whole variables. Received: {name} on {self.grid}. Use Adam, "
                "AdamW, SGD or RMSprop, for example."
            )
        if optimizer.gradient_accumulation_steps and (
            optimizer.clipnorm or optimizer.global_clipnorm
        ):
            raise ValueError(
                "`gradient_accumulation_steps` must be None with `clipnorm` or `global_clipnorm` "
                "where variables are cut: the accumulated gradients would be clipped part by part. "
                f"Received: gradient_accumulation_steps={optimizer.gradient_accumulation_steps}"
            )

    def _check_held(self, optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> None:
        """Check the optimizers in a `MultiOptimizer` whose variables are cut."""
        if not optimizer.built and isinstance(optimizer, _MULTI_OPTIMIZER):
            optimizer.build(variables)  # as `apply` would: this tells which variables each has
        for nested in list(with_nested(optimizer))[1:]:
            if any(cut_of(variable) is not None for variable in nested._trainable_variables):
                self._check(nested)
                if nested.clipnorm or nested.global_clipnorm:
                    raise ValueError(
                        "`clipnorm` and `global_clipnorm` must be None in an optimizer within "
                        f"another, where variables are cut: {nested.__class__.__name__} would take "
                        f"the norms of parts. Received: clipnorm={nested.clipnorm}, "
                        f"global_clipnorm={nested.global_clipnorm} on {self.grid}. Use `clipvalue`."
                    )


def reducing(reduction: Reduction, grid: Grid | None) -> Exchange:
    """Return the exchange of ranks that reduce their gradients in every step.

    Args:
        reduction: how gradients are reduced.
        grid: the grid on which the model is split, if it is.
    """
    on_grid = {} if grid is None else {"grid": str(grid)}
    return Exchange(
        reduction if grid is None else GridReduction(reduction, grid),
        description={**reduction.description, **on_grid},
        chosen=reduction.chosen,
        twin=lambda: reducing(reduction.renewed(), grid),
    )


def _square_sum(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))


def _limit(
    gradient: tf.Tensor | tf.IndexedSlices, norm: tf.Tensor, limit: float | tf.Tensor
) -> tf.Tensor | tf.IndexedSlices:
    """Return `gradient`, scaled down to the norm `limit` if its norm is greater."""
    factor = tf.where(norm > limit, limit / norm, 1.0)
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
