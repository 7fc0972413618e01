"""The ways to start ranks: fork, ssh, srun, mpirun, and the guards that they start on hosts."""
