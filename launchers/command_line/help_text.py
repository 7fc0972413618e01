"""What `ringarrun --help` and `--help-all` say beside the options."""

#: What `--help` prints: one screen of 24 lines with 80 columns. `--help-all` has the details.
SUMMARY = """\
usage: ringarrun -np N [options] [--] train.py | program [argument ...]
       ringarrun -np N [options] -m package.module [argument ...]

Start a script, a module or a program on N ranks, and end them together.
  ringarrun -np 4 train.py --epochs 3           4 ranks on this machine
  ringarrun -H h1:4,h2:4 -m package.train       8 ranks on two hosts

ranks    -np N                   number of ranks (default: slots of all hosts)
         -x NAME[=VALUE]         set a variable, or pass on the one set here
         --bind-to core|numa|none, --gpus each|all, --max-failures N
elastic  --min-np N, --max-np N, --host-discovery-script PROGRAM,
         --reset-limit N, --elastic-timeout S, --elastic-dir DIR
hosts    -H HOST:N,...           hosts, and how many ranks each takes
         --hostfile FILE         the same, a host per line
         --launcher auto|local|ssh|mpirun|srun, --link auto|tcp|mpi,
         --network-interface NAME, --ssh-port N, --ssh-identity-file FILE,
         --ssh-command PROGRAM, --mpi-args 'ARG ...', --no-environment
output   --[no-]prefix, --output-filename DIR, --timeline-filename FILE,
         --verbose, --dry-run, --config FILE, --print-completion bash|zsh|fish
fit      --autotune, --autotune-log-file FILE, --autotune-settings-file FILE
seconds  --start-timeout, --deadline, --stall-warning, --failure-grace,
         --kill-grace
about    --help, --help-all: in detail, --check-build, --calibrate, --version
"""

DESCRIPTION = """\
Start a Python script, a Python module or a program on N ranks, show their output, and end them
together.
"""

EPILOG = """\
examples:
  ringarrun -np 4 train.py --epochs 3
  ringarrun -np 2 -m package.train --epochs 3
  ringarrun -np 2 -x TF_CPP_MIN_LOG_LEVEL=2 --output-filename logs -- train.sh
  ringarrun --check-build

what the ranks run:
  A file that ends in .py, and a module after -m, run with the Python of ringarrun. Any other word
  is a program: ringarrun -np 2 python train.py runs the first python in PATH.

what the ranks get:
  The environment of ringarrun, what -x adds, PYTHONUNBUFFERED=1 unless it is set, and RINGAR_RANK,
  RINGAR_SIZE and so on, which ringar.init() reads. Rank 0 reads the standard input of ringarrun;
  the other ranks read nothing.

output:
  Each line is shown as it was written, on the stream that it was written to, after "[rank] ". The
  progress bar of rank 0 stays alive; of the other ranks' bars only the last state of each line is
  shown.

how a job ends:
  The exit code is 0 if all ranks exit with 0. When a rank fails, the others are stopped (SIGTERM, 3
  seconds later SIGKILL), its error is shown last and its exit code becomes that of ringarrun: 128 +
  N if signal N killed it. Ctrl-C and SIGTERM stop all ranks (exit code 130 and 143), which have
  --kill-grace seconds to save what they have; a second Ctrl-C kills them at once. Whatever the
  ranks started in the background ends with the job. 2 is a wrong command line, 126 a program that
  cannot be executed, 127 a program that is not found.
"""
