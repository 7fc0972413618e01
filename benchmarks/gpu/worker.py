"""Measures peers on one rank and its GPU: `python -m benchmarks.gpu.worker OPTIONS`.

Peers are measured in turn, in several rounds, on the same arrays. Every result is checked in the
run that is timed.
"""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.cases import IN_PLACE, OUT_OF_PLACE, Case, cases
from benchmarks.gpu.peers import PEERS, Arrays, Peer, Ranks, Run
from benchmarks.harness.worker import read_options, write_report
from benchmarks.peers.ringar_peer import RingarPeer
from ringar.cupy import device
from ringar.job import nvidia


class Job(RingarPeer):
    """The ranks of a job of ringar."""

    def __init__(self) -> None:
        super().__init__()
        import ringar

        self.local_rank = ringar.local_rank()
        self.broadcast_object = ringar.broadcast_object
        self.allgather_object = ringar.allgather_object


def attempt(ranks: Ranks, step: Callable[[], Any]) -> tuple[Any, str]:
    """Runs a step and returns its result, and why it failed on any rank, or an empty string."""
    result, error = None, ""
    try:
        result = step()
    except Exception as exception:  # whatever a library raises: the other peers are measured
        error = f"{type(exception).__name__}: {exception}"
    return result, next((text for text in ranks.allgather_object(error) if text), "")


def connected(ranks: Ranks, cupy: Any, names: list[str]) -> tuple[dict[str, Peer], dict[str, str]]:
    """Returns the peers that can be measured, and why others cannot: the same on all ranks."""
    connections, reasons = {}, {}
    for name in names:
        peer, error = attempt(ranks, lambda name=name: PEERS[name](cupy, ranks))  # type: ignore[misc]
        if not error:
            _, error = attempt(ranks, peer.connect)
        if error:
            reasons[name] = error
        else:
            connections[name] = peer
    return connections, reasons


