"""The arguments of `schedule="synthetic"`, and the synthesizers that they ask for."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state  # the counters of names, in no public place

from ringar.parallel.pipeline.cut import Graph, Network
from ringar.parallel.pipeline.synthesizers import (
    Builder,
    Labels,
    Predictor,
    Synthesizer,
    copy_of,
    fitting,
)

TRUE, ZERO = "true", "zero"
"""Words in place of a synthesizer: wait for the true gradient, or use no gradient at all."""

Choice: TypeAlias = "str | keras.Model | Sequence[keras.Model] | Builder"
"""A synthesizer, one per cut, or a function that makes one."""


_KINDS = "a Keras model, one per cut, or a function that makes one"
_WORDS = f'"{TRUE}" or "{ZERO}"'
_BOTH = True, False
_ROWS = 64  # examples of the symbolic batch for which the shapes of a module are computed


@dataclasses.dataclass(frozen=True)
class Decoupling:
    """Hold the arguments of `schedule="synthetic"`, which `Pipelined` describes."""

    synthesizer: Choice | None = None
    conditioned: bool = False
    update_probability: float = 1.0
    synthetic_inputs: bool | Choice = False
    bp_lambda: float = 0.0
    ahead: int = 4
    optimizer: str | keras.optimizers.Optimizer = "adam"

    def check(self) -> None:
        """Raise a ValueError for an argument out of range."""
        for name, fits, expected in (
            ("update_probability", 0 < self.update_probability <= 1, "above 0 and at most 1"),
            ("bp_lambda", 0 <= self.bp_lambda <= 1, "from 0 to 1"),
            ("ahead", isinstance(self.ahead, int) and self.ahead > 0, "a positive whole number"),
            ("synthesizer", _is_choice(self.synthesizer, (TRUE, ZERO)), f"{_KINDS}, {_WORDS}"),
            ("synthetic_inputs", _is_choice(self.synthetic_inputs, _BOTH), f"True, {_KINDS}"),
        ):
            if not fits:
                raise ValueError(
                    f"`{name}` must be {expected}. Received: {name}={getattr(self, name)!r}"
                )
        try:
            copy_of(self.optimizer)
        except Exception as error:
            raise ValueError(
                "`synthesizer_optimizer` must be an optimizer of Keras or its name. "
                f"Received: synthesizer_optimizer={self.optimizer!r}"
            ) from error

    def refuse_if_given(self, schedule: str) -> None:
        """Raise a ValueError if an argument was given for another schedule."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not field.default and value != field.default:
                name = "synthesizer_optimizer" if field.name == "optimizer" else field.name
                raise ValueError(
                    f'`{name}` is for schedule="synthetic" only. '
                    f"Received: {name}={value!r} with schedule={schedule!r}"
                )

    @property
    def kind(self) -> str:
        """`"true"`, `"zero"`, or `"synthetic"`."""
        return self.synthesizer if isinstance(self.synthesizer, str) else "synthetic"

    def describe(self) -> dict[str, Any]:
        """Return the settings that all ranks must have in common."""
        return {
            "synthesizer": _described(self.synthesizer),
            "conditioned": self.conditioned,
            "update_probability": self.update_probability,
            "synthetic_inputs": _described(self.synthetic_inputs),
            "bp_lambda": self.bp_lambda,
            "ahead": self.ahead,
            "synthesizer_optimizer": _described(self.optimizer),
            **{f"synthesizer_optimizer.{k}": v for k, v in _settings(self.optimizer).items()},
        }


