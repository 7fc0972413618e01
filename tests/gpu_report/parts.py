"""The parts of the report: a plan, made from the number of GPUs and the version of NCCL single."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.gpu_report.training import NETS
from tests.run_on_gpus import ALL, COLLECTIVES, MOST_RANKS, MULTI_RANK, SHARED

Where = tuple[str, int, dict[str, str], str]
"""Ranks in words, their number, further variables, and why they cannot be, if so."""

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Part:
    """A line of the report.

    Attributes:
        title: what is tried.
        ranks: on how many ranks; 0: a process that starts ranks itself, or needs none.
        words: the program, behind `python`.
        seconds: its deadline.
        environment: further variables.
        impossible: why it cannot be tried here, if so.
        detail: a line of its output that the report shows begins like this.
    """

    title: str
    ranks: int
    words: tuple[str, ...]
    seconds: float = 120.0
    environment: dict[str, str] = field(default_factory=dict)
    impossible: str = ""
    detail: str = ""


def parts(gpus: int, nccl: tuple[int, int] | None) -> list[Part]:
    """Return the parts.

    Args:
        gpus: how many there are.
        nccl: the first two numbers of its version; None: there is none.
    """
    no_gpu = "" if gpus else "no GPU"
    shares = no_gpu
    if not no_gpu and (nccl is None or nccl < MULTI_RANK):
        shares = "ranks that share a GPU need NCCL {}.{}".format(*MULTI_RANK)
    single: Where = ("1 rank", 1, {}, no_gpu)
    pair: Where = ("2 ranks on one GPU", 2, {**SHARED, "CUDA_VISIBLE_DEVICES": "0"}, shares)
    several: Where = ("all GPUs", gpus, {}, no_gpu or ("" if gpus > 1 else "one GPU"))
    count = min(max(gpus, 2), MOST_RANKS)
    together: Where = (f"{count} ranks", count, *(several[2:] if gpus > 1 else pair[2:]))

    plan = [
        Part("scan and collectives against NumPy, 1 rank", 0, (*PYTEST, ALL), 240, {}, no_gpu),
        Part(
            f"collectives x dtypes x sizes against NumPy, {together[0]}",
            together[1], (*PYTEST, COLLECTIVES), 240, together[2], together[3],
        ),
    ]  # fmt: skip
    for net in NETS:
        for where, ranks, environment, impossible in (single, pair, several):
            plan.append(
                Part(
                    f"compiled steps of the {net}, {where}", ranks,
                    ("-m", "tests.gpu_report.training", net), 120, environment, impossible, "GPU:",
                )
            )  # fmt: skip
    name, ranks, environment, impossible = together
    plan += [
        Part(
            f"small collectives, {name}", ranks, ("-m", "tests.gpu_report.calls"),
            90, environment, impossible, "allreduce of",
        ),
        Part(
            f"a rank that dies, {name}", ranks, ("-m", "tests.gpu_report.lost_rank"),
            90, environment, impossible, "the others knew",
        ),
        Part(
            f"a full card, {name}", ranks, ("-m", "tests.gpu_report.full_card"),
            90, environment, impossible,
        ),
        Part(
            f"allreduce beside NCCL called directly, {name}", 0,
            ("-m", "benchmarks.allreduce", "--device", "gpu", "-np", str(ranks),
             "--sizes", "4K,1M,64M", "--rounds", "3" if gpus > 1 else "1"),
            180, {}, impossible,
        ),
        Part(
            "the backward pass of an RNN by a scan, beside cuDNN's", 0,
            ("-m", "benchmarks.scan_gpu", "--rounds", "2", "--most-steps", "1000"),
            180, {}, no_gpu,
        ),
    ]  # fmt: skip
    return plan
