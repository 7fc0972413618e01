"""Sparse nets cut along their edges: draw them, and place their neurons on ranks.

`ringar.parallel.SparseNet` trains them.
"""

from ringar.research.sparse.generators import communities, erdos_renyi, radix_net
from ringar.research.sparse.partition import Partition, partition

__all__ = ["Partition", "communities", "erdos_renyi", "partition", "radix_net"]
