"""A rank of `ringar.run`, or of an executor: it receives functions, calls them, sends the outcomes.

The launcher starts it like any module (`ringarrun -np N ... -m ringar.launchers.function.worker`).
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from types import TracebackType

import cloudpickle

from ringar.job import membership
from ringar.launchers.function import executable
from ringar.launchers.function.rendezvous import Client, Outcome
from ringar.launchers.start import guard, member_path


def main() -> None:
    """Run the functions of the caller on this rank; raise their error."""
    rank = int(os.environ.get("RINGAR_RANK") or guard.place(os.environ).rank)
    executable.rank = rank
    sys.path += member_path.take_modules()
    client = Client(rank)
    for message in client.messages():
        try:
            value = _call(message, rank)
        except BaseException as error:
            if isinstance(error, SystemExit) and membership.is_elastic():
                raise  # this rank leaves, or has come too late to take part
            client.send(Outcome(_trace(error), _pickled(error), membership.last_place()))
            # Raised, so that the rank ends as a script does. The caller shows the traceback.
            sys.excepthook = _print_last_line
            if isinstance(error, SystemExit):
                raise RuntimeError(f"the function called sys.exit({error.code!r})") from None
            raise
        client.send(Outcome("", value, membership.last_place()))


def _call(message: bytes, rank: int) -> bytes:
    """Call the function in `message` and return its pickled result."""
    folders, packed = pickle.loads(message)
    # Modules that lie beside the caller's script.
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    function, args, kwargs = pickle.loads(packed)
    result = function(*args, **kwargs)
    try:
        return bytes(cloudpickle.dumps(result))
    except Exception as error:
        raise TypeError(
            f"rank {rank}: expected a result that can be pickled, received "
            f"{type(result).__module__}.{type(result).__qualname__}: {error}; return numbers, "
            "NumPy arrays or containers of them, such as `history.history` or "
            "`model.get_weights()`"
        ) from error


def _trace(error: BaseException) -> str:
    """Return the traceback of `error`, without the frames of this file."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _pickled(error: BaseException) -> bytes:
    """Return `error`, pickled; empty if it cannot travel, or would end the caller."""
    if not isinstance(error, Exception):
        return b""
    try:
        value = bytes(cloudpickle.dumps(error))
        pickle.loads(value)  # an exception with arguments of its own often fails here
    except Exception:
        return b""
    return value


def _print_last_line(
    kind: type[BaseException], error: BaseException, _: TracebackType | None
) -> None:
    sys.stderr.write("".join(traceback.format_exception_only(kind, error)))


if __name__ == "__main__":
    main()
