"""Online codistillation: groups of ranks train copies of a model, which teach each other.

`Codistillation(model)` makes `model` itself a codistilled one: its class becomes a subclass whose
loss has another term. The model remains the plain one for Keras, which writes its `__class__` into
files. The copies that teach it are no part of it (`ringar.research.codistillation.teachers`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ringar import hooks
from ringar.collectives import allgather_object
from ringar.collectives.agree import same
from ringar.collectives.call import Call
from ringar.errors import MismatchError, UnsupportedError
from ringar.job import membership, place
from ringar.job.process_sets import ProcessSet, add_process_set, or_all
from ringar.keras import callback_traits, description, keras_2, share
from ringar.keras.exchange import exchange_of
from ringar.keras.optimizer import DistributedOptimizer
from ringar.keras.reduction import Reduction
from ringar.research.codistillation import distances
from ringar.research.codistillation.teachers import Teachers, TeacherSteps
from ringar.sharding.cut import cut_of
from ringar.sharding.slots import inner_optimizer

if TYPE_CHECKING:
    from typing import Literal

_FILES = Call("ringar.Codistillation", name="files")
_sets: dict[tuple[int, ...], ProcessSet] = {}


def Codistillation(  # a name of the family, for a function that returns an object
    model: keras.Model,
    groups: int = 2,
    *,
    alpha: float = 1.0,
    distance: Literal["kl", "mse"] = "kl",
    burn_in: int = 0,
    exchange_period: int = 50,
    from_logits: bool = False,
) -> keras.Model:
    """Make `model` one of several that teach each other while they train (Anil et al. 2018).

    The ranks of the job form groups, the first ranks of the job the first one. Within a group
    training is data-parallel. The model f_i of group i minimizes L(y, f_i) + alpha times the mean
    of D(f_i, f_j) over the other groups j, on the batches of its own ranks. The f_j are copies of
    the other groups' models, called with `training=False`; no gradient passes through them.

    `compile` takes a plain optimizer, which then reduces gradients within the group, or a
    `ringar.DistributedOptimizer` of `process_set=model.process_set`. `fit`, which all ranks call,
    needs `ringar.callbacks.Distributed()`, for which the ranks are those of the group: initial
    weights and metrics are the group's, and its first rank writes files. `evaluate` computes L
    alone. A file has the plain model.

    All groups exchange weights in the training step, at steps that the program decides. So a run
    has the same bits each time, whether XLA compiles the step or not. A group waits for the others
    there: up to `exchange_period` of their steps, or the rest of their epoch if it has ended its
    own. Groups and ranks may have different numbers of
    batches, and groups may stop in different epochs. While a rank is without data, and behind the
    first group that has stopped, copies remain as they are.

    Args:
        model: a built model, compiled or not. The object itself becomes codistilled. Groups should
            begin with different weights.
        groups: the number of groups, a divisor of the number of ranks. One group alone has no
            teacher.
        alpha: the weight of the distances, 0 or more. With 0 groups train independently.
        distance: "kl": the Kullback-Leibler divergence KL(f_j || f_i) of the distributions over
            the last axis, where one unit alone is the probability of one of two classes. "mse":
            the mean squared error of the outputs, for models that predict logits or numbers. With
            several outputs, the sum of their distances.
        burn_in: the first steps, which have no distances.
        exchange_period: the steps of a group between two exchanges of weights.
        from_logits: whether the model predicts logits, for "kl".

    Returns:
        `model`, whose class is now `Codistilled<class>`, a subclass of its former class. Its
        attribute `group` is the number of this rank's group, and `process_set` has its ranks.
        Compile it afterwards.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: if the model is not built or is codistilled already, or an argument is out of
            range.
        UnsupportedError: for a model whose layers are cut, or in an elastic job.
    """
    size = place.require("ringar.Codistillation()").size
    _check(groups, size, alpha, distance, burn_in, exchange_period)
    _check_model(model)
    same(
        {
            "groups": groups,
            "alpha": alpha,
            "distance": distance,
            "burn_in": burn_in,
            "exchange_period": exchange_period,
            "from_logits": from_logits,
            **description.weights(model.weights),
        },
        caller="ringar.Codistillation",
        remedy="Make the same model, and pass the same arguments, on all ranks.",
    )
    ranks_per_group = size // groups
    sets = [
        _process_set(range(first, first + ranks_per_group))
        for first in range(0, size, ranks_per_group)
    ]
    group = place.rank() // ranks_per_group
    teachers = None
    if groups > 1 and alpha > 0:
        roots = [process_set.ranks[0] for process_set in sets]
        teachers = Teachers(model, roots, group, burn_in, exchange_period)
    settings = _Settings(sets[group], group, alpha, distances.make(distance, from_logits), teachers)
    # Bypass Keras' __setattr__, which tracks attributes.
    object.__setattr__(model, "_codistillation", settings)
    of_teachers = hooks.derived(type(model), CodistilledMixin, "Codistilled", _namespace)
    object.__setattr__(model, "__class__", of_teachers)
    return model


@dataclass(frozen=True)
class _Settings:
    """Hold the settings of a codistilled model.

    Attributes:
        process_set: the ranks of the group.
        group: the number of the group.
        alpha: the weight of the distances.
        distance: the distance.
        teachers: the copies of the other groups' models; None if there are none.
    """

    process_set: ProcessSet
    group: int
    alpha: float
    distance: keras.losses.Loss
    teachers: Teachers | None


class CodistilledMixin:
    """Add the distances from the teachers to the loss of a model."""

    _codistillation: _Settings
    _compute_loss_has_training_arg: bool

    @property
    def group(self) -> int:
        """The number of this rank's group."""
        return self._codistillation.group

    @property
    def process_set(self) -> ProcessSet:
        """The ranks of this rank's group."""
        return self._codistillation.process_set

    def compile(
        self, optimizer: str | keras.optimizers.Optimizer = "rmsprop", *args: Any, **kwargs: Any
    ) -> None:
        """Compile as Keras does, with an optimizer that reduces gradients within the group."""
        within_group = _distributed(optimizer, self._codistillation)
        super().compile(within_group, *args, **kwargs)  # type: ignore[misc]  # a mixin

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Train as Keras does. All ranks of the job call it."""
        call = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs)
        _check_files(call.arguments.get("callbacks"), self._codistillation)
        teachers = self._codistillation.teachers
        if teachers is not None:
            teachers.begin_training()
        history = super().fit(*args, **kwargs)  # type: ignore[misc]
        if teachers is not None:
            teachers.end_training()
        return history

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Return the loss; in training, with the distances."""
        if self._compute_loss_has_training_arg:
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)  # type: ignore[misc]
        else:  # the method of a user
            loss = super().compute_loss(x, y, y_pred, sample_weight)  # type: ignore[misc]
            training = share.current() is not None
        teachers = self._codistillation.teachers
        if teachers is None or not training:
            return loss
        teachers.begin_step()
        return loss + tf.cast(_distances(self._codistillation, teachers, x, y_pred), loss.dtype)


