"""The folder and the module path of a member of a cluster, which ranks on its host share.

The cluster's manager may have brought a program's files to the member, which its host has nowhere
else. The member tells the ranks by an environment variable.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "RINGAR_MEMBER_PATH"
"""The folder that the member runs in, and behind it those in which it finds modules."""


def of_this_process() -> str:
    """Return the value of the variable for the ranks of this member."""
    return os.pathsep.join([os.getcwd(), *filter(None, sys.path)])


def folder_for(folder: str) -> str:
    """Return the folder that ranks start in: that of the member where the host lacks `folder`."""
    of_member = os.environ.get(VARIABLE, "").split(os.pathsep)[0]
    return of_member if of_member and not os.path.isdir(folder) else folder


def take_modules() -> list[str]:
    """Return where the member finds modules, and this process does not yet; remove the variable."""
    _, *folders = os.environ.pop(VARIABLE, "").split(os.pathsep)
    return [folder for folder in folders if folder not in sys.path]
