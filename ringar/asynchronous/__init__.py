"""Training without an exchange in every step.

Each function takes an optimizer of Keras, as `ringar.DistributedOptimizer` does, and returns it
with another way of exchanging. `compile`, `fit`, callbacks and files work as with that one.
"""

from ringar.asynchronous.local_sgd import EASGD, DiLoCo, LocalSGD, SlowMo

__all__ = ["EASGD", "DiLoCo", "LocalSGD", "SlowMo"]
