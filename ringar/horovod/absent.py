"""The names of Horovod that `ringar.horovod` lacks, with the reasons.

A script that uses one gets an AttributeError, or an ImportError, with the reason.
docs/migrate-from-horovod.md has the same names; `tests/horovod/test_names.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

_FRAMEWORK = "ringar trains models of Keras 3 and TensorFlow only"
_SPARK = (
    "ringar has no estimators and stores; call functions on Spark by ringar.spark.run or "
    "run_elastic"
)
_RAY = (
    "it takes Horovod's settings; use ringar.ray.RayExecutor, which has its methods but "
    "create_settings and run_remote"
)
_TF1 = (
    "TensorFlow 2.16 and later have no tf.estimator, and Horovod itself lacks this name there; "
    "call broadcast_variables before the training"
)
_DATA = (
    "Horovod starts the service of tf.data on its own ranks; start TensorFlow's, "
    "tf.data.experimental.service.DispatchServer and WorkerServer, which it is made of"
)
_BASICS = "it loads Horovod's own library; call the functions of ringar.horovod.tensorflow"
_NOTIFIED = "no thread of Horovod's notifies a state: each commit asks the launcher"

#: By module below `horovod`, "" for itself: the name, and why it is absent.
ABSENT: dict[str, dict[str, str]] = {
    "": {"torch": _FRAMEWORK, "mxnet": _FRAMEWORK, "spark": _SPARK, "ray": _RAY},
    "common": {"basics": _BASICS},
    "common.elastic": {"notification_manager": _NOTIFIED},
    "tensorflow": {"BroadcastGlobalVariablesHook": _TF1},
    "tensorflow.data": {"compute_service": _DATA, "compute_worker": _DATA},
}


def getter(module: str) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which tells why a name is absent.

    Args:
        module: its `__name__`.
    """
    reasons = ABSENT.get(module.removeprefix("ringar.horovod").removeprefix("."), {})

    def __getattr__(name: str) -> NoReturn:  # Python's name
        if name in reasons:
            raise AttributeError(f"{module} has no {name}: {reasons[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
