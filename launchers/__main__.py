"""Run `ringarrun`, as `python -m ringar.launchers`."""

from __future__ import annotations

import sys

from ringar.launchers.command_line.cli import main

if __name__ == "__main__":
    sys.exit(main())
