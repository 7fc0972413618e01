"""What ranks get, and where their output goes."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from tests.launchers.helpers import QUICK, Launcher, launch, python, shell, wait_until

SHOW_ENVIRONMENT = python(
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items() "
    "if k.startswith(('RINGAR_', 'PYTHONUNB', 'MY_'))}))"
)


def environments(*arguments: str, env: dict[str, str] | None = None) -> list[dict[str, str]]:
    result = launch(*arguments, *SHOW_ENVIRONMENT, env=env)
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    return [json.loads(line.split("] ", 1)[1]) for line in lines]


def test_ranks_know_their_place_and_share_a_job() -> None:
    ranks = environments("-np", "3")
    for number, rank in enumerate(ranks):
        assert rank["RINGAR_RANK"] == rank["RINGAR_LOCAL_RANK"] == str(number)
        assert rank["RINGAR_SIZE"] == rank["RINGAR_LOCAL_SIZE"] == "3"
        assert (rank["RINGAR_CROSS_RANK"], rank["RINGAR_CROSS_SIZE"]) == ("0", "1")
        assert rank["PYTHONUNBUFFERED"] == "1"
    assert len({rank["RINGAR_JOB"] for rank in ranks}) == 1


def test_environment_is_passed_on() -> None:
    ranks = environments(
        "-np",
        "2",
        "-x",
        "MY_COPY",
        "-x",
        "MY_VALUE=a b=c",
        "--deadline",
        "5",
        env={"MY_COPY": "1", "MY_OWN": "2", "PYTHONUNBUFFERED": ""},
    )
    for rank in ranks:
        assert (rank["MY_COPY"], rank["MY_OWN"], rank["MY_VALUE"]) == ("1", "2", "a b=c")
        assert rank["RINGAR_DEADLINE"] == "5"
        assert rank["PYTHONUNBUFFERED"] == ""


def test_ranks_share_a_segment_without_a_name() -> None:
    code = """
import mmap, os, time
rank, fd = int(os.environ["RINGAR_RANK"]), int(os.environ["RINGAR_SEGMENT_FD"])
os.ftruncate(fd, 4096)
segment = mmap.mmap(fd, 4096)
segment[rank] = 1
end = time.monotonic() + 30
while segment[:3] != b"\\1\\1\\1":
    assert time.monotonic() < end
    time.sleep(0.01)
print(os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_nlink)
"""
    result = launch("-np", "3", *python(code))
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        assert "/memfd:ringar-shared-segment (deleted) 0" in line


def test_ranks_find_the_segment_whose_descriptor_a_program_has_closed() -> None:
    """A socket cannot be found again: the error says so."""
    code = """
import os
from ringar.errors import RingarError
from ringar.job import inherited
print(os.readlink(f"/proc/self/fd/{inherited.memory('RINGAR_SEGMENT_FD', os.environ)}"))
try:
    inherited.socket("GONE", {"GONE": os.environ["RINGAR_SEGMENT_FD"], "RINGAR_RANK": "1"})
except RingarError as error:
    print(error)
"""
    wrapper = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    )
    result = launch("-np", "2", "--no-prefix", *python(wrapper))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("/memfd:ringar-shared-segment (deleted)") == 2
    assert result.stdout.count("A program between ringarrun and the script has closed it") == 2


def test_ranks_inherit_no_other_file() -> None:
    code = """
