"""Models that are cut into a pipeline of modules, each on a rank of its own.

A batch goes forward from module to module, and its gradient backward:

    model.py     `Pipelined`, the Keras model: begin here
    module.py    one module: receive, compute, send, hold the batches in flight
    schedule.py  the staleness of a module's gradients, and the order of its work
    cut.py       the positions where a model can be cut, and the network of each module
    balance.py   the cuts with which all modules take equally long
    batch.py     the data of one step
    messages.py  tensors of several dtypes in one message
    synthetic.py      a module that does not wait for gradients: decoupled neural interfaces
    decoupling.py     the arguments for such modules
    synthesizers.py   the nets that predict gradients and activations
    mailboxes.py      the messages between such modules, in windows
    recording.py, replay.py   these messages again, in one process
    metrics.py   the loss and the metrics, computed in the last module, shared with all ranks
    state.py     the state of the plain model, from the modules, and back
    callback.py  the callbacks that keep the ranks together during `fit`
    checks.py    models and arguments that cannot be trained in modules
"""

from ringar.parallel.pipeline.model import Pipelined
from ringar.parallel.pipeline.synthesizers import Synthesizer

__all__ = ["Pipelined", "Synthesizer"]
