"""Sharding of data: every rank gets a share.

Elements are dealt out in turn: of `size()` consecutive elements, rank r gets the r-th. The k-th
batches of all ranks together are one contiguous block of the data. One process with a batch size
`size()` times as large would take the same block, the last one included, so training gives the same
results.
"""

from ringar.data.adapt import adapt
from ringar.data.share import shard

__all__ = ["adapt", "shard"]
