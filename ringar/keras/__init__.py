"""ringar for Keras 3: the distributed optimizer, the gradient tape and the callbacks."""

from ringar.keras import callbacks
from ringar.keras.optimizer import DistributedOptimizer
from ringar.keras.tape import DistributedGradientTape

__all__ = ["DistributedGradientTape", "DistributedOptimizer", "callbacks"]
