"""The schedules: which batches a module works on in a step, and in which order.

Modules are counted from 0 to K-1 here. In each step module k receives the activations of one batch
and the gradients of the same or an earlier one. The staleness says how many batches earlier.
Nothing else synchronizes the modules: each continues as soon as its messages have arrived.

delayed     staleness K-1-k. Huo, Gu, Yang and Huang, "Decoupled parallel backpropagation with
            convergence guarantee" (ICML 2018), whose modules count from 1 to K:
            w_k <- w_k - gamma * grad_k(w^(t-K+k); x_(t-K+k)). While module k works backward on one
            batch, the one after it works backward on the next.
decoupled   staleness 2(K-1-k). Zhuang, Wang, Xie and Lin, "Fully decoupled neural network learning
            using delayed gradients" (2019): each module is at another batch forward, too. In step s
            of module k, which is step s+k of the clock that the paper counts by, it takes batch s
            forward and batch s-2(K-1-k) backward: a message has the time of a whole step to arrive.
microbatch  staleness 0. Huang et al., "GPipe" (2019): the batch is cut into parts, which follow
            each other through the modules, and the weights change when all parts are done. The
            order is that of Narayanan et al., "PipeDream" (2019), one forward, one backward: module
            k begins with K-1-k forward actions, and never holds more than K-k parts.

The steps of four modules with `delayed` (F3: forward of batch 3, B1: backward of batch 1):

    module 0   F0 .  F1 .  F2 .  F3 B0 F4 B1 F5 B2
    module 1   F0 .  F1 .  F2 B0 F3 B1 F4 B2 F5 B3
    module 2   F0 .  F1 B0 F2 B1 F3 B2 F4 B3 F5 B4
    module 3   F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
"""

from __future__ import annotations

import dataclasses
import enum

SYNTHETIC = "synthetic"
SCHEDULES = ("delayed", "decoupled", "microbatch", SYNTHETIC)


class Action(enum.Enum):
    """Name an action of a module on a batch, or on a part of one."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Order the work of one module.

    Attributes:
        following: the number of modules after it.
        delay: the staleness, in batches, that each of these modules adds.
        parts: the number of parts of a batch.
    """

    following: int
    delay: int
    parts: int = 1

    @property
    def staleness(self) -> int:
        """The number of batches by which gradients lag behind activations."""
        return self.delay * self.following

    def step(self, parts: int) -> list[Action]:
        """Return the actions of one step, in order, for a batch of `parts` parts.

        A backward action works on the oldest part in flight. It is omitted while at most
        `staleness` parts are in flight.
        """
        ahead = min(parts - 1, self.following) if self.delay == 0 else 0
        pair = [Action.FORWARD, Action.BACKWARD]
        return [Action.FORWARD] * ahead + pair * (parts - ahead) + [Action.BACKWARD] * ahead


def schedule(name: str, module: int, modules: int, microbatches: int = 1) -> Schedule:
    """Return the schedule with a name, for one of `modules` modules, counted from 0.

    Raises:
        ValueError: there is no such schedule.
    """
    if name not in SCHEDULES:
        names = ", ".join(f'"{choice}"' for choice in SCHEDULES)
        raise ValueError(f"`schedule` must be one of {names}. Received: schedule={name!r}")
    following = modules - 1 - module
    if name == "microbatch":
        return Schedule(following, 0, microbatches)
    if name == SYNTHETIC:
        return Schedule(following, 0)
    return Schedule(following, 1 if name == "delayed" else 2)
