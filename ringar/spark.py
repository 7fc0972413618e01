"""Train on a cluster of Spark: `ringar.spark.run`, `ringar.spark.run_elastic`."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ringar.errors import RankError
from ringar.launchers.cluster import member as cluster_member
from ringar.launchers.cluster.cluster import Cluster
from ringar.launchers.cluster.elastic_cluster import ElasticCluster, Limits, threads

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext, TaskContext

__all__ = ["run", "run_elastic"]

Result = TypeVar("Result")

_END = 10.0  # seconds for the tasks to end after the job


def run(
    fn: Callable[..., Result],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    num_proc: int | None = None,
    *,
    spark_context: SparkContext | None = None,
    env: Mapping[str, str] | None = None,
    start_timeout: float = 600.0,
    timeout: float | None = None,
    options: Sequence[str] = (),
) -> list[Result]:
    """Call a function on ranks that run in a cluster of Spark, and return all results.

    Each rank is a task of one barrier stage, which Spark starts all at once: it holds the CPUs
    (`spark.task.cpus`) and GPUs of the rank. The rank itself is a process below its task, which the
    launcher watches as in every job. Tasks on one host share memory; between hosts they are
    connected by TCP. ringar must be installed on all hosts, in the same environment at the same
    path. Spark starts the first `python3` of PATH there, or what PYSPARK_PYTHON names.

    Args:
        fn: the function that every rank calls, as in `ringar.run`.
        args: its positional arguments, the same on each rank.
        kwargs: its keyword arguments.
        num_proc: the number of ranks; default: Spark's `defaultParallelism`.
        spark_context: the context; default: the active one.
        env: variables to set for the ranks.
        start_timeout: seconds to wait until Spark has started all tasks.
        timeout: seconds after which the ranks are ended.
        options: further options of `ringarrun`.

    Returns:
        The results, in the order of ranks.

    Raises:
        DeadlineError: not all tasks have started, or not all ranks have ended, in time. Spark looks
            for room for all tasks again and again, by default for about as long as `start_timeout`.
        ImportError: there is no PySpark.
        RankError: a rank or a host of Spark was lost.
        RuntimeError: there is no active context, or Spark could not run the tasks, or ran them in
            a Python without ringar.
        ValueError: `num_proc` or an option is wrong.
        Exception: the error of the rank that failed first.

    Example:
    ```python
    spark = SparkSession.builder.getOrCreate()
    losses = ringar.spark.run(train, args=[3], num_proc=4)
    ```
    """
    context = _active(spark_context)
    number = context.defaultParallelism if num_proc is None else num_proc
    if number < 1:
        raise ValueError(f"`num_proc` must be 1 or more. Received: {num_proc}")
    tasks = _Tasks(context, "ringar.spark.run")
    try:
        with Cluster(number) as cluster:
            tasks.start(cluster.variable, number, _serve_at_barrier)
            try:
                pool = cluster.start(env or {}, options, start_timeout, tasks.check)
            except BaseException:
                tasks.cancel()
                raise
            return pool.call(fn, args, kwargs, timeout)
    finally:
        tasks.end()


def run_elastic(
    fn: Callable[..., Result],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float = 600.0,
    elastic_timeout: float = 600.0,
    reset_limit: int | None = None,
    *,
    spark_context: SparkContext | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    options: Sequence[str] = (),
) -> list[Result]:
    """Call a function in an elastic job on a cluster of Spark, and return the results.

    Each rank is a task of an ordinary stage. Spark starts as many as it has room for, others when
    executors appear, and those that fail again. Ranks whose tasks or executors are lost are left
    out, and the others go on from the last commit; ranks of tasks that come join at the next
    commit. When one task has failed `spark.task.maxFailures` times (4 by default), Spark ends all
    of them, and the job: raise it for long ones. Each task is a host of its own: ranks are
    connected by TCP.

    Args:
        fn: the function that each process calls that joins. It trains by `ringar.elastic.run` or
            `ringar.callbacks.Elastic`.
        args: its positional arguments, the same on each rank.
        kwargs: its keyword arguments.
        num_proc: the number of ranks to begin with; fewer, at least `min_num_proc`, begin if no
            others come for some seconds. Default: Spark's `defaultParallelism`, within the limits.
        min_num_proc: the least number of ranks with which to go on; default: `num_proc`.
        max_num_proc: the most ranks, and tasks, that there may be; default: `num_proc`.
        start_timeout: seconds to wait for the first `min_num_proc` tasks.
        elastic_timeout: seconds to wait for `min_num_proc` ranks later.
        reset_limit: how often the ranks may change.
        spark_context: the context; default: the active one.
        env: variables to set for the ranks.
        timeout: seconds after which the ranks are ended.
        options: further options of `ringarrun`.

    Returns:
        The results of the ranks that have come to the end, in the order of ranks.

    Raises:
        DeadlineError: fewer than `min_num_proc` tasks have started within `start_timeout`, or the
            job has not ended within `timeout`.
        ImportError: there is no PySpark.
        RankError: fewer than `min_num_proc` ranks were left for `elastic_timeout`, all were lost,
            or they changed more often than `reset_limit`.
        RuntimeError: there is no active context, or Spark could not run the tasks, or has ended
            them: the message has its reason.
        ValueError: a number or an option is wrong.
        Exception: an error of the function on all ranks.

    Example:
    ```python
    losses = ringar.spark.run_elastic(train, num_proc=4, min_num_proc=2, max_num_proc=8)
    ```
    """
    context = _active(spark_context)
    limits = {"num_proc": num_proc, "min_num_proc": min_num_proc, "max_num_proc": max_num_proc}
    number = num_proc
    if number is None:
        number = max(context.defaultParallelism, min_num_proc or 1)
        number = min(number, max_num_proc or number)
    least = number if min_num_proc is None else min_num_proc
    most = number if max_num_proc is None else max_num_proc
    if not 1 <= least <= number <= most:
        raise ValueError(
            "expected 1 <= `min_num_proc` <= `num_proc` <= `max_num_proc`. Received: "
            + ", ".join(f"{name}={value}" for name, value in limits.items())
        )
    tasks = _Tasks(context, "ringar.spark.run_elastic")
    cpus = float(context.getConf().get("spark.task.cpus", "1") or 1)
    with ElasticCluster(Limits(least, most, reset_limit, elastic_timeout)) as cluster:
        tasks.start(cluster.variable, most, _serve)
        try:
            cluster.wait(number, start_timeout, tasks.check)
            env = {**threads(cpus), **(env or {})}
            return cluster.call(fn, args, kwargs, env=env, options=options, timeout=timeout)
        except RankError:
            tasks.check()  # Spark may have ended all tasks, and knows why
            raise
        finally:
            tasks.cancel()  # some may be yet to start


class _Tasks:
    """A stage whose tasks are members, in a thread that waits for it."""

    def __init__(self, context: SparkContext, name: str) -> None:
        self._context, self._name = context, name
        self._group = f"ringar-{uuid.uuid4().hex[:8]}"
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, variable: str, number: int, run: Callable[[RDD[int], str], None]) -> None:
        """Start the tasks, which serve the launcher up to the end of the job.

        Args:
            variable: tells them how to reach the launcher.
            number: the number of tasks.
            run: runs a task for each partition.
        """
        from pyspark import InheritableThread

        self._thread = InheritableThread(target=self._run, args=(variable, number, run))
        self._thread.daemon = True
        self._thread.start()

    def check(self) -> None:
        """Raise the error with which Spark has ended the tasks."""
        if self._error is None:
            return
        cause = re.search(r"ModuleNotFoundError: (No module named \S+)", str(self._error))
        if cause:
            raise RuntimeError(
                f"{self._name} expected tasks in the Python environment of this process, received "
                f"{self._context.pythonExec!r} on their hosts: {cause[1]}. Set "
                f"PYSPARK_PYTHON={sys.executable} before the SparkSession is made."
            ) from self._error
        raise RuntimeError(
            f"{self._name} expected Spark to run all its tasks: {self._error}"
        ) from self._error

    def end(self) -> None:
        """Wait for the end of the tasks, which comes with that of the job."""
        if self._thread is not None:
            self._thread.join(_END)
            if self._thread.is_alive():
                self.cancel()

    def cancel(self) -> None:
        """Tell Spark to end the tasks, or not to start them later."""
        # The first one, of Spark 4, also knows the stage that waits to be tried again for room.
        for cancel in ("cancelJobGroupAndFutureJobs", "cancelJobGroup"):
            with contextlib.suppress(Exception):  # the context has been stopped
                getattr(self._context._jsc.sc(), cancel)(self._group)

    def _run(self, variable: str, number: int, run: Callable[[RDD[int], str], None]) -> None:
        self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)
        try:
            run(self._context.parallelize(range(number), number), variable)
        except Exception as error:
            self._error = error


def _serve_at_barrier(rows: RDD[int], variable: str) -> None:
    """Serve in tasks that start together, or not at all."""

    def serve(_: Iterable[Any]) -> Iterator[None]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        host = context.getTaskInfos()[context.partitionId()].address.rpartition(":")[0]
        cluster_member.serve(variable, context.partitionId(), host, _gpus(context))
        return iter(())

    rows.barrier().mapPartitions(serve).collect()


def _serve(rows: RDD[int], variable: str) -> None:
    """Serve in tasks that start when there is room, and again when they are lost."""

    def serve(_: Iterable[Any]) -> Iterator[None]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        cluster_member.serve(variable, context.partitionId(), gpus=_gpus(context))
        return iter(())

    rows.mapPartitions(serve).collect()


def _gpus(context: TaskContext) -> str | None:
    """Return the GPUs of a task, as in CUDA_VISIBLE_DEVICES."""
    resource = context.resources().get("gpu")
    return None if resource is None else ",".join(resource.addresses)


def _active(context: SparkContext | None) -> SparkContext:
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise ImportError(
            "ringar.spark expected the package pyspark, which is not installed: "
            "pip install 'pyspark>=3.5'"
        ) from error
    context = context or SparkContext._active_spark_context
    if context is None:
        raise RuntimeError(
            "ringar.spark.run expected an active context of Spark, found none; make a SparkSession "
            "first"
        )
    return context
