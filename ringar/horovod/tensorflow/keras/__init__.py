"""Horovod's functions for Keras 3: `import ringar.horovod.tensorflow.keras as hvd`."""

from ringar.horovod.tensorflow.keras import callbacks, elastic, names
from ringar.horovod.tensorflow.keras.names import *  # noqa: F403

__all__ = ["callbacks", "elastic"]
__all__ += names.__all__