def _distances(settings: _Settings, teachers: Teachers, x: Any, y_pred: Any) -> tf.Tensor:
    """Return alpha times the mean distance from the teachers; 0 while there are none."""
    student_outputs = tf.nest.flatten(y_pred)
    of_teachers = teachers.predictions(x, student_outputs)
    total = tf.add_n(
        [
            settings.distance(teacher, output)
            for outputs in of_teachers
            for teacher, output in zip(outputs, student_outputs, strict=True)
        ]
    )
    weight = tf.where(teachers.is_ready, settings.alpha / len(of_teachers), 0.0)
    return tf.cast(weight, total.dtype) * total


def _distributed(optimizer: Any, settings: _Settings) -> Any:
    """Return an optimizer that reduces gradients within the group, and counts its steps."""
    optimizer = keras_2.optimizer_of(optimizer, "Codistillation")
    if optimizer is None:
        return None
    ranks = settings.process_set
    if exchange_of(optimizer) is None:
        optimizer = DistributedOptimizer(optimizer, process_set=ranks)
    exchange = exchange_of(optimizer)
    assert exchange is not None
    reduction = exchange.reduction
    received = or_all(reduction.process_set).ranks
    if not isinstance(reduction, Reduction) or received != ranks.ranks:
        raise ValueError(
            "`optimizer` must be a plain one, or ringar.DistributedOptimizer(..., "
            f"process_set=model.process_set), for the ranks {ranks.ranks} of the group. Received: "
            f"{type(optimizer).__name__} for the ranks {received}"
        )
    if settings.teachers is not None:
        inner = inner_optimizer(optimizer)
        holder = inner if hasattr(inner, "_exchange") else optimizer
        period = TeacherSteps(settings.teachers)  # perhaps in the place of a former `compile`'s
        object.__setattr__(holder, "_exchange", replace(exchange, period=period))
    return optimizer


