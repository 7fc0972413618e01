"""Every form of a command, as `--dry-run` prints it, against a file in golden/.

After an intended change, write them anew and look at the difference:
``RINGAR_WRITE_GOLDEN=1 pytest tests/launchers/test_golden.py; git diff tests/launchers/golden``.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringar.job import nvidia
from ringar.launchers.command_line.cli import main
from ringar.launchers.plan import cpus, job_plan
from ringar.launchers.start import mpi
from tests.launchers.programs import MPICH, OPEN_MPI_4, OPEN_MPI_5, make_site

GOLDEN = Path(__file__).parent / "golden"
HOSTS = "-H h1:4,h2:4"
MPI = "--link mpi"
MPI_HOSTS = f"{MPI} {HOSTS}"
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


@dataclass(frozen=True)
class Form:
    """One command line of ringarrun ("|" is a blank inside a word), and what it meets."""

    arguments: str
    mpi: tuple[str, str] = OPEN_MPI_5
    environ: dict[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    root: bool = False
    pmi: str = "pmix pmi2"
    rdma: bool = False
    gpus: int = 0
    program: str = "python train.py"


FORMS = {
    "local": Form("-np 2"),
    "local_script": Form("-np 2", program="train.py"),
    "local_module": Form("-np 2 -m", program="package.train"),
    "openmpi_script": Form(MPI_HOSTS, program="train.py"),
    "openmpi_module": Form(f"{MPI_HOSTS} -m", program="package.train"),
    "hydra_module": Form(f"{MPI_HOSTS} --module", mpi=MPICH, program="package.train"),
    "srun_script": Form("", environ=SLURM, program="train.py"),
    "local_launcher": Form("-np 2 --launcher local"),
    "local_hosts": Form("-H localhost:3 -np 2 --deadline 60"),
    "local_gpus": Form("-np 3", gpus=2),
    "local_gpus_visible": Form("-np 2", environ={"CUDA_VISIBLE_DEVICES": "3,GPU-5d2a"}, gpus=4),
    "local_gpus_all": Form("-np 2 --gpus all", gpus=2),
    "openmpi_hosts": Form(MPI_HOSTS),
    "openmpi_root": Form(MPI_HOSTS, root=True),
    "openmpi_rdma": Form(HOSTS, rdma=True),
    "openmpi_np": Form(f"{MPI_HOSTS} -np 6"),
    "openmpi_one": Form("--link mpi -H h1"),
    "openmpi_this_host": Form("-np 2 --launcher mpirun"),
    "openmpi_hostfile": Form("--link mpi --hostfile TMP/openmpi.txt"),
    "openmpi_hostfile_horovod": Form("--link mpi --hostfile TMP/horovod.txt"),
    "openmpi_hostfile_mpich": Form("--link mpi --hostfile TMP/mpich.txt"),
    "openmpi_ipv6": Form("--link mpi -H [fe80::1]:2,[fe80::2]:2"),
    "openmpi_interface": Form(f"{MPI_HOSTS} --network-interface eth0,10.0.0.0/24"),
    "openmpi_ssh": Form(f"{MPI_HOSTS} -p 2222 -i TMP/key"),
    "openmpi_long_options": Form(
        "--link mpi --num-proc 6 --hosts h1:4,h2:4 --ssh-port 2222 --ssh-identity-file TMP/key"
    ),
    "openmpi_ssh_command": Form(f"{MPI_HOSTS} -p 2222 --ssh-command rsh", programs=("rsh",)),
    "openmpi_ssh_variable": Form(MPI_HOSTS, environ={"RINGAR_SSH": "rsh -K"}, programs=("rsh",)),
    "openmpi_mpi_args": Form(f"{HOSTS} --mpi-args=--mca|btl|tcp,self"),
    "openmpi_exports": Form(
        f"{MPI_HOSTS} -x A=one|two,three -x B -x PATH --start-timeout 9 --deadline 60 "
        "--stall-warning 5.5",
        environ={
            "B": "1",
            "TF_SET": "1",
            "OMPI_MCA_btl": "self",
            "HOME": "/root",
            "RINGAR_RANK": "3",
        },
    ),
    "openmpi_output": Form(
        f"{MPI_HOSTS} --bind-to numa --no-prefix --output-filename TMP/logs "
        "--timeline-filename TMP/t.json --failure-grace 10"
    ),
    "openmpi_gpus": Form(MPI_HOSTS, environ={"CUDA_VISIBLE_DEVICES": "0,1"}, gpus=4),
    "openmpi_gpus_all": Form(f"{MPI_HOSTS} --gpus all", gpus=4),
    "openmpi_4": Form(f"{MPI_HOSTS} -p 2222 --network-interface eth0", mpi=OPEN_MPI_4),
    "hydra_hosts": Form(MPI_HOSTS, mpi=MPICH),
    "hydra_np": Form(f"{MPI_HOSTS} -np 5", mpi=MPICH, root=True),
    "hydra_hostfile": Form("--link mpi --hostfile TMP/mpich.txt", mpi=MPICH),
    "hydra_interface": Form(f"{MPI_HOSTS} --network-interface eth0", mpi=MPICH),
    "hydra_ssh": Form(f"{MPI_HOSTS} -p 2222 -i TMP/key", mpi=MPICH),
    "hydra_ssh_command": Form(f"{MPI_HOSTS} --ssh-command rsh", mpi=MPICH, programs=("rsh",)),
    "hydra_mpi_args": Form(f"{MPI_HOSTS} --mpi-args=-print-all-exitcodes", mpi=MPICH),
    "hydra_exports": Form(f"{MPI_HOSTS} -x A=one|two,three --output-filename TMP/logs", mpi=MPICH),
    "srun_openmpi": Form("", environ=SLURM),
    "srun_mpich": Form("", mpi=MPICH, environ=SLURM),
    "srun_np": Form("-np 3", environ=SLURM),
    "srun_cpus_per_task": Form("", environ={**SLURM, "SLURM_CPUS_PER_TASK": "8"}),
    "srun_in_a_step": Form("", environ={**SLURM, "SLURM_STEP_ID": "0"}),
    "srun_options": Form(
        "-x A=one|two,three --network-interface eth0 --output-filename TMP/logs --bind-to core "
        "--mpi-args=--exclusive",
        environ=SLURM,
    ),
    "srun_interface_mpich": Form("--network-interface eth0", mpi=MPICH, environ=SLURM),
    "srun_hosts": Form(f"{HOSTS} --launcher srun"),
    "srun_outside": Form("-np 4 --launcher srun"),
    "slurm_mpirun": Form("--launcher mpirun", environ=SLURM),
    "slurm_without_pmix": Form("", environ=SLURM, pmi="pmi2 none"),
    "slurm_agent": Form(f"{MPI_HOSTS} -p 2222 --ssh-command rsh", environ=SLURM, programs=("rsh",)),
    "slurm_agent_mpich": Form(
        "--launcher mpirun", mpi=MPICH, environ={**SLURM, "RINGAR_SSH": "rsh"}, programs=("rsh",)
    ),
    "slurm_mpirun_mpich": Form("--launcher mpirun", mpi=MPICH, environ=SLURM),
    "pbs": Form(MPI, environ={"PBS_NODEFILE": "TMP/nodes.txt"}),
    "pbs_tmrsh": Form(MPI, environ={"PBS_NODEFILE": "TMP/nodes.txt"}, programs=("pbs_tmrsh",)),
    "pbs_mpich": Form(MPI, mpi=MPICH, environ={"PBS_NODEFILE": "TMP/nodes.txt"}),
    "lsf_hostfile": Form(MPI, environ={"LSB_DJOB_HOSTFILE": "TMP/nodes.txt"}),
    "lsf_mcpu_hosts": Form("-np 3", environ={"LSB_MCPU_HOSTS": "n1 2 n2 2"}),
    "lsf_blaunch": Form(
        MPI, mpi=MPICH, environ={"LSB_DJOB_HOSTFILE": "TMP/nodes.txt"}, programs=("blaunch",)
    ),
    "ssh_hosts": Form(HOSTS, mpi=("", "")),
    "ssh_module": Form(f"{HOSTS} -m", program="package.train"),
    "ssh_interface": Form(f"{HOSTS} --link tcp --network-interface eth0,10.0.0.0/24"),
    "ssh_ipv6": Form("-H [fe80::1]:2,[fe80::2]:2"),
    "ssh_options": Form(
        f"{HOSTS} -np 6 -p 2222 -i TMP/key -x A=one|two,three --output-filename TMP/logs "
        "--kill-grace 9"
    ),
    "ssh_this_host": Form("-np 2 --launcher ssh"),
    "ssh_pbs_tmrsh": Form("", environ={"PBS_NODEFILE": "TMP/nodes.txt"}, programs=("pbs_tmrsh",)),
    "ssh_slurm": Form("--link tcp", environ=SLURM),
    "ssh_slurm_srun": Form("--launcher srun --link tcp", environ=SLURM),
}

FILES = {
    "openmpi.txt": "# two hosts\nh1 slots=4 max_slots=8\nh2 slots=2\n",
    "horovod.txt": "h1 slots=4\n\nh2 slots=2\n",
    "mpich.txt": "h1:4  # the big one\nh2:2\n",
    "nodes.txt": "n1\nn1\nn2\nn2\n",
    "key": "",
    "train.py": "",
    "package/train.py": "",
}


def split(form: Form) -> list[str]:
    return [word.replace("|", " ") for word in form.arguments.split()]


def dry_run(
    form: Form, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    make_site(folder / "bin", form.mpi, form.programs, form.pmi)
    (folder / "package").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    environ = {name: value.replace("TMP", str(folder)) for name, value in form.environ.items()}
    for name in set(os.environ):
        monkeypatch.delenv(name)
    for name, value in {"PATH": f"{folder}/bin:/usr/bin:/bin", **environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", f"{folder}/bin/python")
    monkeypatch.setattr(job_plan, "new_job_id", lambda: "0123456789abcdef")
    monkeypatch.setattr(cpus, "available", lambda: [cpus.Cpu(0, 0, n, n) for n in range(4)])
    monkeypatch.setattr(nvidia, "_count", lambda: form.gpus)
    monkeypatch.setattr(mpi, "has_fast_network", lambda: form.rdma)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if form.root else 1000)
    words = [word.replace("TMP", str(folder)) for word in split(form)]
    code = main([*words, "--dry-run", *form.program.split(), "--epochs", "3"])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert code == 0
    return captured.out.replace(str(folder), "TMP")


@pytest.mark.parametrize("name", FORMS)
def test_form(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write = "RINGAR_WRITE_GOLDEN" in os.environ
    form = FORMS[name]
    line = f"$ {shlex.join(['ringarrun', *split(form)])} --dry-run {form.program} --epochs 3"
    text = f"{line}\n{dry_run(form, tmp_path, monkeypatch, capsys)}"
    path = GOLDEN / f"{name}.txt"
    if write:
        path.write_text(text)
    assert text == path.read_text(), f"{path} says otherwise; see the top of this file"


def test_every_file_has_its_form() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(FORMS)
