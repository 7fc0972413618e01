"""Training that goes on while ranks die, leave and join.

A `State` holds all that a rank needs to go on: weights, optimizer, epoch and batch. Its `commit`
keeps a copy in memory. When a rank is lost, the others go back to the last commit, meet again as a
smaller world in the same processes, and train on. New ranks get the commit from one of them.

With Keras' `fit`, `ringar.callbacks.Elastic` does all of it. Training loops of your own use `run`.
The launcher has to allow it: `ringarrun --min-np`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
