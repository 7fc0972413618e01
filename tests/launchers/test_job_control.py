"""Ctrl-Z stops the ranks with the launcher, `fg` lets both go on; no deadline counts the time."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ringar.launchers.supervise import clock
from tests.launchers.helpers import LAUNCHER, Launcher, python, shell, wait_until
from tests.launchers.programs import write
from tests.plugin.jobs import PYTHONPATH

pytestmark = [pytest.mark.job, pytest.mark.deadline(200)]

TICK = """
import os, sys, time
folder = {folder!r}
while not os.path.exists(folder + "/end"):
    with open(folder + "/" + str(os.getpid()), "a") as file:
        file.write(".")
    time.sleep(0.02)
"""
INSIDE = ("-np", "1", *LAUNCHER, "-np", "2")
ELASTIC = ("--min-np", "1", "-np", "2")
HOSTS = ("-H", "localhost:1,127.0.0.2:1", "--link", "tcp")


def state(pid: int) -> str:
    """The state of a process: R, S, T and so on."""
    match = re.search(r"^State:\s+(\w)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def ticks(folder: Path) -> dict[str, int]:
    """How far each rank has come, by its process."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name.isdecimal()}


def moves(folder: Path) -> Callable[[], bool]:
    """A condition: both ranks have moved since now."""
    before = ticks(folder)
    return lambda: sum(ticks(folder)[pid] > size + 1 for pid, size in before.items()) == 2


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("-np", "2"), id="local"),
        pytest.param(INSIDE, id="a job inside a job"),
        pytest.param(HOSTS, id="hosts"),
        pytest.param(ELASTIC, id="elastic"),
        pytest.param((*ELASTIC, *HOSTS[:2]), id="elastic hosts"),
    ],
)
def test_ranks_stop_and_go_on_with_their_launcher(options: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "ticks"
    folder.mkdir()
    write(tmp_path / "agent", f'shift; exec env -i PATH="$PATH" {mark()} sh -c "$*"')
    program = python(TICK.format(folder=str(folder)))
    environ = {"RINGAR_SSH": str(tmp_path / "agent")}
    # Its own group and no terminal: what stops it is SIGTSTP of another process.
    with Launcher(*options, *program, env=environ, command=("setsid", *LAUNCHER)) as launcher:
        wait_until(lambda: len(ticks(folder)) == 2, "two ranks")
        for _ in range(2):
            launcher.signal(signal.SIGTSTP)
            wait_until(lambda: state(launcher.process.pid) == "T", "the launcher has stopped")
            wait_until(lambda: are_stopped(folder), "the ranks have stopped")
            before = ticks(folder)
            time.sleep(0.3)
            assert ticks(folder) == before
            launcher.signal(signal.SIGCONT)
            wait_until(moves(folder), "the ranks go on")
        (folder / "end").touch()
        result = launcher.finish()
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def mark() -> str:
    """What an agent hands on, by which processes of a test are found."""
    return 'RINGAR_TEST_MARK="$RINGAR_TEST_MARK"'


def are_stopped(folder: Path) -> bool:
    return all(state(int(pid)) == "T" for pid in ticks(folder))


CALLER = """
import sys
import ringar

code = sys.argv[1]
ringar.run(lambda: exec(code), np=2, timeout=60)
print("well")
"""


def test_ranks_of_a_function_stop_with_their_caller(tmp_path: Path) -> None:
    folder = tmp_path / "ticks"
    folder.mkdir()
    code = TICK.format(folder=str(folder))
    command = ("setsid", sys.executable, "-c", CALLER, code)
    with Launcher(command=command, env={"PYTHONPATH": PYTHONPATH}) as caller:
        wait_until(lambda: len(ticks(folder)) == 2, "two ranks")
        caller.signal(signal.SIGTSTP)
        wait_until(lambda: state(caller.process.pid) == "T", "the caller has stopped")
        wait_until(lambda: are_stopped(folder), "the ranks have stopped")
        caller.signal(signal.SIGCONT)
        wait_until(moves(folder), "the ranks go on")
        (folder / "end").touch()
        result = caller.finish()
    assert (result.returncode, result.stdout) == (0, "well\n"), result.stderr


WAITS = """
import os, sys, time
import numpy as np
import ringar

ringar.init(deadline=8)
ringar.allreduce(np.ones(1))  # which imports what the next one needs
folder = sys.argv[1]
open(f"{folder}/{os.getpid()}", "w").close()
if ringar.rank() == 1:
    while not os.path.exists(folder + "/end"):
        time.sleep(0.02)
print("sum", ringar.allreduce(np.ones(1), op=ringar.Sum)[0], flush=True)
"""


def test_at_a_terminal_a_stop_beyond_the_deadline_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "ticks"
    folder.mkdir()
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = PYTHONPATH
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    words = " ".join([*LAUNCHER, "-np", "2", str(script), str(folder)])
    os.write(terminal, f"{words}; echo code $?\n".encode())
    wait_until(lambda: len(ticks(folder)) == 2, "two ranks")
    time.sleep(0.5)  # rank 0 waits for rank 1
    os.write(terminal, b"\x1a")
    wait_until(lambda: are_stopped(folder), "the ranks have stopped")
    time.sleep(10)  # more than the deadline
    os.write(terminal, b"fg; echo code $?\n")
    wait_until(lambda: not are_stopped(folder), "the ranks go on")
    (folder / "end").touch()
    output = ""
    with_end = re.compile(r"sum 2\.0.*sum 2\.0.*code 0", re.DOTALL)
    while not with_end.search(output):
        output += os.read(terminal, 4096).decode(errors="replace")
        assert "Error" not in output, output
    os.write(terminal, b"exit\n")
    os.waitpid(pid, 0)
    os.close(terminal)


def test_a_terminal_that_closes_ends_a_job_that_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "ticks"
    folder.mkdir()
    script = tmp_path / "tick.py"
    script.write_text(TICK.format(folder=str(folder)))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    words = [*LAUNCHER, "-np", "2", sys.executable, "-S", str(script)]
    os.write(terminal, f"{' '.join(words)}\n".encode())
    wait_until(lambda: len(ticks(folder)) == 2, "two ranks")
    os.write(terminal, b"\x1a")
    wait_until(lambda: are_stopped(folder), "the ranks have stopped")
    os.close(terminal)
    os.waitpid(pid, 0)
    ranks = [Path("/proc") / name for name in ticks(folder)]
    wait_until(lambda: not any(rank.exists() for rank in ranks), "the end of the ranks")


def test_without_job_control_ctrl_z_is_ignored(tmp_path: Path) -> None:
    """As in a container, whose first process is not a shell: nobody could let the job go on."""
    folder = tmp_path / "ticks"
    folder.mkdir()
    pid, terminal = pty.fork()
    if pid == 0:
        command = python(TICK.format(folder=str(folder)))
        os.execv(sys.executable, [*LAUNCHER, "-np", "2", *command])
    wait_until(lambda: len(ticks(folder)) == 2, "two ranks")
    os.write(terminal, b"\x1a")
    time.sleep(0.3)
    wait_until(moves(folder), "the ranks go on")
    (folder / "end").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_a_launcher_of_mpi_says_that_it_does_not_stop() -> None:
    from tests.launchers import test_mpirun

    if reason := test_mpirun.obstacle():
        pytest.skip(reason)
    program = shell("echo ready; sleep 2")
    command = ("setsid", *LAUNCHER)
    with Launcher("-np", "1", "--launcher", "mpirun", *program, command=command) as launcher:
        assert launcher.process.stdout is not None
        assert launcher.process.stdout.readline() == "ready\n"
        launcher.signal(signal.SIGTSTP)
        result = launcher.finish()
    assert result.returncode == 0
    assert result.stderr == "ringarrun: ignored SIGTSTP: this mpirun does not stop ranks\n"


def test_the_clock_stands_still_while_the_job_is_stopped() -> None:
    begin = clock.now()
    clock.stop()
    stopped_at = clock.now()
    time.sleep(0.1)
    assert clock.now() == stopped_at
    clock.go_on()
    assert stopped_at <= clock.now() < begin + 0.1
