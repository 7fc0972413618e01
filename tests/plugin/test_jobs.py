"""What tests rely on when they start, watch and end jobs, new ones or forks of a warm Python."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.plugin import jobs, run_job

pytestmark = pytest.mark.job


@pytest.fixture(params=["import sys", "import keras"], ids=["new", "warm"])
def imports(request: pytest.FixtureRequest) -> str:
    """The first line of a script, which decides how its processes begin."""
    return str(request.param)


def script(imports: str, text: str) -> str:
    return f"{imports}\n{textwrap.dedent(text)}"


def test_source_runs_on_every_rank_with_its_arguments(imports: str) -> None:
    source = script(imports, """
    import os, sys
    print("rank", os.environ["RINGAR_RANK"], sys.argv[1])
    """)  # fmt: skip
    result = run_job(2, source, args=["word"], launcher_args=["--no-prefix"]).check()
    assert sorted(result.stdout.splitlines()) == ["rank 0 word", "rank 1 word"]


def test_a_plain_process_has_no_place_in_a_job(imports: str) -> None:
    source = script(imports, """
    import os, sys
    print([k for k in os.environ if k == 'RINGAR_RANK'])
    sys.exit(5)
    """)  # fmt: skip
    result = run_job(None, source)
    assert (result.code, result.stdout) == (5, "[]\n")
    with pytest.raises(AssertionError, match="expected exit code 0"):
        result.check()


def test_the_environment_and_folder_are_those_asked_for(
    imports: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNWANTED", "1")
    source = script(imports, """
    import os
    print(os.environ.get('UNWANTED'), os.environ.get('WANTED'), os.getcwd())
    """)  # fmt: skip
    changes = {"UNWANTED": None, "WANTED": "2"}
    result = run_job(None, source, env=changes, cwd=tmp_path).check()
    assert result.stdout == f"None 2 {tmp_path}\n"


def test_a_process_begins_as_a_new_one(imports: str) -> None:
    source = script(imports, """
    import os, random, signal, sys, threading
    import numpy
    files = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    state = {
        "files": files[:-1],
        "modules": sorted({name.split(".")[0] for name in sys.modules} & {"pytest", "ringar"}),
        "threads": threading.active_count(),
        "handlers": [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1)],
        "names": [__name__, os.path.basename(__file__), sys.path[0] == os.path.dirname(__file__)],
        "session": os.getsid(0) == os.getpid(),
    }
    print(state)
    print(random.random(), numpy.random.rand())
    """)  # fmt: skip
    first, second = (run_job(None, source).check().stdout.splitlines() for _ in range(2))
    assert first[0] == second[0] == str({
        "files": [0, 1, 2], "modules": [], "threads": 1,
        "handlers": ["SIG_DFL", "SIG_DFL"], "names": ["__main__", "script.py", True],
        "session": True,
    }).replace("'SIG_DFL'", "<Handlers.SIG_DFL: 0>")  # fmt: skip
    assert not set(first[1].split()) & set(second[1].split())


@pytest.mark.parametrize(
    ("last_line", "code", "stderr"),
    [
        ("sys.exit('a reason')", 1, "a reason\n"),
        ("raise ValueError('wrong')", 1, "line 4, in <module>\n{}ValueError: wrong\n"),
        ("os.kill(os.getpid(), 9)", -9, ""),
        ("os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt\n"),
        ("atexit.register(print, 'the end', file=sys.stderr)", 0, "the end\n"),
    ],
)
def test_its_end_is_that_of_python(imports: str, last_line: str, code: int, stderr: str) -> None:
    source = f"{imports}\nimport atexit, os, signal, sys\n\n{last_line}\n"
    result = run_job(None, source).check(code)
    assert result.stderr.endswith(stderr.format(f"    {last_line}\n"))
    assert "warm_python" not in result.stderr


@pytest.mark.parametrize("np", [None, 2])
def test_a_job_past_its_deadline_shows_where_it_hung(np: int | None, imports: str) -> None:
    source = script(imports, """
    import time

    def sleep_for_ever():
        time.sleep(1000)

    print("begun", flush=True)
    sleep_for_ever()
    """)  # fmt: skip
    run_job(None, script(imports, "print()\n"))  # a warm Python may have to begin
    result = run_job(np, source, deadline=2.0)
    assert result.code is None
    assert "begun" in result.stdout
    assert "in sleep_for_ever" in result.stderr
    assert result.seconds < 30
    with pytest.raises(AssertionError, match="stopped at its deadline"):
        result.check()


def test_what_outlives_a_job_is_found_and_killed(imports: str) -> None:
    source = script(imports, """
    import os, subprocess, sys, time
    quiet = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True, **quiet)
    fork = os.fork()
    if fork == 0:
        os.setsid()
        os.closerange(0, 3)
        time.sleep(1000)
    print(child.pid, fork)
    """)  # fmt: skip
    result = run_job(None, source)
    assert result.code == 0
    pids = result.stdout.split()
    assert sorted(line.split(":")[0] for line in result.leftovers) == sorted(pids)
    assert f"{pids[0]}: sleep 1000" in result.leftovers
    for pid in pids:
        status = Path(f"/proc/{pid}/status")
        assert not status.exists() or "zombie" in status.read_text()
    with pytest.raises(AssertionError, match="outlived the job"):
        result.check()


def test_other_variables_of_tensorflow_need_new_processes() -> None:
    source = "import keras\nimport os\nprint(os.environ['TF_NUM_THREADS'], len(keras.__name__))\n"
    assert run_job(None, source, env={"TF_NUM_THREADS": "1"}).check().stdout == "1 5\n"
    jobs._warm_server()
    assert "TF_NUM_THREADS" not in jobs._warm_server().environment
