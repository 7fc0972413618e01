"""ringar on CuPy arrays: the collectives, and `scan`. CuPy is loaded when a function is called.

What users import is listed in `__init__.pyi`. The collectives are loaded when they are first
used, since they need TensorFlow, which `scan` does not.
"""

import lazy_loader

from ringar.cupy.scan import scan as scan  # now: later its module would be found by this name

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
