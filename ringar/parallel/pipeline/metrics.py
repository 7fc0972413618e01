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
import tensorflow as tf

from ringar.collectives import broadcast_object
from ringar.runtime import ProcessSet

Numbers = dict[str, float]


class Metrics:
    """Those of a pipelined model.

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
        """Within this context the model's metrics are to be this rank's own."""
        before, self.are_local = self.are_local, True
        try:
            yield
        finally:
            self.are_local = before

    # In the last module -------------------------------------------------------------------------

    def objective(self, outputs: Any, targets: Any, penalty: Any, share: Any) -> tf.Tensor:
        """The loss of a part of a batch, in proportion; the metrics are updated.

        Args:
            outputs: of the model.
            targets: of the part of the batch.
            penalty: of the modules before.
            share: how much of the batch the part is.
        """
        return self._update(outputs, targets, penalty)[0] * share

    def score(self, outputs: Any, targets: Any, penalty: Any) -> dict[str, Any]:
        """Update the metrics in an evaluation, and return them."""
        return self._update(outputs, targets, penalty)[1]

    def report(self) -> tf.Tensor:
        """The metrics so far, in the order of their names."""
        return tf.constant(list(self._own().values()), tf.float32)

    def _update(self, outputs: Any, targets: Any, penalty: Any) -> Any:
        model, (x, y, weight) = self._model, targets
        loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight)
        loss = penalty + tf.cast(loss, tf.float32)
        rows = tf.shape(keras.tree.flatten(x)[0])[0]
        model._loss_tracker.update_state(loss, sample_weight=rows)
        with self.local():
            return loss, model.compute_metrics(x, y, outputs, sample_weight=weight)

    def _own(self) -> Numbers:
        with self.local():
            return {name: float(value) for name, value in self._model.get_metrics_result().items()}

    # On all ranks -------------------------------------------------------------------------------

    def share(self) -> Numbers:
        """The last module's metrics as they are. Collective over the model group."""
        own = self._own() if self._is_last else None
        self._shown = dict(
            broadcast_object(
                own, self._ranks.ranks[-1], name="pipeline/metrics", process_set=self._ranks
            )
        )
        return dict(self._shown)

    def logs(self, report: tf.Tensor | None) -> Numbers:
        """What this rank knows of the metrics; the first time, as `share`.

        Args:
            report: what came back last, if anything did.
        """
        if self._shown is None:
            return self.share()
        if report is not None:
            self._shown = dict(zip(self._shown, map(float, report.numpy()), strict=True))
        return dict(self._shown)