class Bench:
    """The arrays of a case on this rank's device, and the measurements on them."""

    def __init__(self, cupy: Any, ranks: Ranks, case: Case, calls: int) -> None:
        self._cupy, self._ranks, self.case, self._calls = cupy, ranks, case, calls
        place = (ranks.rank, ranks.size)
        # One allocation for each array of a group, as gradients have.
        self._inputs = [cupy.asarray(array) for array in case.inputs(*place)]
        self._expected = [cupy.asarray(array) for array in case.expected(*place)]
        self._outputs = [cupy.empty_like(array) for array in self._expected]
        cupy.cuda.Device().synchronize()

    def _reset(self, peer: Peer, placement: str) -> None:
        """Spoils the outputs, so that a call that does nothing gives a wrong result."""
        for output, source in zip(self._outputs, self._inputs, strict=True):
            if placement == IN_PLACE:
                output[...] = source
            else:
                output.fill(-1)
        peer.stream.synchronize()

    def _count_errors(self, peer: Peer, results: Arrays, calls: int = 1) -> int:
        """Counts wrong elements after so many calls in place; of another shape: all."""
        factor = self.case.growth(self._ranks.size, calls)
        if not peer.communicates or factor is None:
            return 0
        errors = 0
        for result, expected in zip(results, self._expected, strict=True):
            if result.shape != expected.shape:
                errors += expected.size
            else:
                errors += int((result != expected * factor).sum())
        return errors

    def measure(self, peer: Peer, placement: str) -> dict[str, Any]:
        """Measures one turn of a peer: both timings, in seconds, and wrong elements."""
        in_place = placement == IN_PLACE
        inputs = self._outputs if in_place else self._inputs
        with peer.stream:
            run = peer.run(self.case.collective, inputs, self._outputs)
            errors = self._checked_call(peer, placement, run)
            for _ in range(max(2, self._calls // 5)):
                run()
            peer.stream.synchronize()
            self._reset(peer, placement)
            figures, results = self._throughput(peer, run)
            errors += self._count_errors(peer, results, self._calls if in_place else 1)
            figures["latency"], results = self._latency(peer, placement, run)
            errors += self._count_errors(peer, results)
            errors += self._checked_call(peer, placement, run)
            peer.check()
        return {**figures, "wrong": errors}

    def _checked_call(self, peer: Peer, placement: str, run: Run) -> int:
        self._reset(peer, placement)
        results = run()
        peer.stream.synchronize()
        return self._count_errors(peer, results)

    def _throughput(self, peer: Peer, run: Run) -> tuple[dict[str, Any], Arrays]:
        """Times many calls that are enqueued and then waited for, as nccl-tests does.

        "enqueue" is the part of the host, "events" the time between CUDA events.
        """
        cupy, stream, clock, calls = self._cupy, peer.stream, time.perf_counter, self._calls
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        results: Arrays = []
        self._ranks.barrier()
        begin = clock()
        first.record(stream)
        for _ in range(calls):
            results = run()
        last.record(stream)
        enqueued = clock()
        stream.synchronize()
        end = clock()
        events = float(cupy.cuda.get_elapsed_time(first, last)) * 1e-3
        times = {"time": end - begin, "enqueue": enqueued - begin, "events": events}
        return {name: seconds / calls for name, seconds in times.items()}, results

    def _latency(self, peer: Peer, placement: str, run: Run) -> tuple[list[float], Arrays]:
        """Times calls each of which is waited for."""
        clock, synchronize, times = time.perf_counter, peer.stream.synchronize, []
        results: Arrays = []
        if placement == OUT_OF_PLACE:
            self._reset(peer, placement)
        self._ranks.barrier()
        for _ in range(self._calls):
            if placement == IN_PLACE:
                self._reset(peer, placement)
            begin = clock()
            results = run()
            synchronize()
            times.append(clock() - begin)
        return times, results


def measure(ranks: Ranks, cupy: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Measures all cases and peers on this rank, in the same order on all ranks."""
    number = ranks.local_rank % cupy.cuda.runtime.getDeviceCount()
    cupy.cuda.Device(number).use()
    connections, reasons = connected(ranks, cupy, options["peers"])
    results: list[dict[str, Any]] = []
    for place, case in enumerate(cases(options, ranks.size)):
        bench = Bench(cupy, ranks, case, case.calls(options["budget_bytes"]))
        turns = [
            (name, peer, placement)
            for placement in case.placements
            for name, peer in connections.items()
            if peer.communicates or (placement == OUT_OF_PLACE and not case.parts)
        ]
        rounds = [
            [bench.measure(peer, placement) for _, peer, placement in turns]
            for _ in range(options["rounds"])
        ]
        for (name, _, placement), *figures in zip(turns, *rounds, strict=True):
            results.append({"case": place, "peer": name, "placement": placement,
                            "rounds": figures})  # fmt: skip
    ranks.barrier()
    for peer in connections.values():
        peer.close()
    return {"rank": ranks.rank, "gpu": describe(cupy, number), "missing": reasons,
            "results": results}  # fmt: skip


def describe(cupy: Any, number: int) -> dict[str, Any]:
    """Returns the card, and the versions of its software."""
    runtime = cupy.cuda.runtime
    return {
        "card": runtime.getDeviceProperties(number)["name"].decode(),
        "bus": cupy.cuda.Device(number).pci_bus_id,
        "driver": driver_version(),
        "cuda_of_driver": _dotted(runtime.driverGetVersion(), 1000, 10),
        "cuda_of_cupy": _dotted(runtime.runtimeGetVersion(), 1000, 10),
        "cupy": cupy.__version__,
        "nccl": nccl_version(),
    }


def _dotted(version: int, major: int, minor: int) -> str:
    return f"{version // major}.{version % major // minor}"


def driver_version() -> str:
    """Returns the version of the driver in the kernel, which CUDA does not tell."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.split() or ["unknown"])[0]


def nccl_version() -> str:
    """Returns the version of the NCCL that ringar opens."""
    version = ctypes.c_int()
    try:
        code = open_nccl().ncclGetVersion(ctypes.byref(version))
    except OSError as error:
        return f"missing ({error})"
    number = version.value  # 22703 is 2.27.3
    return f"{_dotted(number, 10_000, 100)}.{number % 100}" if code == 0 else "unknown"


def open_nccl() -> ctypes.CDLL:
    """Opens the NCCL that ringar opens, which CuPy then finds as libnccl.so.2."""
    return ctypes.CDLL(nvidia.nccl_library() or "libnccl.so.2")


def main() -> None:
    options = read_options()
    job = Job()
    nccl_version()  # opens it, before CuPy finds another one
    report = measure(job, device.load("allreduce"), options)
    write_report(options, job.rank, report)
    job.barrier()


if __name__ == "__main__":
    main()
