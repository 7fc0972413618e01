"""The timeline of one rank, in the form of tf_ops/engine/timeline.h."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, BinaryIO

from ringar.job.one_rank.failure import UNSUPPORTED, Failure
from ringar.job.one_rank.request import Request

_MOST_MEMBERS = 32


class Timeline:
    """Write what collectives do to a file, which is valid JSON after every event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._end = 0
        self._rank = 0
        self._rows: set[int] = set()

    def start(self, path: str, rank: int) -> None:
        """Begin a file for a rank."""
        self.stop()
        with self._lock:
            try:
                self._file = open(path, "wb", buffering=0)  # noqa: SIM115
            except OSError as error:
                text = f"rank {rank} | cannot write the timeline {path}: {error.strerror}"
                raise Failure(UNSUPPORTED, text) from None
            self._end, self._rank, self._rows = 1, rank, set()
            self._file.write(b"[\n]\n")
            self._label("process_name", 0, {"name": f"rank {rank}"})
            self._row(0)
            self._label("process_sort_index", 0, {"sort_index": rank})

    def stop(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def add(self, request: Request, begin: int) -> None:
        """Add a collective that began at `begin`, in nanoseconds of the monotonic clock."""
        end = time.monotonic_ns()
        with self._lock:
            if self._file is None:
                return
            shapes = [f"[{','.join(map(str, array.shape))}]" for array in request.inputs]
            if len(shapes) > _MOST_MEMBERS:
                shapes[_MOST_MEMBERS:] = [f"and {len(shapes) - _MOST_MEMBERS} more"]
            details = {
                "bytes": request.input_bytes(),
                "dtype": request.dtype,
                "tensors": len(request.inputs),
                "members": shapes,
                "process_set": request.process_set,
                **dict.fromkeys(("copying_us", "reducing_us", "waiting_us"), 0.0),
            }
            times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
            row = self._row(request.process_set)
            self._write({"ph": "X", "tid": row, **times, "name": request.title, "args": details})

    def _row(self, process_set: int) -> int:
        if process_set not in self._rows:
            self._rows.add(process_set)
            suffix = f" of process set {process_set}" if process_set else ""
            self._label("thread_name", process_set, {"name": f"collectives{suffix}"})
        return process_set

    def _label(self, kind: str, row: int, details: dict[str, Any]) -> None:
        self._write({"ph": "M", "tid": row, "name": kind, "args": details})

    def _write(self, event: dict[str, Any]) -> None:
        assert self._file is not None
        text = json.dumps({"pid": self._rank, **event}, separators=(",", ":"))
        line = f"{',' if self._end > 1 else ''}\n{text}\n]\n".encode()
        self._file.seek(self._end)
        self._file.write(line)
        self._end += len(line) - 3
