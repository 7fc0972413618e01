"""Ranks as a grid, and which variable is cut along which axis of it.

Keras' part of ringar and the ways of cutting a model both ask here, and neither asks the other.
"""
