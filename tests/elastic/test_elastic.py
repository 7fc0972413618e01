"""Jobs whose ranks die, leave and join while they train: every row counts once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launchers.test_discovery import answers
from tests.plugin import fast_if
from tests.plugin.jobs import JobResult, run_job

pytestmark = [pytest.mark.job, pytest.mark.deadline(180)]

SCRIPTS = Path(__file__).parent / "scripts"


def run_elastic(
    np: int, *options: str, program: Path, args: tuple[str, ...] = (), **env: str
) -> JobResult:
    """Run an elastic job, whose slots cool down for a fifth of what users wait."""
    arguments = ["--min-np", "2", *options]
    environment = {"RINGAR_GRACE_SCALE": "0.2", **env}
    return run_job(np, program, args=args, launcher_args=arguments, deadline=120, env=environment)


def test_ranks_that_die_in_turn_are_replaced(tmp_path: Path) -> None:
    """Killed, an exception, SIGTERM, a crash of rank 0; see scripts/loop.py.

    Meanwhile the discovery script fails, names no host, too few, and one that is none.
    """
    good, *failures = "echo localhost:4", "exit 1", "true", "echo localhost", "echo null"
    pauses = [text for failure in failures for text in (failure, failure, good)]
    texts = [good, good, *pauses, *failures, good]
    options = ("--max-np", "4", "--host-discovery-script", answers(tmp_path, *texts))
    job = run_elastic(4, *options, program=SCRIPTS / "loop.py").check()
    sizes = [4, 3, 4, 3, 4, 3, 4, 3, 4]
    ends = [f"{rank} 4 {sizes} 0" for rank in range(4)]
    assert sorted(line[4:] for line in job.stdout.splitlines()) == ends, job
    for end in (
        r"rank 2 \(slot 2, process \d+[^)]*\) was killed by signal 9 \(SIGKILL\)",
        r"rank 1 \(slot 1, process \d+[^)]*\) failed with exit code 1; 3 ranks of its world",
        r"\(slot 3, process \d+[^)]*\) has left; 3 ranks",
        r"rank 0 \(slot 0, process \d+[^)]*\) was killed by signal 11 \(SIGSEGV\)",
    ):
        assert re.search(f"^ringarrun: .*{end}", job.stderr, re.MULTILINE), job
    words = r'^\[0\] rank 0 \| allreduce "rows".* rank 2 has died.*; going back to the last commit$'
    assert re.search(words, job.stderr, re.MULTILINE), job


@pytest.mark.parametrize("how", [fast_if(False, "plain"), "compiled"])
def test_fit_goes_on_and_sees_each_row_once(how: str, tmp_path: Path) -> None:
    """And traces the step once, though the number of ranks changes twice; see scripts/fit.py."""
    killed = str(tmp_path / "killed")
    job = run_elastic(3, program=SCRIPTS / "fit.py", args=(how,), KILLED=killed).check()
    traces = {"plain": 1, "compiled": 2}[how]  # Keras traces a compiled step twice
    ends = [f"{rank} 3 epochs True missing 0.0 traces {traces}" for rank in range(3)]
    assert sorted(line[4:] for line in job.stdout.splitlines()) == ends, job


@pytest.mark.slow
def test_autotune_begins_anew_when_ranks_change(tmp_path: Path) -> None:
    """Ranks that stayed and one that joined take the same steps; see scripts/autotune.py."""
    log = tmp_path / "log.csv"
    job = run_elastic(
        3,
        program=SCRIPTS / "autotune.py",
        KILLED=str(tmp_path / "killed"),
        RINGAR_AUTOTUNE="1",
        RINGAR_AUTOTUNE_LOG=str(log),
        RINGAR_AUTOTUNE_WARMUP_SAMPLES="0",
        RINGAR_AUTOTUNE_STEPS_PER_SAMPLE="1",
        RINGAR_AUTOTUNE_BAYES_OPT_MAX_SAMPLES="3",
    ).check()
    ends = {line[4:] for line in job.stdout.splitlines()}
    assert len(ends) == 1, job
    assert ends.pop().startswith("3 "), job
    assert log.read_text().count(",chosen,") >= 2  # before and after the loss


def test_a_job_of_which_all_ranks_died_goes_on_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "commits"
    arguments = ("--elastic-dir", str(folder))
    program, args = SCRIPTS / "elastic_dir.py", (str(tmp_path),)
    first = run_elastic(2, *arguments, program=program, args=args).check(137)
    assert "[0] from 0 on 2\n" in first.stdout
    last = first.stderr.splitlines()[-1]
    assert re.search(r"rank [01] of 2 was killed by signal 9 \(SIGKILL\)", last), first
    newest = folder / "commit-6.pickle"
    newest.write_bytes(newest.read_bytes()[:-1])
    second = run_elastic(3, *arguments, program=program, args=args).check()
    assert "[0] from 4 on 3\n" in second.stdout, second
    assert re.search(
        r"commit 6: cut off after (\d+) of \d+ bytes; the state is that of commit 5", second.stderr
    )
    message = rf"expected in {folder} \(--elastic-dir\) a commit of this .* received commit 5"
    for rank in range(3):
        assert re.search(
            rf"^\[{rank}\] MismatchError True: .*{message}", second.stdout, re.MULTILINE
        ), second
    assert not list(folder.iterdir())  # the training is done


def test_a_full_folder_does_not_end_the_training(tmp_path: Path) -> None:
    """The folder keeps the commit before; see scripts/full_folder.py."""
    arguments, args = ("--elastic-dir", str(tmp_path)), (str(tmp_path),)
    job = run_elastic(2, *arguments, program=SCRIPTS / "full_folder.py", args=args).check()
    lines = [line for line in job.stdout.splitlines() if line.startswith("[0] at")]
    assert lines == [
        "[0] at 5: [2]",
        "[0] at 6: [2, 6]",
    ], job
    warning = rf"cannot write commit \d+ to {tmp_path}: File too large; the training"
    assert len(re.findall(warning, job.stderr)) == 1, job


def test_too_few_ranks_end_the_job_with_an_error(tmp_path: Path) -> None:
    """Rank 1 dies, and no other process can take its slot."""
    options, args = ("--elastic-timeout", "2"), (str(tmp_path),)
    job = run_elastic(2, *options, program=SCRIPTS / "too_few.py", args=args).check(1)
    expected = "expected at least 2 ranks (--min-np), received 1 for 2 s (--elastic-timeout)"
    assert f"ringarrun: {expected}" in job.stderr, job
    assert f"RankError: the elastic job ends: {expected}" in job.stderr, job


def test_a_reset_limit_ends_the_job(tmp_path: Path) -> None:
    killed = str(tmp_path / "killed")
    limit = ("--reset-limit", "0")
    job = run_elastic(3, *limit, program=SCRIPTS / "fit.py", KILLED=killed).check(1)
    assert "expected at most 0 worlds after the first (--reset-limit)" in job.stderr


def test_what_cannot_start_ends_the_job_as_others_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(7)")
    job = run_elastic(2, program=tmp_path / "train.py").check(7)
    assert re.search(r"rank \d of 2 failed with exit code 7", job.stderr.splitlines()[-1]), job
    assert job.seconds < 20
