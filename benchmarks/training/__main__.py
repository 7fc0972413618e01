"""What does ringar add to a training step?

    python -m benchmarks.overhead
    python -m benchmarks.overhead --models mlp --ranks 2 --ways loop --turns 15

Trains plainly and with ringar in the same processes, in turns of about a second: two runs one after
the other would compare what the machine does in different minutes. A step is one batch per rank,
with one TensorFlow thread. In plain turns the ranks share the machine and nothing else. Ranks that
train together wait for each other in every step, so the bound of a step is the mean of the longest
of the plain processes' steps, step by step. Ratios are those of neighbouring turns: their median,
least and greatest. The ways are Keras' `fit`, and a loop with a tape whose step XLA compiles. The
weights of all ranks are compared in the end; a difference, or a case that fails, makes the exit
code 1.
"""

from __future__ import annotations

import sys

from benchmarks.harness import command, machine, report, results
from benchmarks.training import steps
from benchmarks.training.step_worker import WAYS


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("benchmarks.overhead", __doc__)
    parser.add_argument("--models", default="mlp,small_cnn", help=f"of {', '.join(steps.COUNTS)}")
    parser.add_argument("--ways", default=",".join(WAYS), help="(default %(default)s)")
    parser.add_argument("--ranks", default="1,2,4", help="processes (default %(default)s)")
    parser.add_argument("--turns", type=int, default=9, help="of each (default %(default)s)")
    options = parser.parse_args(arguments)
    case_list = steps.cases(
        options.models.split(","),
        options.ways.split(","),
        [int(n) for n in options.ranks.split(",")],
    )
    rows, reasons = steps.collect(case_list, options.turns)
    host = machine.describe()
    print(f"# training steps: {machine.headline(host)}")
    print(steps.table_text(rows))
    print(report.missing_lines(reasons), end="")
    data = {"tried": {"cases": list(map(steps.title, case_list))}, "rows": rows, "missing": reasons}
    results.keep("steps", host, data, options.output)
    return 1 if reasons or any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
