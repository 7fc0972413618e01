"""The first step of a loop: ranks that have begun with other weights take those of one rank.

In `fit`, `ringar.callbacks.Distributed` broadcasts the state of the model and checks it. In other
loops, `train_on_batch` or a `GradientTape`, the first reduction of gradients is the earliest place
that the library sees. A step that is traced has computed nothing by then, and is exact. The
gradients of an eager step have been computed, which a warning says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ringar.collectives import allgather_object
from ringar.collectives.call import Call
from ringar.errors import MismatchError
from ringar.job import log, membership
from ringar.job.process_sets import or_all
from ringar.keras import share
from ringar.keras.state import State

if TYPE_CHECKING:
    from ringar.job.process_sets import ProcessSet

_CALL = Call("allgather_object", name="weights of the first step")
_log = log.logger(__name__)


@tf.autograph.experimental.do_not_convert
def begin(
    variables: Sequence[Any] | None,
    process_set: ProcessSet | None,
    optimizer: keras.optimizers.Optimizer | None = None,
    is_local: Callable[[Any], bool] = lambda variable: False,
) -> None:
    """Make the ranks begin with the same state, once for these variables. Collective, once.

    In a `train_step` of Keras it is the state of the model and its optimizers, elsewhere that of
    `variables` and `optimizer`. `fit` with `Distributed` has seen to it before.

    Args:
        variables: those whose gradients are reduced.
        process_set: the ranks concerned; None: all.
        optimizer: the one that will apply the gradients, if it is known.
        is_local: whether each rank has a value of its own of a variable.

    Raises:
        MismatchError: on every rank, if ranks have different numbers of variables.
    """
    trained = [variable for variable in variables or () if hasattr(variable, "assign")]
    if not trained or hasattr(trained[0], "_ringar_has_begun") or share.idle() is not None:
        return
    if or_all(process_set).size() == 1 or membership.is_elastic():
        return
    trained[0]._ringar_has_begun = True
    step = share.current()
    if step is not None and step.is_watched:
        return
    is_traced = not tf.executing_eagerly()
    with tf.init_scope():
        if not tf.executing_eagerly():
            return  # a graph of TensorFlow 1
        if step is not None:
            state = State.of_model(step.model)
        else:
            state = State.of(trained)
            state += State.of_optimizer(optimizer) if optimizer is not None else State([], [])
        _agree(state.without(is_local), process_set, is_traced)


def _agree(state: State, process_set: ProcessSet | None, is_traced: bool) -> None:
    ranks = or_all(process_set)
    of_ranks = allgather_object(state.digests(), name=_CALL.name, process_set=process_set)
    counts = [len(digests) for digests in of_ranks]
    if len(set(counts)) > 1:
        raise MismatchError(
            _CALL.refusal(
                "equally many variables of model and optimizer on every rank",
                ", ".join(
                    f"{n} (rank {rank})" for n, rank in zip(counts, ranks.ranks, strict=True)
                ),
                "An optimizer that was loaded has its state already, others make it with their "
                "first step: load on all ranks, or call optimizer.build(variables) on all.",
            )
        )
    different = state.that_differ(of_ranks)
    if not different.variables:
        return
    root = ranks.ranks[0]
    different.broadcast(root, process_set)
    if ranks.rank() > 0:
        return
    text = "The ranks began with different values of %s. All took those of rank %d"
    if is_traced:
        _log.info(f"{text}.", different.names, root)
    else:
        _log.warning(
            f"{text}, but the gradients of the first step are those of the values before: call "
            "ringar.broadcast_variables(model.weights) before it.",
            different.names,
            root,
        )