import os
print(*sorted(os.listdir("/proc/self/fd"), key=int))
print(os.environ["RINGAR_SEGMENT_FD"])
"""
    result = launch("-np", "1", *python(code))
    files, segment = (line.split() for line in result.stdout.splitlines())
    assert {"0", "1", "2", *segment} < set(files)
    assert len(files) == 5  # the last one is the folder that is being listed


def test_binding() -> None:
    cpus = os.sched_getaffinity(0)
    show = python("import os; print(sorted(os.sched_getaffinity(0)))")
    result = launch("-np", str(min(len(cpus), 64)), "--prefix", "--bind-to", "core", *show)
    sets = [set(json.loads(line.split("] ", 1)[1])) for line in result.stdout.splitlines()]
    assert set.union(*sets) == cpus
    assert sum(map(len, sets)) == len(cpus)
    result = launch("-np", "2", "--no-prefix", "--bind-to", "none", *show)
    assert [set(json.loads(line)) for line in result.stdout.splitlines()] == [cpus, cpus]
    if len(cpus) <= 32:
        result = launch("-np", str(2 * len(cpus)), "--no-prefix", *show)
        shared = sorted(json.loads(line) for line in result.stdout.splitlines())
        assert shared == [[number] for number in sorted(cpus) for _ in range(2)]


def test_stdin_belongs_to_rank_0() -> None:
    result = launch("-np", "3", *shell("echo got $(cat)"), text="hello\n")
    assert sorted(result.stdout.splitlines()) == ["[0] got hello", "[1] got", "[2] got"]


def test_output_has_its_rank_in_front_on_its_own_stream() -> None:
    result = launch("-np", "2", *shell("echo out; echo err >&2; printf end"))
    assert sorted(result.stdout.splitlines()) == ["[0] end", "[0] out", "[1] end", "[1] out"]
    assert sorted(result.stderr.splitlines()) == ["[0] err", "[1] err"]


def test_prefix_can_be_chosen() -> None:
    assert launch("-np", "1", *shell("printf hello")).stdout == "hello"
    assert launch("-np", "1", "--prefix", *shell("printf hello")).stdout == "[0] hello\n"
    assert launch("-np", "2", "--no-prefix", *shell("echo hi")).stdout == "hi\nhi\n"


def test_print_of_many_ranks_stays_whole() -> None:
    code = (
        "for i in range(500): print('line', i, 'of rank', __import__('os').environ['RINGAR_RANK'])"
    )
    result = launch("-np", "4", *python(code))
    lines = result.stdout.splitlines()
    assert sorted(lines) == sorted(
        f"[{r}] line {i} of rank {r}" for r in range(4) for i in range(500)
    )
    # The lines of one rank keep their order.
    assert [line for line in lines if line[1] == "2"] == [
        f"[2] line {i} of rank 2" for i in range(500)
    ]


def test_much_output_arrives_complete() -> None:
    result = launch(
        "-np",
        "2",
        *python("print('x' * 99 + '\\n', end='' ) or [print('y' * 999) for _ in range(5000)]"),
    )
    assert result.stdout.count("y" * 999 + "\n") == 10000


def test_output_that_is_not_text() -> None:
    with Launcher("-np", "1", "--prefix", *shell(r"printf '\377\000\n'")) as launcher:
        assert launcher.process.stdout is not None
        assert launcher.process.stdout.buffer.read() == b"[0] \xff\x00\n"  # type: ignore[attr-defined]


def test_progress_bar_of_rank_0_is_alive() -> None:
    code = r"""
import os, sys, time
if os.environ["RINGAR_RANK"] == "0":
    sys.stdout.write("\r1/2 [==>..]")
    time.sleep(60)
