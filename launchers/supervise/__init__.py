"""Run the processes of a job to their end: the loop, the output, signals, and the kill."""
