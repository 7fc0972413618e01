"""The launcher, `ringarrun`: it starts the ranks of a job, watches them and ends them together.

A job takes one way through these files. The request becomes a choice, and the choice a plan; plans
are plain data:

    command_line/options.py -> plan/request.py -> start/choose.py (launcher, hosts, number of ranks)
        -> plan/job_plan.py (program.py) -> start/fork.py
        -> start/hosts_plan.py (openmpi.py, hydra.py, srun.py, spread.py) -> start/preflight.py
             -> start/supervisor.py -> one command -> on each host: start/guard.py or host_guard.py

Whatever is started, `supervise/runner.py` watches it and ends it.

No file here imports TensorFlow, NumPy or MPI: a job starts within a fraction of a second.
"""
