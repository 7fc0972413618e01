"""The table of faults: what can happen to a job, where, and whether the job must survive."""

from __future__ import annotations

#: Shorter than the faults that must be noticed, and longer than those that must not.
DEADLINE = 4.0
SHORT, LONG = 1.0, 60.0
#: Seconds for a whole job, the import of TensorFlow on all ranks included.
LIMIT = 90.0
STEPS = 12
#: Of a job that is started again, with `STEPS` each.
EPOCHS = 3

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
    "data worker lost": [("worker SIGKILL", 0), ("worker SIGSTOP", 0)],
    "data worker stopped for a moment": [("worker SIGSTOP", SHORT)],
    "warned": [("SIGUSR1", 0), ("SIGUSR2", 0)],
    "launcher warned": [("launcher SIGUSR1", 0), ("launcher SIGUSR2", 0)],
    "started again": [],
    "hosts come": [],
    "hosts go": [],
    "no hosts for a moment": [],
    "discovery fails": [],
    "discovery hangs": [],
}
#: What ends a life of a job that is started again, beside kinds above.
ENDS_OF_LIVES: dict[str, list[tuple[str, float]]] = {
    **{kind: KINDS[kind] for kind in ("killed", "exception", "warned", "launcher warned")},
    "launcher killed": [("launcher SIGKILL", 0)],
    "launcher told to stop": [("launcher SIGTERM", 0)],
}
OF_LINK = tuple(kind for kind in KINDS if kind.startswith("link"))
OF_LAUNCHER = ("launcher killed", "launcher told to stop", "launcher interrupted", "output closed")
OF_WORKERS = ("data worker lost", "data worker stopped for a moment")
OF_DISCOVERY = (
    "hosts come", "hosts go", "no hosts for a moment", "discovery fails", "discovery hangs"
)  # fmt: skip
#: A job ends well in spite of these. Ranks that `ringarrun` starts need no /dev/shm.
HARMLESS = (
    "stopped for a moment", "late", "in a recovery", "full shared memory", "launcher warned",
    "link drops", "link delays", "link corrupts", "link down for a moment",
    "data worker stopped for a moment", *OF_DISCOVERY,
)  # fmt: skip
#: An elastic job goes on after these. It warns where it cannot write commits.
SURVIVED = ("killed", "exception", "stopped for good", "too late", "full disk", "warned")
#: Kinds that need namespaces of their own.
NEEDS_ROOT = ("full shared memory", "full disk", *OF_LINK)
ON_ONE_HOST = (
    "full shared memory", "full disk", "in a recovery", "started again",
    *OF_LAUNCHER,
)  # fmt: skip
#: The work in which a fault can happen, where not all will do.
WORK = {
    "disagrees": ["collectives"],  # in which a call can be done wrong
    "in a recovery": ["elastic"],
    "full disk": ["elastic", "training"],
    "link down for good": ["collectives", "training"],
    "started again": ["resumed", "resumed", "elastic_backup"],
    **{key: ["fed"] for key in OF_WORKERS},
    **{key: ["elastic"] for key in OF_DISCOVERY},
}
#: What can happen to one rank, and may come twice.
OF_A_RANK = tuple(
    kind
    for kind in KINDS
    if KINDS[kind] and kind not in (*OF_LINK, *OF_WORKERS, "in init or shutdown", "launcher warned")
)
