"""The plan of a scan on a GPU: which launches, with how many threads and how much shared memory.

The plan is plain data, made without a GPU. `ringar/cupy/kernels/scan.py` describes the launches.

Levels and rounds. The up-sweep has `levels` levels and leaves ceil(n / 2^levels) nodes for one
serial pass. Up to `LEVELS_PER_ROUND` levels form a round, of one launch up and one launch down: a
block goes through a span of 2^k nodes, node by node. That takes as many multiplications as level by
level, reads each matrix once and waits for no other block. R rounds take at most 2 R + 1 launches;
one launch per level would take 2 levels + 1.

The choice of levels. More levels mean shorter chains. But a total is a product of matrices, with H
times the arithmetic of the serial pass, and the matrices are read twice. If the batch alone fills
the GPU, the serial chain is faster. `choose` compares plans by a model of their cycles, the more
of the host's and the GPU's:

    host    launches x launch by CuPy
    GPU     sum over the launches of
            launch + max(waves x nodes x latency of one, bytes / bytes per cycle, products / rate)

The model's constants are fitted to 859 plans of 39 scans on an NVIDIA H200 at 1.98 GHz (driver
580.159, CuPy 14.2, `benchmarks/scan/plans.py`; H from 5 to 64, 10 to 30,000 steps, 2 to 256
examples, both dtypes): the plans that it chooses there take 4.6% longer than the fastest, at most
43%. Constants counted from the kernels' instructions had 18%, at most 192%.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

MAX_SIZE = 64
"""The largest H of the kernels; cuBLAS multiplies larger matrices, whose tiles exceed a block."""

LEVELS_PER_ROUND = 5
STATIC_SHARED_BYTES = 48 * 1024
"""The shared memory of a block that every CUDA GPU has without opting in."""

_HOST_CYCLES = 93_000  # of CuPy for a launch, while the GPU works
_LAUNCH_CYCLES = 19_500
_BYTES_PER_CYCLE = 8.3  # an SM's share of the memory's bandwidth
_TEAMS_PER_SM = 18


@dataclass(frozen=True)
class Shape:
    """Describe the matrices that kernels are compiled for.

    Attributes:
        size: H, from 1 to MAX_SIZE.
        itemsize: 4 (float32) or 8 (float64).
        affine: whether there are addends.
    """

    size: int
    itemsize: int
    affine: bool

    @property
    def _matrix(self) -> int:
        """The size of a matrix in shared memory, in numbers."""
        return self.size * self._pitch

    @property
    def _pitch(self) -> int:
        return 4 * (self._side | 1)

    @property
    def _side(self) -> int:
        return -(-self.size // 4)

    @property
    def up_team(self) -> int:
        """The threads of one product: one per tile of 4 x 4 and per row; a power of two."""
        return _power_of_two(max(8, self._side**2, self.size))

    @property
    def chain_team(self) -> int:
        """The threads of one chain: more than rows, because all of them prefetch."""
        return 32 if self.size <= 8 else 128 if self.size <= 32 else 256

    @property
    def up_threads(self) -> int:
        """The threads of a block of `up`."""
        return max(128, self.up_team)

    @property
    def chain_threads(self) -> int:
        """The threads of a block of `chain`."""
        return max(128, self.chain_team)

    @property
    def up_group(self) -> int:
        """The number of matrices that a team of `up` reads at once."""
        group = self._group(self.up_team, most=4)
        while group > 1 and self._up_bytes(group) > STATIC_SHARED_BYTES:
            group -= 1
        return group

    @property
    def chain_group(self) -> int:
        """The number of matrices that a team of `chain` reads at once."""
        return self._group(self.chain_team, most=16)

    @property
    def up_reals(self) -> int:
        """The shared memory of a team of `up`, in numbers."""
        return (self.up_group + 1) * (self._matrix + self._pitch)

    @property
    def chain_reals(self) -> int:
        """The shared memory of a team of `chain`, in numbers."""
        return self.chain_group * self._matrix + (self.chain_group + 2) * self._pitch

    @property
    def up_shared(self) -> int:
        """The shared memory of a block of `up`, in bytes."""
        return self._up_bytes(self.up_group)

    @property
    def chain_shared(self) -> int:
        """The shared memory of a block of `chain`, in bytes."""
        return self.chain_threads // self.chain_team * self.chain_reals * self.itemsize

    def _up_bytes(self, group: int) -> int:
        teams = self.up_threads // self.up_team
        return teams * (group + 1) * (self._matrix + self._pitch) * self.itemsize

    def _group(self, team: int, most: int) -> int:
        # A thread holds at most 32 registers of values.
        capacity = 128 // self.itemsize
        return max(1, min(most, capacity // -(-(self.size**2) // team)))

    def defines(self) -> dict[str, str | int]:
        """Return the macros for the compilation of the kernels."""
        return {
            "RINGAR_REAL": {4: "float", 8: "double"}[self.itemsize],
            "RINGAR_H": self.size,
            "RINGAR_AFFINE": int(self.affine),
            "RINGAR_UP_TEAM": self.up_team,
            "RINGAR_UP_GROUP": self.up_group,
            "RINGAR_UP_REALS": self.up_reals,
            "RINGAR_UP_THREADS": self.up_threads,
            "RINGAR_CHAIN_TEAM": self.chain_team,
            "RINGAR_CHAIN_GROUP": self.chain_group,
            "RINGAR_CHAIN_REALS": self.chain_reals,
            "RINGAR_CHAIN_THREADS": self.chain_threads,
        }


@dataclass(frozen=True)
class Round:
    """Describe one launch up and one launch down.

    Attributes:
        nodes: the number of nodes below.
        width: the number of nodes of a span; the last span may have fewer.
    """

    nodes: int
    width: int

    @property
    def spans(self) -> int:
        """The number of spans, at least two."""
        return -(-self.nodes // self.width)


@dataclass(frozen=True)
class Plan:
    """List the rounds from the leaves upwards.

    Attributes:
        rounds: the rounds.
        top: the number of nodes that remain for the serial pass.
    """

    rounds: tuple[Round, ...]
    top: int


def plan(steps: int, levels: int, per_round: int = LEVELS_PER_ROUND) -> Plan:
    """Return the rounds for `levels` levels over `steps` >= 1 steps.

    The levels are divided evenly among the rounds, the remainder at the bottom. There is no round
    of a single span with all nodes, since the serial pass does the same.
    """
    levels = min(levels, steps.bit_length())
    rounds: list[Round] = []
    nodes = steps
    for rounds_to_go in range(-(-levels // per_round), 0, -1):
        share = -(-levels // rounds_to_go)
        levels -= share
        if 2**share >= nodes:
            break
        rounds.append(Round(nodes, 2**share))
        nodes = rounds[-1].spans
    return Plan(tuple(rounds), nodes)


def cycles(rounds_plan: Plan, batch: int, size: int, itemsize: int, processors: int) -> float:
    """Return the cycles of a plan, by the model in the docstring of this module.

    Args:
        rounds_plan: the plan.
        batch: B.
        size: H.
        itemsize: 4 or 8.
        processors: the number of SMs of the GPU.
    """
    in_kernels = size <= MAX_SIZE
    # With cuBLAS each node of a span is a call of its own.
    vector_latency = 580 + 25 * size if in_kernels else _HOST_CYCLES
    product_latency = 2100 + 66 * size if in_kernels else _HOST_CYCLES
    product_rate = 200 if itemsize == 4 else 40

    def launch(teams: int, nodes: int, latency: float, work: float) -> float:
        waves = -(-teams // (_TEAMS_PER_SM * processors))
        read = teams * nodes * size**2 * itemsize / (_BYTES_PER_CYCLE * processors)
        return _LAUNCH_CYCLES + max(waves * nodes * latency, read, teams * nodes * work)

    launches = []
    if not rounds_plan.rounds or rounds_plan.top > 2:
        launches.append(launch(batch, rounds_plan.top, vector_latency, 0))
    for r in rounds_plan.rounds:
        work = size**3 / (product_rate * processors)
        launches.append(launch((r.spans - 1) * batch, r.width, product_latency, work))
        launches.append(launch(r.spans * batch, r.width, vector_latency, 0))
    return max(_HOST_CYCLES * len(launches), sum(launches))


@functools.lru_cache(maxsize=256)
def choose(steps: int, batch: int, size: int, itemsize: int, processors: int) -> Plan:
    """Return the plan with the fewest cycles by the model; of equals, with the fewest levels."""
    plans = [
        plan(steps, levels, per_round)
        for levels in range(steps.bit_length() + 1)
        for per_round in range(2, LEVELS_PER_ROUND + 3)
    ]
    return min(plans, key=lambda candidate: cycles(candidate, batch, size, itemsize, processors))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
