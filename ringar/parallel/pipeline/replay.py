"""A decoupled run again, in one process: each module takes the messages that it took in the run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from ringar.job.process_sets import ProcessSet
from ringar.parallel.pipeline import cut
from ringar.parallel.pipeline.batch import Batch
from ringar.parallel.pipeline.decoupling import Decoupling, Synthesizers
from ringar.parallel.pipeline.metrics import Metrics
from ringar.parallel.pipeline.recording import Log
from ringar.parallel.pipeline.synthesizers import copy_of
from ringar.parallel.pipeline.synthetic import SyntheticModule


def replay(
    model: keras.Model,
    cuts: Sequence[str],
    plan: Decoupling,
    seed: int,
    logs: Sequence[Log],
    batches: Iterable[Batch],
    *,
    ranks: ProcessSet,
    compiled: Callable[[Any], Any],
) -> None:
    """Train a model in this process by the messages of a run.

    Args:
        model: the plain model, compiled.
        cuts: the layers after which the run was cut.
        plan: the arguments of the run.
        seed: its seed for the draws of sparse updates.
        logs: the messages of each module.
        batches: the batches of the run.
        ranks: the ranks of a model group; none of them hears of it.
        compiled: compiles a function, as `tf.function` does.
    """
    graph = cut.Graph.of(model)
    places = cut.places(graph, cuts, len(logs))
    steps = list(batches)
    for module, log in enumerate(logs):
        network = cut.network(graph, places, module)
        synthesizers = Synthesizers(plan, graph, network, module, len(logs))
        synthesizers.seed = seed
        made = [m for m in (synthesizers.gradient, synthesizers.inputs) if m is not None]
        # The user's own models are those of the run that goes on: they get their values back.
        before = [(v, np.array(v)) for m in made for v in m.variables]
        metrics = Metrics(model, ranks, module == len(logs) - 1)
        work = SyntheticModule(
            network, synthesizers, ranks=None, module=module, metrics=metrics, compiled=compiled
        )
        optimizer = copy_of(model.optimizer)
        optimizer.build(work.variables)
        apply = compiled(functools.partial(_apply, optimizer, work.variables))
        try:
            work.replay(log, optimizer)
            for batch in steps:
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
