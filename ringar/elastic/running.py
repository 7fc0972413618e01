"""The loop around a training: train, lose a rank, meet again, go on."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from ringar.elastic import preemption
from ringar.elastic.state import RanksChangeError, State
from ringar.errors import DeadlineError, PeerLostError
from ringar.job import log, membership, mpi_exit, native, place, start

_log = log.logger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
OfState = TypeVar("OfState", bound=State)


class GoOn(Exception):
    """Ask for another call of the training in the same world, from the last commit."""

    ag_pass_through = True


def run(
    function: Callable[Concatenate[OfState, Parameters], Result],
) -> Callable[Concatenate[OfState, Parameters], Result]:
    """Make a training function go on after ranks were lost, left or joined.

    The first argument of the function is a `ringar.elastic.State`. Before each call of it, all
    ranks have the same state. When a rank is lost, or a commit lets ranks in, the function is
    called again in the new world: it has to begin where its state says. A rank that joins runs the
    script from its beginning; `ringar.init` waits there until the others have let it in.

    Under `ringarrun` without `--min-np`, and without a launcher, the state is shared and the
    function called once. Under `mpirun --with-ft ulfm -x RINGAR_ELASTIC=1` of Open MPI 5 ranks may
    be lost, and none can join.

    Args:
        function: trains, and calls `state.commit()` from time to time.

    Returns:
        A function with the same arguments and result.

    Raises:
        SystemExit: on a rank that has received SIGTERM, after its next commit, with exit code 143.
        RankError: the launcher has ended the job; the message says why.

    Example:
    ```python
    @ringar.elastic.run
    def train(state):
        while state.epoch < 10:
            for done, (x, y) in data.batches(state.epoch, state.done):
                step(x, y)
                state.done = done
                state.commit()
            state.epoch, state.done = state.epoch + 1, 0
    ```
    """

    @functools.wraps(function)
    def call(state: OfState, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return keep_running(state, lambda: function(state, *args, **kwargs))

    return call


def keep_running(state: State, train: Callable[[], Result]) -> Result:
    """Call `train` until it returns; in between, enter the next world with `state`."""
    with preemption.noted():
        is_new = is_shared = False
        while True:
            try:
                if is_new:  # before `sync`, which gives new ranks the changes of the reset
                    state.reset()
                    is_new = False
                state.sync()
                is_shared = True
                state.require_same()
                result = train()
                state.end()
                return result
            except GoOn:
                continue
            except RanksChangeError as change:
                if change.leaves:
                    _leave()
            except Exception as error:
                if not _is_loss(error):
                    raise
                _log.warning("%s; going back to the last commit", _cause(error))
            _enter_again()
            if is_shared:  # a rank that has joined may lose a peer before it has a state
                state.restore()
            is_new = True


def _enter_again() -> None:
    config = place.require("ringar.elastic.run")
    times = {name: getattr(config, name) for name in ("deadline", "stall_warning", "start_timeout")}
    start.shutdown()
    start.init(**times)
    _log.info("this is rank %d of %d now", place.rank(), place.size())


def _leave() -> None:
    membership.leave()
    start.shutdown()
    if membership.is_by_mpi():
        mpi_exit.end_without_finalize(128 + signal.SIGTERM)
    raise SystemExit(128 + signal.SIGTERM)


def _is_loss(error: Exception) -> bool:
    """Return whether ranks can go on without the rank whose loss `error` reports.

    TensorFlow raises classes of its own; a broken process set shows that they report a loss.
    """
    if not membership.is_elastic():
        return False
    return isinstance(error, PeerLostError | DeadlineError) or bool(
        native.library().ringar_has_failed()
    )


def _cause(error: Exception) -> str:
    """Return the message of a collective, out of the text that TensorFlow has added around it."""
    text = str(error).strip()
    match = re.search(r"rank \d+ \| (.+)", text)  # the log names this rank already
    return match[1] if match else text.partition("\n")[0]
