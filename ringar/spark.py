"""Train on a cluster of Spark: `ringar.spark.run`."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ringar.launchers import cluster_member
from ringar.launchers.cluster import Cluster

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["run"]

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
    path.

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
        RuntimeError: there is no active context, or Spark could not run the tasks.
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
    tasks = _Tasks(context)
    try:
        with Cluster(number) as cluster:
            tasks.start(cluster.variable, number)
            try:
                pool = cluster.start(env or {}, options, start_timeout, tasks.check)
            except BaseException:
                tasks.cancel()
                raise
            return pool.call(fn, args, kwargs, timeout)
    finally:
        tasks.end()


class _Tasks:
    """The barrier stage, in a thread that waits for it."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._group = f"ringar-{uuid.uuid4().hex[:8]}"
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, variable: str, number: int) -> None:
        """Start the tasks, which serve the launcher up to the end of the job."""
        from pyspark import InheritableThread

        self._thread = InheritableThread(target=self._run, args=(variable, number))
        self._thread.daemon = True
        self._thread.start()

    def check(self) -> None:
        """Raise the error with which Spark has ended the tasks."""
        if self._error is not None:
            raise RuntimeError(
                f"ringar.spark.run expected Spark to run all tasks at once: {self._error}"
            ) from self._error

    def end(self) -> None:
        """Wait for the end of the tasks, which comes with that of the job."""
        if self._thread is not None:
            self._thread.join(_END)
            if self._thread.is_alive():
                self.cancel()

    def cancel(self) -> None:
        """Tell Spark to end the tasks, or not to start them later."""
        # Python's `cancelJobGroup` forgets the stage that Spark will try again when there is room.
        with contextlib.suppress(Exception):  # the context has been stopped
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def _run(self, variable: str, number: int) -> None:
        def serve(_: Iterable[Any]) -> Iterator[None]:
            from pyspark import BarrierTaskContext

            context = BarrierTaskContext.get()
            host = context.getTaskInfos()[context.partitionId()].address.rpartition(":")[0]
            given = context.resources().get("gpu")
            gpus = None if given is None else ",".join(given.addresses)
            cluster_member.serve(variable, context.partitionId(), host, gpus)
            return iter(())

        self._context.setJobGroup(self._group, "ringar.spark.run", interruptOnCancel=True)
        try:
            rows = self._context.parallelize(range(number), number)
            rows.barrier().mapPartitions(serve).collect()
        except Exception as error:
            self._error = error


def _active(given: SparkContext | None) -> SparkContext:
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise ImportError(
            "ringar.spark expected the package pyspark, which is not installed: "
            "pip install 'ringar[spark]'"
        ) from error
    found = given or SparkContext._active_spark_context
    if found is None:
        raise RuntimeError(
            "ringar.spark.run expected an active context of Spark, found none; make a SparkSession "
            "first"
        )
    return found
