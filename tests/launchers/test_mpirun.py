"""Real jobs of the mpirun in this environment, with mpi4py, and of ringar's own in its place.

They run on this host, and through an agent.

The second "host" is another address of this one, reached through a script in place of ssh, with an
environment of its own. mpirun does not know that and starts a daemon there; between the two,
ranks could not communicate, since both have the same network addresses.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.start import mpi
from ringar.version import __version__
from tests.launchers.helpers import Launcher, launch, processes, python, shell, wait_until
from tests.launchers.programs import write


@functools.cache
def obstacle() -> str:
    """Why no job of mpirun can be started here; "" if one can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    try:
        mpi.find_mpirun(mpi.of_mpi4py(sys.executable, os.environ), sys.executable, os.environ)
    except UsageError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.job, pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "-")]

MPIRUN = ("--launcher", "mpirun")
TWO_HOSTS = ("-H", "localhost:1,127.0.0.2:2", "--link", "mpi")
TWO_HOSTS_BY_TCP = (*TWO_HOSTS[:2], "--link", "tcp")
both_links = pytest.mark.parametrize(
    "hosts", [pytest.param(TWO_HOSTS, id="MPI"), pytest.param(TWO_HOSTS_BY_TCP, id="TCP")]
)
SHOW = (
    "import json, os; from mpi4py import MPI; w = MPI.COMM_WORLD; print(json.dumps([w.rank, w.size,"
    " w.allreduce(w.rank), {k: v for k, v in os.environ.items() if k.startswith(('RINGAR_', 'MY_'))"
    "}, sorted(os.sched_getaffinity(0))]))"
)
RANK = "${RINGAR_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A program in place of ssh; what it was asked is in the file `asked` beside it."""
    path = tmp_path / "agent"
    mark = 'RINGAR_TEST_MARK="$RINGAR_TEST_MARK"'
    text = f"""
printf '%s\\n' "$*" >>{tmp_path}/asked
while case "$1" in -p|-i) shift ;; *) false ;; esac; do shift; done
shift
exec env -i HOME=/ PATH=/usr/bin:/bin THERE=1 {mark} sh -c "$*"
"""
    write(path, text)
    return path


