"""The names of Horovod that `ringar.horovod` lacks, with the reasons.

A script that uses one gets an AttributeError with the reason, and an import of one an ImportError.
docs/migrate-from-horovod.md has the same names; `tests/horovod/test_names.py` compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import NoReturn

_FRAMEWORK = "ringar trains models of Keras 3 and TensorFlow only; "
_TORCH = f"{_FRAMEWORK}for PyTorch stay with horovod.torch, or take torchrun and torch.distributed"
_MXNET = f"{_FRAMEWORK}for MXNet stay with horovod.mxnet"
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
_LAUNCHER = (
    "it is a part of Horovod's launcher; call ringar.horovod.run, or start horovodrun or ringarrun"
)
_LOADERS = "it loads data for PyTorch; build a tf.data.Dataset"
_NOTIFIED = "no thread of Horovod's notifies a state: each commit asks the launcher"

#: By module below `horovod`, "" for itself: the name, and why it is absent.
ABSENT: dict[str, dict[str, str]] = {
    "": {
        "torch": _TORCH,
        "mxnet": _MXNET,
        "spark": _SPARK,
        "ray": _RAY,
        "data": _LOADERS,
    },
    "common": {"basics": _BASICS},
    "common.elastic": {"notification_manager": _NOTIFIED},
    "runner": {"common": _LAUNCHER},
    "tensorflow": {"BroadcastGlobalVariablesHook": _TF1},
    "tensorflow.data": {"compute_service": _DATA, "compute_worker": _DATA},
}


_PACKAGE = "ringar.horovod"


def _reason(module: str, name: str) -> str | None:
    """Return why a module of this package lacks a name; None: no name of Horovod's."""
    why = ABSENT.get(module.removeprefix(_PACKAGE).removeprefix("."), {}).get(name)
    return why and f"{module} has no {name}: {why}"


def getter(module: str) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which tells why a name is absent.

    Args:
        module: its `__name__`.
    """

    def __getattr__(name: str) -> NoReturn:  # Python's name
        reason = _reason(module, name)
        raise AttributeError(reason or f"module {module!r} has no attribute {name!r}")

    return __getattr__


class _Finder(MetaPathFinder):
    """Say why a module of Horovod is absent, where no other finder knows it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise an ImportError with the reason; Python hides a ModuleNotFoundError of `from`."""
        module, _, name = fullname.rpartition(".")
        if fullname.startswith(f"{_PACKAGE}.") and (reason := _reason(module, name)):
            raise ImportError(reason, name=fullname)


def explain_imports() -> None:
    """Let imports of absent modules raise an ImportError with the reason."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
