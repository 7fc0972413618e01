"""Train on a cluster of Ray: `ringar.ray.RayExecutor`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ringar.errors import DeadlineError
from ringar.launchers import cluster_member, executable
from ringar.launchers.cluster import Cluster
from ringar.launchers.pool import Pool

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

__all__ = ["RayExecutor"]

Result = TypeVar("Result")

_END = 10.0  # seconds for an actor to end after its job


class RayExecutor:
    """Keep ranks on a cluster of Ray, and call functions on them.

    Each rank has an actor of its own, which holds the rank's CPUs and GPUs for as long as the
    executor has started. The ranks themselves are processes below the actors, which the launcher
    watches as in every job: one that dies ends the others, and the error names it. Ranks of one
    host share memory; between hosts they are connected by TCP. ringar must be installed on all
    hosts, in the same environment at the same path. `ray.init` comes first.

    Args:
        num_workers: the number of ranks; or give the next two.
        num_hosts: the number of hosts.
        num_workers_per_host: the number of ranks on each of them.
        cpus_per_worker: the CPUs of Ray that each rank needs.
        gpus_per_worker: the GPUs of Ray that each rank needs.
        placement_group: a placement group with a bundle for each rank, which stays when the
            executor ends. Default: one of its own, packed on few hosts, or on `num_hosts`.
        env: variables to set for the ranks.
        timeout: seconds to wait for the resources, and for the actors to connect.
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
        options: Sequence[str] = (),
    ) -> None:
        _ray()
        self.num_workers = _number(num_workers, num_hosts, num_workers_per_host, placement_group)
        self._hosts = num_hosts
        self._per_bundle = self.num_workers // num_hosts if num_hosts else 1
        self._resources = {"CPU": cpus_per_worker, "GPU": gpus_per_worker}
        self._given_group, self._env = placement_group, dict(env or {})
        self._timeout, self._options = timeout, tuple(options)
        self._stack = contextlib.ExitStack()
        self._pool: Pool | None = None
        self._actors: list[Any] = []
        self._served: list[Any] = []

    def start(
        self,
        executable_cls: Callable[..., object] | None = None,
        executable_args: Sequence[object] = (),
        executable_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """Start the ranks.

        Args:
            executable_cls: makes an object on each rank, for the functions of `execute`.
            executable_args: its positional arguments.
            executable_kwargs: its keyword arguments.

        Raises:
            DeadlineError: Ray has not given the resources, or an actor did not connect, in time.
            ray.exceptions.RayError: an actor has failed.
            RuntimeError: the executor has started already.
            Exception: an error of `executable_cls`, as in `run`.
        """
        if self._pool is not None:
            raise RuntimeError(
                "ringar.ray.RayExecutor expected to be started once; call `shutdown` first"
            )
        try:
            group = self._group()
            self._stack.callback(self._end_actors)  # after the ranks, which end first
            cluster = self._stack.enter_context(Cluster(self.num_workers))
            self._start_actors(group, cluster.variable)
            self._pool = cluster.start(self._env, self._options, self._timeout, self._check)
            if executable_cls is not None:
                args = executable_cls, tuple(executable_args), dict(executable_kwargs or {})
                self._pool.call(executable.make, args)
        except BaseException:
            self.shutdown()
            raise

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
            The results, in the order of ranks.

        Raises:
            DeadlineError: not all ranks have returned within `timeout`.
            RankError: a rank was killed, or the ranks have ended before.
            Exception: the error of the rank that failed first. The ranks have ended then; `start`
                starts others, after `shutdown`.
        """
        return self._ranks().call(fn, args, kwargs, timeout)

    def execute(self, fn: Callable[..., Result]) -> list[Result]:
        """Call a function with the object of each rank; return the results as `run` does."""
        return self._ranks().call(executable.call, [fn])

    def execute_single(self, fn: Callable[..., Result]) -> Result:
        """Call a function with the object of the first rank, and on that rank only."""
        result: Result = self._ranks().call(executable.call, [fn, 0])[0]
        return result

    def shutdown(self) -> None:
        """End the ranks and their actors, and give the resources back."""
        self._pool = None
        self._stack.close()

    def __enter__(self) -> RayExecutor:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _ranks(self) -> Pool:
        if self._pool is None:
            raise RuntimeError(
                "ringar.ray.RayExecutor expected to be started; call `start`, or use it in a `with`"
            )
        return self._pool

    def _group(self) -> PlacementGroup:
        """Return the placement group, when Ray has given its resources."""
        from ray.util import placement_group, remove_placement_group

        group = self._given_group
        if group is None:
            each = self._per_bundle
            bundle = {name: number * each for name, number in self._resources.items() if number}
            bundles = [bundle or {"CPU": 0.001}] * (self.num_workers // each)
            strategy = "PACK" if self._hosts is None else "STRICT_SPREAD"
            group = placement_group(bundles, strategy=strategy)
            self._stack.callback(remove_placement_group, group)
        if not group.wait(self._timeout):
            raise DeadlineError(
                f"ringar.ray.RayExecutor expected a placement group of {group.bundle_specs} within "
                f"{self._timeout:g} s, but Ray has {_ray().available_resources()} left; ask for "
                "less, end what else runs there, or raise `timeout`"
            )
        return group

    def _start_actors(self, group: PlacementGroup, variable: str) -> None:
        """Start an actor for each rank, which serves the launcher up to the end of the job."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote = _ray().remote(_Member)
        for index in range(self.num_workers):
            place = PlacementGroupSchedulingStrategy(group, index // self._per_bundle)
            cpus, gpus = self._resources["CPU"], self._resources["GPU"]
            options = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": place}
            actor = remote.options(**options).remote()
            self._actors.append(actor)
            self._served.append(actor.serve.remote(variable, index))

    def _check(self) -> None:
        """Raise the error of an actor that has ended before the job has begun."""
        ray = _ray()
        ended, _ = ray.wait(self._served, num_returns=len(self._served), timeout=0)
        ray.get(ended)

    def _end_actors(self) -> None:
        ray = _ray()
        ray.wait(self._served, num_returns=len(self._served), timeout=_END)
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._served = [], []


class _Member:
    """The actor of a rank."""

    def serve(self, variable: str, index: int) -> None:
        """Serve the launcher up to the end of the job."""
        import ray

        cluster_member.serve(variable, index, ray.util.get_node_ip_address())


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "ringar.ray expected the package ray, which is not installed: pip install 'ringar[ray]'"
        ) from error
    return ray


def _number(
    workers: int | None, hosts: int | None, per_host: int | None, group: PlacementGroup | None
) -> int:
    """Return the number of ranks."""
    given = f"num_workers={workers}, num_hosts={hosts}, num_workers_per_host={per_host}"
    if any(number is not None and number < 1 for number in (workers, hosts, per_host)):
        raise ValueError(f"numbers of workers and hosts must be 1 or more. Received: {given}")
    if hosts is not None or per_host is not None:
        number = (hosts or 1) * (per_host or 1)
        if workers not in (None, number):
            raise ValueError(
                "`num_workers` must be `num_hosts` times `num_workers_per_host`, or be left out. "
                f"Received: {given}"
            )
    else:
        number = workers or (group.bundle_count if group is not None else 0)
    if number < 1:
        raise ValueError(f"`num_workers` must be 1 or more. Received: {given}")
    bundles = hosts or number
    if group is not None and group.bundle_count < bundles:
        raise ValueError(
            f"`placement_group` must have {bundles} bundles or more. "
            f"Received: one of {group.bundle_count}"
        )
    return number
