"""Shares of a `keras.utils.PyDataset`, each of which is a `PyDataset`, too."""

from __future__ import annotations

from typing import Any

import keras

from ringar.data.arrays import rows_of, take
from ringar.data.deal import Deal


class Share(keras.utils.PyDataset):
    """Have this rank's batches of another dataset.

    Args:
        source: the dataset of all batches. Within an epoch its order and its number of batches stay
            the same; between epochs they change alike on all ranks.
        deal: the rule by which batches are dealt out.
    """

    def __init__(self, source: keras.utils.PyDataset, deal: Deal) -> None:
        super().__init__(
            workers=source.workers,
            use_multiprocessing=source.use_multiprocessing,
            max_queue_size=source.max_queue_size,
        )
        self.source, self.deal = source, deal
        self._last = (-1, 0)  # the number of batches, and the number of rows of the last one
        _ = self.num_batches  # too few batches are an error at once

    @property
    def num_batches(self) -> int | None:
        """The number of this rank's batches; None if there is no end."""
        count = self.source.num_batches
        return None if count is None else self._length(count)

    def __len__(self) -> int:
        count = self.num_batches
        if count is None:
            raise TypeError(f"{type(self.source).__name__} has no end, and so has no length.")
        return count

    def __getitem__(self, index: int) -> Any:
        index = index * self.deal.size + self.deal.rank
        count = self.source.num_batches
        return self.source[index if count is None else index % count]

    def on_epoch_begin(self) -> None:
        """Begin the epoch of the whole dataset."""
        self.source.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """End the epoch of the whole dataset."""
        self.source.on_epoch_end()

    def _length(self, count: int) -> int:
        return self.deal.count(count)


class Parts(Share):
    """Have this rank's rows of each batch of another dataset."""

    def __getitem__(self, index: int) -> Any:
        batch = self.source[index]
        rows = rows_of(batch)
        if not self.deal.has_part(rows):
            raise ValueError(
                f"Each batch but the last must have at least {self.deal.size} rows with "
                "`split_batches=True`, one for each rank. "
                f"Received: batch {index}, which has {rows}"
            )
        return take(batch, self.deal.part(rows))

    def _length(self, count: int) -> int:
        # The last batch may have too few rows. Loading it once is the only way to know.
        if self._last[0] != count:
            self._last = (count, rows_of(self.source[count - 1]) if count else 0)
        return count if self.deal.has_part(self._last[1]) else count - 1
