"""The actors of an executor, each of which holds the CPUs and GPUs of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringar.errors import DeadlineError
from ringar.launchers.cluster import member as cluster_member

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_END = 10.0  # seconds for an actor to end after its job


def module() -> Any:
    """Return Ray.

    Raises:
        ImportError: there is none.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "ringar.ray expected the package ray, which is not installed: pip install 'ray>=2.40'"
        ) from error
    return ray


class Member:
    """The actor of a rank."""

    def serve(self, variable: str, index: int) -> None:
        """Serve the launcher up to the end of the job."""
        import ray

        cluster_member.serve(variable, index, ray.util.get_node_ip_address())


class Actors:
    """Actors that serve the launcher."""

    def __init__(self) -> None:
        self._actors: list[Any] = []
        self._served: list[Any] = []

    def start(self, variable: str, options: Sequence[Mapping[str, object]]) -> None:
        """Start actors.

        Args:
            variable: the variable that tells the actors how to reach the launcher.
            options: those of Ray, for each actor.
        """
        remote = module().remote(Member)
        for index, of_actor in enumerate(options):
            actor = remote.options(**of_actor).remote()
            self._actors.append(actor)
            self._served.append(actor.serve.remote(variable, index))

    def check(self) -> None:
        """Raise the error of an actor that has ended before the job has begun."""
        ray = module()
        references, _ = ray.wait(self._served, num_returns=len(self._served), timeout=0)
        ray.get(references)

    def end(self, seconds: float = _END) -> None:
        """End the actors, also those that Ray has not started yet.

        Args:
            seconds: how long they may take to end by themselves, after their job.
        """
        ray = module()
        if self._served:
            ray.wait(self._served, num_returns=len(self._served), timeout=seconds)
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._served = [], []


def placed(
    group: PlacementGroup, number: int, per_bundle: int, resources: Mapping[str, float]
) -> list[dict[str, object]]:
    """Return the options of actors in the last bundles of a placement group.

    A trial of Ray Tune, which may give its own group, holds the first bundle itself.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    first = group.bundle_count - number // per_bundle

    return [
        {
            **amounts(resources),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                group, first + index // per_bundle
            ),
        }
        for index in range(number)
    ]


def replaced(number: int, resources: Mapping[str, float]) -> list[dict[str, object]]:
    """Return the options of actors that Ray starts as it can, and again after a loss."""
    # `serve` is called again in an actor that has been started again.
    return [{**amounts(resources), "max_restarts": -1, "max_task_retries": -1}] * number


def amounts(resources: Mapping[str, float]) -> dict[str, object]:
    """Return the options for the resources of each actor."""
    return {"num_cpus": resources["CPU"], "num_gpus": resources["GPU"]}


def wait_for(group: PlacementGroup, seconds: float) -> None:
    """Wait until Ray has given a placement group its resources.

    Raises:
        DeadlineError: it has not, in time.
    """
    if not group.wait(seconds):
        raise DeadlineError(
            f"ringar.ray.RayExecutor expected a placement group of {group.bundle_specs} within "
            f"{seconds:g} s; Ray has {module().available_resources()} left. Ask for less, end "
            "other programs there, or raise `timeout`."
        )
