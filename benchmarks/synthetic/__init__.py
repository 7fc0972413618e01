"""Synthetic gradients: accuracy, and what becomes of a job one of whose ranks is stopped."""
