"""Horovod's elastic example for Keras while slots and hosts are added and removed.

Rank 0 writes the hosts that the discovery script prints. After the last phase rank 1 fails, and
with it ends the job: its limit of resets is reached.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import ringar.horovod.tensorflow as hvd_tf
import ringar.horovod.tensorflow.keras as hvd

HOSTS = Path(os.environ["FOLDER"], "hosts")
#: The hosts of each phase, and the number of worlds until then: before the last one a rank leaves.
PHASES = [("localhost:1\n", 1), ("localhost:2\n", 2), ("localhost:1\n127.0.0.2:1\n", 4)]
STEPS, RATE = 4, 0.01

hvd.init()
place = (hvd.rank(), hvd.size(), os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"])
print("init: {} of {}, HOROVOD_RANK {} of {}".format(*place), flush=True)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(RATE * hvd.size())), "mse")
x = np.random.default_rng(hvd.rank()).normal(size=(STEPS * 4, 2)).astype("float32")
y = x[:, :1]


def one_step() -> None:
    """Make the state of the optimizer; on ranks that stay, meet those that join."""
    model.fit(x, y, batch_size=4, steps_per_epoch=1, epochs=1, verbose=0)


def on_state_reset() -> None:
    model.optimizer.learning_rate = RATE * hvd.size()
    one_step()


@hvd.elastic.run
def train(state: Any) -> None:
    state.sizes = [*state.sizes, hvd.size()]
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    while state.phase < len(PHASES):
        hosts, worlds = PHASES[state.phase]
        if hvd.rank() == 0 and HOSTS.read_text() != hosts:
            new = HOSTS.with_suffix(".new")
            new.write_text(hosts)
            new.replace(HOSTS)
        if len(state.sizes) == worlds:
            model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=callbacks)
            report(state)
            state.phase += 1
        state.commit()
        time.sleep(0.02)


def report(state: Any) -> None:
    rate = float(model.optimizer.learning_rate) / RATE
    weights = [weight.tobytes() for weight in model.get_weights()]
    same = len(set(map(str, hvd_tf.allgather_object((rate, weights)))))
    print(f"phase {state.phase}: size {hvd.size()}, rate {rate:.0f}, values {same}", flush=True)


one_step()
state = hvd.elastic.KerasState(model, batch=0, epoch=0, phase=0, sizes=[])
state.register_reset_callbacks([on_state_reset])
train(state)
print(f"done: rank {hvd.rank()} of {hvd.size()}, sizes {state.sizes}", flush=True)


@hvd.elastic.run
def end(state: Any) -> None:
    while True:
        hvd.allreduce(np.ones(1), name="end")
        if hvd.rank() == 1:
            raise ValueError("the last one")


end(hvd.elastic.KerasState(model))