def test_ranks_of_a_module_form_one_world(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    options = ("-x", "MY_A=1 2,3\n4", "-x", f"PYTHONPATH={tmp_path}", "--deadline", "5")
    result = launch("-np", "3", *MPIRUN, *options, "-m", "show")
    assert result.returncode == 0, result.stderr
    cpus_of = {}
    for line in result.stdout.splitlines():
        prefix, _, text = line.partition("] ")
        rank, size, total, environ, cpus = json.loads(text)
        assert prefix == f"[{rank}"
        assert (size, total) == (3, 3)
        assert environ["RINGAR_LAUNCHER"] == "mpi"
        assert environ["RINGAR_JOB_SIZE"] == "3"
        assert environ["RINGAR_DEADLINE"] == "5"
        assert environ["MY_A"] == "1 2,3\n4"
        assert "RINGAR_RANK" not in environ
        cpus_of[rank] = cpus
    assert sorted(cpus_of) == [0, 1, 2]
    usable = os.sched_getaffinity(0)
    if len(usable) >= 3:
        assert sum(map(len, cpus_of.values())) == len(usable)


@both_links
def test_environment_crosses_to_another_host(hosts: tuple[str, ...], agent: Path) -> None:
    show = shell(f"echo {RANK}-$THERE-$MY_A-$MY_B-$TF_MINE-$MY_OTHER-$RINGAR_SSH")
    result = launch(
        *(*hosts, "--ssh-command", str(agent), "-p", "22", "-x", "MY_A=1 2,3\n4", "-x", "MY_B"),
        *show,
        env={"MY_B": "5", "TF_MINE": "6", "MY_OTHER": "7", "RINGAR_SSH": "not-this-one"},
    )
    assert result.returncode == 0, result.stderr
    first, *others_lines = sorted(result.stdout.splitlines())
    assert first.startswith("[0] 0--1 2,3 4-5-6-")
    assert others_lines == ["[1] 1-1-1 2,3 4-5-6-7-", "[2] 2-1-1 2,3 4-5-6-7-"]
    requests = (agent.parent / "asked").read_text().splitlines()
    assert requests[0].startswith("-p 22 127.0.0.2 env ")  # the check
    assert "-p 22 127.0.0.2 " in requests[-1]  # mpirun's daemon, or the guard


@both_links
def test_lines_of_a_script_stay_whole_and_files_are_kept(
    hosts: tuple[str, ...], tmp_path: Path, agent: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "names = 'RINGAR_RANK', 'OMPI_COMM_WORLD_RANK', 'PMI_RANK'\n"
        "r = next(os.environ[name] for name in names if name in os.environ)\n"
        "for i in range(2000): print('rank', r, 'line', i, 'x' * 100, 'end')"
    )
    folder = tmp_path / "logs"
    result = launch(
        *(*hosts, "--output-filename", str(folder), str(script)),
        env={"RINGAR_SSH": str(agent)},
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 6000
    for line in lines:
        assert re.fullmatch(r"\[(\d)\] rank \1 line \d+ x{100} end", line)
    for rank in range(3):
        assert len((folder / f"rank.{rank}/stdout").read_text().splitlines()) == 2000


def test_a_long_line_without_end_takes_no_report_with_it() -> None:
    result = launch("-np", "2", *MPIRUN, *python("import os; os.write(2, b'x' * 10240)"))
    assert result.returncode == 0
    assert sorted(result.stderr.splitlines()) == [f"[{rank}] {'x' * 10240}" for rank in (0, 1)]


ONE_HOST = ("-np", "3", *MPIRUN)
EXIT = ("exit 3", 3, "rank 1 of 3 on .* failed with exit code 3")
KILL = ("kill -9 $$", 137, r"rank 1 of 3 on .* was killed by signal 9 \(SIGKILL\)")


@pytest.mark.parametrize(
    ("hosts", "end", "code", "says"),
    [
        pytest.param(ONE_HOST, *KILL, id="a signal on one host"),
        pytest.param(TWO_HOSTS, *EXIT, id="an exit code on two"),
        pytest.param(TWO_HOSTS_BY_TCP, *KILL, id="a signal on two by TCP"),
        pytest.param(ONE_HOST, *EXIT, id="an exit code on one host", marks=pytest.mark.slow),
        pytest.param(TWO_HOSTS, *KILL, id="a signal on two", marks=pytest.mark.slow),
    ],
)
def test_a_failed_rank_ends_the_job_and_leaves_the_others_a_moment(
    hosts: tuple[str, ...], end: str, code: int, says: str, agent: Path
) -> None:
    # Rank 0 gets 2 s after the failure, enough for its last words.
    peer = "sleep 0.5; echo last words; sleep 100"
    program = shell(f"if [ {RANK} = 1 ]; then {end}; fi; {peer}")
    started = time.monotonic()
    result = launch(*hosts, "--failure-grace", "2", *program, env={"RINGAR_SSH": str(agent)})
    assert time.monotonic() - started < 30
    assert result.returncode == code, result.stderr
    assert re.search(says, result.stderr.splitlines()[-1])
    assert sorted(result.stdout.splitlines()) == ["[0] last words", "[2] last words"]


def test_an_mpirun_that_ends_without_some_rank_has_not_succeeded(tmp_path: Path) -> None:
    """As Open MPI's does when a whole host dies: exit code 0, and not a word."""
    (tmp_path / "bin").mkdir()
    library = mpi.of_mpi4py(sys.executable, os.environ)
    banner = f"mpirun (Open MPI) {library.version}"
    if library.family == mpi.MPICH:
        banner = f"HYDRA build details: Version: {library.version}"
    rank = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0"
    write(
        tmp_path / "bin/mpirun",
        f"""[ "$1" = --version ] && echo '{banner}' && exit
        while [ "$1" != {tmp_path}/bin/python ]; do shift; done
        export {rank} OMPI_COMM_WORLD_LOCAL_SIZE=1
        "$@"; exit 0""",
    )
    write(tmp_path / "bin/python", f'exec {sys.executable} "$@"')
    program = (str(tmp_path / "bin/python"), "-S", "-c", "print('hi')")
    result = launch("-np", "2", *MPIRUN, *program)
    assert result.stdout == "[0] hi\n"
    assert result.stderr == (
        "ringarrun: expected the end of 2 ranks, but mpirun has ended without rank 1; "
        "a host may have died\n"
    )
    assert result.returncode == 1


def await_lines(launcher: Launcher, word: str) -> None:
    """Wait until each of the three ranks has written a line with `word`."""
    assert launcher.process.stdout is not None
    for _ in range(3):
        assert word in launcher.process.stdout.readline()


@both_links
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_signals_reach_all_ranks(number: int, hosts: tuple[str, ...], agent: Path) -> None:
    traps = "trap 'echo bye; exit 0' TERM; trap 'echo noted' USR1"
    program = shell(f"{traps}; echo ready; while :; do sleep 0.1; done")
    with Launcher(*hosts, *program, env={"RINGAR_SSH": str(agent)}) as launcher:
        await_lines(launcher, "ready")
        launcher.signal(signal.SIGUSR2)  # which no rank expects
        launcher.signal(signal.SIGUSR1)
        await_lines(launcher, "noted")
        launcher.signal(number)
        result = launcher.finish()
    assert result.returncode == 128 + number
    assert "ignored SIGUSR2, for which rank" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("ringarrun: stopped all ranks on SIG")


def save_on(
    number: signal.Signals, seconds: int, hosts: tuple[str, ...], agent: Path
) -> subprocess.CompletedProcess[str]:
    """End a job whose ranks save for `seconds` on this signal, except one that is ready at once."""
    save = f"sleep $(({seconds} * ({RANK} != 1))); echo saved; exit {128 + number}"
    program = shell(f"trap '{save}' {number.name[3:]}; echo ready; while :; do sleep 0.1; done")
    words = (*hosts, "--kill-grace", "30", *program)
    with Launcher(*words, env={"RINGAR_SSH": str(agent)}) as launcher:
        await_lines(launcher, "ready")
        launcher.signal(number)
        result = launcher.finish()
    assert result.returncode == 128 + number
    assert result.stderr.splitlines()[-1] == f"ringarrun: stopped all ranks on {number.name}"
    return result


@pytest.mark.slow
@both_links
def test_a_user_signal_on_which_ranks_save_ends_the_job(
    hosts: tuple[str, ...], agent: Path
) -> None:
    result = save_on(signal.SIGUSR1, 5, hosts, agent)
    assert [line[4:] for line in result.stdout.splitlines() if line[:1] == "["] == ["saved"] * 3


@both_links
def test_kill_grace_is_time_to_save(hosts: tuple[str, ...], agent: Path) -> None:
    """More than mpirun itself would leave, and for all, though one rank is ready at once."""
    result = save_on(signal.SIGTERM, 8, hosts, agent)
    assert sorted(result.stdout.split("\n")[:-1]) == [f"[{rank}] saved" for rank in range(3)]


def test_a_second_signal_kills(agent: Path) -> None:
    program = shell("trap '' TERM INT; echo ready; while :; do sleep 0.1; done")
    with Launcher(*TWO_HOSTS, *program, env={"RINGAR_SSH": str(agent)}) as launcher:
        await_lines(launcher, "ready")
        launcher.signal(signal.SIGINT)
        time.sleep(0.5)
        launcher.signal(signal.SIGINT)
        assert launcher.process.wait(20) == 130
        wait_until(launcher.is_over, "the end of all ranks", 20)


def test_nothing_is_left_when_the_launcher_is_killed(agent: Path) -> None:
    program = shell("echo ready; setsid sleep 100 & sleep 100")
    with Launcher(*TWO_HOSTS, *program, env={"RINGAR_SSH": str(agent)}) as launcher:
        await_lines(launcher, "ready")
        assert len(processes(launcher.mark)) > 6
        launcher.signal(signal.SIGKILL)
        wait_until(launcher.is_over, "the end of all ranks", 30)


def test_a_host_without_python_is_named_and_nothing_starts(tmp_path: Path) -> None:
    write(tmp_path / "agent", "echo 'env: python: No such file or directory' >&2; exit 127")
    program = shell(f"touch {tmp_path}/started")
    result = launch(*TWO_HOSTS, *program, env={"RINGAR_SSH": str(tmp_path / "agent")})
    assert result.returncode == 1
    first, second = result.stderr.splitlines()
    assert first == ("ringarrun: error: 1 of 2 hosts cannot take part; nothing was started")
    assert second.startswith("  127.0.0.2: expected Python at ")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (
            {
                "__init__.py": "",
                "version.py": "__version__ = '0.0.1'",
                "launchers/__init__.py": "raise ImportError('no guard')",
            },
            f"expected ringar {__version__}, as here, received 0.0.1; install the same there: ",
        ),
        (
            {"__init__.py": "raise ImportError('libringar.so: no such file')"},
            "cannot import ringar: libringar.so: no such file; install the same there: ",
        ),
    ],
    ids=["another version", "broken"],
)
def test_a_host_with_another_ringar_is_named_and_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], fault: str
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it would go to the other host
    (tmp_path / "ringar/launchers").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "ringar" / name).write_text(text)
    # As with ssh, not in the folder of the launcher, whose ringar Python would find.
    prefix = f"cd {tmp_path}; shift; echo asked >>asked; PYTHONPATH={tmp_path}"
    write(tmp_path / "agent", f'{prefix} exec sh -c "$*"')
    program = shell(f"touch {tmp_path}/started")
    result = launch(*TWO_HOSTS, *program, env={"RINGAR_SSH": str(tmp_path / "agent")})
    assert result.returncode == 1
    first, second = result.stderr.splitlines()
    assert first == "ringarrun: error: 1 of 2 hosts cannot take part; nothing was started"
    assert second.startswith("  127.0.0.2: ")
    assert fault in second
    assert not (tmp_path / "started").exists()
    assert (tmp_path / "asked").read_text() == "asked\n"  # and no daemon of mpirun either


def test_verbose_prints_the_command_and_it_can_be_typed() -> None:
    result = launch("-np", "2", *MPIRUN, "--verbose", *shell("echo hi"))
    lines = [line.removeprefix("ringarrun: ") for line in result.stderr.splitlines()]
    assert lines[0].startswith("env ")
    dry = launch("-np", "2", *MPIRUN, "--dry-run", *shell("echo hi")).stdout
    assert [line for line in dry.splitlines() if "--job" not in line] == [
        line for line in lines[: len(dry.splitlines())] if "--job" not in line
    ]
    typed = launch("-np", "1", "--no-prefix", *shell(dry))
    assert sorted(typed.stdout.splitlines()) == ["[0] hi", "[1] hi"]
