"""The clock by which steps are measured."""

import time

now = time.perf_counter
"""Return seconds."""
