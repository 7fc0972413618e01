"""Benchmark of training with fewer exchanges than steps: `python -m benchmarks.asynchronous`."""
