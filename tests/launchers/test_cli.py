from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringar.launchers.check_build import findings
from tests.launchers.helpers import launch, python, shell


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
        (["-np", "2", "no-such-program"], 127, "no-such-program: expected a program to run"),
        (["-np", "2", "./no/such"], 127, "./no/such: expected a program to run"),
        (["-np", "2", "/etc/passwd"], 126, "not executable"),
        (["-np", "2", "/etc"], 126, "received a directory"),
        (["-np", "2", "--no-such-option", "true"], 2, "unrecognized arguments: --no-such-option"),
        (["-np", "2", "--deadline", "0", "true"], 2, "expected a positive number of seconds"),
        (["-np", "2", "--start-timeout", "x", "true"], 2, "expected a positive number of seconds"),
        (["-np", "2", "--bind-to", "socket", "true"], 2, "invalid choice: 'socket'"),
        (["-np", "2", "-x", "RINGAR_NOT_SET", "true"], 2, "expected a variable that is set"),
        (["-np", "2", "--output-filename", "/dev/null/x", "true"], 2, "expected a folder"),
        (["-H", "h1:0", "true"], 2, "-H: expected host:N with the number of slots, 1 or more"),
        (["--hostfile", "/no/file", "true"], 2, "--hostfile: cannot read '/no/file': No such file"),
        (["-H", "h1", "--hostfile", "/dev/null", "true"], 2, "expected -H or --hostfile, received"),
        (["-H", "h1:2,h2:2", "-np", "5", "true"], 2, "at most 4 ranks, the slots of 2 hosts (-H)"),
        (["-H", "h1", "--launcher", "local", "true"], 2, "expected hosts that are this one"),
        (["-np", "2", "--launcher", "pdsh", "true"], 2, "invalid choice: 'pdsh'"),
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
    ],
)
def test_bad_input_starts_nothing(arguments: list[str], code: int, message: str) -> None:
    result = launch(*arguments)
    assert result.returncode == code
    assert result.stderr.startswith("ringarrun: error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_program_with_a_missing_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    result = launch("-np", "2", str(program))
    assert result.returncode == 126
    assert "is the interpreter in its first line there?" in result.stderr


def test_help_names_every_option() -> None:
    text = launch("--help").stdout
    for option in (
        "-np",
        "--num-proc",
        "-x",
        "--bind-to",
        "--gpus",
        "--prefix",
        "--no-prefix",
        "--output-filename",
        "--verbose",
        "--dry-run",
        "--hosts",
        "--hostfile",
        "--launcher",
        "--network-interface",
        "--ssh-port",
        "--ssh-identity-file",
        "--ssh-command",
        "--mpi-args",
        "--failure-grace",
        "--start-timeout",
        "--deadline",
        "--stall-warning",
        "--check-build",
        "--version",
    ):
        assert option in text


def test_version() -> None:
    from ringar.version import __version__

    assert launch("--version").stdout == f"ringarrun {__version__}\n"


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

    assert numpy.found
    assert numpy.detail == np.__version__


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--check-build"],
        ["-np", "2", "true"],
        ["-np", "2", "--launcher", "mpirun", "--dry-run", "true"],
    ],
)
def test_neither_tensorflow_nor_numpy_is_imported(arguments: list[str]) -> None:
    code = f"""
import sys
from ringar.launchers.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
slow = {{"tensorflow", "keras", "numpy", "mpi4py", "asyncio", "multiprocessing"}} & set(sys.modules)
print("imported:", sorted(slow))
"""
    result = launch("-np", "1", sys.executable, "-c", code)
    assert result.stdout.splitlines()[-1] == "imported: []", result.stderr


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_arguments_of_the_program_are_its_own(separator: list[str]) -> None:
    command = python("import sys; print(sys.argv[1:])")
    own = ["-np", "5", "--verbose", "--", "-x", "--help"]
    result = launch("-np", "1", *separator, *command, *own)
    assert result.stdout == f"{own}\n"
    assert result.returncode == 0


def test_names_known_from_horovod_and_mpirun() -> None:
    for option in ("-np", "-n", "--num-proc"):
        assert launch(option, "1", *shell("echo $RINGAR_SIZE")).stdout == "1\n"
    result = launch(
        "-np",
        "1",
        "--stall-check-warning-time-seconds",
        "7",
        "--stall-check-shutdown-time-seconds",
        "8",
        *shell("echo $RINGAR_STALL_WARNING $RINGAR_DEADLINE"),
    )
    assert result.stdout == "7 8\n"
