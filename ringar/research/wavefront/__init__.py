"""Stacked recurrent layers, evaluated in wavefronts.

layer.py   `Wavefront`, the Keras layer: begin here
plan.py    chunks of steps, blocks of layers, and the choice between plans
costs.py   the measured costs for that choice
stack.py   the evaluation of a stack by a plan, forward and backward
checks.py  layers and arguments that cannot be stacked, ranks that disagree
"""

from ringar.research.wavefront.layer import Wavefront
from ringar.research.wavefront.plan import Plan

__all__ = ["Plan", "Wavefront"]
