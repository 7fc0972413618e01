"""`Pipelined`: a Keras model of which each rank holds one module, and all train at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ringar import hooks
from ringar.collectives import allgather_object, broadcast_object
from ringar.collectives.dtypes import Arrays, Examples
from ringar.job import place
from ringar.keras import keras_2, share
from ringar.keras.synchronize import broadcast_model
from ringar.parallel.pipeline import agreement, checks, state
from ringar.parallel.pipeline.batch import Batch
from ringar.parallel.pipeline.callback import add_alignment, bind_arguments
from ringar.parallel.pipeline.decoupling import Choice, Decoupling
from ringar.parallel.pipeline.execution import Execution, compiler
from ringar.parallel.pipeline.module import Event
from ringar.parallel.pipeline.recording import Log
from ringar.parallel.pipeline.replay import replay
from ringar.sharding.grid import Grid

Loss: TypeAlias = "str | keras.losses.Loss | Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"
"""The loss of one output, as Keras takes it."""


class Pipelined(keras.Model):
    """Cut a model into modules, each on a rank of its own, which train concurrently.

    Compile it, and call `fit`, `evaluate` and `predict` as for any Keras model, on every rank and
    with the same data. With several model groups, give each group its own share
    (`ringar.data.shard(dataset, grid=grid)`). The first module uses the inputs, the last one the
    targets. `ringar.callbacks.Distributed` is not needed: `fit` adds callbacks with its duties.

    - Weights, `trainable_variables`, the optimizer: those of this rank's module. `whole` returns
      the plain model, and `save` writes it.
    - The last module computes the metrics; all ranks get them at the end of an epoch. The metrics
      that `fit` shows during an epoch lag behind by the first module's staleness.
    - `evaluate` and `predict` use the current weights.
    - Batches in flight stay in flight between epochs, and between calls of `fit`; `drain` applies
      their gradients. In its first steps a module has no gradient yet, and does not update its
      weights or count the step.
    - Data must be shuffled alike on all ranks. `fit` does so with arrays; give a dataset a seed.
      The first batches are compared.

    Args:
        model: a functional or sequential model, built, the same on every rank. Its layers are used,
            not copied. If it is compiled, so is the result, with the state of its optimizer.
        modules: the number of modules; by default `grid.model`, or the number of ranks.
        schedule: `"delayed"`, with gradients as many steps old as modules follow; `"decoupled"`,
            twice as old, for modules that never wait; `"microbatch"`, exact; `"synthetic"`, with
            gradients that a synthesizer predicts (docs/synthetic.md).
        cuts: the names of the layers after which to cut, one less than modules; by default rank 0
            times each layer to find balanced cuts.
        grid: a grid with `grid.model` equal to `modules`; by default the current or a new one.
        microbatches: the number of parts of a batch with `"microbatch"`.
        shrinking: multiplies the gradients that cross a cut, at most 1. Zhuang et al. (2019) found
            that 0.8 or 0.9 helps with stale gradients.
        batch_size: the batch size for the timing of layers.
        synthesizer: with `"synthetic"`, the predictor of gradients at the cuts: a function that
            makes a Keras model from the `tf.TensorSpec`s of its inputs (the activations, and the
            labels if `conditioned`) and of its outputs, such as `ringar.parallel.Synthesizer`, the
            default; a Keras model; or a list of models, one per cut. `"true"` waits for the true
            gradient, `"zero"` cuts gradients off: both to compare with.
        conditioned: whether synthesizers see the labels, too.
        update_probability: the probability that a module updates in a step.
        synthetic_inputs: whether a module goes on from predicted activations: True, or as
            `synthesizer`, for nets that see the inputs of the model.
        bp_lambda: BP(lambda): 0 to learn from the gradient that the module above has made of its
            own synthetic one, 1 to learn from the true one, or between.
        ahead: the number of batches without a gradient after which a module waits for one.
        synthesizer_optimizer: the optimizer of synthesizers; each gets a copy.
        name: the name of the model.

    Attributes:
        grid: the grid of modules and replicas.
        module: this rank's module, counted from 0.
        modules: the number of modules.
        cuts: the names of the layers after which the model is cut.
        staleness: the number of steps by which this module's gradients lag behind.

    Raises:
        NotInitializedError: before `ringar.init()`.
        ValueError: the model cannot be cut there (the error names the layer that prevents it), an
            argument is out of range, or a synthesizer does not fit; then on every rank.

    Example:
    ```python
    model = ringar.parallel.Pipelined(model, modules=2, schedule="delayed")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, epochs=5)
    model.save("model.keras")
    ```
    """

    def __init__(
        self,
        model: keras.Model,
        modules: int | None = None,
        schedule: str = "delayed",
        *,
        cuts: Sequence[str] | None = None,
        grid: Grid | None = None,
        microbatches: int = 4,
        shrinking: float = 1.0,
        batch_size: int = 32,
        synthesizer: Choice | None = None,
        conditioned: bool = False,
        update_probability: float = 1.0,
        synthetic_inputs: bool | Choice = False,
        bp_lambda: float = 0.0,
        ahead: int = 4,
        synthesizer_optimizer: str | keras.optimizers.Optimizer = "adam",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name or f"{model.name}_pipelined")
        hooks.install("distributed training")
        plan = Decoupling(
            synthesizer, conditioned, update_probability, synthetic_inputs, bp_lambda, ahead,
            synthesizer_optimizer,
        )  # fmt: skip
        self._layout = layout = agreement.layout(
            model, plan, modules=modules, grid=grid, schedule=schedule, cuts=cuts,
            microbatches=microbatches, shrinking=shrinking, batch_size=batch_size,
        )  # fmt: skip
        self.grid, self.cuts, self.network = layout.grid, layout.cuts, layout.network.model
        self.modules, self.module = self.grid.model, self.grid.part
        self.output_names, self._reader = layout.output_names, layout.reader
        self._plain = state.Plain(model)
        self._execution: Execution | None = None
        self._stops = self.stop_requested = False
        self.built = True
        if getattr(model, "optimizer", None) is not None:
            self.compile(**state.compile_arguments(model))

    @property
    def staleness(self) -> int:
        """The number of steps by which this module's gradients lag behind its activations."""
        return self._layout.schedule.staleness

    @property
    def in_flight(self) -> int:
        """The number of batches between their forward and their backward pass in this module."""
        return 0 if self._execution is None else self._execution.module.in_flight

    @property
    def synthesizer(self) -> keras.Model | None:
        """The synthesizer of gradients for this module; None without one."""
        return getattr(self._layout.synthesizers, "gradient", None)

    @property
    def input_synthesizer(self) -> keras.Model | None:
        """The synthesizer of this module's inputs; None without one."""
        return getattr(self._layout.synthesizers, "inputs", None)

    # Called by Keras ----------------------------------------------------------------------------

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "rmsprop",
        loss: Loss | Sequence[Loss | None] | Mapping[str, Loss | None] | None = None,
        *,
        jit_compile: bool | str = "auto",
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        **kwargs: Any,
    ) -> None:
        """Compile as any Keras model; with several modules each step runs on its own.

        Args:
            optimizer: a plain optimizer: the model averages gradients over the replicas itself.
            loss: as for any Keras model; a mean over the batch with `schedule="microbatch"`.
            jit_compile: compile the module with XLA; all batches must then have one size.
            run_eagerly: do not compile the module, for debugging.
            steps_per_execution: must be 1 with several modules.
            **kwargs: as for any Keras model.

        Raises:
            ValueError: an argument does not support modules.
        """
        optimizer = state.module_optimizer(
            keras_2.optimizer_of(optimizer, "Pipelined"), self.trainable_variables, self.grid
        )
        self._jit_compile_as = jit_compile
        self._plain.losses = (loss, kwargs.get("metrics"), kwargs.get("weighted_metrics"))
        if self.modules == 1:
            kwargs |= {"jit_compile": jit_compile, "run_eagerly": run_eagerly}
            kwargs["steps_per_execution"] = steps_per_execution
            super().compile(optimizer=optimizer, loss=loss, **kwargs)
            return
        checks.check_steps(steps_per_execution)
        if self._layout.schedule.parts > 1:
            checks.check_losses(loss)
        # A step is plain Python, which sends messages and calls compiled functions.
        kwargs |= {"run_eagerly": True, "jit_compile": False}
        super().compile(optimizer=optimizer, loss=loss, **kwargs)
        self.optimizer.build(self.trainable_variables)
        if self._execution is not None:
            self._execution.module.close()
        self._execution = Execution(self, self._layout, compiler(run_eagerly, jit_compile is True))

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Train as any Keras model, on every rank."""
        arguments = bind_arguments(super().fit, args, kwargs)
        if place.size() > 1:
            tf.random.set_seed(broadcast_object(int(np.random.randint(2**31)), name="fit/seed"))
            arguments["callbacks"] = add_alignment(arguments.get("callbacks"), self.grid)
        if self._execution is not None:
            self._execution.batch_is_compared = False
        return super().fit(**arguments)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as any Keras model, on every rank."""
        return super().evaluate(**bind_arguments(super().evaluate, args, kwargs))

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Take a step as any Keras model, on every rank."""
        return self._on_batch(super().train_on_batch, args, kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Test a batch as any Keras model, on every rank."""
        return self._on_batch(super().test_on_batch, args, kwargs)

    def _on_batch(
        self, method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a method that returns the metrics of its batch; all ranks return them."""
        arguments = bind_arguments(method, args, kwargs)
        if self.modules == 1:
            return method(**arguments)
        method(**arguments | {"return_dict": True})  # the metrics that this rank has so far
        results = self.get_metrics_result()
        return results if arguments.get("return_dict") else self._flatten_metrics_in_order(results)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict as any Keras model, on every rank; all ranks get the outputs."""
        return super().predict(**bind_arguments(super().predict, args, kwargs))

    def call(
        self, inputs: Arrays, training: bool | None = None, mask: Arrays | None = None
    ) -> Arrays:
        """Return the outputs of the whole model. Collective over the model group.

        With several modules, `training` has no effect: the call is an inference.
        """
        if self.modules == 1:
            return self.network(self._reader.inputs(inputs), training=training)
        flat = [tf.convert_to_tensor(tensor) for tensor in self._reader.inputs(inputs)]
        outputs = self._ready_execution().module.predict(Batch(flat, inputs))
        if outputs is not None:
            outputs = keras.tree.map_structure(np.asarray, outputs)
        ranks = self.grid.model_set
        everywhere = broadcast_object(outputs, ranks.ranks[-1], name="outputs", process_set=ranks)
        return keras.tree.map_structure(tf.convert_to_tensor, everywhere)

    def train_step(self, data: Examples) -> Mapping[str, object]:
        """Take one step of this rank's module."""
        if self.modules == 1:
            logs: dict[str, float] = super().train_step(data)
            return logs
        execution = self._ready_execution()
        if not share.is_watched(self):
            self._begin_alike()
        return execution.step(self._reader.batch(data))

    def _begin_alike(self) -> None:
        """Give replicas the weights of the first one, where `fit` has not. Collective over them.

        A delayed step reduces first after some batches, too late: the replicas' moving statistics
        differ by then.
        """
        share.watch(self)
        if self.grid.data > 1:
            broadcast_model(self, self.grid.part, self.grid.data_set)

    def test_step(self, data: Examples) -> Mapping[str, object]:
        """Send one batch forward through all modules."""
        if self.modules == 1:
            logs: dict[str, float] = super().test_step(data)
            return logs
        execution = self._ready_execution()
        execution.module.predict(self._reader.batch(data), scores=True)
        return execution.metrics.logs(None)

    def predict_step(self, data: Examples) -> Arrays:
        """Return the outputs for one batch, on every rank."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self(x, training=False)

    def _flatten_metrics_in_order(self, logs: Mapping[str, Any]) -> Any:
        # Keras knows the order in the last module only.
        if self._execution is None or self._execution.metrics.are_local:
            return super()._flatten_metrics_in_order(logs)
        results = [logs[name] for name in self._execution.metrics.names]
        return results[0] if len(results) == 1 else results

    def get_metrics_result(self) -> Mapping[str, object]:
        """Return the metrics so far, on all ranks of the model group. Collective over it."""
        if self._execution is None or self._execution.metrics.are_local:
            result: dict[str, object] = super().get_metrics_result()
            return result
        return self._execution.metrics.share()

    @property
    def stop_training(self) -> bool:
        """Whether `fit` ends. All ranks agree on it between epochs."""
        return self._stops

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self.stop_requested = bool(value)
        if not value or place.size() == 1:
            self._stops = bool(value)

    def agree_to_stop(self) -> None:
        """End `fit` if any rank requests it. Collective over all ranks."""
        requests = allgather_object(self.stop_requested, name="end of epoch")
        self.stop_requested = self._stops = any(requests)

    # More methods for users -----------------------------------------------------------------------

    def drain(self) -> None:
        """Apply the gradients of the batches in flight. Collective over all ranks."""
        if self._execution is not None:
            self._ready_execution().drain()

    def whole(self) -> keras.Model:
        """Return the plain model with the weights of all modules. Collective over each model group.

        If this model is compiled, so is the result, with a plain optimizer that has the state of
        the modules' optimizers. Batches in flight are left out; call `drain` first to apply them.

        Returns:
            The model before it was cut, with the current weights, on every rank.
        """
        ranks = self.grid.model_set
        model = self._plain.with_weights(self.network, ranks)
        if self.compiled:
            options = {"run_eagerly": False, "jit_compile": self._jit_compile_as}
            self._plain.compile(model, self.get_compile_config() | options)
            state.gather_optimizer(model, self.network, self.optimizer, ranks)
        return model

    def save(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write the plain model (`whole`) from rank 0. Collective over all ranks.

        Batches in flight are not saved: a model that is loaded and cut again starts empty.
        """
        model = self.whole()
        state.write(lambda: model.save(filepath, *args, **kwargs), "save", filepath)

    def save_weights(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write the weights of the plain model from rank 0. Collective over all ranks."""
        model = self.whole()
        state.write(lambda: model.save_weights(filepath, *args, **kwargs), "save_weights", filepath)

    def load_weights(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Load this module's weights from a file of the plain model's weights."""
        model = self._plain.make()
        model.load_weights(filepath, *args, **kwargs)
        state.set_layer_weights(self.network, state.layer_weights(model.layers))

    def record(self, on: bool = True) -> list[Event]:
        """Start or stop recording the events of this module; return the events so far."""
        module = self._ready_execution().module
        recorded, module.events = module.events or [], [] if on else None
        return recorded

    def record_messages(self, on: bool = True) -> list[Log]:
        """Start or stop a log of the messages between modules, for `replay`.

        Collective over all ranks: it drains the modules.

        Returns:
            The log of each module since the last start.

        Raises:
            ValueError: the schedule is not `"synthetic"`, or there are several model groups, or
                only one module.
        """
        if self._layout.synthesizers is None or self.modules == 1 or self.grid.data > 1:
            raise ValueError(
                'Messages are recorded with schedule="synthetic", several modules and one model '
                f"group. Received: {self._layout}, {self.grid.data} groups"
            )
        return self._ready_execution().record_messages(on)

    def replay(self, logs: Sequence[Log], data: Iterable[Examples]) -> keras.Model:
        """Repeat a recorded run in this process, without the other ranks.

        Layers that draw random numbers, as Dropout does, draw others. Callbacks are not called; the
        learning rates that they have set are in the logs.

        Args:
            logs: the messages of all modules, from `record_messages`.
            data: the batches of the run, in order, as `fit` takes them.

        Returns:
            The plain model with the weights of the modules at the end of the run, bit for bit.

        Raises:
            ValueError: the schedule is not `"synthetic"`, there is only one module, the model is
                not compiled, or the logs are not of all modules.
        """
        if None in (self._layout.synthesizers, self._execution) or len(logs) != self.modules:
            raise ValueError(
                'A run is replayed by a compiled model with schedule="synthetic", of several '
                f"modules, with a log of each. Received: {self._layout}, {len(logs)} logs"
            )
        model = self._plain.make()
        self._plain.compile(model, self.get_compile_config())
        batches = [self._reader.batch(batch) for batch in data]
        replay(model, self._layout, logs, batches, self._ready_execution().compiled)
        return model

    def _ready_execution(self) -> Execution:
        if self._execution is None:
            raise ValueError(
                "A pipelined model must be compiled before it is used. Received: one that is not."
            )
        self._execution.module.begin()
        return self._execution
