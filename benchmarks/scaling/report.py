"""The rows and the table of a job: measured, ideal and predicted.

Predicted: the measured step of one rank alone, as often as threads share a core, and the exchange
of the gradients in buckets by the cost model (`benchmarks.simulate.prediction`) with the parameters
that the job has measured. On one host nothing overlaps, since a collective there is work of the
same cores; between hosts the link works beside the backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.harness import machine, report
from benchmarks.simulate.networks import Layer
from benchmarks.simulate.prediction import Workload, predict
from ringar.job.cost_model import Parameters

Row = dict[str, Any]
WEAK, STRONG = "weak", "strong"
Key = tuple[str, int, int]
"""Kind, ranks and batch of a case, as in `benchmarks.scaling.worker`."""


def rows(data: dict[str, Any]) -> list[Row]:
    """Returns a row per model, rate, way of scaling and number of ranks, as plain data."""
    by_setting: dict[tuple[str, float | None], dict[Key, Row]] = defaultdict(dict)
    for case in data["measured"]:
        key = case["kind"], case["ranks"], case["batch"]
        by_setting[case["model"], case["rate_mbit"]][key] = case
    return [
        row
        for (model, rate), cases in by_setting.items()
        for way in (WEAK, STRONG)
        for row in _rows_of(data, model, rate, way, cases)
    ]


def _rows_of(
    data: dict[str, Any], model: str, rate: float | None, way: str, cases: dict[Key, Row]
) -> Iterator[Row]:
    most = max(batch for _, _, batch in cases)
    base = median(cases["alone", 1, most]["seconds"])
    for place in data["cases"]:
        ranks = place["ranks"]
        batch = most if way == WEAK else most // ranks
        if way == STRONG and most % ranks:
            continue
        case = cases["ringar", ranks, batch]
        images = ranks * batch
        seconds, ideal = median(case["seconds"]), ranks * most / base
        single_step = median(cases["alone", 1, batch]["seconds"])
        plain = cases.get(("plain", ranks, batch), cases["alone", 1, batch])
        side_by_side = median(plain["seconds"])
        yield {
            "model": model, "rate_mbit": rate, "way": way, "ranks": ranks, "hosts": place["hosts"],
            "batch": batch, "seconds": seconds, "rate": images / seconds,
            "rate_min": images / max(case["seconds"]), "rate_max": images / min(case["seconds"]),
            "plain": images / side_by_side, "ideal": ideal, "of_ideal": images / seconds / ideal,
            "communication": max(0.0, 1 - side_by_side / seconds), "busy": case["busy"],
            "predicted": _predicted(data, model, rate, place, single_step, images),
            "wrong": case["errors"],
        }  # fmt: skip


def _predicted(
    data: dict[str, Any],
    model: str,
    rate: float | None,
    place: Row,
    single_step: float,
    images: int,
) -> float | None:
    """Returns the images/s that the cost model predicts; None without parameters."""
    parameters = next(n["parameters"] for n in data["networks"] if n["rate_mbit"] == rate)
    if parameters is None:
        return None
    layers = [Layer(*layer) for layer in data["layers"][model]]
    workload = Workload(layers, place["turns"] * single_step, bucket=data["bucket_bytes"],
                        contention=1.0 if place["hosts"] == 1 else 0.0)  # fmt: skip
    step = predict(workload, Parameters(**parameters), place["ranks"], data["ranks_per_host"])
    return images / step.total


def title(data: dict[str, Any]) -> str:
    """Returns one line about the job."""
    hosts, machines = len(data["hosts"]), data["machines"]
    on = f" on {machines} machine{'s' * (machines > 1)}" if hosts > machines else ""
    return (f"{hosts} host{'s' * (hosts > 1)}{on} x {data['ranks_per_host']} ranks x "
            f"{data['threads']} thread{'s' * (data['threads'] > 1)}; "
            f"{machine.headline(data['machine'])}")  # fmt: skip


def rate_text(rate_mbit: float | None) -> str:
    """Returns the rate of links as tc spells it; "" for links as they are."""
    if rate_mbit is None:
        return ""
    return f"{rate_mbit / 1e3:g} Gbit/s" if rate_mbit >= 1e3 else f"{rate_mbit:g} Mbit/s"


def network_text(data: dict[str, Any]) -> str:
    """Returns a line for each network: what the cost model predicts with."""
    lines = []
    for entry in data["networks"]:
        if entry["parameters"] is None:
            continue
        p = Parameters(**entry["parameters"])
        parts = [f"{report.time_text(p.latency)} and {p.bandwidth / 1e6:.4g} MB/s between hosts",
                 f"{report.time_text(p.local_latency)} and {p.local_bandwidth / 1e9:.3g} GB/s "
                 "within a host"]  # fmt: skip
        parts = parts[len(data["hosts"]) == 1 :][: 2 if data["ranks_per_host"] > 1 else 1]
        at = f" at {rate_text(entry['rate_mbit'])}" if entry["rate_mbit"] else ""
        lines.append(f"Measured{at}: {', '.join(parts)}.")
    return "\n".join(lines)


def table_text(table: list[Row]) -> str:
    """Returns images/s against ideal and prediction, and the part that is communication."""
    rates = any(row["rate_mbit"] for row in table)
    headers = ["model", *(["links"] if rates else []), "scaling", "ranks", "hosts", "batch",
               "images/s", "min", "max", "side by side", "ideal", "of ideal", "communication",
               "under way", "predicted", "predicted of ideal", "#wrong"]  # fmt: skip
    lines = [
        [row["model"], *([rate_text(row["rate_mbit"])] if rates else []), row["way"], row["ranks"],
         row["hosts"], row["batch"]]
        + [f"{row[key]:.4g}" for key in ("rate", "rate_min", "rate_max", "plain", "ideal")]
        + [f"{row[key]:.1%}" for key in ("of_ideal", "communication", "busy")]
        + ([f"{row['predicted']:.4g}", f"{row['predicted'] / row['ideal']:.1%}"]
           if row["predicted"] else ["", ""])
        + [row["wrong"]]
        for row in table
    ]  # fmt: skip
    return report.table(headers, lines)
