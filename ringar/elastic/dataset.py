"""Data whose epochs go on where a commit was made, on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import keras
import numpy as np

from ringar.data.arrays import rows_of, take
from ringar.job import place

Data = TypeVar("Data")


class Dataset(keras.utils.PyDataset, Generic[Data]):
    """Deal out the rows of arrays to the ranks that there are.

    An epoch has an order of all rows, the same on all ranks. The first `batch_size * size()` rows
    are the first batches of all ranks, dealt out in turn, and so on, up to the last rows. So a
    number of rows tells how far an epoch has come, and any other number of ranks can go on from
    there: each row is used once per epoch.

    Every rank holds all of the arrays; they may be memory maps (`np.load(..., mmap_mode="r")`).

    Args:
        data: a NumPy array, a tensor, a pandas table, or a tuple, list or dict of these, as `fit`
            takes them: `(x, y)` or `(x, y, sample_weight)`.
        batch_size: the rows of a batch on one rank.
        shuffle: whether each epoch has an order of its own.
        seed: the seed of these orders; must be the same on all ranks.

    Raises:
        ValueError: the arrays differ in their number of rows, or `batch_size` is not positive.
    """

    def __init__(
        self, data: Data, batch_size: int, *, shuffle: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be 1 or more. Received: batch_size={batch_size}")
        self.data, self.batch_size = data, batch_size
        self.shuffle, self.seed = shuffle, seed
        self.rows = rows_of(data)
        self.go_to(0, 0)

    def go_to(self, epoch: int, done: int) -> None:
        """Continue in `epoch`, after the first `done` rows of its order."""
        self._order = (
            np.random.default_rng([self.seed, epoch]).permutation(self.rows)
            if self.shuffle
            else np.arange(self.rows)
        )
        self._begin = done

    def done_after(self, batches: int) -> int:
        """Return the rows of the epoch that are done when every rank has done `batches` more."""
        return min(self.rows, self._begin + batches * self.batch_size * place.size())

    @property
    def num_batches(self) -> int:
        """The number of this rank's batches in the rest of the epoch."""
        together = self.batch_size * place.size()
        full, rest = divmod(self.rows - self._begin, together)
        return full + int(rest > place.rank())

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> Data:
        begin, end = self.done_after(index), self.done_after(index + 1)
        return take(self.data, self._order[begin + place.rank() : end : place.size()])

    def batches(self, epoch: int, done: int = 0) -> Iterator[tuple[int, Data]]:
        """Yield this rank's batches of an epoch, for a training loop of your own.

        Args:
            epoch: the number of the epoch, which decides the order.
            done: the rows of it that were done before.

        Yields:
            The rows that are done after this batch, on all ranks together, and the batch. All ranks
            get the same number of batches; the last one of a rank may have no rows.
        """
        self.go_to(epoch, done)
        index = 0
        while self.done_after(index) < self.rows:
            yield self.done_after(index + 1), self[index]
            index += 1
