"""Steps as intervals: TensorFlow's operations beside ringar's collectives, on one clock.

`benchmarks.training.overlap` computes from the records of `benchmarks.training.bucket_worker` which
part of a bucket lies beside the backward pass, and the Chrome trace of both. All of it is plain
data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Span = tuple[float, float]
"""Begin and end, in microseconds."""

Op = tuple[str, float, float]
"""An operation of TensorFlow as name:type, begin and end."""

PHASES = ("forward", "backward", "optimizer")


@dataclass
class Transfer:
    """One bucket in one step of one rank; times in microseconds."""

    name: str
    bytes: int
    tensors: int
    submitted: float
    begin: float
    end: float
    spans: dict[str, list[Span]] = field(default_factory=dict)
    """Queued, waiting, reducing, copying: when. Of a large bucket only the first 256 are known."""
    totals: dict[str, float] = field(default_factory=dict)
    """The same, added up, complete."""


def phase_of(op: str) -> str | None:
    """Returns the part of a step that `name:type` belongs to, or None for collectives."""
    name, _, kind = op.rpartition(":")
    if kind.startswith("Ringar"):
        return None
    if "gradient_tape/" in name:
        return "backward"
    return "optimizer" if re.search(r"(^|/)optimizer(_\d+)?/", name) else "forward"


def transfers(events: list[dict[str, Any]]) -> list[Transfer]:
    """Returns the buckets in the timeline of one rank, in the order of their begin."""
    spans = [event for event in events if event["ph"] == "X"]
    ends = {event["id2"]["local"]: event["ts"] for event in events if event["ph"] == "e"}
    queued = {(event["name"], ends.get(event["id2"]["local"])): event["ts"]
              for event in events if event["ph"] == "b"}  # fmt: skip
    exchanges = []
    for event in spans:
        title = re.fullmatch(r'allreduce "gradients/(.*)"', event["name"])
        if title:
            begin, args = event["ts"], event["args"]
            submitted = queued.get((f"queued: {event['name']}", begin), begin)
            totals = {kind: args[f"{kind}_us"] for kind in ("waiting", "reducing", "copying")}
            exchanges.append(
                Transfer(title[1], args["bytes"], args["tensors"], submitted, begin,
                         begin + event["dur"], {"queued": [(submitted, begin)]},
                         {"queued": begin - submitted, **totals})
            )  # fmt: skip
    exchanges.sort(key=lambda transfer: transfer.begin)
    _add_spans(exchanges, spans)
    return exchanges


def _add_spans(exchanges: list[Transfer], spans: list[dict[str, Any]]) -> None:
    kinds = {"copy": "copying", "reduce": "reducing"}
    phases = sorted(
        (event["ts"], event["ts"] + event["dur"], kinds.get(event["name"], "waiting"))
        for event in spans
        if event["name"] in kinds or event["name"].startswith("wait for rank")
    )
    for transfer in exchanges:
        for begin, end, kind in phases:
            if transfer.begin <= begin and end <= transfer.end + 0.01:
                transfer.spans.setdefault(kind, []).append((begin, end))


def bytes_text(size: int) -> str:
    """Returns a size with three digits, in kB or MB."""
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"


def union(spans: Iterable[Span]) -> list[Span]:
    """Returns the same times in order, with nothing covered twice."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def beside(span: Span, spans: Iterable[Span]) -> float:
    """Returns the microseconds of `span` in which at least one of `others` runs."""
    return sum(max(0.0, min(span[1], e) - max(span[0], b)) for b, e in union(spans))


