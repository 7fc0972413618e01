"""`python -m benchmarks.overhead`: see benchmarks/training/__main__.py."""

from __future__ import annotations

import sys

from benchmarks.training.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
