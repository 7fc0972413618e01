"""The command line of a benchmark: its parser, and types of options."""

from __future__ import annotations

import argparse
import importlib.util
import sys


def parser(
    program: str, about: str | None, output: str | None = "writes OUTPUT.json"
) -> argparse.ArgumentParser:
    """Returns a parser for `python -m PROGRAM`, whose help is the docstring `about`.

    It has the option `--output`, with `output` as its help, unless that is None.
    A benchmark that could not show its figures does not begin.
    """
    for package in ("matplotlib", "tabulate"):
        if importlib.util.find_spec(package) is None:
            sys.exit(f"{program}: expected the package {package}, found none. "
                     "In the checkout: pip install --editable '.[tensorflow,bench]'")  # fmt: skip
    cli = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if output is not None:
        cli.add_argument("--output", help=output)
    return cli


def parse_size(text: str) -> int:
    """Returns the bytes of a size such as 4, 64K, 16M or 1G (powers of 1024)."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    unit = units.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 64K or 16M, received {text!r}")
    return int(digits) * unit
