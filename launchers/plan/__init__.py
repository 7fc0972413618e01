"""The user's request and the plan for it, as plain data: hosts, CPUs, GPUs, ranks."""
