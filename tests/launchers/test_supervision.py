"""How jobs end: whatever happens, together, soon, and leaving nothing behind."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.launchers.helpers import QUICK, Launcher, launch, processes, python, shell, wait_until

#: Seconds within which the other ranks have ended, on a busy machine too.
SOON = 15.0

#: Makes the launcher's graces ten times as long.
SLOW = {"RINGAR_GRACE_SCALE": "10"}
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


class Meeting:
    """A folder in which ranks say that they have come so far, by files with their name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def say(self, name: str) -> None:
        (self.folder / name).touch()

    def wait(self, *names: str) -> None:
        for name in names:
            wait_until((self.folder / name).exists, name)

    def pid(self, name: str) -> int:
        """The number in file `name`."""
        wait_until(lambda: (self.folder / name).exists() and self._text(name), name)
        return int(self._text(name))

    def _text(self, name: str) -> str:
        text = (self.folder / name).read_text()
        return text if text.endswith("\n") else ""


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    return Meeting(tmp_path)


def in_folder(meeting: Meeting, code: str) -> tuple[str, ...]:
    """A rank that runs Python `code`, in which `rank`, `say(name)` and `wait(name)` are known."""
    return python(
        f"""
import os, signal, subprocess, sys, time
rank = int(os.environ["RINGAR_RANK"])
def say(name, text=""):
    with open({str(meeting.folder)!r} + "/" + name, "w") as file:
        file.write(text)
def wait(name):
    while not os.path.exists({str(meeting.folder)!r} + "/" + name):
        time.sleep(0.01)
{code}
"""
    )


def end_of(launcher: Launcher, timeout: float = SOON + 2) -> tuple[int, str]:
    """The exit code and standard error; the job must end within `timeout` seconds."""
    begin = time.monotonic()
    result = launcher.finish()
    assert time.monotonic() - begin < timeout
    return result.returncode, result.stderr


# A rank fails


