"""The version of ringar: the one place that names it (pyproject.toml and CMake read this file)."""

__version__ = "0.1.0.dev0"
"""Name this version of ringar."""
