"""The graces: the seconds that the launcher leaves processes to end by themselves.

`RINGAR_GRACE_SCALE` multiplies all of them. It serves tests, which would otherwise spend most of
their time waiting. Guards on other hosts get it, too, as every variable of ringar.
"""

from __future__ import annotations

import os

SCALE_VARIABLE = "RINGAR_GRACE_SCALE"
_SCALE = float(os.environ.get(SCALE_VARIABLE) or 1)

#: From SIGTERM to SIGKILL.
KILL = 3.0 * _SCALE
#: For background processes, after the last rank has exited.
LEFTOVER = 1.0 * _SCALE
#: For the rank whose failure another rank reports as a lost peer.
CAUSE = 1.0 * _SCALE
#: For a slot of an elastic job whose processes have failed twice; it doubles up to the longest.
COOL_DOWN = 10.0 * _SCALE
LONGEST_COOL_DOWN = 300.0 * _SCALE
#: For mpirun and srun to end a job by themselves after a failure.
SETTLE = 3.0 * _SCALE
#: From SIGTERM to SIGKILL of mpirun and srun: guards take 3 s and mpirun 6 s at most.
COMMAND_KILL = 12.0 * _SCALE
