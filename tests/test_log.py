"""ringar logs through Python's `logging`, and prints nothing by itself."""

from __future__ import annotations

import logging

import pytest

from ringar.job import log
from tests.plugin import run_job
from tests.plugin.jobs import ROOT

JOB = """
import logging, sys
import numpy as np
import ringar

ringar.init(stall_warning=0.3)
if ringar.rank() == 1:
    import time
    time.sleep(1)
ringar.allreduce(np.ones(2), name="late")
if "own" in sys.argv:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(rank)d %(name)s"))
    logging.getLogger("ringar").addHandler(handler)
ringar.shutdown()
"""


@pytest.mark.slow
@pytest.mark.job
def test_messages_of_a_job() -> None:
    by_level = {
        level: run_job(2, JOB, args=args, env={"RINGAR_LOG_LEVEL": level}).check().stderr
        for level, args in (("", []), ("info", ["own"]))
    }
    assert '[0] rank 0 | allreduce "late" of float64[2], op=' in by_level[""]
    assert ": has waited 0.3" in by_level[""]
    assert "joined" not in by_level[""]
    for rank in (0, 1):
        joined = "joined a job of 2 ranks, 2 of them on this host, by shared memory"
        assert f"[{rank}] rank {rank} | {joined}" in by_level["info"]
        assert f"[{rank}] INFO {rank} ringar.job.start\n" in by_level["info"]
        assert f"[{rank}] rank {rank} | left the job" not in by_level["info"]


def test_a_level_that_is_none() -> None:
    with pytest.raises(ValueError, match="RINGAR_LOG_LEVEL must be one of DEBUG, .* 'loud'"):
        log.set_level({"RINGAR_LOG_LEVEL": "loud"})


def test_records_have_the_rank(caplog: pytest.LogCaptureFixture) -> None:
    log.logger("ringar.some.module").warning("mind")
    assert [vars(record)["rank"] for record in caplog.records] == [0]
    # No handler and no level beyond ringar's own logger.
    assert logging.getLogger("ringar").level == logging.NOTSET


def test_nothing_prints() -> None:
    """The exceptions are asked for: `verbose`, the launcher's errors, examples in docstrings."""
    expected = {
        "ringar/collectives/send.py": 1,
        "ringar/collectives/statistics.py": 1,
        "ringar/horovod/common/util.py": 3,
        "ringar/horovod/runner/launch.py": 4,
        "ringar/horovod/tensorflow/keras/callbacks.py": 1,
        "ringar/keras/learning_rate.py": 1,
        "ringar/keras/memory.py": 1,
    }
    counts: dict[str, int] = {}
    for path in sorted((ROOT / "ringar").rglob("*.py")):
        lines = path.read_text().splitlines()
        count = sum("print(" in line or "sys.stdout" in line for line in lines)
        if count:
            counts[str(path.relative_to(ROOT))] = count
    assert counts == expected
