"""`Wavefront`: a stack of recurrent layers as one Keras layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringar.collectives import broadcast, compiled
from ringar.job import threads as pools
from ringar.parallel.pipeline.messages import Messages
from ringar.parallel.scan import computation, recurrent
from ringar.parallel.scan.chain import Options
from ringar.research.wavefront import checks, costs, evaluation, plan, stack
from ringar.research.wavefront.plan import Costs, Plan
from ringar.sharding import grid as grids
from ringar.sharding import lineage
from ringar.sharding.examples import Digest
from ringar.sharding.grid import Grid

Shape = tuple[int | None, ...]


@keras.saving.register_keras_serializable(package="ringar")
class Wavefront(keras.layers.Layer):
    """Run stacked recurrent layers in wavefronts, over the ranks of a grid or over threads.

    Each layer goes through the steps in chunks, and begins with a chunk as soon as the layer below
    has finished it. On a grid each rank of a model group has a block of the layers, and chunks go
    from rank to rank; in one process threads take chunks of different layers. Outputs, states
    and gradients are those of the layers one after the other.

    All ranks of a model group get the same inputs and all get the outputs, so that any layers may
    come before and behind. Weights, gradients and optimizer are whole on every rank, and
    `ringar.DistributedOptimizer` is needed as ever: no variable is cut. A rank holds the states and
    values saved for the backward pass of its own layers only.

    Args:
        layers: `ringar.layers.ScanSimpleRNN`, `ScanGRU` or `ScanLSTM`, of one dtype, all with
            `return_sequences=True`; the last one need not. Dropout of the inputs is allowed.
        chunk: the steps of a chunk; None to choose by measured costs, which may also be layer by
            layer. `ringar.research.wavefront.plan` describes the model.
        return_state: return the states of all layers after the last step, too, as
            `keras.layers.RNN` does for a stack of cells.
        grid: the grid whose `model` ranks share the layers; by default the current one. Without
            one, or with `model=1`, the stack runs in this process alone.
        **kwargs: as of `keras.layers.Layer`.

    Call arguments:
        inputs: (batch, steps, features). To be evaluated in chunks, the number of steps must be
            known when a function is traced. Where the batch is not, `chunk=None` takes what pays
            for batches of 1 and of 32.
        initial_state: the states before the first step, a list of (batch, units) for each layer,
            two for an LSTM; None for zeros.
        mask: (batch, steps) of bool, as in Keras.
        training: whether dropout is applied.

    Compiled functions (`jit_compile=True`) evaluate layer by layer, on each rank; `fit` does not
    compile a model with this layer by itself. Gradients of gradients are not supported.

    Raises:
        ValueError: for layers that cannot be stacked this way, named; on every rank if ranks have
            built different stacks.

    Example:
    ```python
    grid = ringar.parallel.Grid(model=2)
    layers = [ringar.layers.ScanGRU(256, return_sequences=True) for _ in range(4)]
    model = keras.Sequential(
        [keras.Input((100, 64)), ringar.parallel.Wavefront(layers), keras.layers.Dense(10)]
    )
    model.compile(ringar.DistributedOptimizer("adam", grid=grid), "mse")
    ```
    """

    def __init__(
        self,
        layers: Sequence[keras.layers.Layer],
        chunk: int | None = None,
        *,
        return_state: bool = False,
        grid: Grid | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_layers(layers, chunk)
        super().__init__(**{"dtype": layers[0].dtype_policy, **kwargs})
        self.layers, self.return_state = list(layers), return_state
        self.chunk = None if chunk is None else int(chunk)
        self.supports_masking = True
        self.supports_jit = False  # neither messages nor chunks at once are compiled
        grid_of_stack = grid or grids.current()
        self.grid = (
            grids.resolve(grid, "Wavefront") if grid_of_stack and grid_of_stack.model > 1 else None
        )
        self.digest: Digest | None = None
        self._messages: Messages | None = None
        self._label, self._usable = self.name, 0
        self._costs: Costs | None = None
        self._sources: set[bool] = set()  # of each symbolic call: whether it reads a model's input
        self._events: list[stack.Event] | None = None

    def build(self, inputs_shape: Sequence[int | None], initial_state_shape: object = None) -> None:
        """Make the weights of all layers, and compare the ranks."""
        checks.check_inputs(inputs_shape)
        shape = tuple(inputs_shape)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: shape[-1]})
        for place, layer in enumerate(self.layers):
            if not layer.built:
                layer.build(shape)
            checks.check_kernel(place, layer, shape[-1])
            shape = (*shape[:2], layer.units)
        if self.grid is not None:
            checks.check_ranks(self._description(), tuple(inputs_shape), self.grid)
            self._label, self._usable = self.grid.agree((self.name, self._threads()))
            self._messages = Messages(self.grid.model_set.ranks)
            self.digest = Digest()
        if self.grid is not None and self.chunk is None:
            self._costs = costs.of_stack(self._shapes(), self.grid)

    def call(
        self,
        inputs: tf.Tensor,
        initial_state: Sequence[tf.Tensor] | tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor | list[tf.Tensor]:
        """Return the outputs of the last layer, and with `return_state` the states of all."""
        # A model's input may be the output of another model.
        is_example = self._reads_model_input and not recurrent.is_watched(inputs)
        if self.grid is not None and self.digest is not None and is_example:
            self.digest.take(inputs)
        if mask is not None:
            mask = tf.cast(mask, tf.bool)
            checks.check_mask(mask, *inputs.shape[:2])
        calls = self._calls(inputs, initial_state)
        factors = self._factors(inputs, training)
        chosen = self._plan_of(inputs.shape[1], inputs.shape[0])
        if chosen.is_wavefront:
            outputs, states = self._in_chunks(calls, factors, mask, chosen, initial_state is None)
        else:
            outputs, states = self._layer_by_layer(calls, factors, mask, chosen)
        top = self.layers[-1]
        shown = (top._shown_each if top.return_sequences else top._shown)(outputs, mask)
        shown = tf.cast(shown, self.compute_dtype)
        if not self.return_state:
            return shown
        results = [shown]
        for layer, state in zip(self.layers, states, strict=True):
            results += [tf.cast(vector, self.compute_dtype) for vector in layer._vectors(state)]
        return results

    def plan(self, steps: int, batch: int | None = None) -> Plan:
        """Return the plan for sequences of so many steps, in a `tf.function`.

        Args:
            steps: the number of steps.
            batch: the number of examples; None if it is not known when a function is traced.

        Raises:
            ValueError: the layer is not built.
        """
        if not self.built:
            raise ValueError("`plan` needs a Wavefront that is built. Received: one that is not.")
        ranks, threads = self._ranks, self._threads()
        lanes = min(threads, pools.inter_op_threads() or pools.cores()) if ranks == 1 else threads
        plain = plan.layer_by_layer(steps, len(self.layers), ranks, threads)
        if self.chunk is not None:
            lines = self._costs or costs.nominal(self._shapes())
            return plan.in_chunks(lines, steps, self.chunk, ranks, lanes)
        if ranks == 1 and (lanes == 1 or len(self.layers) == 1):
            return plain
        if self._costs is None:
            self._costs = costs.of_stack(self._shapes(), self.grid)
        return plan.choose(self._costs, steps, batch, ranks, lanes)

    def record(self, on: bool = True) -> list[stack.Event]:
        """Start or stop recording the cells that run in eager code; return those recorded so far.

        Args:
            on: whether to go on, from an empty list.
        """
        recorded, self._events = self._events or [], [] if on else None
        return list(recorded)

    def compute_output_shape(
        self, inputs_shape: Sequence[int | None], initial_state_shape: object = None
    ) -> Shape | list[Shape]:
        """Return the shape of the outputs, and with `return_state` those of the states."""
        batch, steps = inputs_shape[:2]
        top = self.layers[-1]
        shape = (batch, steps, top.units) if top.return_sequences else (batch, top.units)
        if not self.return_state:
            return shape
        return [shape, *((batch, units) for units in self._state_units())]

    def compute_output_spec(
        self, inputs: keras.KerasTensor, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor | list[keras.KerasTensor]:
        """Note whether all inputs are inputs of a model, whose gradients need not be sent."""
        if getattr(inputs, "_keras_history", None) is not None:
            self._sources.add(lineage.producer(inputs) is None)
        return super().compute_output_spec(inputs, *args, **kwargs)

    def compute_mask(
        self, inputs: tf.Tensor, mask: tf.Tensor | None = None
    ) -> tf.Tensor | list[tf.Tensor | None] | None:
        """Return the mask of the outputs."""
        mask_of_outputs = mask if self.layers[-1].return_sequences else None
        return (
            [mask_of_outputs, *[None] * len(self._state_units())]
            if self.return_state
            else mask_of_outputs
        )

    def get_config(self) -> dict[str, object]:
        """Return the config: layers, chunk and `return_state`, without the grid."""
        return {
            **super().get_config(),
            "layers": [keras.saving.serialize_keras_object(layer) for layer in self.layers],
            "chunk": self.chunk,
            "return_state": self.return_state,
        }

    @classmethod
    def from_config(cls, config: dict[str, object]) -> Wavefront:
        """Make the layer, on the current grid."""
        options: dict[str, Any] = dict(config)
        saved = options.pop("layers")
        layers = [keras.saving.deserialize_keras_object(layer) for layer in saved]
        return cls(layers, **options)

    # --- the call ---

    @property
    def needs_same_batches(self) -> bool:
        """Whether the ranks of a model group must have the same batches, which `fit` compares."""
        return self.grid is not None

    @property
    def _reads_model_input(self) -> bool:
        return self._sources == {True}

    @property
    def _ranks(self) -> int:
        return 1 if self.grid is None else self.grid.model

    def _threads(self) -> int:
        """Return the number of threads; on a grid, where all must plan alike, that of rank 0."""
        return self._usable or min(
            computation.usable_threads(layer.threads) for layer in self.layers
        )

    def _plan_of(self, steps: int | None, batch: int | None) -> Plan:
        plain = plan.layer_by_layer(steps, len(self.layers), self._ranks, self._threads())
        is_alone = self.grid is None
        if compiled.is_compiling() or (is_alone and tf.executing_eagerly() and self.chunk is None):
            return plain  # one cell after the other in any case
        if steps is None and self.chunk is not None:
            raise ValueError(
                f"The number of steps of {self.name} must be known when a function is traced, "
                "since it has `chunk`. Received: inputs with an unknown number of steps. Give "
                "keras.Input((steps, features)), or leave out `chunk`."
            )
        return self.plan(steps, batch) if steps else plain

    def _calls(
        self, inputs: tf.Tensor, initial_state: Sequence[tf.Tensor] | tf.Tensor | None
    ) -> list[recurrent.Sequence]:
        """Return the call of each layer, with the inputs of the first one in all of them."""
        if initial_state is None:
            batch = tf.shape(inputs)[0]
            states = [tf.zeros([batch, units], inputs.dtype) for units in self._state_units()]
            for state, units in zip(states, self._state_units(), strict=True):
                state.set_shape([inputs.shape[0], units])
        else:
            flat = initial_state if isinstance(initial_state, (list, tuple)) else [initial_state]
            states = [tf.convert_to_tensor(state) for state in tf.nest.flatten(flat)]
            checks.check_states(states, inputs.shape[0], self._state_units())
        calls = []
        for layer in self.layers:
            of_layer = [states.pop(0) for _ in range(layer._cell_kind.vectors)]
            calls.append(layer._sequence(inputs, of_layer, None, False))
        return calls

    def _factors(self, inputs: tf.Tensor, training: bool) -> list[tf.Tensor | None]:
        """Return the dropout of each layer's inputs, the same on all ranks of a model group."""
        factors: list[tf.Tensor | None] = []
        for layer, shape in zip(self.layers, self._shapes(), strict=True):
            factor, cell = None, layer.cell
            if training and cell.dropout:
                cell.reset_dropout_mask()
                factor = cell.get_dropout_mask(tf.ones([tf.shape(inputs)[0], shape.features]))
                cell.reset_dropout_mask()
                if self.grid is not None:
                    ranks = self.grid.model_set
                    name = f"{self._label}/dropout"
                    factor = broadcast(factor, ranks.ranks[0], name=name, process_set=ranks)
            factors.append(factor)
        return factors

    def _in_chunks(
        self,
        calls: list[recurrent.Sequence],
        factors: list[tf.Tensor | None],
        mask: tf.Tensor | None,
        chosen: Plan,
        starts_with_zeros: bool,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        links = None
        if self.grid is not None:
            assert self._messages is not None, "built"
            links = stack.Links(grids.resolve(self.grid, "Wavefront"), self._messages, self._label)
        dtype = calls[0].inputs.dtype
        with_inputs = not self._reads_model_input or recurrent.needs_input_gradient(calls[0])
        outputs, *states = evaluation.evaluate(
            stack.Stack(
                calls,
                levels=[layer._levels for layer in self.layers],
                dropped=[None if f is None else tf.cast(f, dtype) for f in factors],
                mask=mask,
                last_only=not self.layers[-1].return_sequences,
                with_states=self.return_state,
                plan=chosen,
                links=links,
                spreads=(with_inputs, not starts_with_zeros),
                events=self._events,
            )
        )
        return outputs, states

    def _layer_by_layer(
        self,
        calls: list[recurrent.Sequence],
        factors: list[tf.Tensor | None],
        mask: tf.Tensor | None,
        chosen: Plan,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        outputs, states = calls[0].inputs, []
        for layer, call, factor in zip(self.layers, calls, factors, strict=True):
            if factor is not None:
                outputs = outputs * tf.cast(factor, outputs.dtype)[:, None]
            call_of_layer = dataclasses.replace(call, inputs=outputs, mask=mask)
            options = Options(layer._levels, chosen.threads)
            if layer.return_sequences:
                outputs, last = recurrent.states(call_of_layer, options)
            else:
                last = recurrent.last_state(call_of_layer, options)
                outputs = last[:, : layer.units]
            states.append(last)
        return outputs, states

    # --- the stack ---

    def _state_units(self) -> list[int]:
        return [layer.units for layer in self.layers for _ in range(layer._cell_kind.vectors)]

    def _shapes(self) -> list[costs.Shape]:
        features, shapes = int(self.layers[0].cell.kernel.shape[0]), []
        for layer in self.layers:
            shapes.append(costs.Shape(layer._cell_kind, features, layer.units))
            features = layer.units
        return shapes

    def _description(self) -> dict[str, object]:
        shapes = [f"{s.cell.name}({s.features}, {s.units})" for s in self._shapes()]
        return {
            "grid": str(self.grid),
            "number of layers": len(self.layers),
            "kind of layers": ", ".join(shapes),
            "activations": str([layer._cell_kind for layer in self.layers]),
            "chunk": self.chunk,
            "costs": "RINGAR_CALIBRATION=off" if costs.are_nominal() else "measured",
            "return_state": self.return_state,
            "return_sequences": self.layers[-1].return_sequences,
            "use_bias": str([layer.use_bias for layer in self.layers]),
            "dropout": str([layer.dropout for layer in self.layers]),
            "dtype": str(self.layers[0].compute_dtype),
        }
