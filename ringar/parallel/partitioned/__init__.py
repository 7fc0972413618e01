"""Layers on images that are cut into tiles over the ranks of a model group.

`halo` is the exchange before each layer, `reach` the arithmetic that it follows, `crossing` the
ways into and out of a plane; `layer` has the bases of all layers.
"""
