"""Autotune in custom training loops: a step that is made anew when its settings change."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ringar.collectives.agree import same
from ringar.job import mpi
from ringar.job.process_sets import ProcessSet, or_all
from ringar.keras import tuned
from ringar.keras.buckets import Spec
from ringar.keras.tuning import clock, options
from ringar.keras.tuning.space import Job
from ringar.keras.tuning.tuner import Tuner

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def autotune(
    make_step: Callable[[], Callable[Parameters, Result]],
    variables: Sequence[keras.Variable | tf.Variable],
    *,
    process_set: ProcessSet | None = None,
) -> Callable[Parameters, Result]:
    """Tune a training step of your own where RINGAR_AUTOTUNE asks for it (docs/autotune.md).

    The result is called in the place of the step. During the search it makes the step anew when
    settings change, since a function that TensorFlow has traced keeps its own. All ranks must call
    it equally often until the search has ended. Without Autotune, and on one rank, the result is
    what `make_step` returns.

    Args:
        make_step: a function that returns the step, a new `tf.function` in each call. Variables and
            optimizers are made outside of it.
        variables: those that are trained, on all ranks alike.
        process_set: the ranks that train together; by default all.

    Returns:
        A function with the arguments and results of the step.

    Raises:
        NotInitializedError: before `ringar.init()`.
        MismatchError: on every rank, if ranks have different options.
        UnsupportedError: on every rank, if rank 0 lacks Optuna.
        ValueError: on every rank, if an option is wrong, or rank 0 cannot read or write a file.

    Example:
    ```python
    step = ringar.autotune(lambda: tf.function(train_step), model.trainable_variables)
    for x, y in data:
        step(x, y)
    ```
    """
    ranks = or_all(process_set)
    if ranks.size() == 1:
        return make_step()
    same(
        {"options of Autotune": options.description(os.environ) or "none"},
        caller="ringar.autotune",
        remedy="Set the variables on every rank, as ringarrun --autotune does.",
        process_set=process_set,
    )
    if not options.is_wanted(os.environ):
        return make_step()
    chosen = {"algorithm": name} if (name := os.environ.get(mpi.ALGORITHM_VARIABLE)) else {}
    job = Job(ranks.size(), 1, tuple(Spec.of(variable) for variable in variables), chosen)
    tuner = Tuner(job, options.read(os.environ), ranks, lambda: clock.now())
    step = make_step()

    def tuned_step(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        nonlocal step
        if not tuner.is_done and tuner.step_begins():
            step = make_step()
        with tuned.using(tuner.settings):
            return step(*args, **kwargs)

    return tuned_step
