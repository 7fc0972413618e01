"""The steps of a compiled module on this rank, and the updates of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ringar.collectives import allgather_object
from ringar.parallel.pipeline.agreement import Layout
from ringar.parallel.pipeline.batch import Batch, check_same
from ringar.parallel.pipeline.metrics import Metrics
from ringar.parallel.pipeline.module import Module
from ringar.parallel.pipeline.recording import Log
from ringar.parallel.pipeline.synthetic import SyntheticModule

if TYPE_CHECKING:
    from ringar.parallel.pipeline.model import Pipelined


class Execution:
    """Run a module for a pipelined model that is compiled, with a built optimizer.

    Args:
        model: the model.
        layout: the modules.
        compiled: compiles a function, as `tf.function` does.

    Attributes:
        module: the module.
        metrics: the metrics of the last module, shared.
        compiled: as the argument.
        batch_is_compared: whether the ranks have compared the first batch of `fit`.
    """

    def __init__(self, model: Pipelined, layout: Layout, compiled: Callable[[Any], Any]) -> None:
        part, ranks = layout.grid.part, layout.grid.model_set
        is_last = part == layout.grid.model - 1
        self.metrics, self.compiled = Metrics(model, ranks, is_last), compiled
        self._model, self._synthesizers = model, layout.synthesizers
        self.batch_is_compared = False
        self.module: Module
        if layout.synthesizers is not None:
            self.module = SyntheticModule(
                layout.network, layout.synthesizers, ranks=ranks, module=part,
                metrics=self.metrics, shrinking=layout.shrinking, compiled=compiled,
            )  # fmt: skip
        else:
            self.module = Module(
                layout.network, layout.schedule,
                before=None if part == 0 else ranks.ranks[part - 1],
                after=None if is_last else ranks.ranks[part + 1],
                metrics=self.metrics, shrinking=layout.shrinking, compiled=compiled,
            )  # fmt: skip
        self._apply = compiled(
            lambda gradients: model.optimizer.apply(gradients, model.trainable_variables)
        )

    def step(self, batch: Batch) -> Mapping[str, object]:
        """Train on a batch; return the metrics to show. Ranks compare their first batches."""
        if not self.batch_is_compared:
            self.batch_is_compared = True
            check_same(batch, self._model.grid.model_set)
            if self._synthesizers is not None:
                self._synthesizers.check_labels(batch.y)
        self._update(self.module.step(batch))
        return self.metrics.logs(self.module.report)

    def drain(self) -> None:
        """Apply the gradients of the batches in flight."""
        for gradients in self.module.drain():
            self._update(gradients)

    def record_messages(self, on: bool) -> list[Log]:
        """Start or stop a log; return that of each module. Collective over the model group."""
        assert isinstance(self.module, SyntheticModule)
        self.drain()
        ranks = self._model.grid.model_set
        logs = allgather_object(self.module.log, name="messages", process_set=ranks)
        self.module.log = None
        if on:
            self.module.record(self._model.optimizer)
        return [log for log in logs if log is not None]

    def _update(self, gradients: list[tf.Tensor] | None) -> None:
        if gradients and self._model.trainable_variables:
            self._apply(gradients)


def compiler(run_eagerly: bool, jit_compile: bool) -> Callable[[Any], Any]:
    """Return a decorator that compiles functions."""
    if run_eagerly:
        return lambda function: function
    return tf.function(reduce_retracing=True, jit_compile=jit_compile, autograph=False)
