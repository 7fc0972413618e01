"""Merged outcomes of tests that run on every rank under ringarrun.

After each phase of a test (setup, call, teardown) the ranks exchange its outcome. A failure on one
rank is a failure on all, with every rank's own traceback in rank 0's report, so that all go on to
the same next phase. Only rank 0 prints. After a failed test ringar is started anew on all ranks:
one may have left a collective in which the others still wait.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from tests.plugin import fixtures
from tests.plugin.deadline import rank_prefix
from tests.plugin.hub import Hub, PeerGone
from tests.plugin.place import RANK, SIZE

# Seconds after which a rank reports its failure itself if the others do not arrive.
_GRACE = 15.0
_LONGEST = 20_000


class Outcome(NamedTuple):
    """Hold the outcome of a phase on one rank: passed, failed, skipped or xfail."""

    kind: str
    error: str
    text: str


class Ranks:
    """Run the tests on all ranks together; registered only if there are several."""

    def __init__(self, config: pytest.Config) -> None:
        self._stderr = os.dup(2)
        self._failed = False  # the test that runs now has failed, on any rank
        self._left = False  # … and this rank has shut ringar down for that
        self._status = 0
        self._uncollected: list[str] = []
        name = os.environ.get("RINGAR_TEST_HUB") or os.environ.get("RINGAR_JOB", str(os.getppid()))
        self._hub = Hub(RANK, SIZE, name)
        config.ringar_hub = self._hub  # type: ignore[attr-defined]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._uncollected.append(report.longreprtext[-_LONGEST:])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Fail the run, on every rank, if the ranks have collected different tests."""
        if fixtures.has_tensorflow_begun():
            raise session.Interrupted(
                f"rank {RANK} | expected test modules that run no op of TensorFlow when they are "
                "imported: its pools get their sizes then, and not from ringar.init()"
            )
        tests = [item.nodeid for item in session.items]
        collections = self._exchange("collection", (tests, self._uncollected))
        if self._uncollected:
            return  # pytest says so itself
        for rank, (their_tests, their_errors) in enumerate(collections):
            if their_errors:
                errors = "\n".join(their_errors)
                raise session.Interrupted(f"rank {rank} | cannot collect its tests:\n{errors}")
            if their_tests != tests:
                odd = sorted(set(their_tests) ^ set(tests))[:5] or "their order"
                raise session.Interrupted(f"ranks {RANK} and {rank} differ in their tests: {odd}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(PeerGone):
            self._give_up(call.excinfo.value)
        if report.failed and fixtures.is_initialized():
            # The others may wait for this rank in a collective: give them an error before their
            # deadline.
            self._left = True
            fixtures.leave()
        error = call.excinfo.exconly().partition("\n")[0] if call.excinfo else ""
        text = f"{report.longreprtext}\n{_sections(report)}".strip()[-_LONGEST:]
        outcome = Outcome(_outcome(report), error, text)
        with _LateReport(report, self._stderr):
            outcomes = self._exchange(f"{report.when} of {item.nodeid}", outcome)
        _merge(report, outcomes)
        self._failed = self._failed or report.failed
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        # Inside the watchdog, which also ends a restart that hangs.
        self._failed = self._left = False
        result = yield
        if self._failed:
            self._restart(item)
        return result

    def _restart(self, item: pytest.Item) -> None:
        error = ""
        running = self._left or fixtures.is_initialized()
        if any(self._exchange(f"state after {item.nodeid}", running)):
            try:
                fixtures.restart()
            except Exception as failure:
                error = repr(failure)
        errors = self._exchange(f"restart after {item.nodeid}", error)
        if any(errors):
            item.session.shouldstop = f"ringar cannot be started anew after a failure: {errors}"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._status = int(exitstatus)

    def pytest_unconfigure(self) -> None:
        """Keep the other ranks until rank 0 has printed: the first exit with 1 ends the job."""
        status = self._hub.close(self._status)
        if RANK != 0 and status:
            time.sleep(10.0)  # ringarrun stops this rank when rank 0 exits

    def _exchange(self, tag: str, value: object) -> list[Any]:
        try:
            return self._hub.exchange(tag, value)
        except PeerGone as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> NoReturn:
        os.write(self._stderr, f"{rank_prefix()}{error}\n".encode())
        pytest.exit(str(error), returncode=3)


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfail"
    return report.outcome


def _sections(report: pytest.TestReport) -> str:
    return "\n".join(f"--- {title}\n{text}" for title, text in report.sections)


def _merge(report: pytest.TestReport, outcomes: list[Outcome]) -> None:
    """Set the outcome of all ranks in `report` and, for a failure, the text of each."""
    kinds = [outcome.kind for outcome in outcomes]
    if len(set(kinds)) == 1 and kinds[0] != "failed":
        return
    texts = [
        f"rank {rank} | {outcome.kind}\n{outcome.text}".rstrip()
        for rank, outcome in enumerate(outcomes)
        if outcome.kind != "passed"
    ]
    report.outcome = "failed"
    report.longrepr = "\n\n".join([_headline(outcomes), *texts])
    report.sections = []
    if hasattr(report, "wasxfail"):
        del report.wasxfail


def _headline(outcomes: list[Outcome]) -> str:
    """Return the line for pytest's summary: the first error that no other rank's error caused."""
    failed = [(rank, o.error) for rank, o in enumerate(outcomes) if o.kind == "failed"]
    if not failed:
        return f"the ranks differ: {', '.join(outcome.kind for outcome in outcomes)}"
    echoes = ("PeerLostError", "AbortedError", "PeerLeft")
    rank, error = min(failed, key=lambda it: any(echo in it[1] for echo in echoes))
    return f"rank {rank} | {error}"


class _LateReport:
    """Print this rank's failure after a while if the others do not arrive."""

    def __init__(self, report: pytest.TestReport, stderr: int) -> None:
        text = f"{rank_prefix()}{report.nodeid} failed here, other ranks are still in it:\n"
        text += report.longreprtext
        self._timer = threading.Timer(_GRACE, os.write, [stderr, text.encode(errors="replace")])
        self._timer.daemon = True
        self._armed = report.failed

    def __enter__(self) -> None:
        if self._armed:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if RANK != 0:
        config.option.xmlpath = None  # rank 0 reports for all


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if SIZE == 1:
        return
    # Ranks end at the same time, and a link that two of them remove is an error of pytest.
    folder = Path(tempfile.gettempdir()) / f"ranks-{os.getuid()}-{SIZE}-{RANK}"
    folder.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    config.pluginmanager.register(Ranks(config), "ringar-ranks")
    if RANK != 0:
        config.pluginmanager.unregister(name="terminalreporter")
