"""Train Keras 3 / TensorFlow models on all cores, GPUs and machines.

What users import is listed in `__init__.pyi`. Names are loaded when they are first used, so that
the launcher starts without TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
