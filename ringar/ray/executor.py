"""`RayExecutor`: ranks on a cluster of Ray that stay, or an elastic job for each call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ringar.launchers.cluster.cluster import Cluster
from ringar.launchers.cluster.elastic_cluster import ElasticCluster, Limits, threads
from ringar.launchers.function import executable
from ringar.ray import actors
from ringar.ray.actors import Actors

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_END = 1.0  # seconds for the actors of an elastic executor to end; some may be yet to start

Result = TypeVar("Result")

_Call = Callable[
    [Callable[..., Any], Sequence[object], Mapping[str, object] | None, float | None], list[Any]
]


class RayExecutor:
    """Keep ranks on a cluster of Ray, and call functions on them.

    Each rank has an actor of its own, which holds the rank's CPUs and GPUs for as long as the
    executor has started. The ranks themselves are processes below the actors, which the launcher
    watches as in every job: one that dies ends the others, and the error names it. Ranks of one
    host share memory; between hosts they are connected by TCP. ringar must be installed on all
    hosts, in the same environment at the same path. `ray.init` comes first.

    With `min_workers` the executor is elastic: each call of `run` or `execute` is an elastic job.
    While `min_workers` ranks are left, those whose actors are lost are left out, and the others go
    on from the last commit. Ray starts lost actors again, and missing ones as soon as it has room,
    up to `max_workers`; their ranks join at the next commit. The function trains by
    `ringar.elastic.run` or `ringar.callbacks.Elastic`.

    Args:
        num_workers: the number of ranks; or give the next two.
        num_hosts: the number of hosts.
        num_workers_per_host: the number of ranks on each of them.
        cpus_per_worker: the CPUs of Ray that each rank needs.
        gpus_per_worker: the GPUs of Ray that each rank needs.
        placement_group: a placement group with a bundle for each rank, which stays when the
            executor ends; if it has more bundles, the last ones are taken. Default: one of its own,
            packed on few hosts, or on `num_hosts`.
        env: variables to set for the ranks.
        timeout: seconds to wait for the resources, and for the actors to connect.
        min_workers: in place of `num_workers`: go on while so many ranks are left.
        max_workers: the most ranks that there may be; default: `min_workers`.
        reset_limit: how often the ranks may change.
        elastic_timeout: seconds to wait for `min_workers` ranks, at the beginning and later.
        options: further options of `ringarrun`, such as `["--deadline", "60"]`.

    Raises:
        ImportError: there is no Ray.
        ValueError: the number of ranks is not clear, or does not fit the placement group.

    Example:
    ```python
    ray.init()
    with ringar.ray.RayExecutor(num_workers=4, cpus_per_worker=2) as executor:
        losses = executor.run(train, args=[3])  # a list, in the order of ranks
    ```
    """

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = None,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 0,
        placement_group: PlacementGroup | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600.0,
        options: Sequence[str] = (),
    ) -> None:
        actors.module()
        self._limits: Limits | None = None
        if min_workers is None and (max_workers is not None or reset_limit is not None):
            raise ValueError(
                "`min_workers` must be given with `max_workers` and `reset_limit`. Received: "
                f"max_workers={max_workers}, reset_limit={reset_limit}"
            )
        if min_workers is None:
            self.num_workers = _number(
                num_workers, num_hosts, num_workers_per_host, placement_group
            )
        else:
            numbers = (num_workers, num_hosts, num_workers_per_host, placement_group)
            self._limits = _limits(min_workers, max_workers, reset_limit, elastic_timeout, numbers)
            self.num_workers = self._limits.most
        self._hosts = num_hosts
        self._per_bundle = self.num_workers // num_hosts if num_hosts else 1
        self._resources = {"CPU": cpus_per_worker, "GPU": gpus_per_worker}
        self._given_group, self._env = placement_group, dict(env or {})
        self._timeout, self._options = timeout, tuple(options)
        self._stack = contextlib.ExitStack()
        self._ranks: _Call | None = None
        self._object: tuple[Any, ...] = ()  # the recipe for an object on each rank

    def start(
        self,
        executable_cls: Callable[..., object] | None = None,
        executable_args: Sequence[object] = (),
        executable_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """Start the ranks; of an elastic executor, the actors.

        Args:
            executable_cls: makes an object on each rank, for the functions of `execute`. An elastic
                executor makes it anew in each call.
            executable_args: its positional arguments.
            executable_kwargs: its keyword arguments.

        Raises:
            DeadlineError: Ray has not given the resources, or an actor did not connect, in time.
            ray.exceptions.RayError: an actor has failed.
            RuntimeError: the executor has started already.
            Exception: an error of `executable_cls`, as in `run`.
        """
        if self._ranks is not None:
            raise RuntimeError(
                "ringar.ray.RayExecutor expected to be started once; call `shutdown` first"
            )
        recipe = executable_cls, tuple(executable_args), dict(executable_kwargs or {})
        self._object = recipe if executable_cls is not None else ()
        try:
            if self._limits is not None:
                self._ranks = self._start_elastic(self._limits)
                return
            self._ranks = self._start_pool()
            if self._object:
                self._ranks(executable.make, self._object, None, None)
        except BaseException:
            self.shutdown()
            raise

    def _start_pool(self) -> _Call:
        served = Actors()
        group = self._group()
        self._stack.callback(served.end)  # after the ranks, which end first
        cluster = self._stack.enter_context(Cluster(self.num_workers))
        options = actors.placed(group, self.num_workers, self._per_bundle, self._resources)
        served.start(cluster.variable, options)
        return cluster.start(self._env, self._options, self._timeout, served.check).call

    def _start_elastic(self, limits: Limits) -> _Call:
        served = Actors()
        self._stack.callback(served.end, _END)
        cluster = self._stack.enter_context(ElasticCluster(limits))
        served.start(cluster.variable, actors.replaced(limits.most, self._resources))
        cluster.wait(limits.most, limits.timeout, served.check)
        env = {**threads(self._resources["CPU"]), **self._env}

        def call(
            fn: Callable[..., Any],
            args: Sequence[object],
            kwargs: Mapping[str, object] | None,
            timeout: float | None,
        ) -> list[Any]:
            cluster.wait(limits.most, limits.timeout, served.check)
            return cluster.call(fn, args, kwargs, env=env, options=self._options, timeout=timeout)

        return call

    def run(
        self,
        fn: Callable[..., Result],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Result]:
        """Call a function on all ranks.

        Args:
            fn: it calls `ringar.init`, and imports what it needs; as in `ringar.run`.
            args: its positional arguments, the same on each rank.
            kwargs: its keyword arguments.
            timeout: seconds after which all ranks are ended.

        Returns:
            The results, in the order of ranks; of an elastic executor those of the ranks that have
            come to the end.

        Raises:
            DeadlineError: not all ranks have returned within `timeout`, or there are not
                `min_workers` actors within `elastic_timeout`.
            RankError: a rank was killed, or the ranks have ended before; in an elastic job, fewer
                than `min_workers` are left for `elastic_timeout`, or they changed more often than
                `reset_limit`.
            Exception: the error of the rank that failed first. The ranks have ended then; `start`
                starts others, after `shutdown`.
        """
        return self._started()(fn, args, kwargs, timeout)

    def execute(self, fn: Callable[..., Result]) -> list[Result]:
        """Call a function with the object of each rank; return the results as `run` does."""
        if self._limits is not None:
            return self._started()(executable.make_and_call, [self._object, fn], None, None)
        return self._started()(executable.call, [fn], None, None)

    def execute_single(self, fn: Callable[..., Result]) -> Result:
        """Call a function with the object of the first rank, and on that rank only.

        Raises:
            RuntimeError: the executor is elastic: its ranks have no object between calls.
        """
        if self._limits is not None:
            raise RuntimeError(
                "ringar.ray.RayExecutor.execute_single expected ranks that stay, but this executor "
                "is elastic (`min_workers`); call `execute`, and look at `ringar.rank()`"
            )
        result: Result = self._started()(executable.call, [fn, 0], None, None)[0]
        return result

    def shutdown(self) -> None:
        """End the ranks and their actors, and give the resources back."""
        self._ranks = None
        self._stack.close()

    def __enter__(self) -> RayExecutor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _started(self) -> _Call:
        if self._ranks is None:
            raise RuntimeError(
                "ringar.ray.RayExecutor expected to be started; call `start`, or use it in a `with`"
            )
        return self._ranks

    def _group(self) -> PlacementGroup:
        """Return the placement group, when Ray has given its resources."""
        from ray.util import placement_group, remove_placement_group

        group = self._given_group
        if group is None:
            per_bundle = self._per_bundle
            bundle = {
                name: number * per_bundle for name, number in self._resources.items() if number
            }
            bundles = [bundle or {"CPU": 0.001}] * (self.num_workers // per_bundle)
            strategy = "PACK" if self._hosts is None else "STRICT_SPREAD"
            group = placement_group(bundles, strategy=strategy)
            self._stack.callback(remove_placement_group, group)
        actors.wait_for(group, self._timeout)
        return group


def _limits(
    least: int,
    most: int | None,
    reset_limit: int | None,
    timeout: float,
    numbers: Sequence[object],
) -> Limits:
    """Return the limits of an elastic executor; `numbers` are arguments that exclude them."""
    if any(number is not None for number in numbers):
        raise ValueError(
            "`min_workers` must be given without `num_workers`, `num_hosts`, "
            "`num_workers_per_host` and `placement_group`: the number of ranks of an elastic "
            f"executor changes. Received: {numbers}"
        )
    if not 1 <= least <= (least if most is None else most):
        raise ValueError(
            "`min_workers` must be 1 or more, and `max_workers` no less. Received: "
            f"min_workers={least}, max_workers={most}"
        )
    return Limits(least, least if most is None else most, reset_limit, timeout)


def _number(
    workers: int | None, hosts: int | None, per_host: int | None, group: PlacementGroup | None
) -> int:
    """Return the number of ranks."""
    numbers = f"num_workers={workers}, num_hosts={hosts}, num_workers_per_host={per_host}"
    if any(number is not None and number < 1 for number in (workers, hosts, per_host)):
        raise ValueError(f"numbers of workers and hosts must be 1 or more. Received: {numbers}")
    if hosts is not None or per_host is not None:
        number = (hosts or 1) * (per_host or 1)
        if workers not in (None, number):
            raise ValueError(
                "`num_workers` must be `num_hosts` times `num_workers_per_host`, or be left out. "
                f"Received: {numbers}"
            )
    else:
        number = workers or (group.bundle_count if group is not None else 0)
    if number < 1:
        raise ValueError(f"`num_workers` must be 1 or more. Received: {numbers}")
    bundles = hosts or number
    if group is not None and group.bundle_count < bundles:
        raise ValueError(
            f"`placement_group` must have {bundles} bundles or more. "
            f"Received: one of {group.bundle_count}"
        )
    return number
