"""The argument of `ringar_init`: this rank's place, deadlines, links and tables."""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringar.job.cost_model import Tables


def int64s(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Return a C array of integers."""
    return (ctypes.c_int64 * len(values))(*values)


class Config(ctypes.Structure):
    """Mirror `ringar_config` of ringar.h."""

    _fields_ = [
        *[
            (name, ctypes.c_int32)
            for name in (
                "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
                "segment_fd",
            )
        ],
        *[(name, ctypes.c_double) for name in ("start_timeout", "deadline", "stall_warning")],
        ("hosts", ctypes.POINTER(ctypes.c_int32)),
        ("link_library", ctypes.c_char_p),
        ("link_communicator", ctypes.c_void_p),
        ("algorithm", ctypes.c_char_p),
        ("recursive_doubling_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("recursive_doubling_count", ctypes.c_int32),
        ("halving_doubling_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("bucket_bytes", ctypes.c_int64),
        ("generation", ctypes.c_int32),
        ("link_listener", ctypes.c_int32),
        ("link_addresses", ctypes.c_char_p),
        ("link_secret", ctypes.c_char_p),
        ("cuda_library", ctypes.c_char_p),
        ("nccl_library", ctypes.c_char_p),
        ("past_caches_bytes", ctypes.c_int64),
        ("news_fd", ctypes.c_int32),
    ]  # fmt: skip

    def copy(self) -> Config:
        """Return a copy, which keeps the memory that this one refers to."""
        copy = Config.from_buffer_copy(self)
        copy._source = self
        return copy

    def set_hosts(self, hosts: Sequence[int]) -> None:
        """Set the number of each rank's host."""
        self.hosts = (ctypes.c_int32 * len(hosts))(*hosts)

    def set_link(
        self, hosts: Sequence[int], library: pathlib.Path, communicator: int, tables: Tables
    ) -> None:
        """Set the fields that only a job of MPI needs: the hosts and the link between them."""
        self.set_hosts(hosts)
        self.link_library = str(library).encode()
        self.link_communicator = communicator
        self.set_tables(tables)

    def set_tables(self, tables: Tables) -> None:
        """Set the sizes up to which each algorithm is best, and the size of buckets."""
        self.recursive_doubling_bytes = int64s(tables.recursive_doubling)
        self.halving_doubling_bytes = int64s(tables.halving_doubling)
        self.recursive_doubling_count = len(tables.recursive_doubling)
        self.bucket_bytes = tables.bucket_bytes
