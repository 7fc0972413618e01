"""Autotune: the search for the settings of a training step, during the first steps of `fit`.

options.py   what the user asks for, by the environment
space.py     the settings that are worth trying for a model and a job
search.py    in which order they are tried, and which stays: plain data, without ranks or clocks
bayes.py     the proposals, by Optuna
files.py     the log, and the file of settings
tuner.py     windows of steps on all ranks
fit.py       the place of all that in `fit`
"""
