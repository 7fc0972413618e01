"""The launcher, ``ringarrun``: it starts the ranks of a job, watches them and ends them together.

A job walks one way through these files::

    cli.py (parse) -> plan.py (plain data) -> local.py (run and supervise)

Nothing here imports TensorFlow or NumPy: starting a job takes a fraction of a second.
"""
