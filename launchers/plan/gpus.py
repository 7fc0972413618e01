"""Deal the GPUs of a host out to its ranks: one each, in turn, or as a cluster's manager says.

A rank with one visible GPU uses that one, in any program: TensorFlow takes the memory of all GPUs
that it sees, and CuPy uses the first of them. Each host is asked for its own GPUs, so in a job of
mpirun or srun the guards call this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringar.job import gpus, nvidia
from ringar.launchers.errors import UsageError

OF_RANKS_VARIABLE = "RINGAR_GPUS_OF_RANKS"
"""The GPUs of each rank of a host, as a cluster's manager has shared them out: "0,1;2,3"."""

_SHARED = "; between ranks on {}, NCCL needs to be 2.30 or later, with NCCL_MULTI_RANK_GPU_ENABLE=1"


def of_ranks(environ: Mapping[str, str], local_size: int) -> tuple[str | None, ...]:
    """Return the GPUs of each rank of this host, as in CUDA_VISIBLE_DEVICES; None: unchanged.

    Args:
        environ: the environment that the ranks would have.
        local_size: the number of ranks on this host.

    Raises:
        UsageError: RINGAR_GPUS has an unknown value.
    """
    check(environ)
    if gpus.mode(environ) != "each":
        return (None,) * local_size
    shares = environ.get(OF_RANKS_VARIABLE)
    return deal(nvidia.visible_gpus(environ) if shares is None else shares.split(";"), local_size)


def deal(visible: Sequence[str], local_size: int) -> tuple[str | None, ...]:
    """Deal the GPUs out to the ranks of a host, from the first again where they do not suffice."""
    if not visible:
        return (None,) * local_size
    return tuple(visible[local_rank % len(visible)] for local_rank in range(local_size))


def variables(gpu: str | None) -> dict[str, str]:
    """Return the variables that give a rank its GPU."""
    return {} if gpu is None else {nvidia.VISIBLE_VARIABLE: gpu, gpus.GPU_VARIABLE: gpu}


def describe(dealt: Mapping[int, str | None], rank: str = "rank") -> str:
    """Describe in one line which rank has which GPU; "" if there are none.

    Args:
        dealt: the GPU by number of the rank.
        rank: the noun for the numbers: "rank" or "local rank".
    """
    ranks: dict[str, list[int]] = {}
    for number, gpu in dealt.items():
        if gpu:
            ranks.setdefault(gpu, []).append(number)
    parts: list[str] = []
    for gpu, numbers in ranks.items():
        who = f"{rank} {numbers[0]}"
        if numbers[1:]:
            who = f"{rank}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
        verb = "" if parts else " have" if numbers[1:] else " has"
        parts.append(f"{who}{verb} GPU{'s' if ',' in gpu else ''} {gpu}")
    shared = ""
    if any(numbers[1:] for numbers in ranks.values()):
        shared = _SHARED.format("one GPU")
    elif sum(gpu.startswith("MIG-") for gpu in ranks) > 1:
        shared = _SHARED.format("parts of one GPU (MIG)")
    return ", ".join(parts) + shared


def check(environ: Mapping[str, str]) -> None:
    """Raise `UsageError` if RINGAR_GPUS has an unknown value."""
    try:
        gpus.mode(environ)
    except ValueError as error:
        raise UsageError(f"{error}; or choose by --gpus") from error
