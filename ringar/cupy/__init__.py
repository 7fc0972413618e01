"""Collectives and `scan` for CuPy arrays. CuPy is imported when a function is first called.

`__init__.pyi` lists the public names. The collectives are loaded at first use, since they need
TensorFlow, which `scan` does not.
"""

import lazy_loader

from ringar.cupy.scan import scan as scan  # now, so that the name is not the module's

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