def test_exit_code_is_that_of_the_rank() -> None:
    result = launch("-np", "3", *shell("[ $RINGAR_RANK = 1 ] && exit 255; sleep 60"))
    assert result.returncode == 255
    assert result.stderr.splitlines()[-1] == (
        "ringarrun: rank 1 of 3 failed with exit code 255; ranks 0, 2 were stopped"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_exit_code_of_a_signal(number: signal.Signals) -> None:
    command = shell(f"ulimit -c 0; [ $RINGAR_RANK = 0 ] && kill -{int(number)} $$; sleep 60")
    result = launch("-np", "2", *command)
    assert result.returncode == 128 + number
    last = result.stderr.splitlines()[-1]
    assert f"rank 0 of 2 was killed by signal {int(number)} ({number.name})" in last
    assert last.endswith("; rank 1 was stopped")
    assert ("out of memory" in last) == (number == signal.SIGKILL)


def test_failure_of_a_lone_rank_is_not_repeated() -> None:
    result = launch("-np", "1", *python("raise ValueError('boom')"))
    assert result.returncode == 1
    assert result.stderr.count("ValueError: boom") == 1
    assert result.stderr.endswith("ringarrun: rank 0 of 1 failed with exit code 1\n")


def test_error_of_the_rank_is_shown_last(meeting: Meeting) -> None:
    code = """
if rank == 1:
    wait("talk")
    raise ValueError("boom")
say("talk")
while True:
    print("noise", file=sys.stderr)
    time.sleep(0.01)
"""
    result = launch("-np", "2", *in_folder(meeting, code))
    assert result.returncode == 1
    end = result.stderr[result.stderr.index("ringarrun: the last lines that rank 1 wrote") :]
    lines = end.splitlines()
    assert lines[1].startswith("[1] Traceback")
    assert lines[-2] == "[1] ValueError: boom"
    assert lines[-1] == "ringarrun: rank 1 of 2 failed with exit code 1; rank 0 was stopped"
    assert "noise" not in end


def test_others_are_stopped_soon_even_if_they_refuse(meeting: Meeting) -> None:
    code = f"""
{STUBBORN}
say(str(rank))
if rank == 0:
    wait("1"); wait("2")
    sys.exit(5)
time.sleep(60)
"""
    with Launcher("-np", "3", *in_folder(meeting, code), env=QUICK) as launcher:
        meeting.wait("0", "1", "2")
        begin = time.monotonic()
        assert end_of(launcher)[0] == 5
        assert time.monotonic() - begin > 0.5  # the grace was theirs


def test_a_stopped_rank_is_ended_too(meeting: Meeting) -> None:
    code = """
say(str(rank), f"{os.getpid()}\\n")
wait("go")
if rank == 1:
    sys.exit(5)
time.sleep(60)
"""
    with Launcher("-np", "2", *in_folder(meeting, code)) as launcher:
        os.kill(meeting.pid("0"), signal.SIGSTOP)
        meeting.pid("1")
        meeting.say("go")
        assert end_of(launcher)[0] == 5


def test_a_stopped_stubborn_rank_is_ended_too(meeting: Meeting) -> None:
    code = f"""
{STUBBORN}
say(str(rank), f"{{os.getpid()}}\\n")
if rank == 1:
    wait("go")
    sys.exit(5)
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    with Launcher("-np", "2", *in_folder(meeting, code), env=QUICK) as launcher:
        meeting.pid("0")
        meeting.say("go")
        assert end_of(launcher)[0] == 5


def test_the_first_to_die_is_the_cause_although_all_die_at_once(meeting: Meeting) -> None:
    code = """
say(str(rank), f"{os.getpid()}\\n")
wait(f"die{rank}")
os._exit(10 + rank)
"""
    with Launcher("-np", "4", *in_folder(meeting, code)) as launcher:
        pids = [meeting.pid(str(rank)) for rank in range(4)]
        launcher.signal(signal.SIGSTOP)  # a busy launcher, which sees them only afterwards
        for rank in (2, 3, 0, 1):
            meeting.say(f"die{rank}")
            wait_until(partial(_is_zombie, pids[rank]), f"death of rank {rank}")
        launcher.signal(signal.SIGCONT)
        code_, text = end_of(launcher)
    assert code_ == 12
    assert text.endswith("rank 2 of 4 failed with exit code 12; ranks 0, 1, 3 failed with it\n")


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_rank_that_reports_a_lost_peer_is_not_the_cause(meeting: Meeting) -> None:
    code = """
if rank == 0:
    print("ringar.errors.PeerLostError: rank 0 | rank 1 is gone", file=sys.stderr)
    sys.exit(1)
time.sleep(0.5)  # leaving Python takes a while
sys.exit(7)
"""
    result = launch("-np", "2", *in_folder(meeting, code))
    assert result.returncode == 7
    assert result.stderr.endswith("rank 1 of 2 failed with exit code 7; rank 0 failed with it\n")


def test_a_lost_peer_that_never_fails(meeting: Meeting) -> None:
    code = """
if rank == 0:
    print("ringar.errors.PeerLostError: rank 0 | rank 1 is gone", file=sys.stderr)
    sys.exit(1)
time.sleep(60)
"""
    with Launcher("-np", "2", *in_folder(meeting, code), env=QUICK) as launcher:
        code_, text = end_of(launcher, SOON + 3)
    assert code_ == 1
    assert "rank 0 of 2 failed" in text


# The launcher is told to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_all(meeting: Meeting, number: signal.Signals) -> None:
    code = """
def leave(*_):
    print("bye", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
say(str(rank))
time.sleep(60)
"""
    with Launcher("-np", "2", *in_folder(meeting, code)) as launcher:
        meeting.wait("0", "1")
        launcher.signal(number)
        result = launcher.finish()
    assert result.returncode == 128 + number
    assert sorted(result.stdout.splitlines()) == ["[0] bye", "[1] bye"]
    assert result.stderr == f"ringarrun: stopped all ranks on {number.name}\n"


def test_kill_grace_is_time_to_save(meeting: Meeting) -> None:
    """Also behind a wrapper, with helpers that live as long as their rank."""
    code = f"""
def leave(*_):
    time.sleep(1 + rank / 2)
    print("saved", all(helper.poll() is None for helper in helpers), flush=True)
    sys.exit(143)
import mmap
os.truncate(library := os.open("{meeting.folder}/libringar", os.O_CREAT | os.O_RDWR), 1)
loaded = mmap.mmap(library, 1)
signal.signal(signal.SIGTERM, leave)
helpers = [subprocess.Popen([*words, "sleep", "60"]) for words in ((), ("setsid",))]
say(str(rank))
time.sleep(60)
"""
    command = shell(shlex.join(in_folder(meeting, code)) + "; exit $?")
    with Launcher("-np", "2", "--kill-grace", "20", *command, env=QUICK) as launcher:
        meeting.wait("0", "1")
        for _ in range(2):  # as `timeout` does, at once
            launcher.signal(signal.SIGTERM)
            time.sleep(0.05)
        result = launcher.finish()
    assert result.returncode == 143
    assert result.stdout.splitlines() == ["[0] saved True", "[1] saved True"]
    assert result.stderr == "ringarrun: stopped all ranks on SIGTERM\n"


def test_user_signals_reach_ranks_with_a_handler(meeting: Meeting) -> None:
    code = """
def leave(*_):
    time.sleep(rank / 2)
    sys.exit(138)
signal.signal(signal.SIGUSR1, leave)
helper = subprocess.Popen(["sleep", "60"])
say(str(rank))
while True:
    time.sleep(60)
"""
    with Launcher("-np", "2", *in_folder(meeting, code), env=QUICK) as launcher:
        meeting.wait("0", "1")
        launcher.signal(signal.SIGUSR2)
        time.sleep(0.3)
        launcher.signal(signal.SIGUSR1)
        result = launcher.finish()
    assert result.returncode == 138
    first, last = result.stderr.splitlines()
    assert first.startswith("ringarrun: ignored SIGUSR2, for which ranks 0, 1 have no handler; ")
    assert last == "ringarrun: stopped all ranks on SIGUSR1"


def test_a_slot_that_is_taken_away_leaves_before_its_helpers(meeting: Meeting) -> None:
    code = """
import ringar
ringar.init()  # slots are kept until the ranks have met
def leave(*_):
    time.sleep(0.3)
    print("left", helper.poll() is None, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
helper = subprocess.Popen(["sleep", "60"])
say(f"{rank}-helper", f"{helper.pid}\\n")
while True:
    time.sleep(60)
"""
    script = meeting.folder / "hosts"
    script.write_text(f"#!/bin/sh\ncat {meeting.folder}/list\n")
    script.chmod(0o755)
    (meeting.folder / "list").write_text("localhost:2\n")
    numbers = ("--min-np", "1", "--max-np", "2", "--launcher", "local")
    options = (*numbers, "--host-discovery-script", str(script))
    program = (word for word in in_folder(meeting, code) if word != "-S")
    with Launcher(*options, *program, env=QUICK) as launcher:
        helpers = [meeting.pid(f"{slot}-helper") for slot in (0, 1)]
        (meeting.folder / "list").write_text("localhost:1\n127.0.0.2:1\n")
        wait_until(lambda: not Path(f"/proc/{helpers[1]}").exists(), "the end of the helper")
        assert Path(f"/proc/{helpers[0]}").exists()
        launcher.signal(signal.SIGTERM)
        result = launcher.finish()
    assert result.stdout.splitlines() == ["[1] left True", "[0] left True"], result.stderr
    assert result.stderr.count("127.0.0.2: passed over, since this job starts its ranks on") == 1


def test_kill_grace_ends(meeting: Meeting) -> None:
    """For ranks that refuse; for processes behind the last rank; after a failure."""
    stubborn = STUBBORN + "say(str(rank)); time.sleep(60)"
    behind = "subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 60']); say('2'); time.sleep(60)"
    failing = STUBBORN + "say('3'); sys.exit(4 if rank else time.sleep(60))"
    for code, names, grace, expected in (
        (stubborn, "01", "0.5", 143),
        (behind, "2", "30", 143),
        (failing, "3", "30", 4),
    ):
        command = in_folder(meeting, code)
        env = SLOW if grace == "0.5" else QUICK  # the default: 30 s or 0.6 s
        with Launcher("-np", "2", "--kill-grace", grace, *command, env=env) as launcher:
            meeting.wait(*names)
            begin = time.monotonic()
            if expected == 143:
                launcher.signal(signal.SIGTERM)
            assert launcher.finish().returncode == expected
            assert time.monotonic() - begin < SOON


def test_second_interrupt_kills_at_once(meeting: Meeting) -> None:
    code = STUBBORN + "say(str(rank)); time.sleep(60)"
    with Launcher("-np", "2", *in_folder(meeting, code), env=SLOW) as launcher:
        meeting.wait("0", "1")
        launcher.signal(signal.SIGINT)
        time.sleep(0.3)
        assert not launcher.is_over()
        begin = time.monotonic()
        launcher.signal(signal.SIGINT)
        assert launcher.finish().returncode == 130
        assert time.monotonic() - begin < SOON  # the grace of a polite stop is 30 s


def test_ctrl_c_at_a_terminal(meeting: Meeting) -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        command = in_folder(meeting, "say(str(rank)); time.sleep(60)")
        os.execv(sys.executable, [sys.executable, "-m", "ringar.launchers", "-np", "2", *command])
    meeting.wait("0", "1")
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    text = os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"KeyboardInterrupt" not in text
    assert b"stopped all ranks on SIGINT" in text


#: Seconds from the first process of a job to the signal, while other ranks are started.
DELAYS = [
    0.0,
    0.04,
    pytest.param(0.02, marks=pytest.mark.slow),
    pytest.param(0.08, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("delay", DELAYS)
def test_stop_while_starting(delay: float) -> None:
    with Launcher("-np", "8", "sleep", "60") as launcher:
        wait_until(lambda: len(processes(launcher.mark)) > 1, "the first rank")
        time.sleep(delay)
        launcher.signal(signal.SIGTERM)
        assert end_of(launcher)[0] == 143


# Nothing outlives the job

#: Ways in which a rank starts another process, by their names.
GRANDCHILDREN = {
    "same group": "subprocess.Popen(sleeper)",
    "own group": "subprocess.Popen(sleeper, preexec_fn=os.setpgrp)",
    "own session": "subprocess.Popen(sleeper, start_new_session=True)",
    "daemon": """
if os.fork() == 0:
    os.setsid()
    os.fork() and os._exit(0)
    os.execv(sleeper[0], sleeper)
""",
}

#: The program of such a process, which writes its number to a file. The daemon ignores SIGTERM.
SLEEPER = """
import os, signal, sys, time
if sys.argv[2] == "daemon":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def with_grandchildren(meeting: Meeting, then: str, *hows: str) -> tuple[str, ...]:
    """A rank that starts other processes, in all ways or in those of `hows`, then runs `then`."""
    lines = []
    for how in hows or GRANDCHILDREN:
        lines += [
            f"own = {str(meeting.folder)!r} + f'/{how} {{rank}}'",
            f"sleeper = [sys.executable, '-S', '-c', {SLEEPER!r}, own, {how!r}]",
            GRANDCHILDREN[how],
        ]
    waits = [f"wait(f'{how} {{rank}}')" for how in hows or GRANDCHILDREN]
    return in_folder(meeting, "\n".join([*lines, *waits, then]))


def wait_for_grandchildren(meeting: Meeting, ranks: int, *hows: str) -> None:
    for how in hows or GRANDCHILDREN:
        for rank in range(ranks):
            meeting.pid(f"{how} {rank}")


def test_sigkill_of_the_launcher(meeting: Meeting) -> None:
    with Launcher("-np", "2", *with_grandchildren(meeting, "time.sleep(600)")) as launcher:
        wait_for_grandchildren(meeting, 2)
        assert len(processes(launcher.mark)) >= 12  # launcher, janitor, two ranks, their children
        launcher.signal(signal.SIGKILL)
        wait_until(launcher.is_over, "the end of every process", SOON)


def test_sigkill_of_the_launcher_while_ranks_are_stopped(meeting: Meeting) -> None:
    code = "say(str(rank), f'{os.getpid()}\\n'); os.kill(os.getpid(), signal.SIGSTOP)"
    with Launcher("-np", "2", *in_folder(meeting, code)) as launcher:
        meeting.pid("0")
        meeting.pid("1")
        launcher.signal(signal.SIGKILL)
        wait_until(launcher.is_over, "the end of every process", SOON)


@pytest.mark.parametrize("delay", DELAYS)
def test_sigkill_of_the_launcher_while_starting(delay: float) -> None:
    with Launcher("-np", "8", *shell("sleep 600; true")) as launcher:
        wait_until(lambda: len(processes(launcher.mark)) > 1, "the first rank")
        time.sleep(delay)
        launcher.signal(signal.SIGKILL)
        wait_until(launcher.is_over, "the end of every process", SOON)


def test_sigkill_of_the_process_group_of_the_launcher(meeting: Meeting) -> None:
    command = ("setsid", sys.executable, "-m", "ringar.launchers")
    rank = with_grandchildren(meeting, "time.sleep(600)", "same group")
    with Launcher("-np", "1", *rank, command=command) as launcher:
        wait_for_grandchildren(meeting, 1, "same group")
        os.killpg(launcher.process.pid, signal.SIGKILL)
        wait_until(launcher.is_over, "the end of every process", SOON)


def test_sigkill_of_every_rank(meeting: Meeting) -> None:
    then = "say(str(rank), f'{os.getpid()}\\n'); time.sleep(600)"
    with Launcher("-np", "2", *with_grandchildren(meeting, then), env=QUICK) as launcher:
        pids = [meeting.pid("0"), meeting.pid("1")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert end_of(launcher)[0] == 137


def test_what_ranks_leave_in_the_background_ends_with_the_job(meeting: Meeting) -> None:
    rank = with_grandchildren(meeting, "sys.exit(0)")
    with Launcher("-np", "2", *rank, env=QUICK) as launcher:
        assert end_of(launcher, SOON + 4)[0] == 0


def test_background_process_that_holds_the_output_does_not_hold_up_the_job() -> None:
    begin = time.monotonic()
    result = launch("-np", "2", *shell("sleep 600 & echo done"), env=QUICK)
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == ["[0] done", "[1] done"]
    assert time.monotonic() - begin < SOON


def test_background_process_may_finish_its_work_while_others_run(meeting: Meeting) -> None:
    command = shell("[ $RINGAR_RANK = 0 ] && { (sleep 0.4; echo late) & exit 0; }; sleep 0.8")
    result = launch("-np", "2", *command)
    assert (result.returncode, result.stdout) == (0, "[0] late\n")


def test_a_job_inside_a_job_ends_with_the_outer_one(meeting: Meeting) -> None:
    inner = with_grandchildren(meeting, "time.sleep(600)", "own session")
    command = (sys.executable, "-m", "ringar.launchers", "-np", "2", *inner)
    for end in (signal.SIGTERM, signal.SIGKILL):
        for rank in (0, 1):
            (meeting.folder / f"own session {rank}").unlink(missing_ok=True)
        with Launcher("-np", "1", *command) as launcher:
            wait_for_grandchildren(meeting, 2, "own session")
            launcher.signal(end)
            wait_until(launcher.is_over, "the end of every process", SOON + 5)


def test_a_killed_janitor_does_not_disturb_the_job(meeting: Meeting) -> None:
    with Launcher("-np", "2", *in_folder(meeting, "say(str(rank)); wait('go')")) as launcher:
        meeting.wait("0", "1")
        assert len(processes(launcher.mark)) == 4  # launcher, janitor and two ranks
        (janitor,) = (
            pid
            for pid in processes(launcher.mark)
            if b"janitor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(janitor, signal.SIGKILL)
        meeting.say("go")
        assert end_of(launcher) == (0, "")


def test_ranks_may_end_well_at_different_times(meeting: Meeting) -> None:
    """A rank that has ended well long ago is no reason to stop the others."""
    code = "sys.exit(0) if rank else time.sleep(0.7)"
    result = launch("-np", "3", *in_folder(meeting, code))
    assert (result.returncode, result.stderr) == (0, "")
