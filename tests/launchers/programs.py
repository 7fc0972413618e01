"""Programs that stand in for those of a site, so that commands can be planned without one."""

from __future__ import annotations

from pathlib import Path

OPEN_MPI_5 = ("Open MPI v5.0.11, package: …", "mpirun (Open MPI) 5.0.11")
OPEN_MPI_4 = ("Open MPI v4.1.4, package: …", "mpirun (Open MPI) 4.1.4")
MPICH = (
    "MPICH Version:      5.0.2\nMPICH Release date: …",
    "HYDRA build details:\n    Version:                                 5.0.2",
)


def write(path: Path, text: str) -> None:
    """Make `path` a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def make_site(
    folder: Path, mpi: tuple[str, str], programs: tuple[str, ...] = (), pmi: str = "pmix pmi2"
) -> None:
    """Put a Python, an mpirun and an srun into `folder`, and `programs` that do nothing.

    Args:
        folder: to become the only one in PATH.
        mpi: what the MPI library of that Python says of itself, and what mpirun does.
        programs: names of more programs.
        pmi: what `srun --mpi=list` says, and what `srun --mpi=…` then accepts.
    """
    folder.mkdir()
    library, program = mpi
    write(folder / "python", f"echo '{library}'")
    write(folder / "mpirun", f"echo '{program}'")
    write(
        folder / "srun",
        f"""case "$*" in
        *--mpi=list*) echo "MPI plugin types are... {pmi}" ;;
        *) for kind in {pmi}; do case "$*" in *--mpi=$kind*) exit 0 ;; esac; done
           echo "srun: error: Invalid MPI type" >&2; exit 1 ;;
        esac""",
    )
    for name in ("ssh", *programs):
        write(folder / name, "exit 1")
