"""The loss and the metrics, computed in the last module and shared with all ranks.

During an epoch, each gradient brings the other modules a report: a vector of the metrics, in the
order of their names. A broadcast tells the names once. At the end of an epoch or an evaluation, a
broadcast gives all ranks the current metrics of the last module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives import broadcast_object
from ringar.job.process_sets import ProcessSet

Numbers = dict[str, float]
Targets = tuple[Any, Any, Any]
"""Inputs, targets and sample weights, as `keras.Model.compute_loss` takes them."""


class Metrics:
    """Share the metrics of a pipelined model.

    Args:
        model: the compiled model, with the loss and the metrics.
        ranks: the ranks of the model group, in the order of the modules.
        is_last: whether this rank has the last module.
    """

    def __init__(self, model: keras.Model, ranks: ProcessSet, is_last: bool) -> None:
        self._model, self._ranks, self._is_last = model, ranks, is_last
        self._shown: Numbers | None = None
        self.are_local = False

    @contextmanager
    def local(self) -> Iterator[None]:
        """Return a context in which the model's metrics are local to this rank."""
        before, self.are_local = self.are_local, True
        try:
            yield
        finally:
            self.are_local = before

    # In the last module -------------------------------------------------------------------------

    def objective(
        self, outputs: Any, targets: Targets, penalty: tf.Tensor, share: tf.Tensor
    ) -> tf.Tensor:
        """Update the metrics, and return the loss of a part of a batch, times `share`.

        Args:
            outputs: the outputs of the model.
            targets: inputs, targets and sample weights of the part.
            penalty: the sum of the penalties of the previous modules.
            share: the fraction of the batch.
        """
        return self._update(outputs, targets, penalty) * share

    def score(self, outputs: Any, targets: Targets, penalty: tf.Tensor) -> None:
        """Update the metrics in an evaluation."""
        self._update(outputs, targets, penalty)

    def report(self) -> tf.Tensor:
        """Return the metrics so far, in the order of their names."""
        values = [tf.reshape(value, [-1]) for value in self._local_results().values()]
        return tf.cast(tf.concat(values, 0), tf.float32)

    def _update(self, outputs: Any, targets: Targets, penalty: tf.Tensor) -> tf.Tensor:
        model, (x, y, weight) = self._model, targets
        rows = tf.shape(keras.tree.flatten(x)[0])[0]
        with self._without_empty_batches(rows):
            loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight)
        # For a batch without rows Keras returns an empty vector, or NaN where a compiled step does
        # not know the number of rows. A weight of 0 does not take NaN out of a mean.
        loss = penalty + tf.reduce_sum(tf.cast(loss, tf.float32))
        shown = tf.where(rows > 0, loss, tf.zeros_like(loss))
        model._loss_tracker.update_state(shown, sample_weight=rows)
        with self.local():
            model.compute_metrics(x, y, outputs, sample_weight=weight)
        return loss

    @contextmanager
    def _without_empty_batches(self, rows: tf.Tensor) -> Iterator[None]:
        """Return a context in which a batch without rows leaves the losses of outputs alone."""
        before = [tf.identity(variable) for variable in self._losses_of_outputs()]
        yield
        variables = self._losses_of_outputs()  # which the first batch makes
        for variable, value in itertools.zip_longest(variables, before, fillvalue=tf.zeros([])):
            variable.assign(tf.where(rows > 0, variable, value))

    def _losses_of_outputs(self) -> list[keras.Variable]:
        """Return the totals and counts that Keras keeps for models of several outputs."""
        # None, or without metrics in old versions, which keep no such totals.
        trackers = getattr(self._model._compile_loss, "metrics", [])
        return [variable for tracker in trackers for variable in tracker.variables]

    def _local_results(self) -> dict[str, Any]:
        with self.local():
            results: dict[str, Any] = self._model.get_metrics_result()
            # In the order of a list from `evaluate`; Keras before 3.14 sorts the dict by name.
            order = self._model._flatten_metrics_in_order({name: name for name in results})
        return {name: results[name] for name in keras.tree.flatten(order)}

    # On all ranks -------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the metrics, in the order of the last module; empty until shared."""
        return list(self._shown or ())

    def share(self) -> Numbers:
        """Return the current metrics of the last module. Collective over the model group.

        Raises:
            ValueError: on every rank, if a metric is not a single number.
        """
        metrics: Any = None
        if self._is_last:
            metrics = {
                name: np.asarray(value).tolist() for name, value in self._local_results().items()
            }
        metrics = broadcast_object(
            metrics, self._ranks.ranks[-1], name="pipeline/metrics", process_set=self._ranks
        )
        for name, value in metrics.items():
            if isinstance(value, list):
                raise ValueError(
                    f"The metrics must be single numbers. Received: {name} with {len(value)} of "
                    "them; average it over the classes."
                )
        self._shown = metrics
        return dict(metrics)

    def logs(self, report: tf.Tensor | None) -> Numbers:
        """Return the latest metrics that this rank has; the first call is `share`.

        Args:
            report: the last report, or None.
        """
        if self._shown is None:
            return self.share()
        if report is not None:
            self._shown = dict(zip(self._shown, map(float, report.numpy()), strict=True))
        return dict(self._shown)
