"""Autotune: the search for the settings of a training step, during its first executions.

`options` reads the environment. `space` lists the settings that are worth
trying, `search` says in which order they are tried and which stay (plain data, without ranks or
clocks), and `bayes` proposes them, by Optuna. `files` writes the log, and the file of settings.
`tuner` measures windows of steps on all ranks, by `clock`; `fit` and `loop` are its places.
"""
