"""The choice of a rank's GPU: one of its host's GPUs, by local rank.

Each rank of a host has a GPU of its own, so that ranks compute side by side and NCCL finds no GPU
twice. `ringarrun` starts its ranks with one visible GPU each, and this module changes nothing.
Ranks that mpirun or srun alone has started see all GPUs, and TensorFlow would take the memory of
each: `ringar.init()` then shows it one. Of several parts of GPUs (MIG) CUDA shows a process only the
first: there `ringar.init()` sets CUDA_VISIBLE_DEVICES, which CUDA reads when its first use comes.

RINGAR_GPUS=all (or `ringarrun --gpus all`) leaves the choice to the program.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping, MutableMapping

from ringar.job import log, nvidia, tensorflow

#: Whether each rank gets one GPU ("each", the default) or sees all GPUs ("all").
MODE_VARIABLE = "RINGAR_GPUS"
MODES = ("each", "all")

_log = log.logger(__name__)

#: Set by the launcher: the one GPU of this rank, as in CUDA_VISIBLE_DEVICES.
GPU_VARIABLE = "RINGAR_GPU"


def mode(environ: Mapping[str, str]) -> str:
    """Return the value of RINGAR_GPUS.

    Raises:
        ValueError: it is neither "each" nor "all".
    """
    choice = environ.get(MODE_VARIABLE) or MODES[0]
    if choice not in MODES:
        raise ValueError(f"{MODE_VARIABLE} must be one of {', '.join(MODES)}. Received: {choice!r}")
    return choice


def configure(
    rank: int, local_rank: int, local_size: int, environ: MutableMapping[str, str] = os.environ
) -> None:
    """Show TensorFlow one GPU, unless the launcher or the program has chosen one.

    `ringar.init()` calls this; it waits for the program to import TensorFlow. A record of level
    INFO names the GPU.

    Args:
        rank: this rank, for messages.
        local_rank: its number on this host.
        local_size: the number of ranks on this host.
        environ: the environment of this process.

    Raises:
        ValueError: RINGAR_GPUS has an invalid value.
    """
    if mode(environ) == "all" or GPU_VARIABLE in environ or local_size == 1:
        return
    # Without GPUs, do not ask TensorFlow for them: it prints long messages.
    visible = nvidia.visible_gpus(environ) if nvidia.has_driver() else ()
    if len(visible) < 2:
        return
    if visible[0].startswith("MIG-"):
        _choose_part(rank, visible[local_rank % len(visible)], environ)
        return
    tensorflow.when_loaded("gpus", functools.partial(_show_one, rank, local_rank))


def _show_one(rank: int, local_rank: int) -> None:
    config = tensorflow.load().config
    gpus = config.get_visible_devices("GPU")
    if len(gpus) < 2:
        return
    number = local_rank % len(gpus)
    try:
        config.set_visible_devices(gpus[number], "GPU")
    except RuntimeError:
        warnings.warn(
            f"rank {rank} | TensorFlow was in use before ringar.init(), and holds all "
            f"{len(gpus)} GPUs, as the other ranks of this host may. Call ringar.init() before "
            "the first TensorFlow operation, or start the job by ringarrun.",
            stacklevel=2,
        )
        return
    _say(gpus[number].name.rpartition(":")[2], len(gpus))


def _choose_part(rank: int, part: str, environ: MutableMapping[str, str]) -> None:
    """Show CUDA one part of a GPU."""
    count = len(nvidia.visible_gpus(environ))
    if nvidia.is_in_use():
        warnings.warn(
            f"rank {rank} | a GPU was in use before ringar.init(): CUDA shows this process the "
            f"first of {count} parts of GPUs (MIG), as it does the other ranks of this host. Call "
            "ringar.init() before the first TensorFlow operation, or start the job by ringarrun.",
            stacklevel=3,
        )
        return
    environ[nvidia.VISIBLE_VARIABLE] = part
    _say(part, count)


def _say(gpu: str, count: int) -> None:
    _log.info(
        "uses GPU %s, one of %d; %s=all leaves the choice to the program", gpu, count, MODE_VARIABLE
    )
