"""The loss and the metrics: computed in the last module, known to all ranks.

The other modules see the metrics late: as a report that comes back with each gradient, a vector of
numbers, in the order of the names. The names are told once, by a broadcast. At the end of an epoch,
and of an evaluation, all ranks are given the last module's metrics as they are then.
"""

from __future__ import annotations

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
        model: which has the loss and the metrics; compiled.
        ranks: of the model group; the last one has the last module.
        is_last: whether this is the last one.
    """

    def __init__(self, model: keras.Model, ranks: ProcessSet, is_last: bool) -> None:
        self._model, self._ranks, self._is_last = model, ranks, is_last
        self._shown: Numbers | None = None
        self.are_local = False

    @contextmanager
    def local(self) -> Iterator[None]:
        """Return a context in which the model's metrics are this rank's own."""
        before, self.are_local = self.are_local, True
        try:
            yield
        finally:
            self.are_local = before

    # In the last module -------------------------------------------------------------------------

    def objective(
        self, outputs: Any, targets: Targets, penalty: tf.Tensor, share: tf.Tensor
    ) -> tf.Tensor:
        """Return the loss of a part of a batch, in proportion; the metrics are updated.

        Args:
            outputs: of the model.
            targets: of the part of the batch.
            penalty: of the modules before.
            share: how much of the batch the part is.
        """
        return self._update(outputs, targets, penalty) * share

    def score(self, outputs: Any, targets: Targets, penalty: tf.Tensor) -> None:
        """Update the metrics in an evaluation."""
        self._update(outputs, targets, penalty)

    def report(self) -> tf.Tensor:
        """Return the metrics so far, in the order of their names."""
        values = [tf.reshape(value, [-1]) for value in self._own().values()]
        return tf.cast(tf.concat(values, 0), tf.float32)

    def _update(self, outputs: Any, targets: Targets, penalty: tf.Tensor) -> tf.Tensor:
        model, (x, y, weight) = self._model, targets
        loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight)
        loss = penalty + tf.cast(loss, tf.float32)
        rows = tf.shape(keras.tree.flatten(x)[0])[0]
        model._loss_tracker.update_state(loss, sample_weight=rows)
        with self.local():
            model.compute_metrics(x, y, outputs, sample_weight=weight)
        return loss

    def _own(self) -> dict[str, Any]:
        with self.local():
            results: dict[str, Any] = self._model.get_metrics_result()
        return results

    # On all ranks -------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the metrics, in the order of the last module; empty until shared."""
        return list(self._shown or ())

    def share(self) -> Numbers:
        """Return the last module's metrics as they are. Collective over the model group.

        Raises:
            ValueError: on every rank, if one is no single number.
        """
        metrics: Any = None
        if self._is_last:
            metrics = {name: np.asarray(value).tolist() for name, value in self._own().items()}
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
        """Return the metrics that this rank knows; the first time, as `share`.

        Args:
            report: what came back last, if anything did.
        """
        if self._shown is None:
            return self.share()
        if report is not None:
            self._shown = dict(zip(self._shown, map(float, report.numpy()), strict=True))
        return dict(self._shown)
