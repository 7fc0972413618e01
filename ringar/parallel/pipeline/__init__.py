"""Models that are cut into modules, one after the other, each on a rank of its own.

A batch goes forward from module to module, and its gradient goes back:

    model.py     `Pipelined`, the Keras model: begin here
    module.py    the work of one module: receive, compute, send, keep what is in flight
    schedule.py  how old the gradients of a module are, and the order of its work
    cut.py       where a model can be cut, what crosses a cut, the network of a module
    balance.py   cuts that make all modules take equally long
    batch.py     what a step works on
    messages.py  what crosses a cut, in one message
    metrics.py   the loss and the metrics, computed in the last module, known to all
    state.py     the plain model out of the modules, and back
    callback.py  what keeps the ranks together during `fit`
    refusals.py  what cannot be trained in modules
"""

from ringar.parallel.pipeline.model import Pipelined

__all__ = ["Pipelined"]
