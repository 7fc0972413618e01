"""The names of `ringar.horovod.tensorflow.keras.callbacks`."""

from ringar.horovod.tensorflow.keras.callbacks import *  # noqa: F403
from ringar.horovod.tensorflow.keras.callbacks import __all__ as __all__
