"""What the ranks of `tests.chaos` run: checked work, and the faults of a plan: `program.py PLAN`.

A rank looks for its own faults before each step. It is known by its slot, which survives a change
of the ranks. A wrong result prints WRONG and ends the rank with 99.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

PLAN: dict[str, Any] = json.loads(sys.argv[1])
SLOT = int(os.environ.get("RINGAR_RANK", "0"))
FIRST = not os.path.exists(PLAN["once"] + str(SLOT))  # of the processes in this slot

# Their import takes half of the time of a short job, and the work does without them.
for left_out in ("sklearn", "pandas", "matplotlib", *(["keras"] * (PLAN["work"] == "collectives"))):
    sys.modules[left_out] = None  # type: ignore[assignment]


def happen(step: int | str) -> str:
    """Let the faults of this rank at `step` happen; return what it has to do wrong, if anything."""
    wrong = ""
    for fault in PLAN["faults"] if FIRST else ():
        if (fault["slot"], fault["step"]) == (SLOT, step):
            with open(PLAN["once"] + str(SLOT), "w"):
                pass
            if "delay" in fault:  # while this rank starts, or shuts down
                threading.Thread(target=follow, args=[fault], daemon=True).start()
            else:
                wrong = suffer(fault["what"], fault.get("seconds", 0)) or wrong
    return wrong


def suffer(what: str, seconds: float) -> str:
    """Let a fault happen to this process, or return its name if it is a call to be done wrong."""
    if what == "link":
        Path(PLAN["once"] + "link").touch()
        time.sleep(0.1)  # until the relay has seen it
    elif what in ("SIGKILL", "SIGSEGV", "SIGABRT"):
        os.kill(os.getpid(), signal.Signals[what])
    elif what == "SIGSTOP":
        if seconds:  # another process lets it continue
            go_on = f"sleep {seconds}; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", go_on], stdout=subprocess.DEVNULL)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what.startswith("exit"):
        sys.exit(int(what.split()[1]))
    elif what == "end":
        os._exit(6)
    elif what == "raise":
        raise ValueError("a fault of this rank alone")
    elif what == "sleep":
        time.sleep(seconds)
    elif what == "leave":
        import ringar

        ringar.shutdown()
        time.sleep(seconds)
        sys.exit(4)
    elif what == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    else:
        return what
    return ""


def say(step: int) -> None:
    """Print the step, where the plan wants that."""
    if PLAN["loud"]:
        print(f"step {step} " + 200 * ".", flush=True)
        time.sleep(0.2)


def await_other_faults() -> None:
    """Start a thread for each fault of this rank that follows one of another rank."""
    for fault in PLAN["faults"] if FIRST else ():
        if (fault["slot"], fault["step"]) == (SLOT, "after"):
            threading.Thread(target=follow, args=[fault], daemon=True).start()


def follow(fault: dict[str, Any]) -> None:
    """Wait for a fault of another rank, if it is to follow one; a little later, let it happen."""
    while "of" in fault and not os.path.exists(PLAN["once"] + str(fault["of"])):
        time.sleep(0.01)
    time.sleep(fault["delay"])
    Path(PLAN["once"] + str(SLOT)).touch()
    suffer(fault["what"], 0)


def wrong_result(step: int, name: str) -> NoReturn:
    """End this rank: a collective has returned a wrong number."""
    print(f"WRONG {name} in step {step} on slot {SLOT}", flush=True)
    os._exit(99)


def collectives() -> None:
    """Run random collectives, each checked against NumPy."""
    import numpy as np

    import ringar

    rank, size = ringar.rank(), ringar.size()
    for step in range(PLAN["steps"]):
        rng = np.random.default_rng([PLAN["seed"], step])
        kind = str(rng.choice(["allreduce", "allgather", "broadcast", "reducescatter"]))
        dtype = rng.choice(["float32", "float64", "int32", "int64"])
        columns = int(rng.choice([1, 7, 300, 40_000]))
        given = [rng.integers(0, 100, (size, columns)).astype(dtype) for _ in range(size)]
        total = np.sum(given, axis=0)
        mine, name = given[rank], f"step {step}"
        say(step)
        wrong = happen(step)
        if wrong == "shape":
            mine = mine[:, : columns // 2]
        elif wrong == "dtype":
            mine = mine.astype("int16" if kind != "allreduce" else "int8")
        elif wrong == "name":
            name = "another"
        elif wrong == "order":
            ringar.barrier(name="out of turn")
        if kind == "allreduce":
            found, expected = ringar.allreduce(mine, op=ringar.Sum, name=name), total
        elif kind == "allgather":
            found, expected = ringar.allgather(mine, name=name), np.concatenate(given)
        elif kind == "broadcast":
            found, expected = ringar.broadcast(mine, root_rank=0, name=name), given[0]
        else:
            found = ringar.reducescatter(mine, op=ringar.Sum, name=name)
            expected = total[rank : rank + 1]
        if not np.array_equal(np.asarray(found), expected):
            wrong_result(step, kind)


def training() -> None:
    """Train a model whose weight is a sum of whole numbers in the end."""
    import keras
    import numpy as np

    import ringar

    class Faults(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            say(batch)
            happen(batch)

    def callbacks() -> list[Any]:
        # The checkpoint of rank 0 goes to a disk that is full, where the plan says so.
        kept = [keras.callbacks.ModelCheckpoint(PLAN["disk"] + "/{epoch}.keras")]
        return [ringar.callbacks.Distributed(), Faults(), *(kept if PLAN["disk"] else [])]

    class Outputs(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return y_pred[:, 0]

    rows = 2 * PLAN["steps"]
    x = np.arange(rows * ringar.size(), dtype=np.float32)[:, None]
    mine = x[ringar.rank() :: ringar.size()]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = ringar.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, Outputs(reduction="sum"), jit_compile=bool(PLAN["seed"] % 2))
    model.layers[0].kernel.assign([[0.0]])
    model.fit(mine, mine, 2, verbose=0, callbacks=callbacks())
    if float(model.layers[0].kernel[0, 0]) != -x.sum():
        wrong_result(-1, "weight")


def elastic() -> None:
    """Add up rows in a job whose ranks may change; each must count once."""
    import numpy as np

    import ringar

    rows = 6 * PLAN["steps"]
    data = ringar.elastic.Dataset(np.arange(rows), 2, shuffle=True, seed=PLAN["seed"])

    @ringar.elastic.run
    def train(state: ringar.elastic.ObjectState) -> None:
        step = 0
        while state.epoch < 2:
            for done, batch in data.batches(state.epoch, state.done):
                say(step)
                happen(step)
                state.total += int(ringar.allreduce(batch.sum(), op=ringar.Sum, name="rows"))
                state.done, step = done, step + 1
                if step % 3 == 0:
                    state.commit()
            state.epoch, state.done = state.epoch + 1, 0

    state = ringar.elastic.ObjectState(epoch=0, done=0, total=0)
    train(state)
    if state.total != rows * (rows - 1):
        wrong_result(-1, "sum of rows")


def main() -> None:
    happen("start")
    await_other_faults()
    import ringar

    happen("init")
    ringar.init(deadline=PLAN["deadline"], start_timeout=PLAN["deadline"] + 20)
    globals()[PLAN["work"]]()
    until = time.monotonic() + PLAN["stays"]
    while time.monotonic() < until:
        say(-1)
        time.sleep(0.1)
    happen("end")
    ringar.shutdown()


if __name__ == "__main__":
    main()
