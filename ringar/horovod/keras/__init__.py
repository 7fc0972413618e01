"""Horovod's functions for Keras by itself; with Keras 3 it is the Keras of TensorFlow."""

from ringar.horovod.common.reduce_op import Adasum
from ringar.horovod.common.signatures import arranged
from ringar.horovod.keras import callbacks, elastic
from ringar.horovod.tensorflow import optimizer as _optimizer
from ringar.horovod.tensorflow.keras import names as _names
from ringar.horovod.tensorflow.keras.names import *  # noqa: F403

__all__ = ["Adasum", "callbacks", "elastic"]
__all__ += _names.__all__

DistributedOptimizer = arranged(  # Horovod has fewer arguments here
    _names.DistributedOptimizer,
    __name__,
    "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op num_groups groups process_set scale_local_gradients",
)

PartialDistributedOptimizer = _optimizer.partial(
    DistributedOptimizer, "register_local_var", __name__
)
