"""Runs the scan's kernels with each layout under AddressSanitizer and UBSan, beside NumPy.

    LD_PRELOAD=libasan.so python -m tests.cupy.sanitized [RIGHT FAULT]

A layout is what kernels are compiled for besides H: threads of blocks and teams, and matrices that
a team reads at once. The largest H of each, which fills its shared memory most, is run; with RIGHT
and FAULT, the first layout of kernels in which FAULT stands in place of RIGHT.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ringar.cupy import plan
from ringar.cupy.device import KernelLauncher, compiler_options
from ringar.cupy.kernels.scan import SOURCE
from ringar.cupy.plan import Shape
from tests.cupy.common import arrays, compare
from tests.standins.cupy_host import Compiled, HostCupy

#: No checks of the stack: each thread of a block has its own, in the heap. Unoptimized, each access
#: is made, and the compiler takes half the time.
FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "--param=asan-stack=0",
    "-g1",
    "-O0",
)
LIMIT = 1200

#: Steps, batch, levels of the tree and of a round: groups and blocks, full and not.
CASES = ((1, 1, 0, 5), (9, 5, 2, 2), (34, 3, 3, 5), (21, 2, 5, 1))


def layouts() -> list[Shape]:
    """Return the largest shape of each layout, without and with addends."""
    largest: dict[tuple[object, ...], Shape] = {}
    for itemsize in (4, 8):
        for size in range(1, plan.MAX_SIZE + 1):
            for affine in (False, True):
                shape = Shape(size, itemsize, affine)
                up = (shape.up_threads, shape.up_team, shape.up_group)
                chain = (shape.chain_threads, shape.chain_team, shape.chain_group)
                largest[itemsize, affine, up, chain] = shape
    return list(largest.values())


def run(host: HostCupy, shape: Shape) -> None:
    """Compare the kernels for a shape with NumPy."""
    launcher = KernelLauncher(host, shape)
    for number, (steps, batch, levels, per_round) in enumerate(CASES):
        operands = arrays(steps, batch, shape.size, shape.itemsize, shape.affine)
        for adjoint in (False, True):
            host.order = number % 3
            compare(launcher, plan.plan(steps, levels, per_round), shape, operands, adjoint)
    host.check_guards()


def main() -> None:
    """Run all layouts, or a fault."""
    source, shapes = SOURCE, layouts()
    if len(sys.argv) > 1:
        right, fault = sys.argv[1:]
        assert right in source
        source, shapes = source.replace(right, fault), shapes[:1]
    with tempfile.TemporaryDirectory() as folder:
        options = [compiler_options(shape) for shape in shapes]
        host = HostCupy(Compiled(Path(folder), source, options, FLAGS, LIMIT))
        for shape in shapes:
            run(host, shape)
    print(f"{len(shapes)} layouts agree with NumPy")


if __name__ == "__main__":
    main()
