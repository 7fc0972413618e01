"""Training without an exchange in every step.

Functions such as `ringar.LocalSGD` take an optimizer of Keras, as `ringar.DistributedOptimizer`
does, and return it with another exchange. `compile`, `fit`, callbacks and files work as with
`DistributedOptimizer`. `ringar.Codistillation` takes a model, and exchanges between groups of
ranks.

Controls such as `ringar.SoftSync` define how a shard of a parameter server uses the pushes of
workers. The functions here replay and simulate runs of such shards in one process.
"""

from ringar.asynchronous.downpour import Downpour as Downpour
from ringar.asynchronous.gradients import Gradient, Rows
from ringar.asynchronous.local_sgd import EASGD as EASGD
from ringar.asynchronous.local_sgd import DiLoCo as DiLoCo
from ringar.asynchronous.local_sgd import LocalSGD as LocalSGD
from ringar.asynchronous.local_sgd import SlowMo as SlowMo
from ringar.asynchronous.log import Entry, staleness_histogram
from ringar.asynchronous.model_gradients import gradients_of
from ringar.asynchronous.parameter_server import ParameterServer as ParameterServer
from ringar.asynchronous.replay import replay
from ringar.asynchronous.shard import Push, Shard
from ringar.asynchronous.simulation import Gradients, simulate
from ringar.asynchronous.staleness import Asynchronous as Asynchronous
from ringar.asynchronous.staleness import BackupWorkers as BackupWorkers
from ringar.asynchronous.staleness import HardSync as HardSync
from ringar.asynchronous.staleness import SoftSync as SoftSync
from ringar.asynchronous.staleness import StalenessControl
from ringar.asynchronous.staleness import StaleSynchronous as StaleSynchronous
from ringar.asynchronous.turnstile import Turnstile

# In addition to the names that `ringar` itself exports.
__all__ = [
    "Entry",
    "Gradient",
    "Gradients",
    "Push",
    "Rows",
    "Shard",
    "StalenessControl",
    "Turnstile",
    "gradients_of",
    "replay",
    "simulate",
    "staleness_histogram",
]
