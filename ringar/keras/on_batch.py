"""`train_on_batch` and `test_on_batch`: the metrics of all ranks' batches, as in `fit`.

Ranks that reduce gradients in every step call both methods together. Their metrics are combined as
at the end of an epoch (`ringar.keras.metrics`). Ranks with steps of their own (`ringar.LocalSGD`,
parameter servers) and models without a distributed optimizer keep Keras' results.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras

from ringar.job.process_sets import or_all
from ringar.keras import metrics, share
from ringar.keras.exchange import Exchange, exchange_of
from ringar.keras.metric_states import flatten, states_of


def combining(original: Callable[..., Any]) -> Callable[..., Any]:
    """Combine the metrics that `train_on_batch` or `test_on_batch` returns."""
    signature = inspect.signature(original)

    def on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        returns_dict = call.arguments.get("return_dict", False)
        logs = original(**{**call.arguments, "return_dict": True})
        if (exchange := _exchange_of(self)) is not None:
            ranks = exchange.reduction.process_set
            logs = metrics.combine(self, flatten(logs), states_of(self), original.__name__, ranks)
        return logs if returns_dict else self._flatten_metrics_in_order(logs)

    return on_batch


def _exchange_of(model: keras.Model) -> Exchange | None:
    """Return the exchange of ranks that take all steps of `model` together, if there are any."""
    step = share.step_of(model)
    exchange = step.exchange if step is not None else None
    exchanges = [exchange] if exchange is not None else []
    exchanges += filter(None, map(exchange_of, share.optimizers_of(model)))
    if not exchanges or not all(e.period.meets and e.period.in_every_step for e in exchanges):
        return None
    return exchanges[0] if or_all(exchanges[0].reduction.process_set).size() > 1 else None
