"""The program of the ranks of `tests.chaos`, `program.py PLAN`: checked work, with faults."""

from __future__ import annotations

import sys
import time

from tests.chaos import work
from tests.chaos.suffering import PLAN, await_other_faults, happen

# Their import takes half of the time of a short job, and the work does without them.
for left_out in ("sklearn", "pandas", "matplotlib", *(["keras"] * (PLAN["work"] == "collectives"))):
    sys.modules[left_out] = None  # type: ignore[assignment]


def main() -> None:
    happen("start")
    await_other_faults()
    import ringar

    happen("init")
    ringar.init(deadline=PLAN["deadline"], start_timeout=PLAN["start"])
    getattr(work, PLAN["work"])()
    until = time.monotonic() + PLAN["stays"]
    while time.monotonic() < until:
        work.say(-1)
        time.sleep(0.1)
    happen("end")
    ringar.shutdown()


if __name__ == "__main__":
    main()
