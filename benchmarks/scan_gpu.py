"""`python -m benchmarks.scan_gpu`: see benchmarks/scan/gpu.py."""

from __future__ import annotations

import sys

from benchmarks.scan.gpu import main

if __name__ == "__main__":
    sys.exit(main())
