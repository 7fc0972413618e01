"""The launcher, ``ringarrun``: it starts the ranks of a job, watches them and ends them together.

A job walks one way through these files. What is asked for becomes a choice, the choice a plan, and
plans are plain data::

    options.py (parse) -> choose.py (who starts the ranks, on which hosts)
        -> plan.py                         -> local.py        on this host
        -> mpi_plan.py                     -> preflight.py -> supervisor.py
           openmpi.py, hydra.py, srun.py                      -> mpirun or srun -> guard.py, per rank

Nothing here imports TensorFlow, NumPy or MPI: starting a job takes a fraction of a second.
"""
