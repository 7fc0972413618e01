"""A user's script with each public name, which `mypy --strict` accepts. It is checked, never run.

`make lint` checks it with the options of `--strict` (see pyproject.toml), and `test_names.py` that
it leaves no public name out. `assert_type` tells what a user's editor shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

import ringar
from ringar import (
    asynchronous,
    callbacks,
    cost_model,
    data,
    elastic,
    errors,
    horovod,
    layers,
    parallel,
    threads,
)

if TYPE_CHECKING:
    import cupy
    from typing_extensions import assert_type


def start() -> None:
    ringar.init(deadline=60.0)
    assert_type(ringar.is_initialized(), bool)
    assert_type(ringar.rank() + ringar.local_rank() + ringar.cross_rank(), int)
    assert_type(ringar.size() + ringar.local_size() + ringar.cross_size(), int)
    assert_type(ringar.__version__, str)
    assert_type(threads.cores() + threads.intra_op_threads() + threads.inter_op_threads(), int)
    threads.configure(1, 2)
    parameters = cost_model.load("network.json")
    assert_type(parameters, cost_model.Parameters)
    cost_model.save("network.json", parameters)
    assert_type(cost_model.allreduce_seconds(parameters, 1 << 20, 2, 4, "ring"), float)


def train(model: keras.Model, epochs: int) -> dict[str, list[float]]:
    start()
    x, y = data.shard((np.ones((8, 4)), np.ones(8)))
    data.adapt(keras.layers.Normalization(), x)
    optimizer = ringar.DistributedOptimizer(
        keras.optimizers.Adam(), op=ringar.Average, compression=ringar.Compression.powersgd(rank=2)
    )
    model.compile(optimizer, "mse")
    report = ringar.memory_report(model, ringar.DistributedOptimizer("adam", shard="optimizer"))
    with ringar.sharded_weights():
        ringar.gather_together(keras.layers.Dense(1), keras.layers.Dense(1))
    assert_type(report, ringar.MemoryReport)
    ringar.DistributedOptimizer(
        "adam", shard="gradients", shard_ranks="host", offload="disk", offload_folder="/tmp"
    )
    assert_type(report.that_fit(), tuple[ringar.MemoryRow, ...])
    ringar.LocalSGD(keras.optimizers.SGD(), 16, outer=ringar.SlowMo(0.7), warmup_steps=10)
    ringar.LocalSGD("adam", lambda step: 1 + step // 10, average="parameters+slots")
    ringar.DiLoCo("adam", 500, compression=ringar.Compression.bf16)
    assert_type(ringar.EASGD("sgd", beta=0.9), keras.optimizers.Optimizer)
    ringar.Codistillation(model, 2, alpha=0.5, distance="mse", burn_in=10, exchange_period=20)
    ringar.Hogwild("sgd", atomic=False, lock=True)
    ringar.set_random_seed(1)
    several: list[keras.callbacks.Callback] = [
        callbacks.Distributed(),
        callbacks.SaveOnSignal("saved.keras"),
        callbacks.Elastic(every=20, scale_learning_rate=True),
        callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.MetricAverageCallback(),
        callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2),
        callbacks.LearningRateScheduleCallback(0.1, multiplier=0.5),
        ringar.callbacks.Distributed(check=False),
    ]
    history = model.fit(x, y, epochs=epochs, callbacks=several)
    ringar.predict(model, x, batch_size=16, root_rank=0)
    ringar.separate_seeds(model)
    assert_type(ringar.join(model.optimizer), int)
    step = ringar.autotune(lambda: str.upper, model.trainable_variables)
    assert_type(step("step"), str)
    ringar.load_model("saved.keras", op=ringar.Sum, bucket_bytes=1 << 20)
    return {name: [float(value) for value in values] for name, values in history.history.items()}


def simulate(model: keras.Model, control: ringar.SoftSync | ringar.HardSync) -> None:
    values = [np.zeros((4, 2), np.float32)]
    shards = [asynchronous.Shard(0, values, keras.optimizers.SGD(), control, workers=2)]
    rows = asynchronous.Rows(np.array([1]), np.ones((1, 2), np.float32))
    changes = shards[0].take(asynchronous.Push(0, 0, 0, [rows]))
    assert_type(changes, bool)
    gradients = asynchronous.gradients_of(model, lambda worker, step: (values, None))
    log = asynchronous.simulate(shards, gradients, 2, lambda rng, worker: rng.normal(), 1, 10)
    assert_type(log, list[asynchronous.Entry])
    assert_type(asynchronous.replay(log, shards, gradients), list[list[np.ndarray]])
    assert_type(asynchronous.staleness_histogram(log), np.ndarray)
    assert_type(asynchronous.Turnstile(log, shard=0).next(), tuple[int, int] | None)
    print(ringar.Asynchronous("staleness"), ringar.StaleSynchronous(3), ringar.BackupWorkers(1))


def no_gradients(
    worker: int, step: int, values: list[list[np.ndarray]]
) -> list[list[asynchronous.Gradient]]:
    return [[None for _ in arrays] for arrays in values]


def names(control: asynchronous.StalenessControl) -> asynchronous.Gradients:
    control.check(2)
    return no_gradients


def serve(model: keras.Model) -> keras.optimizers.Optimizer:
    server = ringar.ParameterServer(
        model, keras.optimizers.SGD(), 2, servers=[0], control=ringar.StaleSynchronous(3)
    )
    with server:
        if server.is_worker:
            values = server.pull()
            assert_type(values, list[np.ndarray])
            server.push([np.zeros_like(value) for value in values])
        assert_type(server.log(), list[asynchronous.Entry])
    return ringar.Downpour("sgd", server, n_fetch=2, n_push=2, warm_start=10, overlap=True)


@elastic.run
def train_on(state: elastic.KerasState, model: keras.Model) -> int:
    rows = elastic.Dataset((tf.ones((8, 4)), tf.ones(8)), batch_size=2, shuffle=True, seed=1)
    for done, batch in rows.batches(epoch=0, done=state.done):
        assert_type(done, int)
        assert_type(batch, tuple[tf.Tensor, tf.Tensor])
        model.train_on_batch(*batch)
        state.commit()
    return 1


def states(model: keras.Model) -> None:
    several: list[elastic.State] = [elastic.ObjectState(epoch=0)]
    several[0].register_reset_callbacks([start])
    assert_type(train_on(elastic.KerasState(model, done=0), model), int)


def collectives(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    pair = ringar.add_process_set(ringar.ProcessSet([0, 1]))
    assert_type(pair, ringar.ProcessSet)
    process_set: ringar.ProcessSet = ringar.global_process_set
    kinds: list[ringar.ReduceOp] = [ringar.Sum, ringar.Min, ringar.Max, ringar.Product]
    same = array
    same = ringar.allreduce(array, kinds[0], process_set=process_set)
    same = ringar.reducescatter(same, ringar.Sum)
    same = ringar.allgather(same)
    same = ringar.broadcast(same, 0)
    same = ringar.alltoall(same)
    same, counts = ringar.alltoall(same, [1, 1])
    several = ringar.grouped_allreduce([same], compression=ringar.Compression.bf16)
    several = ringar.grouped_reducescatter(several)
    several = ringar.grouped_allgather(several)
    several = ringar.grouped_broadcast(several, 0)
    assert_type(several[0], np.ndarray[tuple[int, ...], np.dtype[np.float32]])
    ringar.barrier(process_set=pair)
    ringar.empty((2, 3), np.float64).fill(0.0)
    ringar.remove_process_set(pair)
    assert_type(ringar.broadcast_object({"seed": counts.size}), dict[str, int])
    assert_type(ringar.allgather_object("host"), list[str])
    ringar.broadcast_variables([tf.Variable(1.0)])
    ringar.send(array, 1)
    with ringar.Window(10, "float64", ringar.global_process_set, name="shared") as window:
        assert_type(window.length(0) + window.version(0, 0), int)
        assert_type(window.get(0, start=1, count=2), np.ndarray)
        assert_type(window.get(0, versions=True), tuple[np.ndarray, np.ndarray])
        window.put(0, window.local, start=0)
        window.accumulate(0, window.local, atomic=True)
        window.accumulate(0, window.local, lock=False)
        window.fetch_add(0, 1, 2.5)
        rows = np.array([3, 1])
        read = window.gather(0, rows, 2, out=np.empty((2, 2)))
        window.scatter_add(0, [3, 1], read, atomic=True)
        assert_type(window.update(0, rows, read, read + 1, lock=False), np.ndarray)
    received = ringar.recv(tf.TensorSpec([2], tf.float32), 1)
    print(received)


def observe() -> None:
    ringar.start_timeline("timeline.json")
    ringar.stop_timeline("timeline.json")
    calls = {name: traffic.calls for name, traffic in ringar.stats().items()}
    assert_type(calls, dict[str, int])
    ringar.reset_stats()


def step(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    with ringar.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    variables: list[tf.Variable] = model.trainable_variables
    return tape.gradient(loss, variables)


def cut(model: keras.Model) -> keras.Model:
    grid = parallel.Grid(model=2)
    assert_type(grid.agree(7), int)
    split_net = keras.Sequential(
        [
            layers.SplitConv2D(8, 3, reads="whole", grid=grid),
            layers.LocalResponseNormalization(),
            layers.SyncBatchNormalization(),
            layers.GroupedConv2D(8, (3, 3), groups=2),
            layers.Gather(),
            layers.GroupedDense(4, groups=2),
            layers.HogwildEmbedding(10, 4),
            layers.SplitDense(4, writes="addend"),
            layers.Sum(),
            layers.ReturnExamples(),
            layers.ScanGRU(4),
            layers.ScanLSTM(4),
            layers.ScanSimpleRNN(4),
        ]
    )
    tiles = parallel.Grid(data=1, model=(2, 2))
    print(parallel.tile(np.ones((1, 4, 4, 1)), tiles).shape)
    on_tiles = keras.Sequential(
        [
            layers.CutPlane(),
            layers.OwnTile(size=(32, 32), grid=tiles),
            layers.PartitionedConv2D(8, 3, padding="same"),
            layers.PartitionedLocallyConnected2D(8, (3, 3)),
            layers.PartitionedMaxPooling2D(2),
            layers.PartitionedAveragePooling2D(2, strides=1),
            layers.PartitionedGlobalAveragePooling2D(),
            layers.PartitionedGlobalMaxPooling2D(keepdims=True),
            layers.FlattenPlane(),
            layers.GatherPlane(),
            layers.LocallyConnected2D(8, 3),
        ]
    )
    print(parallel.partition(on_tiles, tiles, layers=["conv"]))
    pipelined = parallel.Pipelined(model, modules=2)
    pipelined.compile("adam", "mse")
    stack = parallel.Wavefront([layers.ScanGRU(4)], chunk=2, return_state=True, grid=grid)
    print(stack.plan(steps=10, batch=4).describe(), stack.record())
    linear = parallel.Synthesizer(hidden_layers=0)
    pipelined = parallel.Pipelined(model, schedule="synthetic", synthesizer=linear)
    print(pipelined.replay(pipelined.record_messages(), []))
    parallel.SyntheticBPTT([layers.ScanGRU(4)], linear.for_inputs([], []), stretch=3)
    print(split_net, parallel.own, parallel.merge, parallel.split)
    print(plan())
    print(parallel.scan.Sequential([split_net]), parallel.scan.scan, parallel.scan.scan_across)
    return pipelined


class Means(parallel.scheduled.Problem):
    variables = 2

    def schedule(self, number: int, surveyed: np.ndarray | None) -> list[np.ndarray]:
        return parallel.scheduled.balance(np.ones(self.variables), ringar.size())

    def push(self, blocks: Sequence[np.ndarray]) -> np.ndarray:
        return np.ones(2)

    def pull(self, blocks: Sequence[np.ndarray], pushed: np.ndarray) -> None:
        print(blocks, pushed)

    def objective(self) -> float:
        return 0.0


def plan() -> parallel.scheduled.History:
    x, y, places = np.ones((8, 4)), np.ones(8), np.arange(8)
    schedulers: list[parallel.scheduled.Scheduler] = [
        parallel.scheduled.Dynamic(8, rho=0.3, explore=0.2),
        parallel.scheduled.RoundRobin(8),
        parallel.scheduled.Random(8, rho=0.5, seed=1),
    ]
    lasso = parallel.scheduled.Lasso(0.1, cut="columns", scheduler=schedulers[0]).fit(x, y)
    assert_type(lasso.coef_, np.ndarray)
    factors = parallel.scheduled.MatrixFactorization(4, epochs=2)
    assert_type(factors.fit(places, places, y, (8, 8)).predict(places, places), np.ndarray)

    def stop(progress: parallel.scheduled.Progress) -> bool:
        return progress.round > 3 and progress.objective < 1.0

    return parallel.scheduled.run(Means(), 5, tolerance=1e-3, callbacks=[stop])


def sparse_net() -> parallel.SparseNet:
    layers = parallel.sparse.erdos_renyi([8, 8], 2)
    layers += parallel.sparse.radix_net([[2, 4]])
    layers += parallel.sparse.communities([8, 8], communities=2, connections=2)
    placement: parallel.sparse.Partition = parallel.sparse.partition(layers, 2, "block")
    net = parallel.SparseNet(layers, partition=placement)
    net.save("net.npz")
    return parallel.SparseNet.load("net.npz", partition="random")


def on_gpu(array: cupy.ndarray) -> list[cupy.ndarray]:
    several = ringar.cupy.grouped_allreduce([ringar.cupy.allreduce(array)])
    several = ringar.cupy.grouped_reducescatter([ringar.cupy.reducescatter(several[0])])
    several = ringar.cupy.grouped_allgather([ringar.cupy.allgather(several[0])])
    several = ringar.cupy.grouped_broadcast([ringar.cupy.broadcast(several[0], 0)], 0)
    ringar.cupy.alltoall(array, [1, 1])
    ringar.cupy.scan(array, several[0])
    ringar.cupy.synchronize()
    return several


def main() -> None:
    results = ringar.run(train, (keras.Sequential(), 2), np=2, env={"A": "1"}, timeout=60)
    assert_type(results, list[dict[str, list[float]]])
    with ringar.ray.RayExecutor(2, cpus_per_worker=2, options=["--deadline", "60"]) as executor:
        assert_type(executor.run(train, [keras.Sequential(), 2]), list[dict[str, list[float]]])
        assert_type(executor.execute_single(len), int)
    elastic = ringar.ray.RayExecutor(min_workers=1, max_workers=2, reset_limit=3, elastic_timeout=9)
    assert_type(elastic.run(len, ["abc"]), list[int])
    assert_type(ringar.spark.run(len, ["abc"], num_proc=2), list[int])
    assert_type(ringar.spark.run_elastic(len, ["abc"], min_num_proc=1), list[int])
    assert_type(ringar.run(ringar.size, np=2, min_np=1, max_np=3), list[int])
    assert_type(horovod.run(ringar.size, num_proc=2), list[int])
    try:
        ringar.shutdown()
    except (
        errors.DeadlineError,
        errors.DeviceError,
        errors.MismatchError,
        errors.NotInitializedError,
        errors.OutOfMemoryError,
        errors.PeerLostError,
        errors.RankError,
        errors.UnsupportedError,
        errors.RingarError,
    ) as error:
        assert_type(str(error), str)
