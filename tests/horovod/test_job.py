"""Horovod's start and end of a job: process sets, variables, timelines, what was built."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ringar.horovod
import ringar.horovod.tensorflow as hvd
from ringar.horovod.common import environment, exceptions, util
from ringar.job import process_sets
from tests.plugin.fixtures import restart

pytestmark = pytest.mark.usefixtures("initialized")


@pytest.fixture
def shutdown() -> Iterator[None]:
    """Leave the job for the test. Collective."""
    hvd.barrier()
    hvd.shutdown()
    yield
    restart()


def test_process_sets_know_no_order() -> None:
    ranks = list(range(hvd.size()))
    whole_job = hvd.ProcessSet(ranks[::-1])
    assert whole_job.ranks == ranks
    assert (whole_job.process_set_id, whole_job.size(), whole_job.rank()) == (None, None, None)
    assert whole_job.included()
    with pytest.raises(ValueError, match="expected ranks that no process set has yet"):
        hvd.add_process_set(whole_job)  # all ranks have a set
    assert hvd.global_process_set.ranks == ranks
    assert (hvd.global_process_set.size(), hvd.global_process_set.rank()) == (
        hvd.size(),
        hvd.rank(),
    )
    assert str(hvd.global_process_set) == (
        f"ProcessSet(process_set_id=0, ranks={ranks}, mpi_comm=None)"
    )
    assert isinstance(hvd.global_process_set, hvd.ProcessSet)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert not hvd.remove_process_set(whole_job)
    with pytest.raises(ValueError, match="expected a list of ranks or a communicator"):
        hvd.ProcessSet("ab")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a list of ranks or a communicator"):
        hvd.ProcessSet(3)  # type: ignore[arg-type]


@pytest.mark.ranks(3, 4)
def test_collectives_of_a_process_set() -> None:
    last = hvd.size() - 1
    other = ringar.add_process_set([last - 1, last])  # as a grid has
    pair = hvd.add_process_set([last, last - 1])
    assert (pair.ranks, pair.size()) == ([last - 1, last], 2)
    with pytest.raises(ValueError, match="no process set has yet"):
        hvd.add_process_set([last - 1, last])
    if pair.included():
        assert pair.rank() == hvd.rank() - (last - 1)
        total = hvd.allreduce(tf.constant(hvd.rank()), op=hvd.Sum, process_set=pair)
        assert int(total) == 2 * last - 1
        assert pair.process_set_id is not None
        assert int(hvd.size_op(pair.process_set_id)) == 2
        objects = hvd.allgather_object(hvd.rank(), process_set=pair)
        assert objects == pair.ranks
        assert hvd.broadcast_object(hvd.rank(), last, process_set=pair) == last
        value = hvd.broadcast(tf.constant(hvd.rank()), last, process_set=pair)
        assert int(value) == last
    else:
        with pytest.raises(ValueError, match="this rank is no member"):
            pair.rank()
    assert int(hvd.process_set_included_op(pair.process_set_id or 0)) == pair.included()
    assert hvd.remove_process_set(pair)
    assert pair.process_set_id is None
    ringar.remove_process_set(other)


def test_init_registers_process_sets_and_takes_all_ranks(shutdown: None) -> None:
    sets = [hvd.ProcessSet([0])] if hvd_size() > 1 else []
    hvd.init(comm=list(range(hvd_size())), process_sets=sets)
    assert hvd.is_initialized()
    assert all(process_set.process_set_id for process_set in sets)
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert hvd.is_homogeneous()


#: What one rank alone passes to `init`, and the error, where all others pass the right sets.
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "outside": (lambda: [hvd.ProcessSet([0]), hvd.ProcessSet([0, 99])], ValueError, "different"),
    "twice": (lambda: [hvd.ProcessSet([0]), hvd.ProcessSet([0])], ValueError, "no process set"),
    "no set": (lambda: [[0], [1]], ValueError, "expected ProcessSet objects"),
    "text": (lambda: "static", ValueError, '"dynamic"'),
    "other ranks": (
        lambda: [hvd.ProcessSet([0]), hvd.ProcessSet([0, 1])],
        ringar.errors.MismatchError,
        r"process_sets\.1\.1 on every rank|process_sets\.1 on every rank",
    ),
    "fewer": (lambda: None, ringar.errors.MismatchError, "process_sets"),
}


@pytest.mark.ranks(3)
def test_an_init_that_fails_raises_on_all_ranks_and_leaves_nothing(shutdown: None) -> None:
    right = [hvd.ProcessSet([0]), hvd.ProcessSet([0, 2])]
    is_wrong = os.environ["RINGAR_RANK"] == "1"

    def fails(name: str) -> None:
        make, kind, message = WRONG[name]
        with pytest.raises(kind, match=message):
            hvd.init(process_sets=make() if is_wrong else right)
        assert [process_set.process_set_id for process_set in right] == [None, None]

    for name in WRONG:
        fails(name)
        assert not hvd.is_initialized()
    hvd.init(process_sets=right[:1])
    first, right = right[0], [hvd.ProcessSet([1]), right[1]]
    with pytest.raises(ValueError, match="no process set has yet"):  # on one rank, and so on all
        hvd.init(process_sets=[right[0], hvd.ProcessSet([0])] if is_wrong else right)
    with pytest.raises(ValueError, match="different ranks"):
        hvd.add_process_set([1, 99] if is_wrong else [1, 2])
    memberships = [process_set.ranks for process_set in process_sets.in_use()]
    assert memberships == [[0, 1, 2], first.ranks]
    hvd.init()
    assert first.process_set_id == 1


def hvd_size() -> int:
    return int(os.environ.get("RINGAR_SIZE", "1"))


def test_init_refuses_some_of_the_ranks() -> None:
    with pytest.raises(ValueError, match="expected all .* ranks of the job in `comm`"):
        hvd.init(comm=[hvd.size()])
    with pytest.raises(ValueError, match='or "dynamic"'):
        hvd.init(process_sets="static")


def test_before_init_horovods_error_comes(shutdown: None) -> None:
    for function in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match=r"call ringar\.init"):
            function()
    with pytest.raises(ValueError, match="init"):
        hvd.start_timeline("unused")
    with pytest.raises(ValueError, match="init"):
        hvd.stop_timeline()
    with pytest.raises(ValueError, match="init"):
        hvd.mpi_threads_supported()
    with pytest.raises(ValueError, match="init"):
        hvd.add_process_set([0])
    assert int(hvd.size_op()) == -1
    assert int(hvd.process_set_included_op()) == -1
    import keras

    with pytest.raises(ValueError, match="init"):
        hvd.DistributedOptimizer(keras.optimizers.SGD())


def test_what_was_built() -> None:
    assert not any([hvd.gloo_built(), hvd.gloo_enabled(), hvd.ddl_built(), hvd.ccl_built()])
    assert not hvd.rocm_built()
    assert hvd.mpi_built()  # mpi4py is here
    assert not hvd.mpi_enabled()  # and not used
    with pytest.raises(ValueError, match="do not use MPI"):
        hvd.mpi_threads_supported()
    assert hvd.gpu_available("tensorflow") is bool(tf.config.list_physical_devices("GPU"))
    assert isinstance(hvd.nccl_built(), int)
    assert isinstance(hvd.cuda_built(), bool)


def test_nccl_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RINGAR_NCCL_LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.setenv("RINGAR_CUDA_LIBRARY", str(tmp_path / "none.so"))
    assert (hvd.nccl_built(), hvd.cuda_built()) == (0, False)


def test_timeline(shared_tmp_path: Path) -> None:
    path = shared_tmp_path / "timeline.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    hvd.allreduce(tf.ones(3), name="seen")
    hvd.stop_timeline()
    hvd.stop_timeline()  # nothing is recorded
    assert "seen" in json.dumps(json.loads(path.read_text()))


def test_variables_that_are_set() -> None:
    environ: dict[str, str] = {}
    environment.publish(environ)
    assert environ["HOROVOD_RANK"] == str(hvd.rank())
    assert environ["HOROVOD_SIZE"] == str(hvd.size())
    assert environ["HOROVOD_CROSS_SIZE"] == "1"
    assert environ["HOROVOD_HOSTNAME"] == os.uname().nodename
    named = {"HOROVOD_HOSTNAME": "as-given"}  # by horovodrun
    environment.publish(named)
    assert named["HOROVOD_HOSTNAME"] == "as-given"


def test_variables_before_init_are_those_of_the_launcher(shutdown: None) -> None:
    environ = {"RINGAR_RANK": "3", "RINGAR_LOCAL_RANK": "1"}
    environment.publish(environ)
    assert (environ["HOROVOD_RANK"], environ["HOROVOD_LOCAL_RANK"]) == ("3", "1")
    nothing: dict[str, str] = {}
    environment.publish(nothing)
    assert not nothing


def test_variables_that_are_read() -> None:
    environ = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0",
        "HOROVOD_START_TIMEOUT": "9",
        "HOROVOD_LOG_LEVEL": "trace",
        "HOROVOD_FUSION_THRESHOLD": "4096",
    }
    expected: dict[str, Any] = {"stall_warning": 7, "deadline": None, "start_timeout": 9}
    assert environment.times(environ) == expected
    # A variable of ringar's own comes first.
    assert environment.times({**environ, "RINGAR_START_TIMEOUT": "1"})["start_timeout"] is None
    assert environment.times({"HOROVOD_STALL_CHECK_DISABLE": "1"})["stall_warning"] == 1e9
    assert environment.bucket_bytes(environ) == 4096
    assert environment.bucket_bytes({"HOROVOD_FUSION_THRESHOLD": "0"}) == 1
    assert environment.bucket_bytes({}) is None
    environment.apply(environ)
    assert environ["RINGAR_LOG_LEVEL"] == "DEBUG"
    with pytest.raises(ValueError, match="HOROVOD_FUSION_THRESHOLD must be"):
        environment.bucket_bytes({"HOROVOD_FUSION_THRESHOLD": "many"})
    with pytest.raises(ValueError, match="HOROVOD_START_TIMEOUT must be"):
        environment.times({"HOROVOD_START_TIMEOUT": "soon"})


def test_helpers() -> None:
    assert [util.num_rank_is_power_2(n) for n in range(5)] == [False, True, True, False, True]
    assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert util.is_version_greater_equal_than("2.16.1", "2.16.0rc1")
    assert not util.is_version_greater_equal_than("2.9", "2.16")
    assert util.is_iterable([]) is True
    assert util.is_iterable(3) is False
    assert util.extension_available("tensorflow") is True
    assert util.extension_available("torch") is False
    assert util.gpu_available("tensorflow") is bool(tf.config.list_physical_devices("GPU"))
    assert (util.gloo_built(), util.ccl_built(), util.ddl_built()) == (False, False, False)
    assert (util.mpi_built(), util.nccl_built()) == (hvd.mpi_built(), hvd.nccl_built())
    with util.env(RINGAR_TEST_VALUE="1", RINGAR_TEST_NONE=None):
        assert os.environ["RINGAR_TEST_VALUE"] == "1"
    assert "RINGAR_TEST_VALUE" not in os.environ
    assert hvd.check_num_rank_power_of_2(4)


def test_errors_are_of_both_libraries() -> None:
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    assert issubclass(exceptions.HorovodInternalError, ringar.errors.PeerLostError)
    assert issubclass(exceptions.HostsUpdatedInterrupt, RuntimeError)
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync
    error = exceptions.HorovodVersionMismatchError("tensorflow", "1", "2")
    assert isinstance(error, ImportError)
    assert "found tensorflow 2" in str(error)


def test_numbers_of_reductions() -> None:
    names = (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
    np.testing.assert_array_equal(names, range(6))
