"""Trains for some seconds, perhaps slowly, for `benchmarks.asynchronous.slow_rank`.

python -m benchmarks.asynchronous.slow_rank_worker OPTIONS
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness.worker import read_options, weights_differ, write_report

LEARNING_RATE = 1e-4
SMALL_BOUND, WARM_UP = 16, 8


def main() -> None:
    options = read_options()
    import keras
    import tensorflow as tf

    import ringar
    from benchmarks.training.models import MODELS, data_for
    from ringar import asynchronous

    ringar.init(intra_op_threads=1, inter_op_threads=2)
    build, batch = MODELS[options["model"]]
    keras.utils.set_random_seed(1)
    model = build()
    server = _server(model, options)
    optimizer: Any = keras.optimizers.SGD(LEARNING_RATE)
    if server is None:
        optimizer = ringar.DistributedOptimizer(optimizer)
    else:
        optimizer = ringar.Downpour(optimizer, server)
    model.compile(optimizer, "mse")
    model.make_train_function()
    data = iter(tf.data.Dataset.from_tensors(data_for(model, batch)).cache().repeat())
    is_last = ringar.rank() == ringar.size() - 1
    slow = options["slow"] if is_last else 1.0

    def step() -> float:
        start = time.perf_counter()
        model.train_function(data)
        model.optimizer.iterations.numpy()
        time.sleep((slow - 1) * (time.perf_counter() - start))
        return time.perf_counter() - start

    # Synchronous ranks take equally many. The first steps trace, and wait for others that begin.
    step_seconds = min(step() for _ in range(WARM_UP))
    step_seconds = float(ringar.allreduce(np.array([step_seconds]), ringar.Max)[0])
    most = max(int(options["seconds"] / step_seconds), 1) if server is None else sys.maxsize
    ringar.barrier()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < most and (server is None or not times or times[-1] < options["seconds"]):
        step()
        times.append(time.perf_counter() - begin)
    _finish(model, server)
    histogram = [] if server is None else asynchronous.staleness_histogram(server.log()).tolist()
    errors = weights_differ(model)
    write_report(options, ringar.rank(), {"times": times, "staleness": histogram, "wrong": errors})
    ringar.shutdown()


def _server(model: Any, options: dict[str, Any]) -> Any:
    import keras

    import ringar

    if options["way"] == "gradients":
        return None
    bound = SMALL_BOUND if "small" in options["way"] else options["bound"]
    control = ringar.StaleSynchronous(bound) if options["way"].startswith("ssp") else None
    return ringar.ParameterServer(model, keras.optimizers.SGD(LEARNING_RATE), control=control)


def _finish(model: Any, server: Any) -> None:
    """Lets all ranks have the weights that they have in common."""
    import ringar

    if server is None:
        return
    model.optimizer._exchange.period.settle()
    server.close()
    ringar.barrier()
    # Rank 0 has the later pushes of the others, too.
    ringar.broadcast_variables(model.trainable_variables, root_rank=0)


if __name__ == "__main__":
    main()
