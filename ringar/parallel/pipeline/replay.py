"""The replay of a decoupled run in one process: each module takes the messages of the run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ringar.parallel.pipeline import cut
from ringar.parallel.pipeline.agreement import Layout
from ringar.parallel.pipeline.batch import Batch
from ringar.parallel.pipeline.decoupling import Synthesizers
from ringar.parallel.pipeline.metrics import Metrics
from ringar.parallel.pipeline.recording import Log
from ringar.parallel.pipeline.synthesizers import copy_of
from ringar.parallel.pipeline.synthetic import SyntheticModule


def replay(
    model: keras.Model,
    layout: Layout,
    logs: Sequence[Log],
    batches: Sequence[Batch],
    compiled: Callable[[Any], Any],
) -> None:
    """Train a model in this process by the messages of a run.

    Args:
        model: the plain model, compiled.
        layout: the modules of the run; its ranks do not take part.
        logs: the messages of each module.
        batches: the batches of the run.
        compiled: compiles a function, as `tf.function` does.
    """
    assert layout.synthesizers is not None
    plan, ranks = layout.synthesizers.plan, layout.grid.model_set
    graph = cut.Graph.of(model)
    places = cut.places(graph, layout.cuts, len(logs))
    for module, log in enumerate(logs):
        network = cut.network(graph, places, module)
        synthesizers = Synthesizers(plan, graph, network, module, len(logs))
        synthesizers.seed = layout.synthesizers.seed
        models = [m for m in (synthesizers.gradient, synthesizers.inputs) if m is not None]
        # The user's own models serve the run, too, which may go on: they get their values back.
        before = [(v, np.array(v)) for m in models for v in m.variables]
        metrics = Metrics(model, ranks, module == len(logs) - 1)
        work = SyntheticModule(
            network, synthesizers, ranks=None, module=module, metrics=metrics, compiled=compiled
        )
        optimizer = copy_of(model.optimizer)
        optimizer.build(work.variables)
        apply = compiled(functools.partial(_apply, optimizer, work.variables))
        try:
            work.replay(log, optimizer)
            for batch in batches:
                gradients = work.step(batch)
                if gradients and work.variables:
                    apply(gradients)
        finally:
            for variable, value in before:
                variable.assign(value)


def _apply(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable], gradients: list[Any]
) -> None:
    optimizer.apply(gradients, variables)
