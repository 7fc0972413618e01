"""A job of NumPy arrays does not import TensorFlow, and one that does so late loses nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import ringar
from tests.plugin import run_job

pytestmark = [pytest.mark.job, pytest.mark.deadline(120)]

HEAVY = ("tensorflow", "keras")

WITHOUT = """
import sys

import numpy as np

import ringar

ringar.init()
me, ranks = ringar.rank(), ringar.size()
everyone = np.arange(ranks)
row = np.full([1, 2], me, np.float32)
assert ringar.allreduce(row, ringar.Sum).tolist() == [[sum(everyone)] * 2]
assert ringar.grouped_allreduce([row, row])[1].tolist() == [[np.mean(everyone)] * 2]
assert ringar.allreduce(row, compression=ringar.Compression.bf16).dtype == np.float32
assert ringar.allgather(row)[:, 0].tolist() == everyone.tolist()
assert ringar.broadcast(row, 1).tolist() == [[1, 1]]
assert ringar.reducescatter(np.ones([ranks, 2]), ringar.Sum).tolist() == [[ranks] * 2]
assert ringar.alltoall(np.arange(ranks))[0] == me
rows, counts = ringar.alltoall(np.arange(ranks), [1] * ranks)
assert counts.tolist() == [1] * ranks
ringar.barrier()
assert ringar.allgather_object(str(me)) == [str(rank) for rank in everyone]
assert ringar.broadcast_object({"rank": me}) == {"rank": 0}
try:
    ringar.allreduce(np.ones(me + 1))
except ringar.errors.MismatchError:
    pass
else:
    raise AssertionError("expected a MismatchError")
if me == 0:
    ringar.send(row, to=1)
half = ringar.add_process_set([0])
if me == 0:
    assert half.size() == 1
    assert ringar.allreduce(np.ones(2), process_set=half).tolist() == [1, 1]
ringar.remove_process_set(half)
with ringar.Window(3) as window:
    window.accumulate(0, np.ones(3, np.float32))
    ringar.barrier()
    assert window.get(0).tolist() == [ranks] * 3
    ringar.barrier()


@ringar.elastic.run
def train(state):
    state.commit()
    return state.step


assert train(ringar.elastic.ObjectState(step=me)) == 0
ringar.stats()
assert not ringar.empty([2], np.float32).nbytes == 0
heavy = [name for name in ("tensorflow", "keras") if name in sys.modules]
assert not heavy, heavy
print("done", me)
"""


def test_numpy_collectives_do_without() -> None:
    result = run_job(2, WITHOUT).check()
    assert all(f"done {rank}" in result.stdout for rank in range(2))


def _added(value: float) -> tuple[float, list[str]]:
    import numpy as np

    ringar.init()
    total = ringar.allreduce(np.array([value]), ringar.Sum)[0]
    return float(total), [name for name in HEAVY if name in sys.modules]


def test_functions_do_without() -> None:
    results: list[Any] = ringar.run(_added, args=(1.5,), np=2)
    assert results == [(3.0, []), (3.0, [])]


LATE = """
import numpy as np

import ringar

ringar.init(intra_op_threads=3, inter_op_threads=5)
ringar.allreduce(np.ones(1))

import tensorflow as tf

assert ringar.threads.intra_op_threads() == 3
assert ringar.threads.inter_op_threads() == 5
# A graph that was saved by another program: nobody has asked ringar for an op.
definition = tf.compat.v1.GraphDef()
node = definition.node.add(name="barrier", op="RingarBarrier")
node.attr["spec"].s = b"barrier dtype=uint8 name="
with tf.Graph().as_default() as graph:
    tf.graph_util.import_graph_def(definition, name="")
assert graph.get_operation_by_name("barrier").type == "RingarBarrier"


@tf.function
def total(value):
    return ringar.allreduce(value, ringar.Sum)


value = tf.Variable([1.0, 2.0])
with tf.GradientTape() as tape:
    result = total(value)
ranks = ringar.size()
assert result.numpy().tolist() == [ranks, 2 * ranks]
assert tape.gradient(result, value).numpy().tolist() == [ranks, ranks]
compiled = tf.function(lambda x: ringar.allreduce(x, ringar.Sum), jit_compile=True)
assert compiled(value).numpy().tolist() == [ranks, 2 * ranks]
"""


def test_what_waits_for_tensorflow_reaches_it() -> None:
    run_job(2, LATE).check()


def test_no_tensorflow_is_an_error_of_the_first_tensor_only() -> None:
    run_job(
        1,
        """
import sys

import numpy as np

import ringar

sys.modules["tensorflow"] = None  # an import of it fails
ringar.init()
assert ringar.allreduce(np.ones(1)).tolist() == [1]
try:
    ringar.allreduce([1.0])
except ImportError as error:
    assert "pip install tensorflow keras" in str(error)
else:
    raise AssertionError("expected an ImportError")
""",
    ).check()
