"""The arguments of one call of a stack, and the links between the ranks of its model group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from ringar.collectives import broadcast
from ringar.parallel.pipeline.messages import Messages
from ringar.parallel.scan import recurrent
from ringar.research.wavefront.plan import Plan
from ringar.sharding.grid import Grid


@dataclasses.dataclass(frozen=True)
class Event:
    """Record an action of a rank, and its time.

    Attributes:
        what: "forward" or "backward", a cell; "wait", for the chunk of another rank.
        layer: the layer, from 0; of a wait the one that needs the chunk.
        chunk: the chunk, from 0.
        begin: the begin, in seconds of `time.monotonic`.
        end: the end.
    """

    what: str
    layer: int
    chunk: int
    begin: float
    end: float


@dataclasses.dataclass(frozen=True)
class Links:
    """Hold the connection between the ranks of a model group.

    Attributes:
        grid: the grid.
        messages: the stream of the stack.
        label: the name of the stack, the same on all ranks.
    """

    grid: Grid
    messages: Messages
    label: str

    def send(self, tensor: tf.Tensor, part: int, kind: str) -> None:
        """Send a chunk to another rank of the model group."""
        self.messages.send([tensor], self.grid.model_set.ranks[part], f"{self.label}/{kind}")

    def recv(self, spec: tf.TensorSpec, part: int, kind: str) -> tf.Tensor:
        """Receive a chunk from another rank of the model group."""
        rank = self.grid.model_set.ranks[part]
        return self.messages.recv([spec], rank, f"{self.label}/{kind}")[0]

    def spread(self, tensor: tf.Tensor, part: int, kind: str) -> tf.Tensor:
        """Return the tensor of one rank of the model group; the others give its shape."""
        ranks = self.grid.model_set
        spread = broadcast(
            tensor, ranks.ranks[part], name=f"{self.label}/{kind}", process_set=ranks
        )
        spread.set_shape(tensor.shape)
        return spread


@dataclasses.dataclass(frozen=True)
class Stack:
    """Hold the arguments of one call of a stack.

    Attributes:
        layers: the call of each layer; only the first one's inputs count.
        levels: the levels of the scan on the way back, of each layer.
        dropped: of each layer, factors (batch, features) of its inputs, or None.
        mask: (batch, steps) of bool, or None.
        last_only: whether the outputs are the last state of the last layer alone.
        with_states: whether the states after the last step are results, too.
        plan: the plan, a wavefront.
        links: None in one process.
        spreads: whether all ranks need the gradient of the inputs, and that of the states before
            the first step. If not, the inputs have none, unless a tape outside of the function asks
            for it, and the gradient of the states is treated like those of weights.
        events: gets the events, in eager code; None to record none.
    """

    layers: Sequence[recurrent.Sequence]
    levels: Sequence[int]
    dropped: Sequence[tf.Tensor | None]
    mask: tf.Tensor | None
    last_only: bool
    with_states: bool
    plan: Plan
    links: Links | None = None
    spreads: tuple[bool, bool] = (True, True)
    events: list[Event] | None = None

    @property
    def part(self) -> int:
        """This rank's place in its model group."""
        return 0 if self.links is None else self.links.grid.part

    @property
    def block(self) -> range:
        """The layers of this rank."""
        return range(*self.plan.blocks[self.part])

    def units(self, layer: int) -> int:
        """Return the units of a layer."""
        return int(self.layers[layer].recurrent_kernel.shape[0])
