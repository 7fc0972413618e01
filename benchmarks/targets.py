"""Lists the targets of ringar on two cores, beside what `make bench` has measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.report import KIB, MIB
from benchmarks.harness.targets import Target
from benchmarks.peers.ringar_group import RESNET50_BYTES

Row = dict[str, Any]


@dataclass
class Figures:
    """Looks up measured figures, which are NaN where a measurement is missing."""

    allreduce: dict[tuple[int, str, int], Row] = field(default_factory=dict)
    """By ranks, peer and bytes."""
    overhead: dict[tuple[str, int, bool], Row] = field(default_factory=dict)
    """By model, processes, and whether with ringar."""

    def seconds(self, peer: str, size: int, ranks: int = 2, key: str = "seconds") -> float:
        """Returns the median, or another figure of the row, named by `key`."""
        row = self.allreduce.get((ranks, peer, size))
        return row[key] if row else float("nan")

    def against(self, peer: str, sizes: list[int], ranks: int = 2) -> list[float]:
        """Returns the peer's median time over ringar's, for each size."""
        return [
            self.seconds(peer, size, ranks) / self.seconds("ringar_engine", size, ranks)
            for size in sizes
        ]

    def of_plain(self, model: str, processes: int) -> float:
        """Returns steps/s in percent of those of as many plain processes."""
        row = self.overhead.get((model, processes, True))
        return 100 * row["of_plain"] if row else float("nan")


def targets(f: Figures, sizes: list[int]) -> list[Target]:
    """Returns all targets; `sizes` are those that allreduce was measured with."""
    small = [size for size in sizes if size <= 64 * KIB]
    middle = [size for size in sizes if 256 * KIB <= size <= 4 * MIB]
    large = [64 * MIB, 256 * MIB]
    added = f.seconds("ringar_op", 4 * KIB) - f.seconds("empty_op", 4 * KIB, key="fastest")
    group = f.seconds("ringar_group", RESNET50_BYTES) / f.seconds("ringar_engine", RESNET50_BYTES)

    def faster(what: str, bound: float, peer: str, of: list[int], ranks: int = 2) -> Target:
        return Target(
            f"allreduce {what} against {peer}", bound, "x", f.against(PEERS[peer], of, ranks)
        )

    def near_memcpy(what: str, bound: float, of: list[int]) -> Target:
        times = [1 / ratio for ratio in f.against("memcpy", of)]
        return Target(f"allreduce {what} against memcpy", bound, "x", times, at_most=True)

    return [
        faster("64 MiB, 256 MiB", 4, "Open MPI", large),
        faster("64 MiB, 256 MiB", 4, "MPICH", large),
        near_memcpy("64 MiB, 256 MiB", 1.1, large),
        faster("16 MiB", 2.2, "Open MPI", [16 * MIB]),
        near_memcpy("16 MiB", 1.3, [16 * MIB]),
        faster("256 KiB to 4 MiB", 2.2, "Open MPI", middle),
        faster("4 B to 64 KiB, engine,", 1, "Open MPI", small),
        Target("allreduce 4 KiB, engine", 2, " us",
               [1e6 * f.seconds("ringar_engine", 4 * KIB)], at_most=True),
        Target("allreduce 4 KiB in tf.function, median, beyond the fastest call of an empty op", 60,
               " us", [1e6 * added], at_most=True),
        Target("214 gradients of ResNet-50, 102 MB, grouped, against one array", 1.15, "x", [group],
               at_most=True),
        Target("tiny MLP, two ranks, of two plain processes", 85, "%", [f.of_plain("mlp", 2)]),
        Target("small CNN, two ranks, of two plain processes", 94, "%",
               [f.of_plain("small_cnn", 2)]),
        Target("one rank of plain Keras, tiny MLP and small CNN", 98, "%",
               [f.of_plain("mlp", 1), f.of_plain("small_cnn", 1)]),
        faster("64 MiB, four ranks,", 2.5, "Open MPI", [64 * MIB], ranks=4),
    ]  # fmt: skip


PEERS = {"Open MPI": "openmpi", "MPICH": "mpich"}
