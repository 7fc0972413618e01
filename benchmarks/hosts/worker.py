"""Measures allreduces between hosts on one rank: `python -m benchmarks.hosts.worker OPTIONS`.

Every result is checked. The bytes that a host sends are read from its interface, before and after
each size.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.collectives.worker import time_calls, wrong_elements
from benchmarks.harness.definitions import DEFINITIONS, input_of
from benchmarks.harness.worker import read_options, write_report
from tests.hosts.hosts import ASK_TRAFFIC, count_traffic

Run = Callable[[], np.ndarray]


def of_ringar(array: np.ndarray, algorithm: str | None) -> Run:
    """Returns an allreduce by ringar's engine, which chooses the algorithm if it is None."""
    from benchmarks.peers.ringar_peer import in_engine

    result = np.empty_like(array)
    options = {"algorithm": algorithm} if algorithm else {}
    return in_engine([array], [result], result, "allreduce", op="sum", **options)


def of_open_mpi(array: np.ndarray) -> Run:
    """Returns an allreduce by MPI, on the communicator of user code."""
    from mpi4py import MPI

    result = np.empty_like(array)

    def run() -> np.ndarray:
        MPI.COMM_WORLD.Allreduce(array, result, op=MPI.SUM)
        return result

    return run


def frame_counters() -> tuple[int, int]:
    """Returns the bytes and frames, headers included, that this host's bucket has counted.

    One rank per host asks; (0, 0) on the others.
    """
    import ringar

    if ringar.local_rank() != 0:
        return 0, 0
    answer = subprocess.run(ASK_TRAFFIC, capture_output=True, text=True, check=True).stdout
    traffic = count_traffic(answer)
    return traffic.bytes, traffic.frames


def run_of(name: str, array: np.ndarray) -> Run:
    """Returns the allreduce of a peer: "openmpi", "ringar…", or "ringar:ALGORITHM"."""
    if name == "openmpi":
        return of_open_mpi(array)
    return of_ringar(array, name.partition(":")[2] or None)


def measure(name: str, size: int, calls: int) -> dict[str, Any]:
    """Times and counts allreduces of `size` bytes of float32."""
    import ringar

    count, rank, ranks = size // 4, ringar.rank(), ringar.size()
    array = input_of("allreduce", count, rank, ranks)
    expected = DEFINITIONS["allreduce"].expected(count, rank, ranks)
    run = run_of(name, array)
    errors = wrong_elements(run, array, expected)
    time_calls(run, calls // 5)
    ringar.barrier()
    before = frame_counters()
    ringar.barrier()
    times = time_calls(run, calls)
    ringar.barrier()
    bytes_and_frames = [after - b for after, b in zip(frame_counters(), before, strict=True)]
    errors += wrong_elements(run, array, expected)
    return {"peer": name, "bytes": size, "calls": calls, "wrong": errors, "rounds": [times],
            "sent": [bytes_and_frames]}  # fmt: skip


def main() -> None:
    options = read_options()
    import ringar

    start = time.perf_counter()
    ringar.init()
    report: dict[str, Any] = {"init": time.perf_counter() - start}
    if "openmpi" in options["peers"]:
        report |= {"versions": versions(), "parameters": cost_parameters()}
    report["results"] = {peer: [] for peer in options["peers"]}
    for size, calls in options["sizes"]:
        for peer in options["peers"]:
            report["results"][peer].append(measure(peer, size, calls))
    write_report(options, ringar.rank(), report)
    ringar.barrier()
    ringar.shutdown()


def versions() -> dict[str, str]:
    """Returns the versions of ringar, and of the MPI that is its peer and its link."""
    from mpi4py import MPI

    import ringar

    library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
    return {"ringar": ringar.__version__, "mpi": library}


def cost_parameters() -> dict[str, float]:
    """Measures the cost model's parameters on these hosts."""
    from mpi4py import MPI

    import ringar
    from ringar import cost_model

    hosts = ringar.allgather_object(ringar.local_rank())
    numbers = np.cumsum(np.asarray(hosts) == 0) - 1  # ranks are numbered host by host
    return asdict(cost_model.measure(MPI.COMM_WORLD, numbers.tolist()))


if __name__ == "__main__":
    main()
