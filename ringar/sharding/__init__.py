"""Grids of ranks, and the axis along which each variable is cut.

`ringar.keras` and `ringar.parallel` both use this package. `ringar.keras` does not know how a model
is cut.
"""
