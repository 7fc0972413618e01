"""Send: a rank sends tensors to another rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

from ringar.collectives import call as calls
from ringar.collectives import message
from ringar.collectives.dtypes import Array
from ringar.collectives.ways import is_numpy, values_of
from ringar.job import native, tensorflow
from ringar.job.process_sets import ProcessSet


def send(
    tensors: Array | Sequence[Array],
    to: int,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    tag: SupportsIndex = 0,
) -> None:
    """Send tensors to another rank, which calls `ringar.recv`.

    Messages between two ranks with the same tag are a stream: they arrive in the order of the
    sends, with any process sets. Each stream has two buffers in each direction. A send
    ends when its message is in a buffer, and waits while both buffers hold messages that were not
    received. In a `tf.function` a send keeps its place in program order, and delays only later
    messages of its stream.

    Args:
        tensors: a TensorFlow tensor or variable or a NumPy array of at most 8 dimensions, or a list
            of them; any dtype but strings. Tensors of one dtype travel in one message, so that
            tensors of three dtypes need more than the two buffers.
        to: the receiver's rank in the process set; another rank than this one.
        name: in errors, timelines and statistics; must be equal on both ranks.
        process_set: the set in which `to` is a rank; default all. Must be the same on both ranks.
        tag: the stream, from 0 to 1023. A `recv` with another tag does not see the message.

    Raises:
        MismatchError: the receiver expected another message than an earlier one of this rank.
            That message was dropped, and this call has sent nothing; both ranks can go on. (In
            TensorFlow ops an `InvalidArgumentError`, as for collectives.) In a `tf.function`
            with further collectives or messages, the ranks would be out of step. There all later
            messages of this rank fail, too, and so do the ranks that wait for them.
        ValueError: `to` is no other rank of the process set.
        UnsupportedError: in a function that is compiled (`jit_compile=True`), or for strings.
        DeadlineError: the receiver did not come in time.
        PeerLostError: the receiver died or left.

    Messages have no gradient: the receiver computes with the tensors, in another process.

    Examples:
        Rank 1 sends two tensors, and rank 0 receives them:

        >>> if ringar.rank() == 1:
        ...     ringar.send([tf.ones([2, 28, 28]), tf.constant([7, 8])], to=0)
        >>> specs = [tf.TensorSpec([None, 28, 28], tf.float32), tf.TensorSpec([None], tf.int32)]
        >>> if ringar.rank() == 0:
        ...     maps, labels = ringar.recv(specs, source=1)
        ...     print(maps.shape, labels.numpy())
        (2, 28, 28) [7 8]
    """
    call = message.begin("send", "to", to, process_set, name, tag)
    values = values_of(tensors if isinstance(tensors, (list, tuple)) else [tensors], "send")
    for value in values:
        message.check_dimensions("tensors", value.shape)
    for places in calls.by_dtype(value.dtype for value in values):
        group = [values[i] for i in places]
        if is_numpy(group):
            native.run(call.spec(group[0].dtype.name), group, group)
        else:
            from ringar.collectives.tensors import issue

            wait = tensorflow.is_eager()
            issue("send", group, wait=wait, spec=call.spec(group[0].dtype.name))


message.define("send")
