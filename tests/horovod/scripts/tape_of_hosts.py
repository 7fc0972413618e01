"""A loop of a tape in eager code, with Horovod's TensorFlowKerasState, while ranks fail and join.

The first two processes on 127.0.0.2 fail at once. At last the loop takes an optimizer that the
state does not hold: ranks that joined with more ranks have made it with another rate.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["FOLDER"])
IS_OTHER = bool(os.environ.get("IS_OTHER"))  # by the stand-in for ssh
if IS_OTHER and len(list(FOLDER.glob("failed-*"))) < 2:
    (FOLDER / f"failed-{os.getpid()}").touch()
    sys.exit(3)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

import ringar.horovod.tensorflow as hvd  # noqa: E402

RATE = 0.01
#: What is waited for in each phase: the number of ranks.
SIZES = [2, 3, 3, 3]
FAULT, DRIFT = 2, 3

second = hvd.ProcessSet([1])
hvd.init(process_sets=[second])
print(f"init: {hvd.rank()} of {hvd.size()}, on other {IS_OTHER}", flush=True)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
optimizer = keras.optimizers.SGD(RATE * hvd.size())
stranger = keras.optimizers.SGD(RATE * hvd.size())  # that the state does not hold
x = tf.constant([[1.0], [2.0 + hvd.rank()]])


def step(by: keras.optimizers.Optimizer) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - 2.0 * x) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    weights = model.trainable_variables
    by.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


@hvd.elastic.run
def train(state: Any) -> None:
    state.sizes = [*state.sizes, hvd.size()]
    steps = 0
    while True:
        has_all = hvd.size() == SIZES[state.phase]
        step(stranger if state.phase == DRIFT and has_all else optimizer)
        steps += 1
        state.commit()
        if has_all and steps == 5:
            if state.phase == FAULT and (FOLDER / "killed").exists() is False and hvd.rank() == 0:
                (FOLDER / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            report(state)
            state.phase += 1
            if state.phase == 1:
                (FOLDER / "hosts").write_text("localhost:2\n127.0.0.2:1\n")
            steps = 0
            state.commit()
            if state.phase == DRIFT and hvd.rank() == 1:
                raise ValueError("so that another rank joins")
        time.sleep(0.02)


def report(state: Any) -> None:
    rate = float(optimizer.learning_rate) / RATE
    if second.included():
        assert float(hvd.allreduce(tf.constant(3.0), process_set=second)) == 3.0
    weights = [weight.tobytes() for weight in model.get_weights()]
    same = len(set(map(str, hvd.allgather_object((rate, weights)))))
    print(f"phase {state.phase}: size {hvd.size()}, rate {rate:.0f}, values {same}", flush=True)


state = hvd.elastic.TensorFlowKerasState(model, optimizer, phase=0, sizes=[])
state.register_reset_callbacks([lambda: optimizer.learning_rate.assign(RATE * hvd.size())])
train(state)
