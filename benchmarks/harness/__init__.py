"""What all benchmarks share: the machine, jobs and their processes, tables, targets, pictures."""
