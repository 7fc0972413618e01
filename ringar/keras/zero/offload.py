"""Slots of an optimizer that lie elsewhere than the model: in the host's memory, or in a file.

With `offload="memory"` slots are variables of the CPU, while the model is on a GPU. On a CPU that
changes nothing.

With `offload="disk"` a rank keeps its slots in a file. For each slot that the optimizer needs, the
step reads the file, and what the optimizer assigns is written back, by Keras' own formulas; no more
than the slots of a few variables are in memory at a time. The file is read and written by position
and is not mapped: then no page of it belongs to the process, and a full disk is an error instead of
a signal. Its room is reserved when slots are made. It has no name, so that it vanishes with the
process, however that ends.

A step in a graph reads and writes in the order of the program: each read and write takes a turn, a
variable that the one before has assigned. So slots are read one after the other, and not all at the
beginning of the step.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from ringar.collectives import allgather_object
from ringar.collectives.compiled import is_compiling, is_for_gpu
from ringar.errors import UnsupportedError
from ringar.job import place
from ringar.job.process_sets import or_all
from ringar.sharding.stand_in import StandIn

if TYPE_CHECKING:
    from ringar.job.process_sets import ProcessSet

Kind = Literal["memory", "disk"]
"""Where slots are, if not beside the model."""

FOLDER_VARIABLE = "RINGAR_OFFLOAD_FOLDER"
"""The variable of the environment that names the folder of the files."""


class Offload:
    """Make slots in the memory of the host.

    Args:
        folder: the folder of the file, for `OnDisk`; None: that of the environment, or the system's
            folder for temporary files.
    """

    kind: Kind = "memory"

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder

    def renewed(self) -> Offload:
        """Return an offload with these settings, and without slots."""
        return type(self)(self.folder)

    def slot(self, part: Any, name: str, initializer: Any) -> Any:
        """Make a slot.

        Args:
            part: the variable that it belongs to, or the slice of one.
            name: its name.
            initializer: an initializer of Keras, its name, or a function of shape and dtype.
        """
        with tf.device("CPU:0"):
            return keras.Variable(
                initializer, shape=part.shape, dtype=part.dtype, trainable=False, name=name
            )

    def meet(self, process_set: ProcessSet | None) -> None:
        """Check that all ranks can train, once slots are there. Collective.

        Args:
            process_set: the ranks that train together.
        """
        if is_for_gpu():
            self._refuse_compiled()

    def _refuse_compiled(self) -> None:
        raise UnsupportedError(
            f'rank {place.rank()} | DistributedOptimizer(offload="{self.kind}"): expected a '
            "training step that XLA does not compile, received one that it does: compiled code "
            "reads only what is on its device. Pass jit_compile=False to `model.compile`, or leave "
            "out `offload`."
        )


class OnDisk(Offload):
    """Make slots in a file.

    Attributes:
        turn: the variable by which reads and writes of a graph follow each other.
    """

    kind = "disk"

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        if not hasattr(os, "preadv"):
            raise UnsupportedError(
                'DistributedOptimizer(offload="disk"): expected a system that reads and writes a '
                f"file at a position, such as Linux; received {sys.platform}. Leave out `offload`."
            )
        self._file: IO[bytes] | None = None
        self._bytes = 0
        self._failure: OSError | None = None
        self._has_met = True
        with tf.init_scope(), tf.device("CPU:0"):
            self.turn = tf.Variable(0, dtype=tf.int64, trainable=False)

    def slot(self, part: Any, name: str, initializer: Any) -> OnDiskSlot:
        """Make a slot, as `Offload.slot` does. `meet` reports errors of the disk."""
        shape = tuple(int(d) for d in part.shape)
        slot = OnDiskSlot(self, name, shape, keras.backend.standardize_dtype(part.dtype))
        try:
            slot.begin = self._reserve(slot.nbytes)
        except OSError as error:
            self._failure = error
        initial = keras.initializers.get(initializer)
        if not isinstance(initial, keras.initializers.Zeros):  # a new file has zeros
            with tf.init_scope():
                slot.assign(initial(shape, dtype=slot.dtype))
        return slot

    def meet(self, process_set: ProcessSet | None) -> None:
        """Check on all ranks whether each has room for its slots. Collective.

        Raises:
            OSError: on every rank, if one has no room.
            UnsupportedError: XLA compiles the step.
        """
        if is_compiling():
            self._refuse_compiled()
        if self._has_met:
            return
        self._has_met = True
        failure = None if self._failure is None else f"{self._failure} in {self._folder!r}"
        ranks = or_all(process_set)
        with tf.init_scope():
            of_ranks = allgather_object(failure, name="offload", process_set=process_set)
        texts = zip(ranks.ranks, of_ranks, strict=True)
        failures = [f"{text} (rank {rank})" for rank, text in texts if text is not None]
        if failures:
            self._has_met = False  # a later step must not begin without slots
            raise OSError(
                f'rank {place.rank()} | DistributedOptimizer(offload="disk"): expected a folder '
                f"with room for the {self._bytes} bytes of a rank's slots, received "
                f"{', '.join(failures)}; make room, or name another folder by `offload_folder` or "
                f"{FOLDER_VARIABLE}, and then make a new optimizer"
            )

    @property
    def _folder(self) -> str:
        return self.folder or os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()

    def _reserve(self, nbytes: int) -> int:
        """Reserve new bytes in the file, and return their place."""
        self._has_met = False
        begin, self._bytes = self._bytes, self._bytes + nbytes
        if self._file is None:
            # Open as long as the optimizer lives.
            self._file = tempfile.TemporaryFile(prefix="ringar-slots-", dir=self._folder)  # noqa: SIM115
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), begin, max(nbytes, 1))
        else:  # on macOS, where a full disk shows in a later step
            os.ftruncate(self._file.fileno(), self._bytes)
        return begin

    def read(self, begin: int, array: np.ndarray) -> np.ndarray:
        """Fill an array from a place in the file."""
        view = array.reshape(-1).view(np.uint8).data
        count = 0
        while self._file is not None and self._failure is None and count < len(view):
            count += os.preadv(self._file.fileno(), [view[count:]], begin + count)
        return array

    def write(self, begin: int, array: np.ndarray) -> None:
        """Write an array to a place in the file."""
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        count = 0
        while self._file is not None and self._failure is None and count < len(view):
            count += os.pwrite(self._file.fileno(), view[count:], begin + count)

    def in_turn(
        self, function: Callable[..., np.ndarray], inputs: list[tf.Tensor], dtype: str
    ) -> tf.Tensor:
        """Return the result of `function` on arrays, in a graph, after all earlier turns."""

        def take_turn(turn: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return function(*arrays), turn

        result, turn = tf.numpy_function(
            take_turn, [self.turn.read_value(), *inputs], [dtype, tf.int64]
        )
        self.turn.assign(tf.ensure_shape(turn, []))
        return result


class OnDiskSlot(StandIn):
    """Stand for a slot that lies in a file.

    Args:
        file: the file.
        name: the slot's name.
        shape: its shape.
        dtype: its dtype, as Keras spells it.

    Attributes:
        begin: its place in the file.
        nbytes: its bytes.
    """

    trainable = False
    constraint = None

    def __init__(self, file: OnDisk, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._file, self.name, self.path, self.shape, self._dtype = file, name, name, shape, dtype
        self._numpy = tf.as_dtype(dtype).as_numpy_dtype
        self.begin = 0
        self.nbytes = math.prod(shape) * np.dtype(self._numpy).itemsize

    @property
    def dtype(self) -> str:
        """The dtype, as Keras spells it."""
        return self._dtype

    @property
    def value(self) -> OnDiskSlot:
        """The slot itself, in the place of TensorFlow's variable in one of Keras."""
        return self

    @property
    def device(self) -> str:
        """The device of the host, on which the file is read."""
        return str(self._file.turn.device)

    @property
    def handle(self) -> tf.Tensor:
        """A resource on that device."""
        return self._file.turn.handle

    def read(self) -> tf.Tensor:
        """Read the slot from the file."""
        if tf.executing_eagerly():
            return tf.convert_to_tensor(self._load())
        return tf.ensure_shape(self._file.in_turn(self._load, [], self.dtype), self.shape)

    def assign(self, value: Any) -> None:
        """Write the slot to the file."""
        if tf.executing_eagerly():
            array = np.asarray(value).astype(self._numpy, copy=False)
            self._store(np.broadcast_to(array, self.shape))
            return
        tensor = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        self._file.in_turn(self._store, [tensor], self.dtype)

    # For sparse gradients, which only a single rank has.

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        """Replace rows."""
        places = tf.expand_dims(rows.indices, 1)
        self.assign(tf.tensor_scatter_nd_update(self.read(), places, rows.values))

    def scatter_add(self, rows: tf.IndexedSlices) -> None:
        """Add to rows."""
        self.assign_add(tf.convert_to_tensor(rows))

    def scatter_sub(self, rows: tf.IndexedSlices) -> None:
        """Subtract from rows."""
        self.assign_sub(tf.convert_to_tensor(rows))

    def _load(self) -> np.ndarray:
        return self._file.read(self.begin, np.zeros(self.shape, self._numpy))

    def _store(self, array: np.ndarray) -> np.ndarray:
        self._file.write(self.begin, array)
        return np.zeros((), self._numpy)


KINDS: dict[Kind, type[Offload]] = {"memory": Offload, "disk": OnDisk}


def offload_of(kind: Kind | None, folder: str | os.PathLike[str] | None) -> Offload | None:
    """Return the offload for the arguments of `DistributedOptimizer`.

    Raises:
        ValueError: an argument is out of range.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f'`offload` must be None, "memory" or "disk". Received: offload={kind!r}')
    if folder is not None and kind != "disk":
        raise ValueError(
            f'`offload_folder` needs offload="disk". Received: offload={kind!r}, '
            f"offload_folder={folder!r}"
        )
    return None if kind is None else KINDS[kind](None if folder is None else os.fspath(folder))
