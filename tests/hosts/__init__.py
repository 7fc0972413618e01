"""Several hosts on one machine, for tests and benchmarks, and the tests that run on them.

    with Hosts(4, rate_mbit=400) as hosts:
        run_on_hosts(hosts, 2, ["python", "train.py"]).check()    # 2 ranks on each

`hosts` makes and holds them, `world` is the program that does so inside, `mpi` starts jobs there,
`relay` makes a link lose, change and delay what it carries.
Each host has a network of its own behind a link of that rate, a name, and its own /dev/shm; files
are shared, as on a cluster with a file server.
"""

from tests.hosts.hosts import JUMBO_MTU, SUBNET, Host, Hosts, Traffic, unavailable
from tests.hosts.mpi import by_tcp, find_open_mpi, open_mpi, run_on_hosts
from tests.hosts.relay import Faults

__all__ = [
    "JUMBO_MTU",
    "SUBNET",
    "Faults",
    "Host",
    "Hosts",
    "Traffic",
    "by_tcp",
    "find_open_mpi",
    "open_mpi",
    "run_on_hosts",
    "unavailable",
]
