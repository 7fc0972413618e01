"""The pytest plugin: tests that run on every rank, deadlines, and jobs that a test starts.

`selection` reads the markers, `variants` sets one, `deadline` ends a test that hangs, `ranks` makes
a failure on one rank a failure on all, `fixtures` has the fixtures, `jobs` starts whole jobs from a
test.
"""

from tests.plugin.jobs import JobResult, run_job
from tests.plugin.variants import fast_if

__all__ = ["JobResult", "fast_if", "run_job"]
