"""Choose the variables that ranks on other hosts get from the environment of the launcher.

They get all variables but those that describe this host, this login or this process: a rank on
another host has its own, or none.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringar.launchers.plan import job_plan
from ringar.launchers.start import ssh

#: The variables that stay on this host: of the host, the user's login, the shell, and the terminal.
_STAY = frozenset(
    (
        *("HOME", "HOST", "HOSTNAME", "HOSTTYPE", "MACHTYPE", "MAIL", "OLDPWD", "OSTYPE", "PWD"),
        *("LOGNAME", "SHELL", "SHLVL", "USER", "USERNAME", "TEMP", "TMP", "TMPDIR", "_"),
        *("COLUMNS", "COLORTERM", "DISPLAY", "LINES", "LS_COLORS", "STY", "TMUX", "TMUX_PANE"),
        *("TERM", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY", "container"),
    )
)
_STAY_PREFIXES = (
    *("BASH", "DBUS_", "DESKTOP_", "GNOME_", "KDE_", "PS1", "SSH_", "SUDO_", "VSCODE_", "XDG_"),
    # Of the job of a scheduler, or of the rank of an MPI, that this process is.
    *("SLURM", "PBS_", "LSB_", "PMI_", "PMIX_", "HYDRA_", "OMPI_COMM_", "PRTE_", "TORCHELASTIC_"),
)

#: With `--no-environment`: a rank may not start without these, or would compute otherwise.
_NEEDED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED")
_NEEDED_PREFIXES = (
    *("RINGAR_", "TF_", "XLA_", "KERAS_", "OMP_", "CUDA_", "NCCL_"),
    *("MPI4PY_", "OMPI_MCA_", "MPICH_", "MPIR_CVAR_", "UCX_", "FI_"),
)


def exported(
    ranks: Mapping[str, str], added: Mapping[str, str], everything: bool = True
) -> tuple[str, ...]:
    """Return the names of the variables that go to ranks on other hosts, sorted.

    Args:
        ranks: the environment of ranks on this host.
        added: the variables that the user's options set for all ranks.
        everything: False with `--no-environment`.
    """
    travels = _travels if everything else _is_needed
    names = {name for name in ranks if travels(name)}
    # Only this host calls the agent, and each guard tells its rank its place.
    names -= {ssh.VARIABLE, *job_plan.NOT_INHERITED}
    return tuple(sorted(names | set(added)))


def _travels(name: str) -> bool:
    is_name = name.replace("_", "a").isalnum()  # a function of bash is no variable to others
    return is_name and name not in _STAY and not name.startswith(_STAY_PREFIXES)


def _is_needed(name: str) -> bool:
    return name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
