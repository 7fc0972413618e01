"""Benchmark of jobs whose ranks may change: `python -m benchmarks.elastic`."""