"""
    with Launcher("-np", "2", *python(code)) as launcher:
        assert launcher.process.stdout is not None
        fd = launcher.process.stdout.fileno()
        assert os.read(fd, 100) == b"[0] 1/2 [==>..]"


def test_output_on_a_terminal() -> None:
    leader, follower = pty.openpty()
    command = shell('[ $RINGAR_RANK = 1 ] && sleep 0.5 && echo hello; printf "\\rbar"; sleep 1')
    with Launcher("-np", "2", *command, stdout=follower, stderr=follower) as launcher:
        os.close(follower)
        launcher.finish()
        text = os.read(leader, 4096)
    os.close(leader)
    assert b"[0] bar\r\x1b[K[1] hello\r\n[0] bar" in text


def test_output_is_kept_in_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "logs"
    command = shell(r'printf "1\r2\n$RINGAR_RANK"; echo e$RINGAR_RANK >&2')
    result = launch("-np", "2", "--output-filename", str(folder), *command)
    assert sorted(result.stderr.splitlines()) == ["[0] e0", "[1] e1"]
    for rank in (0, 1):
        assert (folder / f"rank.{rank}" / "stdout").read_bytes() == b"1\r2\n%d" % rank
        assert (folder / f"rank.{rank}" / "stderr").read_bytes() == b"e%d\n" % rank


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_does_not_end_the_job(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    result = launch("-np", "2", "--output-filename", str(tmp_path), *shell("echo a; echo b"))
    assert result.returncode == 0
    assert result.stdout.splitlines().count("[0] b") == 1
    assert result.stderr.count("writing has failed") == 1


def test_verbose_says_what_happens() -> None:
    result = launch("-np", "2", "--verbose", *shell("exit 0"))
    assert "2 ranks of: sh -c exit 0" in result.stderr
    for rank in (0, 1):
        assert f"ringarrun: rank {rank}: process " in result.stderr
        assert f"ringarrun: rank {rank}: ended with exit code 0" in result.stderr


def test_silence_without_verbose() -> None:
    result = launch("-np", "2", "true")
    assert (result.stdout, result.stderr, result.returncode) == ("", "", 0)


def test_sixty_four_ranks() -> None:
    result = launch("-np", "64", *shell("echo $RINGAR_RANK"))
    assert sorted(result.stdout.splitlines()) == sorted(f"[{r}] {r}" for r in range(64))


def test_a_job_inside_a_job() -> None:
    inner = ["-m", "ringar.launchers", "-np", "2", *shell("echo $RINGAR_RANK of $RINGAR_SIZE")]
    result = launch("-np", "1", sys.executable, *inner)
    assert sorted(result.stdout.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]


def test_closed_standard_streams() -> None:
    code = 'exec 0<&- 1>&-; exec "$@"'
    command = ("sh", "-c", code, "sh", sys.executable, "-m", "ringar.launchers")
    with Launcher("-np", "2", *shell("echo hi; echo ok >&2"), command=command) as launcher:
        result = launcher.finish()
    assert result.returncode == 0
    assert sorted(result.stderr.splitlines()) == ["[0] ok", "[1] ok"]


def test_reader_that_goes_away_ends_the_job() -> None:
    reader, writer = os.pipe()
    with Launcher("-np", "2", "yes", stdout=writer) as launcher:
        os.close(writer)
        assert os.read(reader, 4).startswith(b"[")
        os.close(reader)
        result = launcher.finish()
    assert result.returncode == 128 + 13
    first, second = result.stderr.splitlines()
    assert first == "ringarrun: stopped all ranks: the reader of the standard output has gone"
    assert second.endswith(" bytes of the standard output are lost")


def test_reader_that_waits_neither_keeps_ranks_from_saving_nor_the_job_from_its_end() -> None:
    code = """
import os, signal, sys, time
def leave(*_):
    os.write(1, (b"x" * 1023 + b"\\n") * (1 << 12))
    os.write(2, b"saved\\n")
    os._exit(143)
signal.signal(signal.SIGTERM, leave)
os.write(2, b"ready\\n")
while True:
    time.sleep(60)
"""
    reader, writer = os.pipe()
    options = ("-np", "2", "--no-prefix", "--kill-grace", "20")
    with Launcher(*options, *python(code), stdout=writer, env=QUICK) as launcher:
        os.close(writer)
        assert launcher.process.stderr is not None
        for _ in range(2):
            assert launcher.process.stderr.readline() == "ready\n"
        launcher.signal(signal.SIGTERM)
        result = launcher.finish()
        os.close(reader)
    assert result.returncode == 143
    assert result.stderr.count("saved\n") == 2
    assert result.stderr.endswith(" bytes of the standard output are lost\n")


def test_a_full_disk_under_the_output_is_told() -> None:
    with (
        open("/dev/full", "w") as full,
        Launcher("-np", "2", "echo", "hi", stdout=full.fileno()) as launcher,
    ):
        result = launcher.finish()
    assert result.returncode == 0
    assert result.stderr.endswith("ringarrun: 14 bytes of the standard output are lost\n")


def test_reader_that_waits_does_not_stop_supervision() -> None:
    reader, writer = os.pipe()
    command = shell("[ $RINGAR_RANK = 1 ] && sleep 0.5 && exit 9; exec yes")
    with Launcher("-np", "2", *command, stdout=writer) as launcher:
        os.close(writer)
        # Nobody reads, the pipe fills up, and rank 1 fails: rank 0 has to go all the same.
        wait_until(lambda: _children(launcher.process.pid) == 3, "the janitor and two ranks")
        wait_until(lambda: _children(launcher.process.pid) == 0, "the end of all ranks")
        while os.read(reader, 1 << 16):
            pass
        os.close(reader)
        assert launcher.finish().returncode == 9


def _children(pid: int) -> int:
    """The children of a process that have not been reaped, its janitor included."""
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
