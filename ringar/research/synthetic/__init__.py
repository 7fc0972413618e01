"""Synthetic gradients outside of pipelines."""
