"""Process sets and `init` with communicators of mpi4py, in a job of MPI."""

from __future__ import annotations

import tensorflow as tf
from mpi4py import MPI

import ringar.horovod.tensorflow as hvd

world = MPI.COMM_WORLD
# Each rank names the set that it is in; all ranks register both.
half = hvd.ProcessSet(world.Split(color=world.rank % 2, key=-world.rank))
hvd.init(comm=world, process_sets=[half])
assert hvd.mpi_enabled()
assert hvd.mpi_threads_supported() is (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
expected = [rank for rank in range(hvd.size()) if rank % 2 == hvd.rank() % 2]
assert half.ranks == expected, half
total = hvd.allreduce(tf.constant(hvd.rank()), op=hvd.Sum, process_set=half)
assert int(total) == sum(expected)
print(f"rank {hvd.rank()} in {half.ranks}, its number {half.rank()}", flush=True)
