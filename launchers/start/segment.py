"""The shared segment of the ranks of a host: memory without a name, which a rank gets as a file."""

from __future__ import annotations

import os


def make() -> int:
    """Return the descriptor of a new segment, empty until a rank sets its size."""
    return os.memfd_create("ringar-shared-segment")
