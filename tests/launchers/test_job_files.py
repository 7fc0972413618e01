"""The ready job files: that of Kubernetes against the operator's schema, both against ringarrun."""

from __future__ import annotations

import copy
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ringar.launchers.command_line import options
from ringar.launchers.plan import hosts
from ringar.launchers.start.choose import choose
from tests.launchers.programs import write
from tests.plugin.jobs import ROOT

MANIFEST = ROOT / "launchers/templates/kubernetes.yaml"
SCHEMA = Path(__file__).parent / "mpijob_schema.yaml"


@pytest.fixture
def job() -> Any:
    return pytest.importorskip("yaml").safe_load(MANIFEST.read_text())


def faults(job: Any) -> list[str]:
    """What the schema has against a manifest."""
    yaml = pytest.importorskip("yaml")
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    schema = yaml.safe_load(SCHEMA.read_text())
    # YAML reads the word None as a word, and the policy's name is that word.
    validator.check_schema(schema)
    return [error.message for error in validator(schema).iter_errors(job)]


def launcher(job: Any) -> Any:
    return job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]


def test_the_manifest_fits_the_schema(job: Any) -> None:
    assert faults(job) == []


def test_the_schema_finds_faults(job: Any) -> None:
    for path, value in (
        (("spec", "slotsPerWorker"), "4"),
        (("spec", "slots"), 4),
        (("spec", "mpiImplementation"), "Open MPI"),
        (("spec", "runPolicy", "cleanPodPolicy"), "Sometimes"),
        (("spec", "mpiReplicaSpecs", "Launcher", "replicas"), 2),
        (("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "containers"), []),
        (("apiVersion",), "kubeflow.org/v1"),
    ):
        broken = copy.deepcopy(job)
        inner = broken
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        assert faults(broken), path


def test_volumes_that_are_mounted_are_there(job: Any) -> None:
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        pod = replica["template"]["spec"]
        mounted = {
            mount["name"] for box in pod["containers"] for mount in box.get("volumeMounts", ())
        }
        assert mounted == {volume["name"] for volume in pod.get("volumes", ())}


def test_ringarrun_understands_the_launcher_command(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container's command is run, with a host file as the operator writes it."""
    hostfile = tmp_path / "hostfile"
    workers = job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    slots = job["spec"]["slotsPerWorker"]
    hostfile.write_text(
        "".join(f"train-worker-{i}.train.default.svc slots={slots}\n" for i in range(workers))
    )
    (tmp_path / "bin").mkdir()
    write(tmp_path / "bin/ssh", f'printf "%s\\n" "$*" >>{tmp_path}/asked')
    write(tmp_path / "bin/ringarrun", f'printf "%s\\n" "$@" >{tmp_path}/arguments')
    box = launcher(job)
    words = [word.replace("/etc/mpi/hostfile", str(hostfile)) for word in box["command"]]
    subprocess.run(
        [*words, *box["args"]],
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        timeout=30,
        check=True,
    )
    lines = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[-2] for line in lines] == [
        f"train-worker-{i}.train.default.svc" for i in range(workers)
    ]
    arguments = (tmp_path / "arguments").read_text().splitlines()
    request = options.request(options.parser().parse_args(arguments))
    assert choose(request, {}).launcher == "ssh"  # without MPI
    assert request.command == tuple(box["args"])
    assert request.hosts == hosts.read(hostfile)
    assert sum(host.slots for host in request.hosts) == workers * slots


def test_the_sbatch_file_is_a_script_whose_options_sbatch_has() -> None:
    path = ROOT / "launchers/templates/slurm.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    names = re.findall(r"^#SBATCH (--[a-z-]+)=", path.read_text(), re.MULTILINE)
    assert {"--nodes", "--ntasks-per-node", "--cpus-per-task", "--time"} <= set(names)
    # SLURM stops reading options at the first line that is neither empty nor a comment.
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
