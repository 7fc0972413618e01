"""What the user asks for, and what follows from it, as plain data: hosts, CPUs, GPUs, ranks."""
