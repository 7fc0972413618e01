"""Run a function on ranks: `ringar.run`, and the ranks of executors."""
