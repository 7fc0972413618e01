"""Start and end of ringar in a process: `ringar.init` and `ringar.shutdown`."""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
from collections.abc import Callable

from ringar.errors import DeadlineError, PeerLostError, UnsupportedError
from ringar.job import (
    calibration,
    gpus,
    inherited,
    log,
    membership,
    mpi,
    mpi_exit,
    mpi_survivors,
    native,
    other_launchers,
    place,
    process_sets,
    reach,
    settings,
    tcp,
    tensorflow,
    threads,
    timeline,
)
from ringar.job.one_rank.absence import Absence

_log = log.logger(__name__)
_joined: mpi.Place | None = None  # in a job that MPI has started
_has_failed = False  # whether a collective between hosts has failed for good
_has_warned = False  # about other processes that ringar does not bring together


def init(
    *,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    deadline: float | None = None,
    stall_warning: float | None = None,
    start_timeout: float | None = None,
) -> None:
    """Join the job and wait for all its ranks.

    A second call does nothing. After `ringar.shutdown` it joins anew; in an elastic job
    (`ringarrun --min-np`) the number of ranks may then be another one. In a process that a rank has
    started, such as a worker of a pool that imports the script, it does nothing but warn.

    Without a launcher the job has one rank, and all functions work. `ringarrun` starts ranks, and
    so do `mpirun` and `srun` where mpi4py is installed. Processes of other launchers (`torchrun`,
    the workers of TF_CONFIG) are jobs of one rank each, which warn of it. The ranks of the first
    job on a kind of machine also calibrate it, in 0.7 s (see RINGAR_CALIBRATION).

    Args:
        intra_op_threads: threads that one TensorFlow op may use; see `ringar.threads`.
        inter_op_threads: TensorFlow ops that may run at once.
        deadline: seconds after which a collective that waits for a rank fails (environment:
            `RINGAR_DEADLINE`; default 600).
        stall_warning: seconds after which it warns and names those ranks (`RINGAR_STALL_WARNING`;
            default 30).
        start_timeout: seconds to wait here for the other ranks (`RINGAR_START_TIMEOUT`; 120).

    Raises:
        DeadlineError: a rank did not call `init` in time.
        RankError: the launcher has ended the elastic job; the message says why.
        MismatchError: the ranks differ in ringar's version or settings, or MPI sees another number
            of ranks than the launcher has started.
        UnsupportedError: MPI has started the ranks, but cannot be used.
        ValueError: an environment variable or a time is no valid number.

    In a job that MPI has started, all ranks raise if one of them does. The message has the error of
    that rank.
    """
    if place.is_initialized():
        return
    log.set_level(os.environ)
    if (process := inherited.rank_process(os.environ)) is not None:
        _log.warning(
            "ringar.init() does nothing here: a rank, process %d, has started this process, which "
            "is none. To run it as a job of its own, start it without the variables RINGAR_….",
            process,
        )
        return
    config = place.read_config(os.environ, deadline, stall_warning, start_timeout)
    _look_for_library(config)
    if membership.is_by_launcher():
        _enter_world(config, intra_op_threads, inter_op_threads)
        return
    while not place.is_initialized():
        try:
            _meet(config, intra_op_threads, inter_op_threads)
        except PeerLostError as error:
            if not membership.is_by_mpi():
                raise
            _log.info("%s; meeting again", error)


def _look_for_library(config: native.Config) -> None:
    """Refuse a job of several ranks where there is no native library; warn if there could be one.

    Otherwise each rank would train alone.
    """
    why = native.absence()
    if why is None:
        return
    by_mpi = "RINGAR_RANK" not in os.environ and mpi.started_by_mpi(os.environ)
    if config.size > 1 or by_mpi or membership.is_by_launcher():
        raise UnsupportedError(
            f"rank {config.rank} | ringar.init: {why.refusal('a job of several ranks')}"
        )
    _tell_of_absence(why)


@functools.cache
def _tell_of_absence(why: Absence) -> None:
    level = logging.WARNING if why.is_fixable else logging.INFO
    _log.log(level, "this rank trains alone, without ringar's native library: %s", why.text())


def _meet(config: native.Config, intra_op: int | None, inter_op: int | None) -> None:
    """Join a job whose ranks the launcher, or MPI, has told."""
    global _has_failed
    joined = None
    if "RINGAR_RANK" not in os.environ and mpi.started_by_mpi(os.environ):
        joined = mpi.join(config.start_timeout)
        place.apply_mpi_place(joined, config)
    elif "RINGAR_SEGMENT_FD" in os.environ:
        config.segment_fd = inherited.memory("RINGAR_SEGMENT_FD", os.environ)
    elif "RINGAR_RANK" not in os.environ:
        _warn_of_others()
    tcp.apply(os.environ, config)
    log.set_rank(config.rank)
    if config.rank == 0:
        settings.warn_of_unknown(os.environ)
    try:
        _on_all_ranks(joined, lambda: _prepare(config, intra_op, inter_op))
        _on_all_ranks(joined, lambda: _start(config, joined))
        _has_failed = _has_failed and not membership.is_by_mpi()
    except Exception:
        if place.is_initialized():
            shutdown()
        elif joined is not None:
            mpi.leave(joined, failed=False)
        raise


