"""The tables of `benchmarks.hosts`: figures between hosts, beside their targets."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.harness import machine, report
from benchmarks.harness.report import KIB, MIB
from benchmarks.harness.series import slowest
from benchmarks.harness.targets import Target, table

LARGE, UNLIMITED = 32 * MIB, 64 * MIB
_PREDICTED_FROM = MIB
"""Smaller ones are at the mercy of two cores' scheduler, not of the link."""

Row = dict[str, Any]


def training_row(reports: list[Row]) -> Row:
    """Returns medians over the slowest rank's rounds; `ratio` compares each with itself."""
    names = reports[0]["seconds"]
    times = {name: slowest(r["seconds"][name] for r in reports) for name in names}
    ratios = [
        total / max(compute, communicate)
        for total, compute, communicate in zip(
            times["both"], times["compute"], times["communicate"], strict=True
        )
    ]
    return {
        "rate_mbit": reports[0]["rate_mbit"],
        "gradient_bytes": reports[0]["gradient_bytes"],
        **{name: median(rounds) for name, rounds in times.items()},
        **{
            f"{name}_processor": max(median(r["processor"][name]) for r in reports)
            for name in names
        },
        "ratio": median(ratios),
        "min": min(ratios),
        "max": max(ratios),
        "wrong": sum(r["wrong"] for r in reports),
    }


def as_data(rows: list[Row]) -> dict[str, list[Row]]:
    """Returns as `rows` those that the cost model should predict, and `others`.

    `benchmarks.simulate.measured` compares them with the model.
    """
    predicted = [
        r for r in rows
        if r["peer"] == "ringar" and r["bytes"] != UNLIMITED
        and (r["bytes"] >= _PREDICTED_FROM or r["delay"])
    ]  # fmt: skip
    return {"rows": predicted, "others": [r for r in rows if r not in predicted]}


def _of(rows: list[Row], peer: str, size: int, **criteria: Any) -> list[Row]:
    criteria = {"peer": peer, "bytes": size, "ranks_per_host": 1, **criteria}
    return [r for r in rows if all(r[key] == value for key, value in criteria.items())]


def targets(rows: list[Row], training: list[Row]) -> list[Target]:
    """Returns all targets, those without measurements included."""
    nothing = [float("nan")]
    large = _of(rows, "ringar", LARGE)
    unlimited = _of(rows, "ringar", UNLIMITED)
    pairs = _of(rows, "ringar", LARGE, ranks_per_host=2, algorithm="hierarchical")

    def against(peer: str, size: int, hosts: int) -> list[float]:
        return [
            peer_row["seconds"] / ringar_row["seconds"]
            for ringar_row in _of(rows, "ringar", size, hosts=hosts)
            for peer_row in _of(rows, peer, size, hosts=hosts)
        ] or nothing

    counts = ", ".join(str(r["hosts"]) for r in large)
    return [
        Target(f"allreduce 32 MiB on {counts or '2, 4, 8'} hosts, of the bound", 98, "%",
               [100 * r["of_bound"] for r in large] or nothing),
        Target("bytes sent per rank, headers and all, of 2(N-1)/N x bytes", 102, "%",
               [100 * r["sent"] / r["due"] for r in large] or nothing, at_most=True),
        Target("2 hosts x 2 ranks, hierarchical: bytes sent per host, of those of 2 ranks", 102,
               "%", [100 * r["sent"] / r["due"] for r in pairs] or nothing, at_most=True),
        Target("training step, of the longer of computing and communicating", 1.15, "x",
               [r["ratio"] for r in training] or nothing, at_most=True),
        Target("allreduce 1 KiB on 2 hosts against ringar over MPI", 1 / 1.1, "x",
               against("ringar over MPI", KIB, 2)),
        Target("allreduce 1 KiB on 4 hosts against Open MPI", 1, "x", against("Open MPI", KIB, 4)),
        Target("allreduce 64 KiB on 8 hosts against Open MPI", 1, "x",
               against("Open MPI", 64 * KIB, 8)),
        Target("allreduce 64 MiB on 2 hosts, a link without a rate: sent per rank", 3, "GB/s",
               [r["due"] / r["seconds"] / 1e9 for r in unlimited] or nothing),
    ]  # fmt: skip


def allreduce_table(rows: list[Row]) -> str:
    """Returns a row per peer, size and job."""
    headers = ["hosts", "ranks", "Mbit/s", "size", "peer", "algorithm", "time", "min", "max",
               "of bound", "sent", "payload", "#wrong"]  # fmt: skip
    lines = []
    for r in sorted(rows, key=lambda r: (r["ranks_per_host"], r["hosts"], -r["bytes"])):
        large = r["bytes"] >= _PREDICTED_FROM
        parts = [f"{r['of_bound']:.1%}", f"{r['sent'] / r['due']:.1%}",
                 f"{r['sent_payload'] / r['due']:.1%}"]  # fmt: skip
        lines.append(
            [r["hosts"], r["ranks_per_host"], f"{r['rate_mbit']:g}", report.size_text(r["bytes"]),
             r["peer"], r["algorithm"], *report.spread(r), *(parts if large else [""] * 3),
             r["wrong"]]
        )  # fmt: skip
    return report.table(headers, lines)


def stream_table(rows: list[Row]) -> str:
    """Returns the rate of one TCP stream beside the rate that bounds are computed with."""
    jobs = {(r["hosts"], r["ranks_per_host"], r["peer"]): r for r in rows}
    rates: dict[float, Row] = {r["stream_rate"]: r for r in jobs.values()}
    lines = [
        [r["hosts"], f"{r['rate_mbit']:g}", f"{r['payload_rate'] / 1e6:.2f}",
         f"{rate / 1e6:.2f}", f"{rate / r['payload_rate']:.1%}"]
        for rate, r in rates.items()
    ]  # fmt: skip
    headers = ["hosts", "Mbit/s", "payload rate MB/s", "one TCP stream MB/s", "of it"]
    return report.table(headers, lines)


def training_table(rows: list[Row]) -> str:
    """Returns the steps and their parts, with the processor time of each."""
    headers = ["gradients", "Mbit/s", "forward", "computing", "processor", "communicating",
               "processor", "both", "processor", "ratio", "min", "max", "#wrong"]  # fmt: skip
    keys = ("forward", "compute", "compute_processor", "communicate", "communicate_processor",
            "both", "both_processor")  # fmt: skip
    lines = [
        [f"{r['gradient_bytes'] / 1e6:.1f} MB", f"{r['rate_mbit']:.0f}"]
        + [report.time_text(r[key]) for key in keys]
        + [f"{r[key]:.3f}" for key in ("ratio", "min", "max")]
        + [r["wrong"]]
        for r in rows
    ]
    return report.table(headers, lines)


def text(
    rows: list[Row], training: list[Row], host: dict[str, Any], mtu: int, versions: dict[str, str]
) -> str:
    """Returns the targets, then all tables."""
    peers = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [
        f"# Between hosts: {machine.headline(host)}",
        f"# {peers}; frames of {mtu} bytes; times are medians, and least and greatest, of rounds",
        table(targets(rows, training)),
    ]
    if rows:
        parts += ["", allreduce_table(rows), "", stream_table(rows)]
    if training:
        parts += ["", training_table(training)]
    return "\n".join(parts)
