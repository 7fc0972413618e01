"""The positions where a model can be cut, the tensors that cross, and the network of each module.

The operations of a functional model are ordered as Keras runs them. A cut at position p divides
them into the first p operations and the others. Every tensor that is made before a cut and used
after it crosses the cut. A tensor of a skip connection that is used two modules later crosses both
cuts. The model's inputs do not cross: each rank has the batch, and takes its module's inputs from
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Graph:
    """Hold a functional model as a sequence of operations.

    Attributes:
        model: the functional model.
        nodes: its nodes (calls of operations) in the order in which they run, without the inputs.
    """

    model: keras.Model
    nodes: list[Any]

    @classmethod
    def of(cls, model: keras.Model) -> Graph:
        """Return the graph of a functional or sequential model.

        Raises:
            ValueError: it is another kind of model, or not built.
        """
        functional = getattr(model, "_functional", None) or model  # of a Sequential
        if not hasattr(functional, "_nodes_by_depth"):
            raise ValueError(
                "`model` must be a functional or sequential model that is built, since others have "
                f"no graph to cut. Received: {type(model).__name__} {model.name}"
            )
        by_depth = functional._nodes_by_depth
        nodes = [
            node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]
            if not node.is_input
        ]  # fmt: skip
        return cls(functional, nodes)

    def crossing(self, place: int) -> list[Any]:
        """Return the tensors that cross a cut at position `place`."""
        later = [tensor for node in self.nodes[place:] for tensor in node.input_tensors]
        inputs = {id(tensor) for tensor in [*later, *self.model.outputs]}
        outputs = (tensor for node in self.nodes[:place] for tensor in node.outputs)
        return [tensor for tensor in outputs if id(tensor) in inputs]

    def obstacle(self, place: int) -> str:
        """Return the reason why no cut is possible at position `place`; "" if one is possible."""
        before = {id(weight) for node in self.nodes[:place] for weight in _weights(node)}
        for node in self.nodes[place:]:
            if any(id(weight) in before for weight in _weights(node)):
                return f"layer {node.operation.name} is used on both sides, with the same weights"
        for tensor in self.crossing(place):
            if getattr(tensor, "_keras_mask", None) is not None:
                maker = tensor._keras_history.operation.name
                return f"the output of layer {maker}, which crosses the cut, has a mask"
        return ""

    def after(self, layer: str) -> int:
        """Return the position of a cut after the last call of a layer.

        Raises:
            ValueError: there is no such layer, or no cut is possible there.
        """
        names = [node.operation.name for node in self.nodes]
        if layer not in names[:-1]:
            raise ValueError(
                "`cuts` must be names of layers of the model, but not of the last one. "
                f"Received: {layer!r}; the layers are {', '.join(dict.fromkeys(names[:-1]))}"
            )
        place = len(names) - names[::-1].index(layer)
        if obstacle := self.obstacle(place):
            raise ValueError(
                f"`cuts` must be places where the model can be cut. Received: {layer!r}, but "
                f"{obstacle}."
            )
        return place


@dataclasses.dataclass(frozen=True)
class Network:
    """Hold the network of one module, and its connections.

    Attributes:
        model: the network. Its inputs are a list of the tensors in `reads`, then in `receives`. Its
            outputs are a list of those in `sends`, or, in the last module, the model's outputs.
        reads: the indices of the whole model's inputs that it reads.
        receives: the tensors from the previous module.
        sends: the tensors for the next module; empty in the last one.
    """

    model: keras.Model
    reads: list[int]
    receives: list[tf.TensorSpec]
    sends: list[tf.TensorSpec]


def places(graph: Graph, layers: Sequence[str], modules: int) -> list[int]:
    """Return the positions of the cuts after the given layers.

    Raises:
        ValueError: they are not `modules - 1` layers in order, or the model cannot be cut there.
    """
    numbers = [graph.after(layer) for layer in layers]
    if len(numbers) != modules - 1 or numbers != sorted(set(numbers)):
        raise ValueError(
            "`cuts` must be the names of `modules - 1` layers, one for each module but the last, "
            f"in the order in which they run. Received: modules={modules}, cuts={list(layers)}"
        )
    return numbers


def network(graph: Graph, cuts: Sequence[int], module: int) -> Network:
    """Return the network of a module, which shares its layers with the whole model.

    Args:
        graph: the graph of the whole model.
        cuts: the positions of all cuts.
        module: the module, counted from 0.
    """
    ends = [0, *cuts, len(graph.nodes)]
    first, last = ends[module], ends[module + 1]
    nodes = graph.nodes[first:last]
    receives = graph.crossing(first)
    sends = graph.crossing(last) if last < len(graph.nodes) else []
    tensor_ids = {id(tensor) for node in nodes for tensor in node.input_tensors}
    tensor_ids |= {id(tensor) for tensor in graph.model.outputs if not sends}
    reads = [i for i, tensor in enumerate(graph.model.inputs) if id(tensor) in tensor_ids]
    from_outside = [*(graph.model.inputs[i] for i in reads), *receives]
    inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype) for t in from_outside]
    tensors = dict(zip(map(id, from_outside), inputs, strict=True))
    for node in nodes:
        args, kwargs = node.arguments.fill_in(tensors)
        outputs = keras.tree.flatten(node.operation(*args, **kwargs))
        tensors.update(zip(map(id, node.outputs), outputs, strict=True))
    outputs = [tensors[id(t)] for t in (sends or graph.model.outputs)]
    # Keras before 3.14 refuses an input that is an output, such as a shortcut past this module.
    shortcuts = set(map(id, inputs))
    outputs = [keras.layers.Identity()(t) if id(t) in shortcuts else t for t in outputs]
    if not sends:
        outputs = keras.tree.pack_sequence_as(graph.model.output, outputs)
    name = f"{graph.model.name}_module_{module}"
    return Network(keras.Model(inputs, outputs, name=name), reads, _specs(receives), _specs(sends))


def describe(model: keras.Model) -> list[str]:
    """Return the inputs and the layers of a model as text, by which ranks compare it.

    The names of layers without weights may differ.
    """
    try:
        graph = Graph.of(model)
    except ValueError as error:
        return [str(error)]
    inputs = [f"input {tensor.shape} {tensor.dtype}" for tensor in graph.model.inputs]
    return [*inputs, *map(_description, graph.nodes)]


def _description(node: Any) -> str:
    operation = node.operation
    name = operation.name if _weights(node) else type(operation).__name__
    outputs = (f"{tensor.shape} {tensor.dtype}" for tensor in node.outputs)
    trained = sum(weight.trainable for weight in _weights(node))
    return " ".join([name, *outputs, *([f"trains {trained} weights"] if _weights(node) else [])])


def _weights(node: Any) -> list[Any]:
    return list(getattr(node.operation, "weights", ()))


def _specs(tensors: Iterable[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