def _warn_of_others() -> None:
    """Warn once if another launcher has started this process beside others."""
    global _has_warned
    start = None if _has_warned else other_launchers.of_job(os.environ)
    if start is not None:
        _has_warned = True
        _log.warning("%s", other_launchers.warning_of_rank(start))


def _on_all_ranks(joined: mpi.Place | None, step: Callable[[], None]) -> None:
    """Run a step of `init`; in a job of MPI, raise on all ranks if it fails on one."""
    error = None
    try:
        step()
    except Exception as failure:
        if joined is None:
            raise
        error = failure
    if joined is not None:
        mpi.agree(joined.communicator, error)


def _enter_world(config: native.Config, intra_op: int | None, inter_op: int | None) -> None:
    """Enter the next world of an elastic job; again, if a rank is lost before all have met."""
    # A world may have fewer ranks for a while, and this rank's threads run already.
    threads.configure(intra_op, inter_op, config.local_size)
    job, unreached = config, list[int]()
    while not place.is_initialized():
        world = membership.enter(unreached)
        config = job.copy()  # without fields of another world, such as its addresses
        place.apply_world(world, config)
        peers = tcp.apply_world(world, os.environ, config)
        log.set_rank(config.rank)
        try:
            _prepare(config, intra_op, inter_op)
            _start(config, None)
            membership.started()
        except (PeerLostError, DeadlineError) as error:
            shutdown()
            silent = reach.unreached(list(peers.values()))
            unreached = [list(peers)[number] for number in silent]
            _log.info("%s; entering again", error)


def _prepare(config: native.Config, intra_op: int | None, inter_op: int | None) -> None:
    # These steps can fail, and run before the ranks of a host wait for each other.
    threads.configure(intra_op, inter_op, config.local_size)
    gpus.configure(config.rank, config.local_rank, config.local_size)
    config.past_caches_bytes = calibration.proposal(config, os.environ)
    native.library()
    tensorflow.when_loaded("ops", _load_ops)


def _load_ops() -> None:
    if native.absence() is None:
        native.ops()


def _start(config: native.Config, joined: mpi.Place | None) -> None:
    try:
        native.check(native.library().ringar_init(ctypes.byref(config)))
    finally:
        membership.close_files()
    global _joined
    _joined = joined
    place.set_config(config)
    if config.size > 1 or "RINGAR_RANK" in os.environ:
        inherited.mark_rank()
    process_sets.begin(config.size)
    if path := os.environ.get(timeline.VARIABLE):
        timeline.record(path, config.rank, config.generation)
    library = native.library()
    if config.local_rank == 0 and library.ringar_has_calibrated():
        kind = calibration.this_kind(config.size)
        calibration.store(kind, library.ringar_past_caches_bytes())
    _log.info(
        "joined a job of %d ranks, %d of them on this host, by %s; ringar %s for %s",
        config.size,
        config.local_size,
        _link_name(config, joined),
        library.ringar_version().decode(),
        library.ringar_cpu_level().decode(),
    )


def _link_name(config: native.Config, joined: mpi.Place | None) -> str:
    if joined is not None:
        return f"MPI ({joined.link_library.name})"
    return "TCP" if config.link_addresses else "shared memory"


def shutdown() -> None:
    """Leave the job.

    Ranks that still wait for this one get a `PeerLostError`, which names it.
    """
    global _joined, _has_failed
    if not place.is_initialized():
        return
    place.set_config(None)
    process_sets.end()
    failed = bool(native.library().ringar_has_failed())
    native.library().ringar_shutdown()
    native.library().ringar_stop_timeline()
    if _joined is not None:
        _has_failed = _has_failed or failed
        mpi.leave(_joined, failed=failed)
        _joined = None
    _log.info("left the job")


def _forget() -> None:
    # A forked child (of a data loader, say) is no rank. The native library drops its engine in the
    # child by itself.
    place.set_config(None)


def _at_exit() -> None:
    code = mpi_exit.code_of_uncaught_exception() if mpi.is_in_job() else 0
    shutdown()
    native.stop_warnings()
    # The program may have caught the error, but other ranks are missing: do not exit with 0.
    if mpi.is_in_job() and (code or _has_failed):
        mpi_exit.end_without_finalize(code or 1)
    elif mpi.is_in_job() and mpi_survivors.are_left():
        mpi_exit.end_without_finalize(0)
    else:
        mpi.finalize()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget)
