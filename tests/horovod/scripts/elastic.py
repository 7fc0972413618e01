"""Elastic training as in Horovod's documentation: fit, a loop of variables, a state of one's own.

Rank 2 of the first world dies in the middle of `fit`; a program raises Horovod's exceptions itself.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ringar.horovod.tensorflow as hvd_tf
import ringar.horovod.tensorflow.keras as hvd
from ringar.horovod.common.elastic import State, run_fn
from ringar.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

KILLED = Path(os.environ["KILLED"])
EPOCHS, STEPS = 4, 5

hvd.init()
assert os.environ["HOROVOD_ELASTIC"] == "1"

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
x = np.random.default_rng(0).normal(size=(STEPS * 4, 2)).astype("float32")


class Die(keras.callbacks.Callback):
    """Kill rank 2 of three in the second epoch, once."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if state.epoch == 1 and batch == 2 and hvd.rank() == 2 and not KILLED.exists():
            KILLED.touch()
            os.kill(os.getpid(), signal.SIGKILL)


sizes: list[int] = []
sized = tf.function(hvd_tf.size_op)


@hvd.elastic.run
def train(state: Any) -> None:
    sizes.append(hvd.size())
    assert int(sized()) == hvd.size()  # though it was traced in another world
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        Die(),
    ]
    while KILLED.exists() and hvd.size() < 3:
        time.sleep(0.05)
        state.commit()  # which lets the rank in that takes the place
    epochs = EPOCHS - state.epoch
    model.fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
resets: list[int] = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
same = len({weights.tobytes() for weights in hvd_tf.allgather_object(model.get_weights()[0])})
assert resets == sizes[1:], (resets, sizes)
print(f"fit: epoch {state.epoch}, weights {same}, size {hvd.size()}", flush=True)

# Horovod's exceptions, raised by the program: one goes back to the commit, the other loses nothing.
variables = hvd_tf.elastic.TensorFlowState([tf.Variable(0.0)], step=0)
raised = {"internal": False, "updated": False}


@hvd_tf.elastic.run
def count(state: Any) -> None:
    while state.step < 6:
        state.variables[0].assign_add(1.0)
        state.step += 1
        if state.step == 2:
            state.commit()
        if state.step == 3 and not raised["internal"]:
            raised["internal"] = True
            raise HorovodInternalError("of the program")
        if state.step == 4 and not raised["updated"]:
            raised["updated"] = True
            raise HostsUpdatedInterrupt(False)


count(variables)
print(f"variables: {float(variables.variables[0])} {variables.step} {raised}", flush=True)


class Own(State):
    """A state with the methods that Horovod asks of a subclass."""

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd_tf.broadcast_object, get_rank=hvd.rank)
        self.value, self.saved, self.resets = hvd.rank(), -1, 0

    def save(self) -> None:
        self.saved = self.value

    def restore(self) -> None:
        self.value = self.saved

    def sync(self) -> None:
        self.value = self._bcast_object(self.value)
        self.save()

    def reset(self) -> None:
        self.resets += 1


def once(state: Own) -> int:
    state.value += 1
    state.commit()
    if state.resets == 0:
        state.value = 100
        raise HorovodInternalError("of the program")
    return state.value


custom = Own()
custom.register_reset_callbacks([lambda: setattr(custom, "resets", custom.resets + 10)])
print(f"own: {run_fn(once)(custom)} {custom.resets}", flush=True)
