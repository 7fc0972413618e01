"""Common parts of benchmarks: the machine, jobs and their processes, tables, targets, pictures."""
