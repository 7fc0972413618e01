"""Horovod's modules and names, for scripts that were written for Horovod.

Replace `horovod` by `ringar.horovod` in the imports of a script for TensorFlow or Keras, and
`import horovod` by `from ringar import horovod`. Names, arguments and their order, defaults and
meaning are those of Horovod 0.28; docs/migrate-from-horovod.md lists them one by one, and what
differs.
"""

from ringar.horovod import absent
from ringar.horovod.runner import run

__all__ = ["run"]

#: The version of Horovod whose names these are; scripts compare it.
__version__ = "0.28.1"

__getattr__ = absent.getter(__name__)

absent.explain_imports()
