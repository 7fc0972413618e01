"""The first step of a loop: ranks that have begun with other weights take those of one rank.

In `fit`, `ringar.callbacks.Distributed` broadcasts the state of the model and checks it. In other
loops, `train_on_batch` or a `GradientTape`, the first reduction of gradients is the earliest place
that the library sees. A step that is traced has computed nothing by then, and is exact. An eager
step has computed its gradients already, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ringar.collectives import allgather_object
from ringar.collectives.agree import compare
from ringar.errors import UnsupportedError
from ringar.job import log, membership, place
from ringar.job.process_sets import or_all
from ringar.keras import description, share
from ringar.keras.state import State

if TYPE_CHECKING:
    from ringar.job.process_sets import ProcessSet
    from ringar.keras.exchange import Exchange

_NAME = "first step of training"
_STATE = "number of variables of model and optimizer"
_log = log.logger(__name__)


def begin(
    variables: Sequence[Any] | None,
    exchange: Exchange,
    optimizer: keras.optimizers.Optimizer | None = None,
) -> None:
    """Compare the ranks' settings, and make them begin with the same state. Collective, once.

    In a `train_step` of Keras it is the state of the model and its optimizers, elsewhere that of
    `variables` and `optimizer`. `fit` with `Distributed` has seen to it before.

    Args:
        variables: those whose gradients are reduced.
        exchange: that of the optimizer or the tape.
        optimizer: the one that will apply the gradients, if it is known.

    Raises:
        MismatchError: on every rank, if ranks have different settings or numbers of variables.
    """
    trained = [variable for variable in variables or () if hasattr(variable, "assign")]
    if not trained or share.idle() is not None:
        return
    ranks = or_all(exchange.reduction.process_set)
    # Ranks that have trained the variables in smaller process sets differ from the others.
    earlier: set[frozenset[int]] = getattr(trained[0], "_ringar_ranks", set())
    has_state = any(earlier_ranks.issuperset(ranks.ranks) for earlier_ranks in earlier)
    if has_state and (optimizer is None or hasattr(exchange, "_ringar_has_begun")):
        return
    if membership.is_elastic():
        _note_reduced(trained, exchange)
    if ranks.size() == 1 or membership.is_elastic():
        return
    trained[0]._ringar_ranks = earlier | {frozenset(ranks.ranks)}
    object.__setattr__(exchange, "_ringar_has_begun", True)
    step = share.current()
    if step is not None and step.is_watched:
        return
    is_traced = not tf.executing_eagerly()
    with tf.init_scope():
        if not tf.executing_eagerly():
            _check_session_graph(exchange, optimizer)
            return
        if step is not None and step.model is not None:
            described = description.model(step.model, [exchange])
            state = State.of_model(step.model)
        else:
            common = [variable for variable in trained if not exchange.reduction.is_local(variable)]
            described = description.loop(common, exchange, optimizer)
            state = State.of(trained)
            state += State.of_optimizer(optimizer) if optimizer is not None else State([], [])
        state = State([], []) if has_state else state.without(exchange.reduction.is_local)
        _agree(described, state, ranks, is_traced, _caller(exchange, optimizer))


def is_reduced(variable: Any) -> bool:
    """Return whether all ranks of an elastic job have one value of a variable after each step.

    True once a step of this rank has reduced its gradients over all ranks.
    """
    return hasattr(of_tensorflow(variable), "_ringar_is_reduced")


def _note_reduced(variables: Sequence[Any], exchange: Exchange) -> None:
    if exchange.reduction.process_set is not None or not exchange.period.in_every_step:
        return
    for variable in variables:
        if not exchange.reduction.is_local(variable):
            of_tensorflow(variable)._ringar_is_reduced = True


def of_tensorflow(variable: Any) -> Any:
    """Return the variable of TensorFlow in one of Keras."""
    return variable._value if isinstance(variable, keras.Variable) else variable


def _check_session_graph(exchange: Exchange, optimizer: keras.optimizers.Optimizer | None) -> None:
    """Refuse an optimizer in a graph of TensorFlow 1: a session could not run its step."""
    if optimizer is not None:
        raise UnsupportedError(
            f"rank {place.rank()} | {_caller(exchange, optimizer)}: expected eager code or a "
            "tf.function; received a graph of TensorFlow 1. Optimizers of Keras 3 return no "
            "operation for a session: apply the gradients of a DistributedGradientTape by "
            "tf.compat.v1.train, or run the program without tf.compat.v1.Session."
        )


def _agree(
    described: dict[str, Any], state: State, ranks: ProcessSet, is_traced: bool, caller: str
) -> None:
    report = (described, state.digests())
    gathered = allgather_object(report, name=_NAME, process_set=ranks)
    everyone, of_ranks = zip(*gathered, strict=True)
    numbers = [{_STATE: len(digests)} for digests in of_ranks]
    compare(
        [settings | number for settings, number in zip(everyone, numbers, strict=True)],
        caller=caller,
        remedy=_remedy,
        ranks=ranks.ranks,
    )
    differences = state.that_differ(of_ranks)
    if not differences.variables:
        return
    root = ranks.ranks[0]
    differences.broadcast(root, ranks)
    if ranks.rank() > 0:
        return
    text = "The ranks began with different values of %s. All took those of rank %d"
    if is_traced:
        _log.info(f"{text}.", differences.names, root)
    else:
        _log.warning(
            f"{text}, but the gradients of the first step are those of the values before: call "
            "ringar.broadcast_variables(model.weights) before it.",
            differences.names,
            root,
        )


def _caller(exchange: Exchange, optimizer: keras.optimizers.Optimizer | None) -> str:
    name = str(exchange.description["function"])
    return name if optimizer is not None else name.replace("Optimizer", "GradientTape")


def _remedy(path: str) -> str:
    if path == _STATE:
        return (
            "An optimizer that was loaded has its state already, others make it with their first "
            "step: load on all ranks, or call optimizer.build(variables) on all."
        )
    return "Pass the same arguments, and build the same model, on every rank."
