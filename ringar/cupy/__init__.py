"""ringar on CuPy arrays: `ringar.cupy.scan`. CuPy itself is loaded when a function is called."""

from ringar.cupy.scan import scan

__all__ = ["scan"]
