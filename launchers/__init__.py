"""The launcher, `ringarrun`: it starts the ranks of a job, watches them and ends them together.

A job takes one way through these files. The request becomes a choice, and the choice a plan; plans
are plain data:

    options.py -> request.py -> choose.py (launcher, hosts, number of ranks)
        -> plan.py (program.py) -> fork.py
        -> mpi_plan.py (openmpi.py, hydra.py, srun.py) -> preflight.py -> supervisor.py
             -> mpirun or srun -> on each host, for each rank: guard.py

No file here imports TensorFlow, NumPy or MPI: a job starts within a fraction of a second.
"""
