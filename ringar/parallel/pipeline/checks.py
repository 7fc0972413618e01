"""Checks for models and arguments that do not support modules."""

from __future__ import annotations

from typing import Any

import keras

from ringar.keras.optimizer import is_distributed
from ringar.parallel.pipeline.cut import Graph

_MEAN = ("sum_over_batch_size", "mean", "auto")


def check_options(microbatches: Any, shrinking: Any) -> None:
    """Raise a ValueError for numbers out of range."""
    if not (isinstance(microbatches, int) and microbatches > 0):
        raise ValueError(
            "`microbatches` must be a positive whole number. "
            f"Received: microbatches={microbatches!r}"
        )
    if not 0 < shrinking <= 1:
        raise ValueError(
            f"`shrinking` must be above 0 and at most 1. Received: shrinking={shrinking!r}"
        )


def check_dtypes(graph: Graph) -> None:
    """Raise a ValueError for layers that compute in float16."""
    for node in graph.nodes:
        if getattr(node.operation, "compute_dtype", None) == "float16":
            raise ValueError(
                "The layers must compute in float32 or bfloat16: with float16, each module would "
                "scale the loss by a number of its own. Received: layer "
                f'{node.operation.name} with dtype policy "mixed_float16". Use "mixed_bfloat16".'
            )


def check_optimizer(optimizer: keras.optimizers.Optimizer, modules: int) -> None:
    """Raise a ValueError for an optimizer that does not support modules."""
    if is_distributed(optimizer):
        raise ValueError(
            "`optimizer` must be a plain one: a pipelined model averages the gradients over "
            f"its replicas itself. Received: {optimizer}, which is distributed"
        )
    if modules > 1:
        check_scale(optimizer)
    if modules > 1 and getattr(optimizer, "global_clipnorm", None) is not None:
        raise ValueError(
            "`global_clipnorm` must be None for a model in several modules, which have "
            "gradients of different batches. Received: global_clipnorm="
            f"{optimizer.global_clipnorm}. Use `clipnorm` or `clipvalue`."
        )


def check_scale(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise a ValueError for an optimizer that scales the loss."""
    if (
        isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        or getattr(optimizer, "loss_scale_factor", None) is not None
    ):
        raise ValueError(
            "`optimizer` must not scale the loss: gradients of other parts are not scaled. "
            f"Received: {optimizer}, loss_scale_factor="
            f'{getattr(optimizer, "loss_scale_factor", None)}. Use "mixed_bfloat16" in place of '
            '"mixed_float16".'
        )


def check_steps(steps_per_execution: int) -> None:
    """Raise a ValueError unless each execution is one step."""
    if steps_per_execution != 1:
        raise ValueError(
            "`steps_per_execution` must be 1 for a model in several modules. "
            f"Received: steps_per_execution={steps_per_execution}"
        )


def check_losses(loss: Any) -> None:
    """Raise a ValueError for losses that are not means over the batch."""
    for part in keras.tree.flatten(loss):
        reduction = getattr(part, "reduction", "mean")
        if reduction not in _MEAN:
            raise ValueError(
                'The losses must be means over the batch with schedule="microbatch". '
                f"Received: loss={part}, reduction={reduction!r}"
            )
