"""The names of `ringar.horovod.tensorflow.keras.elastic`."""

from ringar.horovod.tensorflow.keras.elastic import *  # noqa: F403
from ringar.horovod.tensorflow.keras.elastic import __all__ as __all__
