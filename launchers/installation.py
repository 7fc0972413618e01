"""The version of ringar that is installed here, and how another host gets the same."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from urllib.parse import unquote, urlsplit


def ringar_version() -> str:
    """Return the version of this package."""
    try:
        from ringar.version import __version__
    except ImportError:
        return "(version unknown)"
    return str(__version__)


def ringar_source() -> str:
    """Return the argument of `pip install` for this ringar, which is on no package index."""
    # A checkout may hold metadata of builds beside that of the installation.
    copies = importlib.metadata.distributions(name="ringar")
    urls = (copy.read_text("direct_url.json") for copy in copies)
    record = next(filter(None, urls), "{}")
    source = json.loads(record)
    url = urlsplit(source.get("url", ""))
    if not url.path:
        return f"ringar-{ringar_version()}-….whl (make wheel, in a checkout)"
    if "vcs_info" in source:
        return shlex.quote(f"{source['vcs_info']['vcs']}+{source['url']}")
    path = shlex.quote(unquote(url.path))
    return f"--editable {path}" if source.get("dir_info", {}).get("editable") else path
