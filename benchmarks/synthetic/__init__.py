"""Synthetic gradients: accuracy, and the progress of a job while one of its ranks is stopped."""
