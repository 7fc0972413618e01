"""A seeded generator of jobs with faults."""

from __future__ import annotations

import random
from typing import Any

from tests.chaos import hosts_script
from tests.chaos.case import Case
from tests.chaos.kinds import (
    ENDS_OF_LIVES,
    EPOCHS,
    KINDS,
    LONG,
    NEEDS_ROOT,
    OF_A_RANK,
    OF_DISCOVERY,
    OF_LINK,
    OF_WORKERS,
    ON_ONE_HOST,
    STEPS,
    WORK,
)


def make(seed: int, hosts: bool, kinds: list[str] | None = None) -> Case:
    """Return the case of a seed; on several hosts only if `hosts`; of some kinds, if given."""
    rng = random.Random(seed)
    kind = rng.choice([kind for kind in kinds or KINDS if hosts or kind not in NEEDS_ROOT])
    work = rng.choice(WORK.get(kind, ["collectives", "collectives", "training", "elastic"]))
    ranks = rng.choice([2, 3, 4] if kind != "in a recovery" else [3, 4])
    if kind in OF_DISCOVERY:
        return _with_script(rng, seed, kind, hosts)
    if kind == "started again":
        return _started_again(rng, seed, work, min(ranks, 3))
    on_hosts = kind in OF_LINK or (hosts and kind not in ON_ONE_HOST and rng.random() < 0.25)
    several = min(2, ranks) if on_hosts else 1
    relay = _relay(rng, kind) if kind in OF_LINK else None
    return Case(seed, kind, work, ranks, several, tuple(_faults(rng, kind, ranks, work)), relay)


def _with_script(rng: random.Random, seed: int, kind: str, hosts: bool) -> Case:
    """Return an elastic job whose hosts a script tells, which changes its mind."""
    begin, answers, end = hosts_script.answers(rng, kind, hosts)
    step = rng.choice(["start", *range(STEPS // 2)])
    fault = {"slot": rng.randrange(begin), "step": step, "what": "discovery", "seconds": 0}
    count = hosts_script.HOSTS if hosts else 1
    return Case(seed, kind, "elastic", end, count, (fault,), answers=answers)


def _started_again(rng: random.Random, seed: int, work: str, ranks: int) -> Case:
    """Return a job that ends once or twice before its training is done."""
    lives = rng.choices(list(ENDS_OF_LIVES), k=rng.choice([1, 1, 2]))
    faults = []
    for number, life in enumerate(lives):
        action, seconds = rng.choice(ENDS_OF_LIVES[life])
        # A later life begins where the one before has ended.
        steps = range(EPOCHS * STEPS * number // len(lives), EPOCHS * STEPS - 1)
        fault = {"slot": rng.randrange(ranks), "what": action, "seconds": seconds}
        early = {"step": "start", "delay": rng.uniform(0, 8)}
        within = {"step": rng.choice(steps), **rng.choice([{}, {}, {"delay": 0.05}])}
        fault.update(rng.choice([within, within, early]))
        if action == "raise":
            fault.pop("delay", None)  # a thread would raise it
        faults.append(fault)
    return Case(seed, "started again", work, ranks, 1, tuple(faults), lives=tuple(lives))


def _faults(rng: random.Random, kind: str, ranks: int, work: str) -> list[dict[str, Any]]:
    if kind == "in a recovery":
        first, second = rng.sample(range(ranks), 2)
        fault = _fault(rng, "killed", first, work)
        # Another one is lost while the others notice, meet again, or begin again.
        delay = rng.choice([0.0, 0.05, 0.2, 0.5, 1.0])
        follower = {"what": "SIGKILL", "seconds": 0, "delay": delay}
        return [fault, {**follower, "slot": second, "step": "after", "of": first}]
    if kind == "full disk" and work == "training":
        return [{"slot": 0, "step": "end of the epoch", "what": "full disk", "seconds": 0}]
    if kind == "in init or shutdown":
        fault = _fault(rng, kind, rng.randrange(ranks), work)
        return [{**fault, "step": rng.choice(["init", "end"]), "delay": rng.random() ** 2 / 3}]
    if kind == "launcher warned" and rng.random() < 0.5:
        fault = _fault(rng, kind, rng.randrange(ranks), work)
        return [{**fault, "step": "start", "delay": rng.uniform(0, 8)}]
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
    action, seconds = rng.choice(KINDS[kind])
    steps: list[int | str] = list(range(STEPS - 1))
    if kind == "link down for good":
        steps += ["start", "init"]
    elif kind not in ("disagrees", *OF_WORKERS) and work not in ("elastic", "elastic_backup"):
        steps += ["start", "init", "end"]  # elastic jobs end, too, where one fails there
    if (action, seconds) in (("sleep", LONG), ("SIGSTOP", 0)):
        steps = [step for step in steps if step != "end"]  # when nobody waits for it
    if action == "leave":
        steps = list(range(STEPS - 1))
    return {"slot": slot, "step": rng.choice(steps), "what": action, "seconds": seconds}
