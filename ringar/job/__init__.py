"""Starting a job: each rank's place, its threads and GPUs, MPI, and the native library.

Nothing here needs TensorFlow to be imported, so that the launcher can use it.
"""

import lazy_loader

# The modules that users reach as `ringar.threads` and `ringar.cost_model`.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["cost_model", "threads"])
