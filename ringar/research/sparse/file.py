"""The file of a sparse net: an archive of NumPy arrays that knows no partition.

For layer l it has `data_l`, `indices_l` and `indptr_l`, a SciPy CSR matrix [neurons, neurons of the
layer before], and `bias_l`; `optimizer_i` for each variable of the optimizer; and `about`, a JSON
text with the number of inputs, the activations, the layers that are trained, the dtype and Keras'
config of `compile`.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ringar.keras.optimizer import DistributedOptimizer
from ringar.keras.whole_file import written_whole
from ringar.research.sparse.matrices import scipy_sparse
from ringar.sharding import slots
from ringar.sharding.slots import inner_optimizer
from ringar.sharding.whole import whole_variables

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ringar.research.sparse.net import SparseNet

FORMAT = "ringar sparse net 1"
_UNREADABLE = (
    *(ValueError, KeyError, OSError, EOFError),
    *(TypeError, AttributeError),  # from another type than an archive, such as the array of a .npy
    *(zipfile.BadZipFile, zlib.error, NotImplementedError),  # from one that is cut off or damaged
)


def arrays_of(net: SparseNet) -> dict[str, np.ndarray]:
    """Return the arrays of a net's file, on every rank. Collective over the model group."""
    matrices, biases = net.matrices(), net.biases()
    about: dict[str, Any] = {
        "format": FORMAT,
        "inputs": matrices[0].shape[1],
        "activations": net.activations,
        "trainable": [rows.trainable for rows in net.rows],
        "dtype": net.compute_dtype,
        "compile": None,
    }
    arrays: dict[str, np.ndarray] = {}
    for number, matrix in enumerate(matrices):
        for name in ("data", "indices", "indptr"):
            arrays[f"{name}_{number}"] = getattr(matrix, name)
        if biases is not None:
            arrays[f"bias_{number}"] = biases[number]
    optimizer = getattr(net, "optimizer", None)
    if optimizer is not None:
        about["compile"] = net.get_compile_config()
        for index, value in enumerate(whole_variables(optimizer)):
            arrays[f"optimizer_{index}"] = value
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    return arrays


def write(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], overwrite: bool) -> None:
    """Write a file."""
    if not overwrite and os.path.exists(path):
        raise FileExistsError(f"expected no file at {os.fspath(path)!r}; pass overwrite=True")
    with written_whole(path) as beside, open(beside, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read a file.

    Raises:
        ValueError: it is no file of a sparse net.
    """
    with open(path, "rb") as file:
        content = io.BytesIO(file.read())
    try:
        with np.load(content, allow_pickle=False) as archive:
            arrays = dict(archive)
        is_file_of_net = json.loads(arrays["about"].tobytes())["format"] == FORMAT
    except _UNREADABLE:
        is_file_of_net = False
    if not is_file_of_net:
        raise ValueError(
            "`filepath` must be a whole file that SparseNet.save has written. "
            f"Received: {os.fspath(path)!r}"
        )
    return arrays


class Saved:
    """Hold the content of a file.

    Args:
        arrays: from `read`.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays
        self._about = json.loads(arrays["about"].tobytes())
        self.activations: list[str] = self._about["activations"]
        self.trainable: list[bool] = self._about["trainable"]
        self.dtype: str = self._about["dtype"]

    @property
    def biases(self) -> list[np.ndarray] | None:
        """The biases of each layer; None if there are none."""
        numbers = range(len(self.activations))
        arrays = [self._arrays[f"bias_{n}"] for n in numbers if f"bias_{n}" in self._arrays]
        return arrays or None

    def layers(self) -> list[csr_array]:
        """Return the weights."""
        width, matrices = self._about["inputs"], []
        for number in range(len(self.activations)):
            arrays = [self._arrays[f"{name}_{number}"] for name in ("data", "indices", "indptr")]
            shape = (len(arrays[2]) - 1, width)
            matrices.append(scipy_sparse().csr_array(tuple(arrays), shape=shape))
            width = shape[0]
        return matrices

    def compile(self, net: SparseNet) -> None:
        """Compile the net as it was, if it was, with the state of its optimizer."""
        if self._about["compile"] is None:
            return
        net.compile_from_config(self._about["compile"])
        optimizer = DistributedOptimizer(inner_optimizer(net.optimizer), grid=net.grid)
        optimizer.build(net.trainable_variables)
        pairs = zip(net.optimizer.variables, slots.cuts(net.optimizer), strict=True)
        for index, (slot, cut) in enumerate(pairs):
            value = self._arrays.get(f"optimizer_{index}")
            if value is not None:  # an optimizer that was not built had none
                slot.assign(value if cut is None else cut.part(value))
