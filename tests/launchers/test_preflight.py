"""The check of the hosts before the start, with an agent that plays hosts with faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ringar.launchers.errors import UsageError
from ringar.launchers.plan.hosts import Host
from ringar.launchers.plan.program import Program
from ringar.launchers.start import preflight
from ringar.launchers.start.command import Command, Start
from ringar.launchers.start.hosts_plan import HostsPlan
from ringar.launchers.start.mpi import OPEN_MPI, Mpi
from ringar.launchers.start.ssh import Agent
from ringar.version import __version__
from tests.launchers.programs import OPEN_MPI_5, write

GOOD = {
    "host": "h",
    "python": "3.11.2",
    "folder": True,
    "program": True,
    "script": True,
    "module_fault": "",
    "ringar": __version__,
    "mpi": OPEN_MPI_5[0],
}


def without(*names: str, **fields: object) -> dict[str, object]:
    return {name: value for name, value in {**GOOD, **fields}.items() if name not in names}


ANSWERS: dict[str, dict[str, object]] = {
    "good": GOOD,
    "bare": without("ringar", ringar_error="No module named 'ringar'"),
    "old": without(ringar="0.0.1", ringar_error="No module named 'ringar.launchers.start.guard'"),
    "parts": without(ringar_error="No module named 'ringar.launchers.start.guard'"),
    "nompi": without("mpi", mpi_error="No module named 'mpi4py'"),
    "othermpi": without(mpi="MPICH Version: 5.0.2"),
    "nofolder": without(folder=False),
    "noprogram": without(program=False),
    "noscript": without(script=False),
    "nomodule": without(module_fault="-m a: expected a Python module, but there is no a"),
}


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    cases = [
        f"{name}) echo Welcome; echo; echo 'RINGAR-PREFLIGHT {answer}' ;;"
        for name, values in ANSWERS.items()
        for answer in [json.dumps(values).replace("'", "'\\''")]
    ]
    other = [
        'real*) shift; exec sh -c "$*" ;;',
        "down) echo 'ssh: connect to host down port 22: No route to host' >&2; exit 255 ;;",
        "nopython) echo 'env: /opt/python: No such file or directory' >&2; exit 127 ;;",
        "slow) exec sleep 100 ;;",
        "silent) exit 0 ;;",
    ]
    write(tmp_path / "agent", "\n".join(['case "$1" in', *cases, *other, "esac"]))
    return Agent((str(tmp_path / "agent"),))


def job(
    agent: Agent,
    *names: str,
    program: str = "sh",
    script: str = "",
    module: str = "",
    python: str = sys.executable,
) -> HostsPlan:
    hosts = tuple(Host(name) for name in names)
    return HostsPlan(
        job="test",
        launcher="mpirun",
        start=Start((), len(names), hosts, (), Mpi(OPEN_MPI, "5.0.11"), agent=agent),
        command=Command(()),
        environment={"PATH": "/usr/bin:/bin"},
        python=python,
        program=Program((program,), script, module),
        failure_grace=1.0,
    )


def faults(agent: Agent, *names: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        preflight.check(job(agent, *names, script="train.py"))
    assert caught.value.code == 1
    return str(caught.value).splitlines()


def test_good_hosts(agent: Agent) -> None:
    preflight.check(job(agent, "good"))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("down", "cannot be reached, or gives no answer: ssh: connect to host down port 22: No ro"),
        ("silent", "cannot be reached, or gives no answer: exit code 0, without a word; try: "),
        ("nopython", f"expected Python at {sys.executable}, as here, but it does not run there"),
        ("bare", f"{sys.executable} cannot import ringar: No module named 'ringar'; install"),
        ("old", f"expected ringar {__version__}, as here, received 0.0.1; install"),
        (
            "parts",
            "ringar there lacks a part: No module named 'ringar.launchers.start.guard'; install",
        ),
        ("nompi", "mpi4py does not load an MPI: No module named 'mpi4py'; install"),
        ("othermpi", "expected Open MPI 5.0.11 for mpi4py, as here, received MPICH 5.0.2; install"),
        ("nofolder", "which ranks start in, but it is not there; start from a folder that all"),
        ("noprogram", "expected the program sh, but it is not there; install it"),
        ("noscript", "expected the script train.py in /"),
        ("nomodule", "-m a: expected a Python module, but there is no a"),
    ],
)
def test_each_fault_has_its_words(agent: Agent, name: str, fault: str) -> None:
    first, second = faults(agent, name)
    assert first == "1 of 1 host cannot take part; nothing was started"
    assert second.startswith(f"  {name}: ")
    assert fault in second
    assert not re.search(r"pip install ringar\b(?!-)", second)  # it is on no index


def test_all_hosts_at_fault_are_named(agent: Agent) -> None:
    first, *lines = faults(agent, "down", "good", "old", "nopython")
    assert first == "3 of 4 hosts cannot take part; nothing was started"
    assert [line.split(":")[0].strip() for line in lines] == ["down", "old", "nopython"]


def test_hosts_are_asked_at_once_and_not_for_ever(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "TIMEOUT", 1.0)
    started = time.monotonic()
    lines = faults(agent, "slow", "good", "slow2", "slow")
    assert "no answer in 1 s" in lines[1]
    assert time.monotonic() - started < 20


def test_a_host_without_mpi_is_asked_for_real(agent: Agent) -> None:
    """The question itself, in this Python: whatever the answer is, it is one."""
    try:
        preflight.check(job(agent, "real", program="no-such-program"))
    except UsageError as error:
        text = str(error)
    else:
        pytest.fail("expected a fault")
    assert "mpi4py does not load an MPI" in text or "expected the program no-such" in text


def ask(stub: Path, folder: str = "/", script: str = "", module: str = "") -> dict[str, object]:
    """What this Python answers to the question with `stub` before its other packages."""
    out = subprocess.run(
        [sys.executable, "-c", preflight._QUESTION, folder, "sh", script, module, ""],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(stub)},
        cwd=stub,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return dict(preflight._answers(out)[0])


def test_mpi_is_asked_for_only_where_ranks_use_it(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no such MPI')")
    assert not any("mpi" in key for key in ask(tmp_path))


def test_scripts_and_modules_are_looked_up_in_the_folder_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/train.py").touch()
    folder = str(tmp_path / "here")
    answer = ask(tmp_path, folder, script="train.py")
    assert (answer["script"], answer["module_fault"]) == (True, "")
    answer = ask(tmp_path, folder, script=f"{folder}/other.py", module="train")
    assert (answer["script"], answer["module_fault"]) == (False, "")
    assert "there is no train" in str(ask(tmp_path, "/", module="train")["module_fault"])


def test_an_older_ringar_without_a_guard_tells_its_version(tmp_path: Path) -> None:
    (tmp_path / "ringar/launchers").mkdir(parents=True)
    (tmp_path / "ringar/__init__.py").touch()
    (tmp_path / "ringar/version.py").write_text("__version__ = '0.0.1'\n")
    (tmp_path / "ringar/launchers/__init__.py").write_text("raise ImportError('no guard')")
    answer = ask(tmp_path)
    assert answer["ringar"] == "0.0.1"
    assert answer["ringar_error"] == "no guard"


@pytest.mark.parametrize(
    ("text", "fault"), [("raise ImportError", "ImportError()"), ("import no_such", "no_such")]
)
def test_a_ringar_that_cannot_be_imported_says_why(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "ringar").mkdir()
    (tmp_path / "ringar/__init__.py").write_text(text)
    answer = ask(tmp_path)
    assert "ringar" not in answer
    assert fault in str(answer["ringar_error"])


def srun_job(folder: Path, srun: str, *names: str, **variables: str) -> HostsPlan:
    """A job that srun starts, with an srun that does `srun`; its words go to the file `asked`."""
    write(folder / "srun", f"""printf '%s\\n' "$@" >>{folder}/asked\n{srun}""")
    plan = job(Agent(), *names)
    return replace(
        plan,
        launcher="srun",
        start=replace(plan.start, agent=None, arguments=("--partition=gpu",)),
        environment={"PATH": f"{folder}:/usr/bin:/bin", **variables},
    )


def answers_of(*hosts: str, **fields: object) -> str:
    return "\n".join(
        f"echo 'RINGAR-PREFLIGHT {json.dumps({**GOOD, **fields, 'host': host})}'" for host in hosts
    )


@pytest.mark.parametrize("variables", [{}, {"SLURM_JOB_ID": "7"}], ids=["outside", "inside"])
def test_srun_is_asked_for_all_hosts(tmp_path: Path, variables: dict[str, str]) -> None:
    preflight.check(srun_job(tmp_path, answers_of("h2", "h1"), "h1", "h2", **variables))
    words = (tmp_path / "asked").read_text().splitlines()
    assert "--nodelist=h1,h2" in words
    # Outside, srun needs what the user says of accounts and partitions, and may have to queue.
    assert ("--partition=gpu" in words) == (not variables)
    assert any(word.startswith("--immediate=") for word in words) == (not variables)


def test_an_srun_that_answers_with_another_version(tmp_path: Path) -> None:
    srun = f"{answers_of('h1')}\n{answers_of('h2', ringar='0.0.1')}"
    with pytest.raises(UsageError) as caught:
        preflight.check(srun_job(tmp_path, srun, "h1", "h2"))
    first, second = str(caught.value).splitlines()
    assert first == "1 of 2 hosts cannot take part; nothing was started"
    assert second.startswith(f"  h2: expected ringar {__version__}, as here, received 0.0.1; ")


@pytest.mark.parametrize(
    ("srun", "fault"),
    [
        ("exit 0", "no answer through srun: no answer from srun"),
        ("echo 'srun: error: nodes are busy' >&2; exit 1", "srun: error: nodes are busy"),
        ("exec sleep 100", "no answer from srun"),
    ],
)
def test_an_srun_that_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, srun: str, fault: str
) -> None:
    monkeypatch.setattr(preflight, "TIMEOUT", 0.5)
    started = time.monotonic()
    with pytest.raises(UsageError) as caught:
        preflight.check(srun_job(tmp_path, srun, "h1", "h2"))
    first, *lines = str(caught.value).splitlines()
    assert first == "2 of 2 hosts cannot take part; nothing was started"
    for name, line in zip(("h1", "h2"), lines, strict=True):
        assert fault in line
        assert line.endswith(f"; try: srun --nodelist={name} true")
    assert time.monotonic() - started < 20


def test_srun_is_not_asked_where_nobody_knows_the_hosts(tmp_path: Path) -> None:
    preflight.check(srun_job(tmp_path, "exit 1"))
    assert not (tmp_path / "asked").exists()


def test_tensorflow_is_not_imported() -> None:
    code = preflight._QUESTION.replace("os._exit(0)", "print(sorted(sys.modules))")
    out = subprocess.run(
        [sys.executable, "-c", code, "/", "sh", "", "os", "mpi"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "'ringar.launchers.start.guard'" in out
    assert "'tensorflow'" not in out
    assert "'numpy'" not in out
