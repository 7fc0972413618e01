"""The program of `ringarrun --calibrate`: ranks calibrate in `init`, rank 0 prints the result."""

from __future__ import annotations

import os
import sys

from ringar.job import calibration, native, place, start


def main() -> int:
    """Calibrate; print the result on rank 0, and return 0 if there is one."""
    start.init()
    config = place.require("ringarrun --calibrate")
    library = native.library()
    is_calibrated = bool(library.ringar_has_calibrated())
    first = config.rank == 0
    if first:
        print(_report(config, is_calibrated, int(library.ringar_past_caches_bytes())))
    start.shutdown()
    return 0 if is_calibrated or not first else 1


def _report(config: native.Config, is_calibrated: bool, number: int) -> str:
    if not is_calibrated:
        why = calibration.obstacle(config, os.environ) or (
            "the time was too short, since the machine is busy; try again when it is not"
        )
        return f"no calibration: {why}. The built-in defaults hold."
    kind = calibration.this_kind(config.size)
    where = kind.path if calibration.load(kind) == number else "nowhere"
    return f"{calibration.describe(config.size, number)}\nkept in {where}"


if __name__ == "__main__":
    sys.exit(main())
