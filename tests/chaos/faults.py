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
    "launcher interrupted": [],
    "output closed": [],
    "two faults": [],
    "in a recovery": [],
    "in init or shutdown": [("SIGKILL", 0), ("SIGSEGV", 0)],
    "full shared memory": [],
    "full disk": [],
    "link drops": [],
    "link delays": [],
    "link corrupts": [],
    "link down for a moment": [("link", SHORT)],
    "link down for good": [("link", LONG)],
}
OF_LINK = tuple(kind for kind in KINDS if kind.startswith("link"))
OF_LAUNCHER = ("launcher killed", "launcher told to stop", "launcher interrupted", "output closed")
#: A job ends well in spite of these. Ranks that `ringarrun` starts need no /dev/shm.
HARMLESS = (
    "stopped for a moment", "late", "in a recovery", "full shared memory",
    "link drops", "link delays", "link corrupts", "link down for a moment",
)  # fmt: skip
#: An elastic job goes on after these. It warns where it cannot write commits.
SURVIVED = ("killed", "exception", "stopped for good", "too late", "full disk")
#: Kinds that need namespaces of their own.
NEEDS_ROOT = ("full shared memory", "full disk", *OF_LINK)
ON_ONE_HOST = ("full shared memory", "full disk", "in a recovery", *OF_LAUNCHER)
#: The work in which a fault can happen, where not all will do.
WORK = {
    "disagrees": ["collectives"],  # in which a call can be done wrong
    "in a recovery": ["elastic"],
    "full disk": ["elastic", "training"],
    "link down for good": ["collectives", "training"],
}
#: What can happen to one rank, and may come twice.
OF_A_RANK = tuple(
    kind for kind in KINDS if KINDS[kind] and kind not in (*OF_LINK, "in init or shutdown")
)


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
        relay: fields of `tests.hosts.Faults` for the link of the last host; None: no relay.
    """

    seed: int
    kind: str
    work: str
    ranks: int
    hosts: int
    faults: tuple[dict[str, Any], ...]
    relay: dict[str, Any] | None = None

    @property
    def deadline(self) -> float:
        """The deadline of the ranks: TCP may repeat a message several times."""
        return 3 * DEADLINE if self.relay and self.kind in HARMLESS else DEADLINE

    @property
    def min_np(self) -> int:
        """The least number of ranks with which an elastic job goes on."""
        return self.ranks - 2 if self.kind == "in a recovery" else self.ranks - 1

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
        if self.kind == "full disk" and "No space left on device" not in text:
            return "no message says that the disk is full"
        if self.kind == "no descriptors":
            return ""  # whether it needs one depends on the moment
        if self.is_survived:
            return "" if code == 0 else f"ended with {code} though the fault is harmless"
        if code == 0 and not self._may_pass():
            return "ended well in spite of the fault"
        if self.kind == "link down for good":
            return "" if self._names_other_host(text) else "no rank names one of the other host"
        slots = "|".join(str(fault["slot"]) for fault in self.faults)
        if code and not re.search(rf"rank ({slots})\b|slot ({slots})\b", text):
            return f"no message names rank {slots}"
        return ""

    def _names_other_host(self, text: str) -> bool:
        """Return whether a rank says that it misses one behind the link."""
        first = self.ranks - self.ranks // 2  # of the second host
        named = re.findall(r"rank (\d+) \| .*(?:waiting for rank ([\d, ]+)|but rank (\d+) )", text)
        return any(
            (int(own) < first) != (int(rank) < first)
            for own, *listed in named
            for rank in re.findall(r"\d+", " ".join(listed))
        )

    def _may_pass(self) -> bool:
        """Return whether the fault may come too late to matter, or is one on some ranks only."""
        after = all(fault["step"] == "end" or "delay" in fault for fault in self.faults)
        return after or self.work == "elastic" or self.kind == "two faults"


def make(seed: int, hosts: bool) -> Case:
    """Return the case of a seed; on several hosts only if `hosts`."""
    rng = random.Random(seed)
    kind = rng.choice([kind for kind in KINDS if hosts or kind not in NEEDS_ROOT])
    work = rng.choice(WORK.get(kind, ["collectives", "collectives", "training", "elastic"]))
    ranks = rng.choice([2, 3, 4] if kind != "in a recovery" else [3, 4])
    on_hosts = kind in OF_LINK or (hosts and kind not in ON_ONE_HOST and rng.random() < 0.25)
    several = min(2, ranks) if on_hosts else 1
    relay = _relay(rng, kind) if kind in OF_LINK else None
    return Case(seed, kind, work, ranks, several, tuple(_faults(rng, kind, ranks, work)), relay)


def _faults(rng: random.Random, kind: str, ranks: int, work: str) -> list[dict[str, Any]]:
    if kind == "in a recovery":
        first, second = rng.sample(range(ranks), 2)
        fault = _fault(rng, "killed", first, work)
        # Another one is lost while the others notice, meet again, or begin again.
        late = {"what": "SIGKILL", "seconds": 0, "delay": rng.choice([0.0, 0.05, 0.2, 0.5, 1.0])}
        return [fault, {**late, "slot": second, "step": "after", "of": first}]
    if kind == "full disk" and work == "training":
        return [{"slot": 0, "step": "end of the epoch", "what": "full disk", "seconds": 0}]
    if kind == "in init or shutdown":
        fault = _fault(rng, kind, rng.randrange(ranks), work)
        return [{**fault, "step": rng.choice(["init", "end"]), "delay": rng.random() ** 2 / 3}]
    parts = [kind] if kind != "two faults" else rng.choices(OF_A_RANK, k=2)
    slots = rng.sample(range(ranks), len(parts))
    pairs = zip(parts, slots, strict=True)
    return [_fault(rng, part, slot, work) for part, slot in pairs if KINDS[part]]


def _relay(rng: random.Random, kind: str) -> dict[str, Any]:
    """Return what the relay does from the start, or once a rank takes the link down."""
    fields: dict[str, Any] = {"seed": rng.randrange(1 << 30)}
    if kind == "link drops":
        fields["drop"] = rng.choice([0.001, 0.01, 0.02])
    elif kind == "link delays":
        fields["delay"] = rng.choice([0.001, 0.005, 0.02])
    elif kind == "link corrupts":
        fields["flip"] = rng.choice([0.001, 0.01, 0.02])
    else:
        fields["down"] = KINDS[kind][0][1]
    return fields


def _fault(rng: random.Random, kind: str, slot: int, work: str) -> dict[str, Any]:
    what, seconds = rng.choice(KINDS[kind])
    steps: list[int | str] = list(range(STEPS - 1))
    if kind == "link down for good":
        steps += ["start", "init"]
    elif kind != "disagrees" and work != "elastic":
        steps += ["start", "init", "end"]
    if (what, seconds) in (("sleep", LONG), ("SIGSTOP", 0)):
        steps = [step for step in steps if step != "end"]  # when nobody waits for it
    if what == "leave":
        steps = list(range(STEPS - 1))
    return {"slot": slot, "step": rng.choice(steps), "what": what, "seconds": seconds}