def _check(
    groups: int, size: int, alpha: float, distance: str, burn_in: int, exchange_period: int
) -> None:
    if groups < 1 or size % groups:
        raise ValueError(
            f"`groups` must divide the number of ranks, {size}: all groups have equally many. "
            f"Received: groups={groups}"
        )
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"`alpha` must be a number from 0 on. Received: alpha={alpha}")
    if distance not in distances.NAMES:
        raise ValueError(f'`distance` must be "kl" or "mse". Received: distance={distance!r}')
    if burn_in < 0:
        raise ValueError(
            f"`burn_in` must be a number of steps, 0 or more. Received: burn_in={burn_in}"
        )
    if exchange_period < 1:
        raise ValueError(
            "`exchange_period` must be a positive number of steps. "
            f"Received: exchange_period={exchange_period}"
        )


def _check_model(model: keras.Model) -> None:
    name = model.name
    if isinstance(model, CodistilledMixin):
        raise ValueError(f"`model` must not be codistilled already. Received: {name!r}")
    if not model.built:
        raise ValueError(
            "`model` must be built: give it a keras.Input, or call it on a batch. "
            f"Received: {name!r}, which has no weights yet"
        )
    if any(cut_of(variable) is not None for variable in model.weights):
        raise UnsupportedError(
            "A model whose layers are cut has no codistillation: a rank of another group would "
            "need all parts of it. Codistill a model that every rank has whole."
        )
    if membership.is_elastic():
        raise UnsupportedError(
            "An elastic job (ringarrun --min-np) has no codistillation: groups have fixed ranks. "
            "Start the job without --min-np."
        )


def _check_files(callbacks: Any, settings: _Settings) -> None:
    """Check that groups write to different places. Collective of all ranks."""
    listed = callbacks if isinstance(callbacks, list | tuple) else []
    places = [
        path for c in listed if callback_traits.writes(c) for path in callback_traits.paths(c)
    ]
    of_ranks: Sequence[tuple[int, list[str]]] = allgather_object(
        (settings.group, places), name=_FILES.name
    )
    writer: dict[str, int] = {}
    for group, paths in of_ranks:
        for path in paths:
            if writer.setdefault(path, group) != group:
                raise MismatchError(
                    _FILES.refusal(
                        "files of its own for each group",
                        f"{path!r} for groups {writer[path]} and {group}",
                        "Put the number `model.group` into the path.",
                    )
                )


def _process_set(ranks: Sequence[int]) -> ProcessSet:
    """Return a process set of `ranks`, the same one for equal ranks. Collective of all ranks."""
    if len(ranks) == place.size():
        return or_all(None)
    key = tuple(ranks)
    if key not in _sets or _sets[key].process_set_id is None:
        _sets[key] = add_process_set(key)
    return _sets[key]


def _namespace(base: type) -> dict[str, Any]:
    return {
        "__module__": __name__,
        "__doc__": f"{base.__name__} that learns from the models of other groups, too.",
        # Keras serializes by `__class__`.
        "__class__": property(lambda self: base),
    }
