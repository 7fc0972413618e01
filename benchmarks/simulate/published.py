"""Horovod's published scaling on 16, 128 and 512 GPUs, and what its prediction assumes.

**What was published.** Servers with 4 Pascal GPUs, RoCE network of 25 Gbit/s, NCCL rings over all
GPUs, tf_cnn_benchmarks with synthetic data and a batch of 64 per GPU.

- 512 GPUs: 90% for Inception V3 and ResNet-101, 68% for VGG-16 (horovod/horovod, docs/benchmarks).
- 128 GPUs: 90%, 90% and 79% (the same project's README from October 2017 on).
- 16 GPUs: 15.0x, 14.6x and 13.7x of one, "RDMA Horovod (allreduce on GPU with NCCL)", and one GPU's
  134.4, 119.4 and 130.9 images/s (the README until October 2017, shown in pull request 44; that it
  is the 25 Gbit/s network, in issue 20). TensorFlow's own benchmarks of May 2017 gave the P100 of a
  DGX-1 142 (Inception V3) and 154 (VGG-16) images/s at the same batch: a little faster machines.
- The servers have PCI Express between their GPUs (issue 979).

**What follows from it.** Computing time of a step is 64 over one GPU's images/s. Horovod fuses
gradients up to 64 MiB: that is the bucket size. A ring over all GPUs passes each server's link
once, in each direction. Each of its rounds is one message here, which pays its latency in full:
that efficiency falls with the number of GPUs, although the bytes per GPU do not grow, shows that
latency was not hidden. Inception V3 is counted without the auxiliary classifier.

**What is assumed.** Three numbers of the network, the same for all models and all sizes: those that
come closest, in squares, to the nine figures, on a grid of 5% of the link, 5 us and 5%. So the
match is a fit of three numbers to nine, with nothing chosen per model. A test repeats the search.
Searched without the figures of ResNet-101, or without those of Inception V3, the model left out
still comes out within `TOLERANCE` at all sizes. Without those of VGG-16, the one that cannot hide
its communication, the link's part is not determined, and VGG-16 comes out 8 to 18 points too low.

- `EFFICIENCY`: which part of 25 Gbit/s a flow of data has.
- `LATENCY`: of each of the 2 (n-1) rounds of a ring. NCCL's tables (src/graph/tuning.cc) give a
  ring 6.6 to 14 us between servers, depending on the release; what the ranks' agreement on each
  tensor costs, and ranks that come late, are not modeled and evidently are in this number.
- `CONTENTION`: which part of its speed a GPU loses while NCCL runs on it. The table for 16 GPUs
  suggests that there is such a loss: with the allreduce on the CPU Inception V3 has 15.4x.

Rates within a server do not matter as long as they are above the network's: 10 GB/s between GPUs
(PCI Express 3.0 x16 has 15.8), 200 GB/s for adding (the memory of a P100 has 732).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from benchmarks.simulate.networks import NETWORKS
from benchmarks.simulate.prediction import Step, Workload, step
from ringar import cost_model
from ringar.job.cost_model import Parameters

LINK = 25e9 / 8
"""Bytes/s of the network's cards."""

EFFICIENCY, LATENCY, CONTENTION = 0.8, 25e-6, 0.1

RANKS_PER_HOST, BATCH, FUSION = 4, 64, 64 << 20

ONE_GPU = {"resnet101": 119.4, "inception_v3": 134.4, "vgg16": 130.9}
"""Images/s of one GPU with a batch of 64."""

PUBLISHED = {
    16: {"resnet101": 14.6 / 16, "inception_v3": 15.0 / 16, "vgg16": 13.7 / 16},
    128: {"resnet101": 0.90, "inception_v3": 0.90, "vgg16": 0.79},
    512: {"resnet101": 0.90, "inception_v3": 0.90, "vgg16": 0.68},
}
"""Scaling efficiency by GPUs and model."""

TOLERANCE = 0.05
"""How far a prediction may lie from what was published, as a difference of efficiencies."""


@dataclass(frozen=True)
class Comparison:
    """A prediction beside the published figure; both are efficiencies."""

    gpus: int
    model: str
    predicted: Step
    published: float

    @property
    def within(self) -> bool:
        """Whether the two are near enough."""
        return abs(self.predicted.efficiency - self.published) <= TOLERANCE


def parameters(efficiency: float = EFFICIENCY, latency: float = LATENCY) -> Parameters:
    """Returns the cost model's parameters of those servers."""
    return Parameters(
        latency=latency,
        bandwidth=efficiency * LINK,
        reduction=200e9,
        local_latency=5.7e-6,  # a round of NCCL's ring over PCI Express, src/graph/tuning.cc
        local_bandwidth=10e9,
    )


@cache
def workload(model: str, contention: float = CONTENTION) -> Workload:
    """Returns the workload of tf_cnn_benchmarks on each GPU."""
    return Workload(
        NETWORKS[model](), BATCH / ONE_GPU[model], FUSION, FUSION, contention=contention
    )


def predict(
    model: str,
    gpus: int,
    efficiency: float = EFFICIENCY,
    latency: float = LATENCY,
    contention: float = CONTENTION,
) -> Step:
    """Predicts a step on GPUs, four per server, with whole segments in a ring of all GPUs."""
    local = min(gpus, RANKS_PER_HOST)
    network = cost_model.Network(parameters(efficiency, latency), gpus // local, local)

    def allreduce(nbytes: float) -> float:
        return network.ring(nbytes, lanes=1)

    return step(workload(model, contention), allreduce)


def compare(
    efficiency: float = EFFICIENCY, latency: float = LATENCY, contention: float = CONTENTION
) -> list[Comparison]:
    """Returns all published figures beside their prediction, in the order of `PUBLISHED`."""
    return [
        Comparison(gpus, model, predict(model, gpus, efficiency, latency, contention), published)
        for gpus, figures in PUBLISHED.items()
        for model, published in figures.items()
    ]


def search(without: str = "") -> tuple[float, float, float]:
    """Searches the grid for the numbers nearest to the figures, except those of `without`."""
    grid = [(e / 20, 1e-6 * us, c / 20)
            for e in range(12, 21) for us in range(0, 45, 5) for c in range(9)]  # fmt: skip

    def error(numbers: tuple[float, float, float]) -> float:
        return sum(
            (comparison.predicted.efficiency - comparison.published) ** 2
            for comparison in compare(*numbers)
            if comparison.model != without
        )

    return min(grid, key=error)
