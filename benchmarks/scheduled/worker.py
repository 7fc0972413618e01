"""Fits a Lasso by several schedulers: `python -m benchmarks.scheduled.worker OPTIONS`."""

from __future__ import annotations

import dataclasses

from benchmarks.harness.worker import read_options, write_report


def main() -> None:
    options = read_options()
    import ringar
    from benchmarks.scheduled import designs, rounds

    ringar.init(deadline=240)
    data = designs.correlated(options["rows"], options["columns"])
    outcomes = rounds.to_reach(
        data, share=options["share"], limit=options["limit"], cut=options["cut"],
        names=tuple(options["names"]),
    )  # fmt: skip
    report = {name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()}
    write_report(options, ringar.rank(), {"schedulers": report})
    ringar.shutdown()


if __name__ == "__main__":
    main()
