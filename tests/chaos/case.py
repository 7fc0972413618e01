"""A job with its faults, and what must become of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.chaos.kinds import (
    DEADLINE,
    HARMLESS,
    LIMIT,
    LONG,
    OF_DISCOVERY,
    OF_LAUNCHER,
    SURVIVED,
)


@dataclass(frozen=True)
class Case:
    """One job with its faults.

    Attributes:
        seed: from which it was made.
        kind: of its faults, a key of `KINDS`.
        work: "collectives", "training", "elastic", "resumed", "elastic_backup" or "fed": a
            function of `work.py`.
        ranks: the number of ranks; with a script for the hosts, in the end.
        hosts: the number of hosts, which TCP connects.
        faults: plain data for `program.py`.
        relay: fields of `tests.hosts.Faults` for the link of the last host; None: no relay.
        lives: the kinds of faults of a job that is started again, one for each fault.
        answers: the commands of the script for the hosts: the first until the fault has happened,
            then each once, the last for good.
        patience: by which seconds are multiplied that a job and its ranks have, on a busy machine.
    """

    seed: int
    kind: str
    work: str
    ranks: int
    hosts: int
    faults: tuple[dict[str, Any], ...]
    relay: dict[str, Any] | None = None
    lives: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    patience: float = 1.0

    @property
    def deadline(self) -> float:
        """The deadline of the ranks: TCP may repeat a message several times."""
        repeats = bool(self.relay) and self.kind in HARMLESS
        return self.patience * DEADLINE * (3 if repeats else 1)

    @property
    def limit(self) -> float:
        """Seconds for the whole job."""
        return self.patience * LIMIT

    def seconds_of(self, fault: Mapping[str, Any]) -> float:
        """Return how long a fault lasts; with patience, longer where it outlasts the deadline."""
        seconds: float = fault.get("seconds", 0)
        return seconds * self.patience if seconds >= LONG else seconds

    @property
    def min_np(self) -> int:
        """The least number of ranks with which an elastic job goes on."""
        if self.kind in OF_DISCOVERY:
            return 1
        return self.ranks - 2 if self.kind == "in a recovery" else self.ranks - 1

    @property
    def is_survived(self) -> bool:
        """Whether the job must end well."""
        if self.is_started_again and (not self.faults or self.work == "resumed"):
            return not self.faults  # of this life
        if self.is_started_again:
            fault = self.faults[0]
            # It may come before the ranks have met, or when some have ended.
            if "delay" in fault or fault["step"] == "start":
                return False
        is_elastic = self.work in ("elastic", "elastic_backup")
        return self.kind in HARMLESS or (is_elastic and self.kind in SURVIVED)

    @property
    def is_started_again(self) -> bool:
        """Whether the job is one of those that continue each other."""
        return self.work in ("resumed", "elastic_backup")

    def each_life(self) -> list[Case]:
        """Return the jobs to run one after the other, the last one without faults."""
        if not self.lives:
            return [self]
        pairs = zip(self.lives, self.faults, strict=True)
        ends = [replace(self, kind=kind, faults=(fault,), lives=()) for kind, fault in pairs]
        return [*ends, replace(self, faults=(), lives=())]

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
        if self.is_started_again and code == 0:
            return ""  # its training was done before the fault
        if self.kind in OF_LAUNCHER:
            return "" if code else "ended well though the launcher was told to stop"
        if self.kind == "launcher warned":
            return self._fault_of_warned(code, text)
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
        if self.kind == "warned" and "SIGUSR" in text and "saved" in text:
            return ""  # by all ranks
        slots = "|".join(str(fault["slot"]) for fault in self.faults)
        if code and not re.search(rf"rank ({slots})\b|slot ({slots})\b", text):
            return f"no message names rank {slots}"
        return ""

    def _fault_of_warned(self, code: int, text: str) -> str:
        """Return what is wrong with a job whose launcher has got SIGUSR1 or SIGUSR2."""
        (fault,) = self.faults
        name = fault["what"].split()[1]
        if self.work == "resumed":
            expected = {"SIGUSR1": 138, "SIGUSR2": 140}[name]
            is_said = "saved" in text and f"stopped all ranks on {name}" in text
            return "" if (code, is_said) == (expected, True) else f"ended with {code} on {name}"
        if code != 0:
            return f"ended with {code} on {name}, for which no rank has a handler"
        if "delay" not in fault and f"ignored {name}" not in text:
            return f"does not say that it has ignored {name}"
        return ""

    def _names_other_host(self, text: str) -> bool:
        """Return whether a rank says that it misses one behind the link."""
        first = self.ranks - self.ranks // 2  # of the second host
        named = re.findall(r"rank (\d+) \| .*(?:waiting for rank ([\d, ]+)|but rank (\d+) )", text)
        return any(
            (int(speaker) < first) != (int(rank) < first)
            for speaker, *listed in named
            for rank in re.findall(r"\d+", " ".join(listed))
        )

    def _may_pass(self) -> bool:
        """Return whether the fault may come too late to matter, or is one on some ranks only."""
        is_after = all(fault["step"] == "end" or "delay" in fault for fault in self.faults)
        is_late = self.kind in ("two faults", "data worker lost")
        return is_after or is_late or self.work == "elastic"
