"""A cost model of allreduce between hosts, for the choice of the algorithm.

`network` has the formulas and their sources, `choice` the tables made from them. The parameters are
measured at start (`ringar.job.link_probe`) or read from the file that RINGAR_COST_MODEL names. The
package needs NumPy alone.
"""

from ringar.job.cost_model.choice import ALGORITHMS as ALGORITHMS
from ringar.job.cost_model.choice import ALWAYS as ALWAYS
from ringar.job.cost_model.choice import Tables as Tables
from ringar.job.cost_model.choice import allreduce_seconds as allreduce_seconds
from ringar.job.cost_model.choice import bucket_bytes as bucket_bytes
from ringar.job.cost_model.choice import tables as tables
from ringar.job.cost_model.measurement import measure as measure
from ringar.job.cost_model.measurement import tables_of_job as tables_of_job
from ringar.job.cost_model.network import Network as Network
from ringar.job.cost_model.parameters import VARIABLE as VARIABLE
from ringar.job.cost_model.parameters import Parameters as Parameters
from ringar.job.cost_model.parameters import from_dict as from_dict
from ringar.job.cost_model.parameters import from_environment as from_environment
from ringar.job.cost_model.parameters import load as load
from ringar.job.cost_model.parameters import save as save

__all__ = ["Parameters", "allreduce_seconds", "load", "save"]
