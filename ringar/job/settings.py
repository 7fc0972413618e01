"""All variables of the environment whose names begin with RINGAR_, in one table.

docs/reference/settings.md is made of it. `warn_of_unknown` warns users of names without a reader.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

from ringar.job import log

_log = log.logger(__name__)

PREFIX = "RINGAR_"

#: The prefix of variables that the tests of ringar set.
_OF_TESTS = PREFIX + "TEST_"


class Setting(NamedTuple):
    """Describe a variable.

    Attributes:
        name: the variable, without its prefix.
        values: its type, or its words.
        default: the value without it; "": none.
        reader: the module that reads it, in `ringar`, or the file in `tf_ops`.
        meaning: one sentence.
    """

    name: str
    values: str
    default: str
    reader: str
    meaning: str


#: Variables that users may set. Numbers of bytes and of ranks are equal on all ranks.
OF_USERS = (
    Setting(
        "ALGORITHM",
        "`auto`, `ring`, `recursive_doubling`, `halving_doubling`, `hierarchical`",
        "`auto`",
        "job.mpi",
        "the algorithm of allreduces between hosts",
    ),
    Setting(
        "AUTOTUNE", "0, 1", "0", "keras.tuning.options",
        "search the settings of training steps in `fit`, as `--autotune` does "
        "([Autotune](../autotune.md))",
    ),
    Setting(
        "AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "number", "20", "keras.tuning.options",
        "how many settings it tries, the defaults included",
    ),
    Setting(
        "AUTOTUNE_COMPRESSION", "0, 1", "0", "keras.tuning.options",
        "also try gradients as bfloat16 between hosts",
    ),
    Setting("AUTOTUNE_LOG", "file", "", "keras.tuning.options", "that of `--autotune-log-file`"),
    Setting(
        "AUTOTUNE_SETTINGS", "file", "", "keras.tuning.options",
        "that of `--autotune-settings-file`",
    ),
    Setting(
        "AUTOTUNE_STEPS_PER_SAMPLE", "number", "10", "keras.tuning.options",
        "the steps that a sample measures",
    ),
    Setting(
        "AUTOTUNE_WARMUP_SAMPLES", "number", "3", "keras.tuning.options",
        "samples at the beginning that do not count",
    ),
    Setting(
        "CALIBRATION", "`auto`, `off`, `again`", "`auto`", "job.calibration",
        "`auto`: what was best on this machine, or is measured now "
        "([performance](../performance/engine.md#how-it-was-reached)); `off`: the built-in "
        "default; `again`: measure anew",
    ),
    Setting(
        "COST_MODEL", "file", "", "job.cost_model.parameters",
        "JSON with the parameters of the network, in place of measuring them, or by TCP their "
        "effect, when the job starts",
    ),
    Setting(
        "CPU_LEVEL", "`avx512`, `avx2`, `baseline`", "the processor's", "engine/cpu_level.cc",
        "the most that reductions may use",
    ),
    Setting("CUDA_LIBRARY", "file", "`libcuda.so.1`", "job.nvidia", "the CUDA driver"),
    Setting(
        "DEADLINE", "seconds", "600", "job.place",
        "how long a collective waits for a rank before it fails",
    ),
    Setting(
        "ELASTIC", "0, 1", "0", "job.membership",
        "let a job of `mpirun --with-ft ulfm` go on without ranks that are lost ([several "
        "hosts](../elastic.md#several-hosts))",
    ),
    Setting(
        "GPUS", "`each`, `all`", "`each`", "job.gpus",
        "`each`: one GPU for each rank; `all`: every rank sees all",
    ),
    Setting(
        "GRACE_SCALE", "number", "1", "launchers.supervise.graces",
        "multiplies the times that `ringarrun` gives ranks to end; for tests",
    ),
    Setting(
        "INTER_OP_THREADS", "number", "the rank's CPUs", "job.threads",
        "TensorFlow ops that a rank may run at once "
        "([Threads](../performance/training.md#threads))",
    ),
    Setting(
        "INTRA_OP_THREADS", "number", "the rank's CPUs", "job.threads",
        "threads that one TensorFlow op may use",
    ),
    Setting(
        "LOG_LEVEL", "`DEBUG`, `INFO`, `WARNING`, `ERROR`, `CRITICAL`", "`WARNING`", "job.log",
        "the level of the logger `ringar` ([Messages of "
        "ringar](../running.md#messages-of-ringar))",
    ),
    Setting(
        "NCCL_LIBRARY",
        "file",
        "that of `nvidia-nccl-cu12` or `-cu13`, or the system's",
        "job.nvidia",
        "NCCL",
    ),
    Setting(
        "OFFLOAD_FOLDER", "folder", "that of temporary files", "keras.zero.offload",
        'where `DistributedOptimizer(offload="disk")` keeps files of slots ([Sharded '
        "training](../sharded.md#slots-on-disk-or-in-the-hosts-memory))",
    ),
    Setting(
        "OUTPUT_POOL", "bytes", "1 GiB", "engine/output_pool.cc",
        "results that a rank may keep in the memory that the ranks of its host share "
        "([`ringar.empty`](collectives.md)), equal on all ranks; 0: none. All ranks together "
        "take at most a quarter of the memory of the host, or of the container if it has a "
        "limit. Where less than an eighth of that is free, idle pages are given back and no "
        "new ones are taken",
    ),
    Setting(
        "PLACE_PREFIX", "text", "", "launchers.plan.job_plan",
        "what further variables begin with that the launcher sets for each rank: `HOROVOD_`, as "
        "`horovodrun` has it, gives HOROVOD_RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, CROSS_RANK, "
        "CROSS_SIZE, HOSTNAME and, in elastic jobs, ELASTIC",
    ),
    Setting(
        "SPIN_MICROSECONDS", "microseconds", "by processors", "engine/engine.cc",
        "how long a waiting rank yields before it sleeps; 0 where the ranks of a host may use "
        "fewer processors than there are ranks, by affinity or by a container's quota",
    ),
    Setting("SSH", "program", "`ssh`", "launchers.start.ssh", "takes the place of ssh"),
    Setting(
        "STALL_WARNING", "seconds", "30", "job.place",
        "when a rank that others wait for is named",
    ),
    Setting(
        "START_TIMEOUT", "seconds", "120", "job.place",
        "how long `ringar.init` waits for the other ranks",
    ),
    Setting("TIMELINE", "file", "", "job.timeline", "that of `--timeline-filename`"),
    Setting(
        "TUNING", "`name=bytes`, …", "measured", "engine/tuning.cc",
        "sizes at which the engine changes its way, and `streams=0` or `1` for one or several "
        "streams of TCP to a rank, equal on all ranks: for experiments; a host calibrates "
        "nothing then",
    ),
)  # fmt: skip

#: Variables that the launcher, or ringar in a rank, sets for ranks.
OF_THE_LAUNCHER = (
    Setting("RANK", "number", "0", "job.place", "the rank's number in the job, from 0"),
    Setting("SIZE", "number", "1", "job.place", "the number of ranks"),
    Setting("LOCAL_RANK", "number", "0", "job.place", "the rank's number on its host"),
    Setting("LOCAL_SIZE", "number", "1", "job.place", "the number of ranks on its host"),
    Setting(
        "CROSS_RANK", "number", "0", "job.place",
        "the number of its host among those that have a rank of this local number",
    ),
    Setting("CROSS_SIZE", "number", "1", "job.place", "the number of those hosts"),
    Setting(
        "SEGMENT_FD", "descriptor", "", "job.start",
        "the memory that the ranks of a host share",
    ),
    Setting(
        "LAUNCHER_PROCESS", "process", "", "job.inherited",
        "what has started the rank, and keeps that memory open for ranks whose descriptor a "
        "program between has closed",
    ),
    Setting(
        "RANK_PROCESS", "process", "", "job.inherited",
        "set by `ringar.init()` for the processes that a rank starts: which process the rank "
        "is",
    ),
    Setting(
        "BOUND_CPUS", "number", "", "job.threads",
        "how many CPUs the rank is bound to, if it is, divided by the ranks that share them",
    ),
    Setting(
        "GPUS_OF_RANKS", "`0,1;2,3`", "", "launchers.plan.gpus",
        "on a cluster: the GPUs of each rank of a host",
    ),
    Setting(
        "GPU", "number", "", "job.gpus",
        "the GPU that the rank has, as in `CUDA_VISIBLE_DEVICES`",
    ),
    Setting(
        "LISTENER_FD", "descriptor", "", "job.tcp",
        "in a job over several hosts without MPI: the socket at which the rank listens",
    ),
    Setting(
        "WORLD_FD", "descriptor", "", "job.tcp",
        "in such a job: a file with the addresses of all ranks and the secret of the job",
    ),
    Setting("ELASTIC_DIR", "folder", "", "job.membership", "that of `--elastic-dir`"),
    Setting(
        "RENDEZVOUS_FD", "descriptor", "", "job.membership",
        "in an elastic job, the socket on which a rank hears of its world; its place there "
        "has nothing to do with `RINGAR_RANK`, which is its slot",
    ),
    Setting(
        "JOB", "name", "", "launchers.supervise.janitor",
        "the job: processes that carry it end with the job",
    ),
    Setting(
        "JOB_SIZE", "number", "", "job.mpi",
        "how many ranks a job of `mpirun` or `srun` must have",
    ),
    Setting(
        "LAUNCHER", "`mpi`", "", "job.mpi",
        "there in a job that `ringarrun` has started through `mpirun` or `srun`",
    ),
    Setting(
        "MEMBER_PATH", "folders", "", "launchers.start.member_path",
        "on a cluster: the folder that an actor or a task runs in, and behind it those in "
        "which it finds modules",
    ),
    Setting(
        "RUN", "text", "", "launchers.function.rendezvous",
        "key, port and addresses of the caller of `ringar.run`, or of an executor",
    ),
    Setting(
        "SEEN_AT", "addresses", "", "launchers.start.spread",
        "where other hosts have seen that of `ringarrun`, for the process that starts the ranks",
    ),
    Setting(
        "SPREAD", "number", "", "launchers.start.host_guard",
        "which host of such a job this is, for the process that starts its ranks",
    ),
)  # fmt: skip


def names() -> set[str]:
    """Return the names of all variables."""
    return {PREFIX + setting.name for setting in (*OF_USERS, *OF_THE_LAUNCHER)}


def warn_of_unknown(variables: Iterable[str]) -> None:
    """Warn of variables that begin with RINGAR_ and have no reader.

    Args:
        variables: the names in the environment.
    """
    known_names = names()
    for name in sorted(variables):
        if name.startswith(PREFIX) and not name.startswith(_OF_TESTS) and name not in known_names:
            endings = [setting.name for setting in OF_USERS]
            close = difflib.get_close_matches(name.removeprefix(PREFIX), endings, n=1, cutoff=0.7)
            advice = f"; did you mean {PREFIX}{close[0]}?" if close else ""
            _log.warning("no variable %s is known%s", name, advice)
