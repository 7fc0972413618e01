"""A seeded generator of faults, and what must become of a job that has them."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

#: Shorter than the faults that must be noticed, and longer than those that must not.
DEADLINE = 4.0
SHORT, LONG = 1.0, 60.0
STEPS = 12

#: What happens to a rank, by kind: the faults, with seconds.
KINDS: dict[str, list[tuple[str, float]]] = {
    "killed": [("SIGKILL", 0), ("SIGSEGV", 0), ("SIGABRT", 0)],
    "stopped for good": [("SIGSTOP", 0)],
    "stopped for a moment": [("SIGSTOP", SHORT)],
    "late": [("sleep", SHORT)],
    "too late": [("sleep", LONG)],
    "exit": [("exit 0", 0), ("exit 5", 0), ("end", 0)],
    "exception": [("raise", 0)],
    "leaves early": [("leave", 0)],
    "disagrees": [("shape", 0), ("dtype", 0), ("name", 0), ("order", 0)],
    "no descriptors": [("descriptors", 0)],
    "launcher killed": [],
    "launcher told to stop": [],
    "two faults": [],
}
HARMLESS = ("stopped for a moment", "late")
OF_LAUNCHER = ("launcher killed", "launcher told to stop")
#: An elastic job goes on after these.
SURVIVED = ("killed", "exception")


@dataclass(frozen=True)
class Case:
    """One job with its faults.

    Attributes:
        seed: from which it was made.
        kind: of its faults, a key of `KINDS`.
        work: "collectives", "training" or "elastic": a function of `program.py`.
        ranks: the number of ranks.
        hosts: the number of hosts, which TCP connects.
        faults: plain data for `program.py`.
    """

    seed: int
    kind: str
    work: str
    ranks: int
    hosts: int
    faults: tuple[dict[str, Any], ...]

    @property
    def is_survived(self) -> bool:
        """Whether the job must end well."""
        return self.kind in HARMLESS or (self.work == "elastic" and self.kind in SURVIVED)

    def fault_of(self, code: int | None, text: str) -> str:
        """Return what is wrong with the end of the job; "" if nothing is.

        Args:
            code: the exit code; None: it had to be stopped.
            text: the standard error.
        """
        if code is None:
            return "did not end"
        if code == 99:
            return "used a wrong number"
        if self.kind in OF_LAUNCHER:
            return "" if code else "ended well though the launcher was told to stop"
        if self.kind == "no descriptors":
            return ""  # whether it needs one depends on the moment
        if self.is_survived:
            return "" if code == 0 else f"ended with {code} though the fault is harmless"
        if code == 0 and not self._may_pass():
            return "ended well in spite of the fault"
        slots = "|".join(str(fault["slot"]) for fault in self.faults)
        if code and not re.search(rf"rank ({slots})\b|slot ({slots})\b", text):
            return f"no message names rank {slots}"
        return ""

    def _may_pass(self) -> bool:
        """Return whether the fault may come too late to matter, or is one on some ranks only."""
        after = all(fault["step"] == "end" for fault in self.faults)
        return after or self.work == "elastic" or self.kind == "two faults"


def make(seed: int, hosts: bool) -> Case:
    """Return the case of a seed; on several hosts only if `hosts`."""
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS))
    work = rng.choice(["collectives", "collectives", "training", "elastic"])
    if kind == "disagrees":
        work = "collectives"  # in which a call can be done wrong
    ranks = rng.choice([2, 3, 4])
    parts = [kind] if kind != "two faults" else rng.choices([k for k in KINDS if KINDS[k]], k=2)
    slots = rng.sample(range(ranks), len(parts))
    faults = tuple(
        _fault(rng, part, slot, work)
        for part, slot in zip(parts, slots, strict=True)
        if KINDS[part]
    )
    on_hosts = hosts and kind not in OF_LAUNCHER and rng.random() < 0.25
    return Case(seed, kind, work, ranks, min(2, ranks) if on_hosts else 1, faults)


def _fault(rng: random.Random, kind: str, slot: int, work: str) -> dict[str, Any]:
    what, seconds = rng.choice(KINDS[kind])
    steps: list[int | str] = list(range(STEPS - 1))
    if kind != "disagrees" and work != "elastic":
        steps += ["start", "init", "end"]
    if what == "leave":
        steps = list(range(STEPS - 1))
    return {"slot": slot, "step": rng.choice(steps), "what": what, "seconds": seconds}
