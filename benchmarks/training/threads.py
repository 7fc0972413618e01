"""Which threads and which binding train a model fastest on this machine?

    python -m benchmarks.training.threads --model small_cnn -np 2

Tries intra-op x inter-op threads x binding, and 0 x 0, which leaves both pools to TensorFlow; each
in a job of its own and all of them in turn. Prints the best setting with the command line that uses
it, and whether that is more than the noise better than what ringarrun does without any option.

Steps are those of `fit`, but without its begin and end: after its last callback, when it lets go
of the input pipeline, plain Keras spends up to 0.45 s, so that 100 steps of 8 or 9 ms take 1.30 s.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

from benchmarks.harness import command, machine, report, results
from benchmarks.harness.processes import JobFailedError
from benchmarks.harness.series import Series, slowest
from benchmarks.training.buckets import STEPS
from benchmarks.training.jobs import DEFAULT, train_in_turn
from benchmarks.training.models import MODELS
from benchmarks.training.plot import plot_threads

Setting = tuple[int, int, str]
"""Intra-op threads, inter-op threads, binding."""


def settings(ranks: int, cores: int) -> list[Setting]:
    """Returns settings to try: powers of two up to all cores, and one or more ops at once."""
    intra = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= max(1, cores)]
    inter = [1, 2, 4] if cores > 1 else [1, 2]
    binding = ["core", "none"] if ranks <= cores else ["none"]
    numbers = [*itertools.product(intra, inter), (0, 0)]
    return [(*pair, bound) for pair in numbers for bound in binding]


def default(ranks: int, cores: int) -> Setting:
    """Returns the setting of a rank with no option and no variable, as in ringar/job/threads.py."""
    share = max(1, cores // ranks)
    return share, max(2, share), "core" if ranks <= cores else "none"


def train(model: str, ranks: int, setting: Setting, result: Series) -> None:
    """Runs a job and adds its times to `result`.

    A job that fails is noted there and not tried again.
    """
    if result.failure:
        return
    intra, inter, binding = setting
    try:
        reports = train_in_turn(
            ranks, binding, model=model, candidates=[DEFAULT], rounds=5,
            steps=STEPS[model], intra=intra, inter=inter,
        )  # fmt: skip
    except JobFailedError as error:
        result.failure = str(error)
        return
    result.rounds.append(slowest(report["seconds"][0] for report in reports))
    result.errors += sum(report["wrong"] for report in reports)


def search(settings: list[Setting], model: str, ranks: int, rounds: int) -> dict[Setting, Series]:
    """Measures all settings in turn, `rounds` times."""
    outcome = {setting: Series() for setting in settings}
    for number in range(rounds):
        for setting, result in outcome.items():
            print(f"round {number + 1} of {rounds}: {setting}", file=sys.stderr)
            train(model, ranks, setting, result)
    return outcome


def rows(outcome: dict[Setting, Series], batch: int, ranks: int) -> list[dict[str, Any]]:
    """Returns plain data, fastest first."""
    table = [
        {"intra": intra, "inter": inter, "bind_to": binding, **result.summary(),
         "rate": ranks * batch / result.seconds}
        for (intra, inter, binding), result in outcome.items()
        if result.rounds
    ]  # fmt: skip
    return sorted(table, key=lambda row: row["seconds"])


def command_line(row: dict[str, Any], ranks: int) -> str:
    """Returns the command line of a setting."""
    return (
        f"RINGAR_INTRA_OP_THREADS={row['intra']} RINGAR_INTER_OP_THREADS={row['inter']} "
        f"ringarrun -np {ranks} --bind-to {row['bind_to']} python train.py"
    )


def verdict(table: list[dict[str, Any]], usual: Setting, ranks: int) -> str:
    """Returns the best setting, and whether it is worth an option.

    Args:
        table: the rows, fastest first.
        usual: the setting without any option.
        ranks: for the command line.
    """
    best = table[0]
    lines = [f"best: {command_line(best, ranks)}"]
    usual_rows = [row for row in table if (row["intra"], row["inter"], row["bind_to"]) == usual]
    if usual_rows and usual_rows[0] is best:
        lines.append("That is what ringarrun does without any option.")
    elif usual_rows:
        slower = 1 - usual_rows[0]["rate"] / best["rate"]
        clear = best["max"] < usual_rows[0]["min"]
        lines.append(
            f"Without any option (intra-op {usual[0]}, inter-op {usual[1]}, bind to {usual[2]}) "
            f"it is {slower:.1%} slower: "
            + ("more than the rounds differ." if clear else "no more than the rounds differ.")
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "benchmarks.training.threads", __doc__, "writes OUTPUT.json and OUTPUT.png"
    )
    parser.add_argument("--model", default="small_cnn", choices=list(MODELS))
    parser.add_argument("-np", "--num-proc", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--inter", default=None, help="only these inter-op threads, as in 1,2")
    options = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0))
    choices = [
        setting
        for setting in settings(options.num_proc, cores)
        if options.inter is None or setting[1] in (0, *map(int, options.inter.split(",")))
    ]
    outcome = search(choices, options.model, options.num_proc, options.rounds)
    table = rows(outcome, MODELS[options.model][1], options.num_proc)
    host = machine.describe()
    print(f"# threads for {options.model} on {options.num_proc} ranks: {machine.headline(host)}")
    headers = ["intra-op", "inter-op", "bind to", "images/s", "step", "min", "max"]
    lines = [
        [row["intra"], row["inter"], row["bind_to"], f"{row['rate']:.4g}", *report.spread(row)]
        for row in table
    ]
    print(report.table(headers, lines))
    failures = {
        str(setting): result.failure for setting, result in outcome.items() if result.failure
    }
    for setting, why in failures.items():
        print(f"{setting}: fewer rounds, or none ({why})")
    if table:
        print(verdict(table, default(options.num_proc, cores), options.num_proc))
    data = {"tried": {"settings": list(map(str, choices))}, "rows": table, "missing": failures}
    name = f"threads-{options.model}-{options.num_proc}-ranks"
    results.keep(name, host, data, options.output)
    if options.output:
        title = f"{options.model} on {options.num_proc} ranks, {host['cores']} cores"
        plot_threads(options.output, table, f"{title}: median, least and greatest of the rounds")
    return 1 if failures or any(row["wrong"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
