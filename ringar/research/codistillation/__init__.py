"""Codistillation: groups of ranks that learn from the models of other groups."""
