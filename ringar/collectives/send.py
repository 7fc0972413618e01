"""Send: one rank gives tensors to another one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringar.collectives import call as calls
from ringar.collectives import message
from ringar.collectives.collective import is_numpy, issue, values_of
from ringar.job import native
from ringar.job.process_sets import ProcessSet


@calls.do_not_convert
def send(
    tensors: Any, to: int, *, name: str | None = None, process_set: ProcessSet | None = None
) -> None:
    """Send tensors to another rank, which calls `ringar.recv`.

    What a rank sends to another one arrives in the order in which it was sent, whatever process
    sets are named. Each pair of ranks has two buffers in each direction: a send is done when its
    message is in one of them, and waits while both hold messages that were not received. In a
    `tf.function` it takes its place in the order of the program when all before it has been
    issued, and holds up nothing but later messages to the same rank.

    Args:
        tensors: a TensorFlow tensor or variable or a NumPy array of at most 8 dimensions, or a list
            of them; any dtype but strings. Those of one dtype travel in one message: three dtypes
            fill the buffers of a receiver that does not come.
        to: the receiver's rank in the process set, not this one.
        name: in errors, timelines and statistics; must be equal on both ranks.
        process_set: the set in which `to` is a rank; default all. Must be the same on both ranks.

    Raises:
        MismatchError: the receiver has asked for something else than this rank has sent before.
            That was dropped, and what this call was given was not sent; both can go on. (In
            TensorFlow ops an `InvalidArgumentError`, as for collectives.) In a `tf.function`
            that has more collectives or messages, the ranks would go on out of step: there all
            later messages of this rank fail, too, and the ranks that wait for them.
        ValueError: `to` is no other rank of the process set.
        UnsupportedError: in a function that is compiled (`jit_compile=True`), or for strings.
        DeadlineError: the receiver did not come in time.
        PeerLostError: the receiver died or left.

    Messages have no gradient: what is computed from what was sent is another rank's.

    Example:
    ```python
    if ringar.rank() == 0:
        ringar.send([maps, labels], to=1)
    if ringar.rank() == 1:
        maps, labels = ringar.recv(
            [tf.TensorSpec([None, 28, 28], tf.float32), tf.TensorSpec([None], tf.int64)], source=0
        )
    ```
    """
    call = message.begin("send", "to", to, process_set, name)
    values = values_of(tensors if isinstance(tensors, (list, tuple)) else [tensors], "send")
    for value in values:
        message.check_dimensions("tensors", tf.TensorShape(value.shape))
    for places in calls.by_dtype(value.dtype for value in values):
        group = [values[i] for i in places]
        if is_numpy(group):
            native.run(call.spec(group[0].dtype.name), group, group)
        else:
            issue("send", group, wait=tf.executing_eagerly(), spec=call.spec(group[0].dtype.name))


tf.no_gradient("RingarSend")
tf.no_gradient("RingarSendAsync")
