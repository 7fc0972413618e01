"""Check that all hosts can take part, before anything starts on any of them.

Each host answers the same questions. Is the interpreter there, at the same path? Can it import
ringar and, for a job of MPI, load mpi4py's MPI, and are both of the same version as here? Are the
folder and the program there? mpirun would report such faults only for the first host and in its own
words, while ranks run on others.

All hosts are asked at once, through the agent that will start the job. In an allocation of SLURM
there may be no ssh, so one srun asks all of them; outside of an allocation that srun is a job of
its own.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringar.launchers.errors import UsageError
from ringar.launchers.installation import ringar_source, ringar_version
from ringar.launchers.plan.hosts import is_this_host
from ringar.launchers.start import member_path, srun
from ringar.launchers.start.hosts_plan import HostsPlan, working_folder
from ringar.launchers.start.mpi import NONE, Mpi, identify
from ringar.launchers.start.spread import SEEN_AT_VARIABLE

#: Seconds that all hosts together have for their answers.
TIMEOUT = 60.0
_KILL_GRACE = 5.0  # seconds from SIGTERM to SIGKILL for an srun that does not answer

_MARK = "RINGAR-PREFLIGHT "

# Runs on each host, in its interpreter: no double quotes, and only syntax of Python 3.6.
# A failed import is an answer, too.
_QUESTION = f"""\
import json, os, shutil, socket, sys
folder, program, script, module, uses_mpi = sys.argv[1:]
answer = dict(
    host=os.environ.get('SLURMD_NODENAME') or socket.gethostname(),
    python='.'.join(map(str, sys.version_info[:3])),
    folder=os.path.isdir(folder) or bool(os.environ.get('{member_path.VARIABLE}')),
    program=bool(shutil.which(os.path.join(folder, program) if '/' in program else program)),
    script=not script or os.path.isfile(os.path.join(folder, script)),
    ssh=os.environ.get('SSH_CONNECTION', ''),
)
try:
    from ringar.version import __version__
    answer['ringar'] = __version__  # first: another version may lack what comes next
    import ringar.launchers.start.guard
    from ringar.launchers.plan.program import module_fault
    answer['module_fault'] = module_fault(module, [folder]) if module else ''
except Exception as error:
    answer['ringar_error'] = str(error) or repr(error)
try:
    if uses_mpi:
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        answer['mpi'] = MPI.Get_library_version()
except Exception as error:
    answer['mpi_error'] = str(error)
