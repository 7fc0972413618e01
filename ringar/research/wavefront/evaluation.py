"""The evaluation of a stack by a plan: forward and backward, with one gradient for the whole.

Every rank of a model group has the inputs, all weights and the states before the first step. A rank
computes its block of layers, one chunk of steps after the other:

    forward     receive a chunk of inputs from the previous rank, or take it; the layers of the
                block; send the last one's states. In the end the last rank broadcasts the outputs,
                and each owner the states after the last step.
    backward    the same from the last chunk to the first, with the gradients of states. All ranks
                have the gradient of the outputs, of which the last rank takes its chunks.

On the same rank, chunk c waits until chunk c - `ahead` has left the block. Otherwise a rank with
one thread might take all chunks through its first layer before its second, and keep the next rank
waiting. In a `tf.function` nothing else orders the cells: a cell runs when it has its inputs, so
that in one process the inter-op pool runs the diagonal.

The kernels of a layer are packed once for all chunks, and the gradients of its weights go from
chunk to chunk as sums that each adds to, in place.

**Gradients.** Only a layer's owner has the gradients of its weights. It multiplies them by the
number of ranks, and all others have zeros: the *average* over the ranks, as
`ringar.DistributedOptimizer` takes it, is the gradient. So there is no second exchange, and the
weights stay equal on all ranks. The gradients of the inputs and of given states go on to layers
whose rules are unknown here. Their owners broadcast them, so that all ranks have them whole.

Chunks send 4 B k U bytes each way for a batch of B and U units (float32), T / k of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import tensorflow as tf

from ringar.parallel.scan import chunks, recurrent
from ringar.parallel.scan.chain import Options
from ringar.research.wavefront.stack import Event, Links, Stack

Gradient = Callable[..., list[tf.Tensor | None]]


def evaluate(stack: Stack) -> list[tf.Tensor]:
    """Return the outputs and, if asked, each layer's state after the last step; on all ranks.

    Returns:
        The states of the last layer at each step, (batch, steps, units), or after the last one,
        (batch, units); then for each layer (batch, vectors * units).
    """
    arguments = [layer.tensors() for layer in stack.layers]
    # All ranks take part where the gradient of the inputs is sent.
    is_sent = stack.links is not None and stack.spreads[0]
    with_inputs = is_sent or recurrent.needs_input_gradient(stack.layers[0])
    counts = [len(tensors) - 1 for tensors in arguments]

    def run(inputs: tf.Tensor, *rest: tf.Tensor) -> tuple[list[tf.Tensor], Gradient]:
        tensors, layers = list(rest), []
        for layer, count in zip(stack.layers, counts, strict=True):
            layers.append(layer.of(inputs, *tensors[:count]))
            del tensors[:count]
        evaluation = _Evaluation(dataclasses.replace(stack, layers=layers), with_inputs)
        return evaluation.forward(), evaluation.backward

    rest = [tensor for tensors in arguments for tensor in tensors[1:]]
    return list(tf.custom_gradient(run)(arguments[0][0], *rest))


class _Evaluation:
    """Evaluate a stack once: forward, then backward with what forward has saved.

    Args:
        stack: the stack.
        with_inputs: whether the gradient of the inputs is expected to be used, as far as the
            tapes tell that are known in the forward pass.
    """

    def __init__(self, stack: Stack, with_inputs: bool) -> None:
        self._stack, self._chunks = stack, stack.plan.chunks
        self._known_with_inputs, self._with_inputs = with_inputs, with_inputs
        self._graph = _graph()
        self._batch = tf.shape(stack.layers[0].inputs)[0]
        # By layer, of each chunk: the call, and the result of `recurrent.forward`.
        self._calls: dict[int, list[recurrent.Sequence]] = {layer: [] for layer in stack.block}
        self._saved: dict[int, list[list[tf.Tensor]]] = {layer: [] for layer in stack.block}
        self._packed: dict[int, tf.Tensor] = {}

    def forward(self) -> list[tf.Tensor]:
        stack = self._stack
        first, last = stack.part == 0, stack.part == stack.plan.workers - 1
        states = {layer: stack.layers[layer].initial for layer in stack.block}
        self._packed = self._pack(back=False)
        left: list[tf.Tensor] = []  # the states of the last layer, of each chunk
        for number in range(len(self._chunks)) if stack.block else ():
            x = self._inputs(number) if first else self._receive(number, stack.block.start - 1)
            with _after(left, number - stack.plan.ahead):
                for layer in stack.block:
                    x = self._cell(layer, number, x, states)
            left.append(x)
            if not last:
                self._links.send(x, stack.part + 1, "states")
        return self._results(left, states)

    def backward(self, d_outputs: tf.Tensor, *d_states: tf.Tensor) -> list[tf.Tensor | None]:
        stack = self._stack
        first, last = stack.part == 0, stack.part == stack.plan.workers - 1
        carried: dict[int, tf.Tensor | None] = {
            layer: d_states[layer] if d_states else None for layer in stack.block
        }
        if last and stack.last_only:
            top = stack.block[-1]
            width = stack.layers[top].initial.shape[1]
            vector = tf.pad(d_outputs, [[0, 0], [0, width - stack.units(top)]])
            carried[top] = vector if carried[top] is None else carried[top] + vector
        # A function does not know, when it is traced, what a tape outside of it watches. Such a
        # tape differentiates the function in another graph, on all ranks.
        self._with_inputs = self._known_with_inputs or _graph() is not self._graph
        self._packed = self._pack(back=True)
        sums: dict[int, tf.Tensor] = {}
        # From the last chunk on: the gradients of the block's inputs, and of its state before.
        left: list[tf.Tensor | None] = []
        before: list[tf.Tensor] = []
        for number in reversed(range(len(self._chunks))) if stack.block else ():
            d_x = self._upstream(number, d_outputs, last)
            with _after(before, len(left) - stack.plan.ahead):
                for layer in reversed(stack.block):
                    d_x = self._cell_back(layer, number, d_x, carried, sums)
            left.append(d_x)
            before.append(carried[stack.block.start])
            if not first:
                assert d_x is not None, "only the first layer's may be unwanted"
                self._links.send(d_x, stack.part - 1, "gradients")
        return self._gradients(left[::-1], carried, sums)

    @property
    def _links(self) -> Links:
        assert self._stack.links is not None, "a rank alone has all layers"
        return self._stack.links

    # --- cells ---

    def _pack(self, back: bool) -> dict[int, tf.Tensor]:
        layers = self._stack.layers
        return {layer: chunks.pack(layers[layer], back) for layer in self._stack.block}

    def _cell(
        self, layer: int, number: int, x: tf.Tensor, states: dict[int, tf.Tensor]
    ) -> tf.Tensor:
        stack = self._stack
        factors = stack.dropped[layer]
        begin, end = self._chunks[number]
        call = dataclasses.replace(
            stack.layers[layer],
            inputs=x if factors is None else x * factors[:, None],
            initial=states[layer],
            mask=None if stack.mask is None else stack.mask[:, begin:end],
        )
        with self._recorded("forward", layer, number):
            saved = recurrent.forward(call, stack.plan.threads, self._packed[layer])
            states[layer] = recurrent.final_state(call.cell, saved)
        self._calls[layer].append(call)
        self._saved[layer].append(saved)
        return saved[0]

    def _cell_back(
        self,
        layer: int,
        number: int,
        d_h: tf.Tensor | None,
        carried: dict[int, tf.Tensor | None],
        sums: dict[int, tf.Tensor],
    ) -> tf.Tensor | None:
        stack = self._stack
        factors, packed = stack.dropped[layer], self._packed[layer]
        options = Options(stack.levels[layer], stack.plan.threads)
        call, saved = self._calls[layer][number], self._saved[layer][number]
        later, with_inputs = carried[layer], layer > 0 or self._with_inputs
        with self._recorded("backward", layer, number):
            d_x, carried[layer], sums[layer] = chunks.backward(
                call, saved, d_h, later, packed, sums.pop(layer, None), options, with_inputs
            )
        if not with_inputs and stack.links is None and not tf.executing_eagerly():
            # As in `recurrent.backward`: only run if it is used after all.
            d_x, *_ = chunks.backward(call, saved, d_h, later, packed, None, options)
        return d_x if factors is None or d_x is None else d_x * factors[:, None]

    @contextlib.contextmanager
    def _recorded(self, kind: str, layer: int, number: int) -> Iterator[None]:
        begin = time.monotonic()
        yield
        events = self._stack.events
        if events is not None and tf.executing_eagerly():
            events.append(Event(kind, layer, number, begin, time.monotonic()))

    # --- between the ranks ---

    def _inputs(self, number: int) -> tf.Tensor:
        begin, end = self._chunks[number]
        return self._stack.layers[0].inputs[:, begin:end]

    def _receive(self, number: int, layer: int) -> tf.Tensor:
        """Receive a chunk of a layer's states from the previous rank."""
        spec = self._spec(number, layer)
        with self._recorded("wait", layer + 1, number):
            return self._links.recv(spec, self._stack.part - 1, "states")

    def _upstream(self, number: int, d_outputs: tf.Tensor, last: bool) -> tf.Tensor | None:
        """Return the gradient of a chunk of the block's outputs; None for zeros."""
        stack = self._stack
        if last:
            begin, end = self._chunks[number]
            return None if stack.last_only else d_outputs[:, begin:end]
        spec = self._spec(number, stack.block[-1])
        with self._recorded("wait", stack.block[-1], number):
            return self._links.recv(spec, stack.part + 1, "gradients")

    def _spec(self, number: int, layer: int) -> tf.TensorSpec:
        begin, end = self._chunks[number]
        inputs = self._stack.layers[0].inputs
        shape = [inputs.shape[0], end - begin, self._stack.units(layer)]
        return tf.TensorSpec(shape, inputs.dtype)

    def _results(self, left: list[tf.Tensor], states: dict[int, tf.Tensor]) -> list[tf.Tensor]:
        """Return the outputs and the final states, those of the other ranks included."""
        stack, layers = self._stack, range(len(self._stack.layers))
        owners = [stack.plan.owner(layer) for layer in layers]
        units, outputs = stack.units(layers[-1]), None
        if stack.part == owners[-1]:
            outputs = left[-1][:, -1] if stack.last_only else tf.concat(left, axis=1)
        steps = [] if stack.last_only else [self._chunks[-1][1]]
        results = [self._spread(outputs, [*steps, units], owners[-1], "outputs")]
        for layer in layers if stack.with_states else ():
            width = stack.layers[layer].initial.shape[1]
            results.append(self._spread(states.get(layer), [width], owners[layer], "last"))
        return results

    def _gradients(
        self,
        left: list[tf.Tensor | None],
        carried: dict[int, tf.Tensor | None],
        sums: dict[int, tf.Tensor],
    ) -> list[tf.Tensor | None]:
        """Return the gradients in the order of the arguments."""
        stack = self._stack
        wants_states = stack.spreads[1]
        gradients = [self._input_gradient(left)]
        for number, layer in enumerate(stack.layers):
            owner = stack.plan.owner(number)
            gradients.append(self._shared(carried.get(number), layer.initial, owner, wants_states))
            if number in sums:
                weight_gradients = chunks.weight_gradients(layer, sums[number])
                gradients += [self._for_average(gradient) for gradient in weight_gradients]
            else:
                gradients += [tf.zeros_like(tensor) for tensor in layer.tensors()[2:]]
        return gradients

    def _input_gradient(self, left: list[tf.Tensor | None]) -> tf.Tensor | None:
        """Return the gradient of the inputs; None, not a part of it, if it is not sent."""
        parts = [d_x for d_x in left if d_x is not None]
        gradient = tf.concat(parts, axis=1) if self._stack.part == 0 and parts else None
        if not self._with_inputs and self._stack.links is not None:
            return None
        return self._shared(gradient, self._stack.layers[0].inputs, 0, is_whole=True)

    def _shared(
        self, gradient: tf.Tensor | None, like: tf.Tensor, owner: int, is_whole: bool
    ) -> tf.Tensor:
        """Return the gradient of inputs or first states; `is_whole`: the same on all ranks."""
        if gradient is not None and not is_whole:
            gradient = self._for_average(gradient)
        shared = tf.zeros_like(like) if gradient is None else gradient
        if self._stack.links is None or not is_whole:
            return shared
        return self._links.spread(shared, owner, "gradient")

    def _for_average(self, gradient: tf.Tensor) -> tf.Tensor:
        """Return the owner's gradient, so that its average with the others' zeros is right."""
        links = self._stack.links
        return gradient if links is None else gradient * tf.cast(links.grid.model, gradient.dtype)

    def _spread(
        self, tensor: tf.Tensor | None, dims: list[int], owner: int, kind: str
    ) -> tf.Tensor:
        if self._stack.links is None:
            assert tensor is not None
            return tensor
        if tensor is None:
            inputs = self._stack.layers[0].inputs
            tensor = tf.zeros([self._batch, *dims], inputs.dtype)
            tensor.set_shape([inputs.shape[0], *dims])
        return self._links.spread(tensor, owner, kind)


def _graph() -> tf.Graph | None:
    """Return the graph that is being made; None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _after(left: list[tf.Tensor], number: int) -> AbstractContextManager[object]:
    """Let the next ops of a graph wait for a chunk, if there is one of that number."""
    if number < 0 or tf.executing_eagerly():
        return contextlib.nullcontext()
    context: AbstractContextManager[object] = tf.control_dependencies([left[number]])
    return context
