"""The collectives, one file each with its gradient, and messages from rank to rank."""

from ringar.collectives.allgather import allgather, grouped_allgather
from ringar.collectives.allreduce import allreduce, grouped_allreduce
from ringar.collectives.alltoall import alltoall
from ringar.collectives.barrier import barrier
from ringar.collectives.broadcast import broadcast, broadcast_variables, grouped_broadcast
from ringar.collectives.empty import empty
from ringar.collectives.objects import allgather_object, broadcast_object
from ringar.collectives.ops import Average, Max, Min, Product, ReduceOp, Sum
from ringar.collectives.recv import recv
from ringar.collectives.reducescatter import grouped_reducescatter, reducescatter
from ringar.collectives.send import send
from ringar.collectives.window import Window

__all__ = [
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "Window",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "empty",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "recv",
    "reducescatter",
    "send",
]
