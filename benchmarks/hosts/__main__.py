"""How near to the link's own limit does an allreduce between hosts come, and a training step?

    python -m benchmarks.hosts --output build/bench-hosts
    python -m benchmarks.hosts --hosts 2,4 --rounds 1 --skip training
    python -m benchmarks.hosts --hosts 8,16 --delay 0.005 --skip training --output build/delayed

Makes hosts on this machine (tests/hosts): network namespaces whose links have a rate, so that a
figure is the link's and not the machine's. On them it measures ringar over TCP, ringar over MPI and
Open MPI's own MPI_Allreduce, by jobs that take turns, and checks every result; then training steps.
Prints the rows beside their targets, and writes OUTPUT.json, which `benchmarks.simulate --check`
reads. Exits with 1 on a wrong result or a job that failed; a missed target changes nothing.

The bound of an allreduce of S bytes on N hosts is 2(N-1)/N x S / payload rate: each host has to
send as much, whatever the algorithm. The payload rate is the link's rate without headers. The rate
of one TCP stream between two of the hosts is measured beside it. The token bucket of a host counts
the bytes that it sends: every frame, with Ethernet, IP and TCP headers, and acknowledgements.
Headers are 0.7% of jumbo frames, the default, and 4.6% of frames of 1500 bytes (--mtu 1500).

With --delay frames take so many seconds from host to host, by relays in user space: as between
distant hosts, or through many switches. Links are slow then, for the relays take processor time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.harness import command, launch, machine, report, results
from benchmarks.harness.definitions import DEFINITIONS
from benchmarks.harness.jobs import Reports, run_worker
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.report import KIB, MIB
from benchmarks.harness.series import Series, slowest_rank
from benchmarks.hosts import report as hosts_report
from tests.hosts import JUMBO_MTU, Faults, Hosts, find_open_mpi, stream, unavailable

RATES = {2: 500.0, 4: 300.0, 8: 200.0}
"""Mbit/s of a host, by their number: all together stay below what this machine's cores can move."""
DELAYED_RATE = 50.0
"""The same where frames pass relays."""
UNLIMITED = 1e6
"""The same where one TCP stream keeps the processors busy; a bucket counts what passes."""
SIZES = ((32 * MIB, 3), (8 * MIB, 5), (MIB, 15), (64 * KIB, 50), (KIB, 1000))
"""Bytes, and calls per round."""
PROBE_BYTES = 16 * MIB
LIMIT = 240.0
#: Open MPI's own choice is not its best on such links; its ring has a job of its own.
OPEN_MPI_RING = ("--mca", "coll_tuned_use_dynamic_rules", "1",
                 "--mca", "coll_tuned_allreduce_algorithm", "4")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One job: the hosts, the sizes, and the peers."""

    hosts: int
    ranks_per_host: int = 1
    peers: tuple[str, ...] = ("ringar", "ringar over MPI", "openmpi")
    sizes: tuple[tuple[int, int], ...] = SIZES
    title: str = ""
    options: tuple[str, ...] = ()
    delay: float = 0.0
    unlimited: bool = False

    @property
    def rate_mbit(self) -> float:
        if self.unlimited:
            return UNLIMITED
        if self.delay:
            return DELAYED_RATE
        return RATES[min(RATES, key=lambda hosts: abs(hosts - self.hosts))]


CASES = (
    Case(2),
    Case(4),
    Case(8),
    Case(2, 2, ("ringar:hierarchical", "ringar:ring", "openmpi"), SIZES[:1]),
    Case(4, 2, ("ringar:hierarchical", "openmpi"), SIZES[1:2]),
    Case(4, peers=("openmpi",), sizes=SIZES[:1], title="Open MPI, ring", options=OPEN_MPI_RING),
    Case(2, peers=("ringar", "openmpi"), sizes=((64 * MIB, 5),), unlimited=True),
)
DELAYED = tuple(
    Case(count, peers=("ringar", "openmpi"), sizes=((MIB, 3), (256 * KIB, 5), (KIB, 10)))
    for count in (2, 4, 8, 16)
)


@dataclass
class Measured:
    """Rows, and the reasons of missing ones."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    training: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """Wrong elements in any result, and weights that differ."""
        return sum(row["wrong"] for row in (*self.rows, *self.training))


def run_on_hosts(
    hosts: Hosts,
    ranks_per_host: int,
    worker: str,
    job: dict[str, Any],
    link: str = "tcp",
    options: Sequence[str] = (),
) -> Reports:
    """Runs a worker of this folder on all ranks of the hosts and returns their reports.

    Raises:
        JobFailedError: the job failed.
    """
    return run_worker(
        f"benchmarks.hosts.{worker}", job, len(hosts) * ranks_per_host, deadline=LIMIT,
        command=launch.on_hosts(hosts, ranks_per_host, link, options),
    )  # fmt: skip


def link_of(peer: str) -> str:
    """Returns the link of a job that measures a peer: a process has one."""
    return "mpi" if peer == "openmpi" or peer.endswith("over MPI") else "tcp"


def run_in_turn(case: Case, hosts: Hosts, rounds: int) -> dict[str, Reports]:
    """Runs a job for each link in each round; returns the reports of all rounds, by peer.

    Raises:
        JobFailedError: a job failed.
    """
    reports_of_peer: dict[str, Reports] = {}
    links = sorted({link_of(peer) for peer in case.peers})
    for number in range(rounds):
        for link in links[:: 1 if number % 2 else -1]:
            peers = [peer for peer in case.peers if link_of(peer) == link]
            job = {"peers": peers[:: 1 if number % 2 else -1], "sizes": case.sizes}
            reports = run_on_hosts(hosts, case.ranks_per_host, "worker", job, link, case.options)
            for peer in peers:
                now = [{**r, "results": r["results"][peer]} for r in reports]
                for before, after in zip(reports_of_peer.setdefault(peer, now), now, strict=True):
                    if before is not after:
                        merge(before["results"], after["results"])
    return reports_of_peer


def merge(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    """Adds the figures of a round to those of the rounds before it, size by size."""
    for total, turn in zip(before, now, strict=True):
        for key in ("rounds", "sent", "wrong"):
            total[key] += turn[key]


def sent_per_call(reports: Reports, index: int) -> tuple[float, float]:
    """Returns the bytes per call of the busiest host: with headers, and of the TCP streams."""
    from tests.hosts import Traffic

    calls = reports[0]["results"][index]["calls"]
    traffic = [
        Traffic(*turn) for r in reports for turn in r["results"][index]["sent"] if turn[0] > 0
    ]
    return max(t.bytes for t in traffic) / calls, max(t.payload for t in traffic) / calls


def row(
    case: Case, hosts: Hosts, reports: Reports, index: int, stream_rate: float, parameters: Any
) -> dict[str, Any]:
    """Returns the row of one peer and size, as plain data."""
    result = reports[0]["results"][index]
    series = Series(errors=sum(r["results"][index]["wrong"] for r in reports))
    for number in range(len(result["rounds"])):
        times = [{"results": [{"times": r["results"][index]["rounds"][number]}]} for r in reports]
        series.rounds.append(slowest_rank(times, 0))
    due_bytes = DEFINITIONS["allreduce"].factor(case.hosts) * result["bytes"]
    payload_rate = stream_rate if case.unlimited else hosts.payload_rate
    bound = due_bytes / payload_rate
    peer, _, algorithm = result["peer"].partition(":")
    all_sent, payload = sent_per_call(reports, index)
    return {
        "hosts": case.hosts,
        "ranks_per_host": case.ranks_per_host,
        "rate_mbit": hosts.rate_mbit,
        "mtu": hosts.mtu,
        "delay": case.delay,
        "payload_rate": payload_rate,
        "stream_rate": stream_rate,
        "bytes": result["bytes"],
        "peer": case.title or {"openmpi": "Open MPI"}.get(peer, peer),
        "algorithm": algorithm or "auto",
        "bound": bound,
        "of_bound": bound / series.seconds,
        "sent": all_sent,
        "sent_payload": payload,
        "due": due_bytes,
        "parameters": parameters,
        **series.summary(),
    }


def measure(case: Case, rounds: int, mtu: int, outcome: Measured) -> None:
    """Runs a case on hosts of its own and adds its rows, or why there are none."""
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(case.hosts, rate_mbit=case.rate_mbit, mtu=mtu))
        for host in hosts if case.delay else ():
            # A frame passes the relays of two hosts.
            stack.enter_context(host.relayed(Faults(latency=case.delay / 2)))
        probe = 64 * PROBE_BYTES if case.unlimited else PROBE_BYTES
        stream_rate = stream.measure(hosts[0], hosts[1], probe)
        try:
            reports = run_in_turn(case, hosts, rounds)
        except JobFailedError as error:
            outcome.reasons[str(case)] = str(error)
            return
    first = reports["openmpi"][0]  # which has MPI to measure with
    outcome.versions.update(first["versions"])
    for index in range(len(case.sizes)):
        for peer in case.peers:
            of_peer = row(case, hosts, reports[peer], index, stream_rate, first["parameters"])
            outcome.rows.append(of_peer)


def measure_training(rounds: int, mtu: int, outcome: Measured, *, batch: int, steps: int) -> None:
    """Trains on two hosts whose link is set so that the exchange takes as long as the rest."""
    job = {"rounds": rounds, "mtu": mtu, "batch": batch, "steps": steps}
    with Hosts(2, rate_mbit=RATES[2], mtu=mtu) as hosts:
        try:
            reports = run_on_hosts(hosts, 1, "fit_worker", job)
        except JobFailedError as error:
            outcome.reasons["training"] = str(error)
            return
    outcome.training.append(hosts_report.training_row(reports))


def parser() -> argparse.ArgumentParser:
    result = command.parser("benchmarks.hosts", __doc__)
    add = result.add_argument
    add("--hosts", default="2,4,8", help="numbers of hosts (default %(default)s)")
    add("--rounds", type=int, default=3, help="turns of each peer (default 3)")
    add("--delay", type=float, default=0.0, help="seconds from host to host (default: none added)")
    add("--mtu", type=int, default=JUMBO_MTU, help="bytes of a frame (default %(default)s)")
    add("--skip", default="", help="of allreduce,training: what to leave out")
    add("--batch", type=int, default=16, help="of the training step (default %(default)s)")
    add("--steps", type=int, default=3, help="training steps per turn (default %(default)s)")
    return result


def collect(
    counts: Sequence[int], rounds: int, mtu: int, skip: Sequence[str] = (), *, batch: int = 16,
    steps: int = 3, delay: float = 0.0,
) -> Measured:  # fmt: skip
    """Measures everything on these numbers of hosts, which takes some minutes."""
    outcome = Measured()
    cases = [replace(case, delay=delay) for case in (DELAYED if delay else CASES)]
    for case in cases if "allreduce" not in skip else ():
        if case.hosts in counts:
            print(f"{case.hosts} hosts x {case.ranks_per_host}, {case.rate_mbit:g} Mbit/s: "
                  f"{', '.join(case.peers)}", file=sys.stderr, flush=True)  # fmt: skip
            measure(case, rounds, mtu, outcome)
    if "training" not in skip:
        print("2 hosts: training", file=sys.stderr, flush=True)
        measure_training(rounds, mtu, outcome, batch=batch, steps=steps)
    return outcome


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    reason = unavailable() or ("" if find_open_mpi() else "no mpirun of Open MPI beside Python")
    if reason:
        print(f"cannot measure: {reason}", file=sys.stderr)
        return 2
    counts = [int(count) for count in options.hosts.split(",")]
    outcome = collect(counts, options.rounds, options.mtu, options.skip.split(","),
                      batch=options.batch, steps=options.steps, delay=options.delay)  # fmt: skip
    host = machine.describe()
    print(hosts_report.text(outcome.rows, outcome.training, host, options.mtu, outcome.versions))
    print(report.missing_lines(outcome.reasons), end="")
    parts = {"allreduce", "training"} - set(options.skip.split(","))
    data = {
        "tried": {"hosts": counts, "parts": sorted(parts)},
        "missing": outcome.reasons,
        "peers": outcome.versions,
        **hosts_report.as_data(outcome.rows),
        "training": outcome.training,
    }
    results.keep("delayed hosts" if options.delay else "hosts", host, data, options.output)
    if outcome.errors:
        print(f"{outcome.errors} wrong elements", file=sys.stderr)
    return 1 if outcome.errors or outcome.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
