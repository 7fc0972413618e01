"""run_job: what tests rely on when they start, watch and end jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin import run_job

pytestmark = [pytest.mark.job, pytest.mark.slow]


def test_source_runs_on_every_rank_with_its_arguments() -> None:
    source = """
    import os, sys
    print("rank", os.environ["RINGAR_RANK"], sys.argv[1])
    """
    result = run_job(2, source, args=["word"], launcher_args=["--no-prefix"]).check()
    assert sorted(result.stdout.splitlines()) == ["rank 0 word", "rank 1 word"]


def test_a_plain_process_has_no_place_in_a_job() -> None:
    source = "import os, sys\nprint([k for k in os.environ if k == 'RINGAR_RANK'])\nsys.exit(5)\n"
    result = run_job(None, source)
    assert (result.code, result.stdout) == (5, "[]\n")
    with pytest.raises(AssertionError, match="expected exit code 0"):
        result.check()


def test_the_environment_is_changed_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNWANTED", "1")
    source = "import os\nprint(os.environ.get('UNWANTED'), os.environ.get('WANTED'))\n"
    result = run_job(None, source, env={"UNWANTED": None, "WANTED": "2"}).check()
    assert result.stdout == "None 2\n"


@pytest.mark.parametrize("np", [None, 2])
def test_a_job_past_its_deadline_shows_where_it_hung(np: int | None) -> None:
    source = """
    import time

    def sleep_for_ever():
        time.sleep(1000)

    print("begun", flush=True)
    sleep_for_ever()
    """
    result = run_job(np, source, deadline=2.0)
    assert result.code is None
    assert "begun" in result.stdout
    assert "in sleep_for_ever" in result.stderr
    assert result.seconds < 30
    with pytest.raises(AssertionError, match="stopped at its deadline"):
        result.check()


def test_what_outlives_a_job_is_found_and_killed(tmp_path: Path) -> None:
    source = """
    import os, subprocess, sys
    quiet = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True, **quiet)
    print(child.pid)
    """
    result = run_job(None, source)
    assert result.code == 0
    assert result.leftovers == [f"{result.stdout.strip()}: sleep 1000"]
    status = Path(f"/proc/{result.stdout.strip()}/status")
    assert not status.exists() or "zombie" in status.read_text()
    with pytest.raises(AssertionError, match="outlived the job"):
        result.check()