print('\\n{_MARK}' + json.dumps(answer), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class _Reply:
    """The reply of one host: its answer, or how the attempt ended without one."""

    answer: Mapping[str, Any] | None
    code: int = 0
    message: str = ""


def check(job: HostsPlan) -> HostsPlan:
    """Ask all hosts of `job`; return it with the addresses at which they have seen this host.

    Raises:
        UsageError: some host cannot take part; the message names each, with what to do.
    """
    job, faults = examine(job)
    if faults:
        raise refusal(faults, job)
    return job


def examine(job: HostsPlan) -> tuple[HostsPlan, dict[str, str]]:
    """Ask all hosts of `job`.

    Returns:
        The job with the addresses at which hosts have seen this one; and why a host cannot take
        part, with the remedy, by its name.
    """
    names = [host.name for host in job.start.hosts]
    if not names:
        return job, {}  # srun will ask for hosts itself, which are not known yet
    replies = _ask_all(job, names) if job.start.agent is not None else _ask_slurm(job, names)
    by_name = {name: _fault(job, name, replies[name]) for name in names}
    faults = {name: fault for name, fault in by_name.items() if fault}
    return (_with_ssh_addresses(job, replies) if job.start.agent is not None else job), faults


def refusal(faults: Mapping[str, str], job: HostsPlan) -> UsageError:
    """Return the error of a job that is not started, since hosts cannot take part."""
    return UsageError(describe(faults, job, "nothing was started"), 1)


def describe(faults: Mapping[str, str], job: HostsPlan, consequence: str) -> str:
    """Return the text that names the hosts that cannot take part."""
    count = len(job.start.hosts)
    lines = [
        f"{len(faults)} of {count} host{'' if count == 1 else 's'} cannot take part; {consequence}",
        *(f"  {name}: {fault}" for name, fault in faults.items()),
    ]
    return "\n".join(lines)


def _with_ssh_addresses(job: HostsPlan, replies: Mapping[str, _Reply]) -> HostsPlan:
    answers = [reply.answer or {} for name, reply in replies.items() if not is_this_host(name)]
    clients = [word for answer in answers for word in answer.get("ssh", "").split()[:1]]
    if not clients:
        return job
    variable = {SEEN_AT_VARIABLE: ",".join(dict.fromkeys(clients))}
    command = replace(job.command, environment={**job.command.environment, **variable})
    return replace(job, command=command, environment={**job.environment, **variable})


def _question(job: HostsPlan) -> list[str]:
    program = job.program
    words = [
        program.command[0],
        program.script,
        program.module,
        "" if job.start.mpi == NONE else "mpi",
    ]
    return [job.python, "-c", _QUESTION, working_folder(), *words]


def _ask_all(job: HostsPlan, names: Sequence[str]) -> dict[str, _Reply]:
    assert job.start.agent is not None
    # The question must look for modules and libraries where a rank does.
    forwarded = [
        f"{name}={job.environment[name]}"
        for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
        if name in job.environment
    ]
    commands = {
        name: _question(job)
        if is_this_host(name)
        else job.start.agent.command(name, ["env", *forwarded, *_question(job)])
        for name in names
    }
    processes = {name: _start(job, command) for name, command in commands.items()}
    end = time.monotonic() + TIMEOUT
    try:
        return {name: _reply(process, end) for name, process in processes.items()}
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def _start(job: HostsPlan, command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=dict(job.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _reply(process: subprocess.Popen[str], end: float) -> _Reply:
    try:
        out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return _Reply(None, -1, f"no answer in {TIMEOUT:.0f} s")
    answers = _answers(out)
    return _Reply(answers[0] if answers else None, process.returncode, _last_line(err))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _answers(out: str) -> list[Mapping[str, Any]]:
    """Return the answers in an output, which may begin with the banner of a login."""
    lines = [line.partition(_MARK) for line in out.splitlines()]
    return [json.loads(text) for _, mark, text in lines if mark]


def _ask_slurm(job: HostsPlan, names: Sequence[str]) -> dict[str, _Reply]:
    words = [
        *srun.basic(job.environment),
        *_of_a_new_job(job),
        "--mpi=none",
        f"--nodes={len(names)}",
        f"--ntasks={len(names)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(names)}",
        "--export=ALL",
    ]
    process = _start(job, [*words, *_question(job)])
    out, err = _wait_for_srun(process)
    answers = {str(answer["host"]): answer for answer in _answers(out)}
    failure = _Reply(None, process.returncode, _last_line(err) or "no answer from srun")
    return {name: _Reply(answers[name]) if name in answers else failure for name in names}


def _of_a_new_job(job: HostsPlan) -> list[str]:
    """Return more words for an srun that has to ask for an allocation: account and partition."""
    if "SLURM_JOB_ID" in job.environment:
        return []
    # An error of srun that the hosts are busy is better than an endless wait in a queue.
    return [*job.start.arguments, "--output=all", "--error=all", f"--immediate={TIMEOUT / 2:.0f}"]


def _wait_for_srun(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.terminate()  # srun then releases its allocation
    try:
        return process.communicate(timeout=_KILL_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def _fault(job: HostsPlan, name: str, reply: _Reply) -> str:
    """Return the fault of a host that cannot take part, and the remedy; "" if it can."""
    answer = reply.answer
    if answer is None:
        return _no_answer(job, name, reply)
    install = f"install the same there: {job.python} -m pip install"
    this_ringar = f"{install} {ringar_source()}"
    if "ringar" not in answer:
        return f"{job.python} cannot import ringar: {answer['ringar_error']}; {this_ringar}"
    if answer["ringar"] != ringar_version():
        return (
            f"expected ringar {ringar_version()}, as here, received {answer['ringar']}; "
            f"{this_ringar}"
        )
    if "ringar_error" in answer:
        return f"ringar there lacks a part: {answer['ringar_error']}; {this_ringar}"
    if job.start.mpi != NONE and (fault := _fault_of_mpi(job.start.mpi, answer, install)):
        return fault
    if not answer["folder"]:
        return (
            f"expected the folder {working_folder()}, which ranks start in, but it is not there; "
            "start from a folder that all hosts share"
        )
    if not answer["program"]:
        return f"expected the program {job.program.command[0]}, but it is not there; install it"
    if not answer["script"]:
        return (
            f"expected the script {job.program.script} in {working_folder()}, but it is not there; "
            "copy it, or start from a folder that all hosts share"
        )
    return str(answer["module_fault"])


def _fault_of_mpi(mpi: Mpi, answer: Mapping[str, Any], install: str) -> str:
    if "mpi" not in answer:
        return f"mpi4py does not load an MPI: {answer['mpi_error']}; {install} mpi4py"
    remote_mpi = identify(answer["mpi"])
    if _differs(remote_mpi, mpi):
        return f"expected {mpi} for mpi4py, as here, received {remote_mpi}; {install} the same MPI"
    return ""


def _differs(remote_mpi: Mpi | None, mpi: Mpi) -> bool:
    return remote_mpi is None or (remote_mpi.family, remote_mpi.major) != (mpi.family, mpi.major)


def _no_answer(job: HostsPlan, name: str, reply: _Reply) -> str:
    message = reply.message or f"exit code {reply.code}, without a word"
    if reply.code in (126, 127):
        return (
            f"expected Python at {job.python}, as here, but it does not run there: {message}; "
            "install the same environment at the same path, or share the folder"
        )
    if job.start.agent is None:
        return f"no answer through srun: {message}; try: srun --nodelist={name} true"
    if is_this_host(name):
        return f"{job.python} does not answer: {message}"
    return (
        f"cannot be reached, or gives no answer: {message}; "
        f"try: {' '.join(job.start.agent.command(name, ['true']))}"
    )
