from .dataset import Dataset as Dataset
from .keras_state import KerasState as KerasState
from .running import run as run
from .state import ObjectState as ObjectState
from .state import State as State