def rows(steps: list[Span], ops: list[Op], exchanges: list[Transfer]) -> list[dict[str, Any]]:
    """Returns a row per bucket, then one of all: medians over `steps`, in milliseconds.

    `leaves` is when the bucket is handed over and `backward_ends` when the last operation of
    the backward pass does, since the step's begin; `ms` is from the begin of the collective to
    its end, `beside` how much of that lies beside operations of the backward pass.
    """
    backward = [(begin, end) for name, begin, end in ops if phase_of(name) == "backward"]
    samples: dict[str, list[dict[str, float]]] = {}
    by_name: dict[str, Transfer] = {}
    for step in steps:
        passes = [span for span in backward if step[0] <= span[0] < step[1]]
        inside = [exchange for exchange in exchanges if step[0] <= exchange.begin < step[1]]
        ends = max((end for _, end in passes), default=step[0]) - step[0]
        total = {"ms": 0.0, "beside": 0.0, "step": step[1] - step[0], "backward_ends": ends}
        for exchange in inside:
            by_name[exchange.name] = exchange
            figures = {
                "ms": exchange.end - exchange.begin,
                "beside": beside((exchange.begin, exchange.end), passes),
            }
            total = {**total, **{key: total[key] + figures[key] for key in figures}}
            samples.setdefault(exchange.name, []).append(
                {**figures, "leaves": exchange.submitted - step[0], **exchange.totals}
            )
        samples.setdefault("all", []).append(total)
    table = []
    for name in [*(name for name in samples if name != "all"), "all"]:
        medians = {key: median(s[key] for s in samples[name]) / 1e3 for key in samples[name][0]}
        total_ms = sum(sample["ms"] for sample in samples[name])
        part = sum(sample["beside"] for sample in samples[name]) / total_ms if total_ms else 0.0
        size = (
            {"bytes": by_name[name].bytes, "tensors": by_name[name].tensors}
            if name in by_name
            else {}
        )
        table.append({"bucket": name, **size, **medians, "part": part})
    return table


def lanes(spans: list[Span]) -> list[int]:
    """Returns a row for each of `spans`, ordered by begin, such that none overlap in a row."""
    ends: list[float] = []
    chosen = []
    for begin, end in spans:
        lane = next((i for i, last in enumerate(ends) if last <= begin), len(ends))
        ends[lane : lane + 1] = [end]
        chosen.append(lane)
    return chosen


def chrome_trace(
    steps: list[Span], ops: list[Op], timelines: list[list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Returns a Chrome trace: TensorFlow's rows above ringar's, from the first step on."""
    origin, last, top = steps[0][0], steps[-1][1], 1000  # a process that no rank is
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": top, "tid": 0, "name": "process_name",
         "args": {"name": "TensorFlow on rank 0"}},
        {"ph": "M", "pid": top, "tid": 0, "name": "process_sort_index", "args": {"sort_index": -1}},
    ]  # fmt: skip

    def span(row: int, begin: float, end: float, name: str, pid: int = top) -> dict[str, Any]:
        return {"ph": "X", "pid": pid, "tid": row, "ts": round(begin - origin, 3),
                "dur": round(end - begin, 3), "name": name}  # fmt: skip

    def row(number: int, name: str, pid: int = top) -> list[dict[str, Any]]:
        row = {"ph": "M", "pid": pid, "tid": number}
        return [{**row, "name": "thread_name", "args": {"name": name}},
                {**row, "name": "thread_sort_index", "args": {"sort_index": number}}]  # fmt: skip

    events += row(0, "steps") + [span(0, *step, f"step {i}") for i, step in enumerate(steps)]
    for number, phase in enumerate(PHASES):
        ops_of_phase = [op for op in ops if phase_of(op[0]) == phase and origin <= op[1] < last]
        for lane, (name, begin, end) in zip(
            lanes([op[1:] for op in ops_of_phase]), ops_of_phase, strict=True
        ):
            first = 1 + 100 * number + lane
            events += row(first, phase if lane == 0 else f"{phase}, more at once")
            events.append(span(first, begin, end, name))
    for timeline in timelines:
        events += [event for event in timeline if event["ph"] == "M"]
        events += [{**event, "ts": round(event["ts"] - origin, 3)} for event in timeline
                   if event["ph"] != "M" and origin <= event["ts"] < last]  # fmt: skip
    unique = {json.dumps(event): event for event in events}  # a row is named once
    return list(unique.values())
