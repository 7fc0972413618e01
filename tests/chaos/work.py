"""The checked work of the ranks of `tests.chaos`: a wrong result prints WRONG and ends with 99."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

from tests.chaos.kinds import EPOCHS
from tests.chaos.suffering import PLAN, SLOT, happen

BETWEEN_BATCHES = 0.05
"""Seconds, in which workers of data live as long as the training."""

SERVED = PLAN["once"] + "served"
"""The file that tells that the worker of a tf.data service has started."""


def say(step: int) -> None:
    """Print the step, where the plan wants that."""
    if PLAN["loud"]:
        print(f"step {step} " + 200 * ".", flush=True)
        time.sleep(0.2)


def wrong_result(step: int, name: str) -> NoReturn:
    """End this rank: a collective has returned a wrong number."""
    print(f"WRONG {name} in step {step} on slot {SLOT}", flush=True)
    os._exit(99)


def collectives() -> None:
    """Run random collectives, each checked against NumPy."""
    import numpy as np

    import ringar

    rank, size = ringar.rank(), ringar.size()
    for step in range(PLAN["steps"]):
        rng = np.random.default_rng([PLAN["seed"], step])
        kind = str(rng.choice(["allreduce", "allgather", "broadcast", "reducescatter"]))
        dtype = rng.choice(["float32", "float64", "int32", "int64"])
        columns = int(rng.choice([1, 7, 300, 40_000]))
        arrays = [rng.integers(0, 100, (size, columns)).astype(dtype) for _ in range(size)]
        total = np.sum(arrays, axis=0)
        array, name = arrays[rank], f"step {step}"
        say(step)
        deviation = happen(step)
        if deviation == "shape":
            array = array[:, : columns // 2]
        elif deviation == "dtype":
            array = array.astype("int16" if kind != "allreduce" else "int8")
        elif deviation == "name":
            name = "another"
        elif deviation == "order":
            ringar.barrier(name="out of turn")
        if kind == "allreduce":
            result, expected = ringar.allreduce(array, op=ringar.Sum, name=name), total
        elif kind == "allgather":
            result, expected = ringar.allgather(array, name=name), np.concatenate(arrays)
        elif kind == "broadcast":
            result, expected = ringar.broadcast(array, root_rank=0, name=name), arrays[0]
        else:
            result = ringar.reducescatter(array, op=ringar.Sum, name=name)
            expected = total[rank : rank + 1]
        if not np.array_equal(np.asarray(result), expected):
            wrong_result(step, kind)


def training() -> None:
    """Train a model whose weight is a sum of whole numbers in the end."""
    import keras
    import numpy as np

    import ringar

    rows = 2 * PLAN["steps"]
    x = np.arange(rows * ringar.size(), dtype=np.float32)[:, None]
    share = x[ringar.rank() :: ringar.size()]
    # The checkpoint of rank 0 goes to a disk that is full, where the plan says so.
    checkpoints = [keras.callbacks.ModelCheckpoint(PLAN["disk"] + "/{epoch}.keras")]
    train_sum(x.sum(), share, share, 2, callbacks=checkpoints if PLAN["disk"] else [])


def fed() -> None:
    """Train the same model on batches that worker processes make: those of Keras, or of tf.data.

    A service of tf.data feeds the rank that has the fault.
    """
    import keras
    import numpy as np

    import ringar

    x = np.arange(2 * PLAN["steps"] * ringar.size(), dtype=np.float32)[:, None]

    class Rows(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(x) // 2

        def __getitem__(self, index: int) -> Any:
            time.sleep(BETWEEN_BATCHES)
            return x[2 * index : 2 * index + 2], x[2 * index : 2 * index + 2]

    rows = Rows(workers=2, use_multiprocessing=True, max_queue_size=2)
    data: Any = ringar.data.shard(rows)
    if PLAN["seed"] % 2:
        if PLAN["faults"][0]["slot"] == SLOT:
            data = from_service(np.concatenate([data[i][0] for i in range(len(data))]))
        while not os.path.exists(SERVED):
            time.sleep(0.05)
    train_sum(x.sum(), data, callbacks=[])
    # A worker that is stopped for good, and had no batch to make: Python would wait for its end.
    for worker in multiprocessing.active_children():
        os.kill(worker.pid or 0, signal.SIGCONT)


def from_service(rows: Any) -> Any:
    """Return a dataset of `rows` in batches of two, from a tf.data service with one worker."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import testing

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.partition("://")[2]
    context = multiprocessing.get_context("spawn")
    context.Process(target=serve, args=(address,), daemon=True).start()
    data = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(2)
    data = data.apply(testing.sleep(int(1e6 * BETWEEN_BATCHES)))
    distributed = service.distribute(
        "parallel_epochs", dispatcher.target, max_outstanding_requests=1
    )
    data = data.apply(distributed).apply(tf.data.experimental.assert_cardinality(len(rows) // 2))
    data.dispatcher = dispatcher  # which ends with the dataset
    return data


def serve(address: str) -> None:
    """Be the worker of a tf.data service."""
    import tensorflow as tf

    service = tf.data.experimental.service
    server = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    Path(SERVED).touch()
    server.join()


def train_sum(total: float, *data: Any, callbacks: list[Any], **options: Any) -> None:
    """Train a model of one weight, from which each row of all ranks subtracts its value."""
    import keras

    import ringar

    class Outputs(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return y_pred[:, 0]

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, Outputs(reduction="sum"), jit_compile=bool(PLAN["seed"] % 2))
    model.layers[0].kernel.assign([[0.0]])
    callbacks = [ringar.callbacks.Distributed(), faults_of_batches(), *callbacks]
    model.fit(*data, verbose=0, callbacks=callbacks, **options)
    if float(model.layers[0].kernel[0, 0]) != -total:
        wrong_result(-1, "weight")


def faults_of_batches() -> Any:
    """Return a callback that lets faults happen before batches, counted through all epochs."""
    import keras

    class Faults(keras.callbacks.Callback):
        before = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.before = epoch * PLAN["steps"]

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            say(self.before + batch)
            happen(self.before + batch)

    return Faults()


def resumed() -> None:
    """Go on from the backup of a life before, and compare with an undisturbed training."""
    import keras
    import numpy as np

    import ringar

    numbers = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
    frequency = ("epoch", 1, 5)[PLAN["seed"] % 3]
    backup = keras.callbacks.BackupAndRestore(
        PLAN["backup"], save_freq=frequency, delete_checkpoint=bool(PLAN["seed"] % 2)
    )
    saver = ringar.callbacks.SaveOnSignal(signals=numbers)
    state = train_noisily([backup, saver, faults_of_batches()])
    expected = train_noisily([])
    if not all(map(np.array_equal, state, expected)):
        wrong_result(-1, "state of a resumed training")


def elastic_backup() -> None:
    """Go on from the backup of a life before, in an elastic job: each row counts once an epoch."""
    import keras
    import numpy as np

    import ringar

    x = np.arange(6 * PLAN["steps"], dtype=np.float32)[:, None]
    data = ringar.elastic.Dataset((x, x), 2, shuffle=True, seed=PLAN["seed"])
    backup = keras.callbacks.BackupAndRestore(PLAN["backup"], save_freq=5, delete_checkpoint=False)
    callbacks = [backup, ringar.callbacks.Elastic(every=4)]
    train_sum(EPOCHS * x.sum(), data, epochs=EPOCHS, callbacks=callbacks)


def train_noisily(callbacks: list[Any]) -> list[Any]:
    """Train a model whose every kind of state matters; return its state and its optimizer's."""
    import keras
    import numpy as np

    import ringar

    keras.utils.set_random_seed(PLAN["seed"] + ringar.rank())
    x = np.random.rand(8 * PLAN["steps"], 6).astype(np.float32)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    optimizer = ringar.DistributedOptimizer(keras.optimizers.Adam(0.05))
    model.compile(optimizer, "mse", jit_compile=bool(PLAN["seed"] % 2))
    callbacks = [ringar.callbacks.Distributed(), *callbacks]
    model.fit(x, x[:, :1], 8, EPOCHS, verbose=0, callbacks=callbacks)
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def elastic() -> None:
    """Add up rows in a job whose ranks may change; each must count once.

    Where a script tells the hosts, the job goes on until it has those that the script tells last.
    """
    import numpy as np

    import ringar

    rows = 6 * PLAN["steps"]
    data = ringar.elastic.Dataset(np.arange(rows), 2, shuffle=True, seed=PLAN["seed"])

    @ringar.elastic.run
    def train(state: ringar.elastic.ObjectState) -> None:
        step = 0
        while state.done or state.epoch < 2 or PLAN["size"] not in (0, ringar.size()):
            for done, batch in data.batches(state.epoch, state.done):
                say(step)
                happen(step)
                state.total += int(ringar.allreduce(batch.sum(), op=ringar.Sum, name="rows"))
                state.done, step = done, step + 1
                if step % 3 == 0:
                    state.commit()
                time.sleep(0.1 if PLAN["size"] else 0)
            state.epoch, state.done = state.epoch + 1, 0

    state = ringar.elastic.ObjectState(epoch=0, done=0, total=0)
    train(state)
    if state.total != state.epoch * rows * (rows - 1) // 2:
        wrong_result(-1, "sum of rows")
