"""The launcher, `ringarrun`: it starts the ranks of a job, watches them and ends them together.

A job walks one way through these files. What is asked for becomes a choice, the choice a plan, and
plans are plain data::

    options.py (parse) -> choose.py (who starts the ranks, on which hosts)
        -> plan.py -> local.py
        -> mpi_plan.py (openmpi.py, hydra.py, srun.py) -> preflight.py -> supervisor.py
             -> mpirun or srun -> on each host, for each rank: guard.py

Nothing here imports TensorFlow, NumPy or MPI: starting a job takes a fraction of a second.
"""
