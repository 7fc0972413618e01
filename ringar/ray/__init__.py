"""Train on a cluster of Ray: `ringar.ray.RayExecutor`."""

from ringar.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
