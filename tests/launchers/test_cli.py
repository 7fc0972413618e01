from __future__ import annotations

import fcntl
import os
import re
import sys
from pathlib import Path

import pytest

from ringar.launchers.command_line.check_build import findings
from ringar.launchers.command_line.cli import main
from ringar.launchers.command_line.options import parser, request
from ringar.launchers.plan.request import Request
from tests.launchers.helpers import launch


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["-np", "0", "true"],
            2,
            "expected the number of ranks to start, from 1 to 64, received 0",
        ),
        (["-np", "-3", "true"], 2, "received -3"),
        (["-np", "two", "true"], 2, "received 'two'"),
        (["-np", "1.5", "true"], 2, "received '1.5'"),
        (["-np", "1000000", "true"], 2, "ranks on one host, received 1000000"),
        (["-np"], 2, "expected one argument"),
        (["true"], 2, "expected -np N"),
        ([], 2, "expected -np N"),
        (["-np", "2"], 2, "expected a program to run after the options, received none"),
        (["-np", "2", "--"], 2, "expected a program to run after the options, received none"),
        (["-np", "2", "-m"], 2, "expected a module to run after the options, received none"),
        (["train.py", "-np", "2"], 2, "options of ringarrun come before the program"),
        (["-np", "2", "no-such.py"], 127, "no-such.py: expected a Python script to run"),
        (["-np", "2", "-m", "no.such"], 127, "-m no.such: expected a Python module, but there is"),
        (["-np", "2", "no-such-program"], 127, "no-such-program: expected a program to run"),
        (["-np", "2", "./no/such"], 127, "./no/such: expected a program to run"),
        (["-np", "2", "/etc/passwd"], 126, "not executable"),
        (["-np", "2", "/etc"], 126, "received a directory"),
        (["-np", "2", "--no-such-option", "true"], 2, "unknown option --no-such-option"),
        (["-np", "2", "--deadline", "0", "true"], 2, "expected a positive number of seconds"),
        (["-np", "2", "--start-timeout", "x", "true"], 2, "expected a positive number of seconds"),
        (
            ["-np", "2", "--bind-to", "socket", "true"],
            2,
            "expected core, numa or none, received 'socket'",
        ),
        (["-np", "2", "-x", "RINGAR_NOT_SET", "true"], 2, "expected a variable that is set"),
        (["-np", "2", "--output-filename", "/dev/null/x", "true"], 2, "expected a folder"),
        (["-H", "h1:0", "true"], 2, "-H: expected host:N with the number of slots, 1 or more"),
        (["--hostfile", "/no/file", "true"], 2, "--hostfile: cannot read '/no/file': No such file"),
        (["-H", "h1", "--hostfile", "/dev/null", "true"], 2, "expected -H or --hostfile, received"),
        (["-H", "h1:2,h2:2", "-np", "5", "true"], 2, "at most 4 ranks, the slots of 2 hosts (-H)"),
        (["-H", "h1", "--launcher", "local", "true"], 2, "expected hosts that are this one"),
        (
            ["-np", "2", "--launcher", "pdsh", "true"],
            2,
            "expected auto, local, ssh, mpirun or srun, received",
        ),
        (["-np", "2", "-p", "70000", "true"], 2, "expected a port, from 1 to 65535, received"),
        (["-np", "2", "--mpi-args=-v", "true"], 2, "--mpi-args: expected a job of mpirun or srun"),
        (["-np", "2", "-p", "22", "true"], 2, "-p: expected a job of mpirun or srun"),
        (["-np", "2", "-i", "key", "true"], 2, "-i: expected a job of mpirun or srun"),
        (["-np", "2", "--ssh-command", "rsh", "true"], 2, "--ssh-command: expected a job of"),
        (
            ["-H", "localhost:2", "--network-interface", "lo", "true"],
            2,
            "--network-interface: expected a job of mpirun or srun, but the ranks of this one are "
            "started without MPI; leave it out, or choose --launcher mpirun",
        ),
        (
            ["-np", "2", "--launcher", "local", "-p", "22", "-i", "key", "true"],
            2,
            "-p, -i: expected a job of mpirun or srun, but the ranks of this one are started "
            "without MPI; leave them out, or choose --launcher mpirun",
        ),
        (["-np", "2", "--mpi-args='", "true"], 2, "expected arguments as in a shell, received"),
        (
            ["-np", "2", "--autotune-log-file", "x", "true"],
            2,
            "--autotune-log-file: expected --autotune, whose search it describes",
        ),
        (["-np", "2", "--max-np", "4", "true"], 2, "--max-np: expected --min-np, the number of"),
        (["-np", "2", "--min-np", "0", "true"], 2, "expected 1 or more, received '0'"),
        (["-np", "2", "--min-np", "3", "true"], 2, "--max-np, received 3, 2 and 2"),
        (["-H", "h1:2", "--min-np", "1", "-np", "3", "true"], 2, "-np: expected at most 2 ranks"),
        (
            ["--min-np", "1", "--link", "mpi", "true"],
            2,
            "starts itself, without MPI, received --link",
        ),
        (
            ["-np", "2", "--min-np", "1", "--elastic-dir", "/dev/null/x", "true"],
            2,
            "--elastic-dir: expected a folder to write in, received '/dev/null/x': Not a directory",
        ),
    ],
)
def test_bad_input_starts_nothing(
    arguments: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    out, err = capfd.readouterr()
    assert err.startswith("ringarrun: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


def test_the_commits_of_another_job_are_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("-np", "1", "--min-np", "1", "--elastic-dir", str(tmp_path))
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert run(*options, "true") == 2
    assert f"received '{tmp_path}', where another job writes" in capfd.readouterr().err
    assert run(*options, "--dry-run", "true") == 0
    os.close(descriptor)
    assert launch(*options, "true").returncode == 0


def run(*arguments: str) -> int:
    """Run `ringarrun` in this process and return its exit code."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("--deadlin 5 true", "unknown option --deadlin; did you mean --deadline? See"),
        ("--deadlin=5 true", "unknown option --deadlin; did you mean --deadline? See"),
        ("--bind_to core true", "unknown option --bind_to; did you mean --bind-to? See"),
        ("-hostf x true", "unknown option -hostf; did you mean -hostfile? See"),
        ("-c true", "unknown option -c; did you mean -cb? See"),
        (
            "--stall true",
            "unknown option --stall; did you mean --stall-check-shutdown-time-seconds, "
            "--stall-check-warning-time-seconds or --stall-warning? See",
        ),
        ("--np 2 true", "unknown option --np; did you mean -np? See"),
        ("--nproc_per_node=2 true", "unknown option --nproc_per_node; did you mean -np? See"),
        ("--xyzzy true", "unknown option --xyzzy; see"),
        (
            "--bind-to cores true",
            "--bind-to: expected core, numa or none, received 'cores'; did you mean core? See",
        ),
        (
            "--launcher mpi true",
            "expected auto, local, ssh, mpirun or srun, received 'mpi'; did you mean mpirun? See",
        ),
        ("--gpus one true", "--gpus: expected each or all, received 'one'; see"),
    ],
)
def test_typos_are_refused_with_a_suggestion(
    arguments: str, suggestion: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("-np", "2", *arguments.split()) == 2
    assert f"{suggestion} ringarrun --help\n" in capfd.readouterr().err


def test_errors_of_a_process(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    for arguments, code, message in (
        (["--no-such-option"], 2, "unknown option --no-such-option"),
        (["no-such-program"], 127, "expected a program to run"),
        ([str(program)], 126, "is the interpreter in its first line there?"),
    ):
        result = launch("-np", "2", *arguments)
        assert result.returncode == code
        assert result.stderr.startswith("ringarrun: error: ")
        assert message in result.stderr


def test_help_is_one_screen(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) < 80
    assert "  ringarrun -np 4 train.py --epochs 3           4 ranks on this machine" in lines
    groups = [line.split()[0] for line in lines if re.match(r"[a-z]+ ? +-", line)]
    assert groups == ["ranks", "elastic", "hosts", "output", "fit", "seconds", "about"]


def test_every_option_is_in_both_texts_of_help(capfd: pytest.CaptureFixture[str]) -> None:
    run("--help")
    summary = capfd.readouterr().out.replace("--[no-]", "--")
    assert run("--help-all") == 0
    details = capfd.readouterr().out
    actions = [action for action in parser()._actions if action.option_strings]
    assert len(actions) > 20
    for action in actions:
        assert all(name in details for name in action.option_strings)
        assert any(f"{name}{end}" in summary for name in action.option_strings for end in " ,:\n")
    assert "how a job ends:" in details


def test_autotune_becomes_variables_with_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/usr")
    words = ["--autotune", "--autotune-log-file=a.csv", "--autotune-settings-file", "/b.json"]
    options = request(parser().parse_args(["-x", "A=1", *words, "true"]))
    assert options.exports == (
        "A=1",
        "RINGAR_AUTOTUNE=1",
        "RINGAR_AUTOTUNE_LOG=/usr/a.csv",
        "RINGAR_AUTOTUNE_SETTINGS=/b.json",
    )


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    from ringar.version import __version__

    assert run("--version") == 0
    assert capfd.readouterr().out == f"ringarrun {__version__}\n"


def test_check_build_reports_every_part() -> None:
    result = launch("--check-build")
    # 1 says that the native library has not been built here.
    assert result.returncode in (0, 1)
    for name in (
        "native library",
        "Python",
        "TensorFlow",
        "Keras",
        "mpi4py",
        "Open MPI",
        "MPICH",
        "CUDA driver",
        "NCCL",
        "CPU features",
    ):
        assert f"{name}" in result.stdout
    assert ("[X] native library" in result.stdout) == (result.returncode == 0)


def test_check_build_finds_the_version_of_an_installed_package() -> None:
    numpy = next(finding for finding in findings() if finding.name == "NumPy")
    import numpy as np

    assert numpy.is_present
    assert numpy.detail == np.__version__


def test_neither_tensorflow_nor_numpy_is_imported() -> None:
    code = """
import sys
from ringar.launchers.command_line.cli import main
for words in ("--help", "--check-build", "-np 2 -m json.tool --help", "-np 2 true",
              "-np 2 --launcher mpirun --dry-run true"):
    try:
        main(words.split())
    except SystemExit:
        pass
    slow = {"tensorflow", "keras", "numpy", "mpi4py", "asyncio", "multiprocessing"}
    print(words, "imports:", *sorted(slow & set(sys.modules)))
"""
    result = launch("-np", "1", sys.executable, "-c", code)
    lines = [line for line in result.stdout.splitlines() if "imports:" in line]
    assert len(lines) == 5, result.stderr
    assert all(line.endswith("imports:") for line in lines), lines


def requested(*arguments: str) -> Request:
    return request(parser().parse_args(arguments))


@pytest.mark.parametrize("separator", [[], ["--"]])
@pytest.mark.parametrize("module", [False, True])
def test_arguments_of_the_program_are_its_own(separator: list[str], module: bool) -> None:
    command = ("program", "-np", "5", "--verbose", "--", "-x", "--help", "-m")
    options = requested("-np", "1", *(["-m"] if module else []), *separator, *command)
    assert (options.command, options.module, options.num_proc) == (command, module, 1)


def test_names_known_from_horovod_and_mpirun() -> None:
    for option in ("-np", "-n", "--num-proc"):
        assert requested(option, "3", "true").num_proc == 3
    options = requested(
        *("-np", "1", "--stall-check-warning-time-seconds", "7"),
        *("--stall-check-shutdown-time-seconds", "8", "true"),
    )
    assert (options.stall_warning, options.deadline) == (7, 8)