class Synthesizers:
    """Make the synthesizers of one module.

    Args:
        plan: the arguments.
        graph: the graph of the whole model.
        network: the network of the module.
        module: the module, counted from 0.
        modules: the number of modules.

    Attributes:
        labels: the labels as conditioned synthesizers see them; None for others.
        gradient: the synthesizer of the gradients from above; None in the last module, or where a
            word stands in place of a synthesizer.
        inputs: the synthesizer of the activations from below; None without synthetic inputs.
        plan: the arguments.
        modules: the number of modules.
        seed: for the draws of sparse updates, equal on all ranks.

    Raises:
        ValueError: a synthesizer does not fit.
    """

    def __init__(
        self, plan: Decoupling, graph: Graph, network: Network, module: int, modules: int
    ) -> None:
        self.plan, self.modules, self.seed = plan, modules, 0
        plan.check()
        _check_sent(network)
        self.labels = Labels(graph.model) if plan.conditioned else None
        self.gradient: keras.Model | None = None
        self.inputs: keras.Model | None = None
        self.sent_specs = [spec for spec in network.sends if spec.dtype.is_floating]
        self.received_specs = network.receives
        if module < modules - 1 and plan.kind == "synthetic":
            specs = [*self.sent_specs, *(self.labels.specs if self.labels else ())]
            make = plan.synthesizer if plan.synthesizer is not None else Synthesizer()
            self.gradient = _make_synthesizer(
                make, specs, self.sent_specs, module, modules, "after"
            )
        if module > 0 and plan.synthetic_inputs:
            for spec in self.received_specs:
                if not spec.dtype.is_floating:
                    raise ValueError(
                        "`synthetic_inputs` needs floating tensors at the cuts: whole numbers "
                        f"cannot be predicted. Received: {spec.dtype.name} at cut {module - 1}"
                    )
            inputs: Any = plan.synthetic_inputs
            if inputs is True:
                inputs = Synthesizer().for_inputs
            elif isinstance(inputs, Synthesizer):
                inputs = inputs.for_inputs
            specs = [tf.TensorSpec(t.shape, t.dtype) for t in graph.model.inputs]
            self.inputs = _make_synthesizer(
                inputs, specs, self.received_specs, module - 1, modules, "before"
            )

    def check_labels(self, y: Any) -> None:
        """Raise a ValueError for targets that conditioned synthesizers cannot see."""
        if self.labels is not None:
            self.labels(y)

    def predictors(
        self, compiled: Callable[[Any], Any]
    ) -> tuple[Predictor | None, Predictor | None]:
        """Return the synthesizers in use: of gradients and of inputs."""

        def predictor(
            model: keras.Model | None, specs: list[tf.TensorSpec], is_mean: bool
        ) -> Predictor | None:
            if model is None:
                return None
            optimizer = copy_of(self.plan.optimizer)
            return Predictor(model, optimizer, specs, is_mean=is_mean, compiled=compiled)

        return (
            predictor(self.gradient, self.sent_specs, is_mean=True),
            predictor(self.inputs, self.received_specs, is_mean=False),
        )


def _check_sent(network: Network) -> None:
    """Raise a ValueError for tensors without the rows of known size that mailboxes need.

    Args:
        network: the network of the module that sends them.
    """
    if not network.sends:
        return
    inputs = [
        keras.KerasTensor((tensor.shape[0] or _ROWS, *tensor.shape[1:]), tensor.dtype)
        for tensor in network.model.inputs
    ]
    outputs = keras.tree.flatten(network.model.compute_output_spec(inputs))
    for tensor, spec in zip(network.model.outputs, outputs, strict=True):
        shape, rows = tuple(spec.shape), inputs[0].shape[0]
        if shape[:1] != (rows,) or None in shape[1:]:
            raise ValueError(
                "Tensors that cross a cut must have a row of known size per example with "
                'schedule="synthetic". Received: the output of layer '
                f"{tensor._keras_history.operation.name}, of shape {shape} for {rows} examples. "
                "Cut the model elsewhere (`cuts`), or give its inputs a size."
            )


def _is_choice(value: Any, words: tuple[str | bool, ...]) -> bool:
    if isinstance(value, str | bool):
        return value in words
    return value is None or isinstance(value, list | tuple) or callable(value)


@contextmanager
def _names_kept() -> Iterator[None]:
    """Leave the counters from which Keras names layers as they are.

    Modules have different synthesizers. The user's next layers must have one name on all ranks.
    """
    counters = "object_name_uids"
    before = copy.copy(global_state.get_global_attribute(counters))
    try:
        yield
    finally:
        global_state.set_global_attribute(counters, before)


@_names_kept()
def _make_synthesizer(
    choice: Any,
    inputs: Sequence[tf.TensorSpec],
    outputs: Sequence[tf.TensorSpec],
    cut: int,
    modules: int,
    side: str,
) -> keras.Model:
    if isinstance(choice, list | tuple):
        if len(choice) != modules - 1:
            raise ValueError(
                f"There must be a synthesizer for each of {modules - 1} cuts. "
                f"Received: {len(choice)}"
            )
        choice = choice[cut]
    if not isinstance(choice, keras.Model):
        choice = choice(list(inputs), list(outputs))
    return fitting(choice, inputs, outputs, f"{side} cut {cut}")


def _settings(optimizer: str | keras.optimizers.Optimizer) -> dict[str, Any]:
    """Return the settings of an optimizer that can be compared between ranks, by name."""
    if isinstance(optimizer, str):
        return {}
    try:
        text = json.dumps(optimizer.get_config(), sort_keys=True, default=_plain)
    except Exception:  # of the user's optimizer, which `check` refuses
        return {}
    # Keras counts the names of optimizers in each process.
    return {name: value for name, value in json.loads(text).items() if name != "name"}


def _plain(value: object) -> object:
    """Return the numbers of an array, or the type of another object, whose `repr` may differ."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else type(value).__name__


def _described(value: Any) -> Any:
    """Return a description that can be compared between ranks, unlike functions and models."""
    if value is None or isinstance(value, str | bool | Synthesizer):
        return value
    if isinstance(value, list | tuple):
        return [_described(element) for element in value]
    if isinstance(value, keras.optimizers.Optimizer):
        return type(value).__name__
    return f"a {'model' if isinstance(value, keras.Model) else 'function'}"
