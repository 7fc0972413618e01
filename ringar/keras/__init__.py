"""ringar for Keras 3: the distributed optimizer, the gradient tape, the callbacks, `predict`."""

try:
    import keras as _keras
    import tensorflow as _tensorflow  # noqa: F401  # Keras' only backend that ringar serves
except ImportError as error:
    raise ImportError(
        "ringar.keras needs Keras 3.12 and TensorFlow 2.16 or later, and one of them is missing: "
        f"{error}. Install both, for example with: pip install tensorflow keras"
    ) from error

if tuple(map(int, _keras.__version__.split(".")[:2])) < (3, 12):
    raise ImportError(
        f"ringar.keras needs Keras 3.12 or later, found {_keras.__version__}. "
        "Install it, for example with: pip install 'keras>=3.12'"
    )

from ringar import hooks as _hooks
from ringar.keras import callbacks
from ringar.keras.joining import join
from ringar.keras.loading import load_model
from ringar.keras.memory import MemoryReport, MemoryRow, memory_report
from ringar.keras.optimizer import DistributedOptimizer
from ringar.keras.predict import predict
from ringar.keras.seeds import separate_seeds, set_random_seed
from ringar.keras.tape import DistributedGradientTape
from ringar.keras.tuning.loop import autotune
from ringar.keras.zero.units import gather_together, sharded_weights

__all__ = [
    "DistributedGradientTape",
    "DistributedOptimizer",
    "MemoryReport",
    "MemoryRow",
    "autotune",
    "callbacks",
    "gather_together",
    "join",
    "load_model",
    "memory_report",
    "predict",
    "separate_seeds",
    "set_random_seed",
    "sharded_weights",
]

_hooks.warn_of_gaps()
_hooks.install("train_on_batch and test_on_batch")
