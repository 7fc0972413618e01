"""`ParameterServer`: parameters on ranks that serve them, trained by ranks that do not wait."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType

import keras
import numpy as np

from ringar.asynchronous import server_arguments
from ringar.asynchronous.failures import Failures
from ringar.asynchronous.gradients import Gradient
from ringar.asynchronous.log import Entry
from ringar.asynchronous.mailboxes import Mailboxes
from ringar.asynchronous.partition import describe, partition
from ringar.asynchronous.replica import Replica
from ringar.asynchronous.service import Service
from ringar.asynchronous.shard import Shard
from ringar.asynchronous.shard_files import ShardFiles
from ringar.asynchronous.staleness import Asynchronous, StalenessControl
from ringar.asynchronous.turnstile import Turnstile
from ringar.collectives import allgather_object, barrier, broadcast_variables, statistics
from ringar.collectives.call import Call
from ringar.errors import DeadlineError, MismatchError, RingarError
from ringar.job import log, place
from ringar.job.process_sets import ProcessSet, add_process_set, or_all
from ringar.keras import moving_statistics
from ringar.keras.optimizer_copy import copy_of

_log = log.logger(__name__)


class ParameterServer:
    """Serve variables, sharded over ranks, to workers that pull and push without common steps.

    All ranks of the process set make it, with the same arguments. The variables are cut into
    shards of equal bytes. A thread of the rank that serves a shard applies the pushes to it, one
    at a time, with an optimizer of its own; shards know nothing of each other. A worker writes its
    gradients to memory of that rank, and reads values there (`ringar.Window`): within a host no
    rank waits for another. Between hosts a thread of ringar passes them on.

    Workers train by `ringar.Downpour`, or by `pull` and `push` in a loop of their own. Leave the
    context, or call `close`, on every rank: it returns when all workers have ended.

    Args:
        model_or_variables: a built model, whose trainable variables are served, or the variables.
            All ranks get the values of the first rank, or those in `directory`.
        optimizer: a `keras.optimizers.Optimizer` that applies pushes. Each shard has a copy.
        shards: the number of shards; default one for each rank that serves.
        servers: the ranks of the process set that serve and do not work. Default: all ranks work,
            and all serve.
        control: how a shard uses a push, by its staleness (`ringar.asynchronous`); default
            `Asynchronous()`: each push is an update.
        directory: where shards keep their state: one file for each, written at the end, and in
            between by `save_every`. A server that finds such files goes on from them.
        save_every: the number of updates after which a shard is saved; default at the end only.
        schedule: the log of another run with as many shards and workers, all of its entries. Pulls
            and pushes then wait for their turn in its order: both runs compute the same, if workers
            do the same in each step.
        log_size: how many pushes the log of each shard keeps, the newest ones. None: all, which
            `ringar.asynchronous.replay` and `schedule` need; some 150 bytes each.
        process_set: the ranks that take part; default all.
        name: that of the server, in errors; equal on all ranks.

    Attributes:
        workers: the process set of the workers.
        is_worker: whether this rank works.
        worker: the number of this worker, or -1.
        shards: the shards of this rank, by number.
        control: how shards use pushes.
        optimizer: the one whose copies the shards have.

    Raises:
        ValueError: an argument is out of range.
        MismatchError: ranks differ in variables or shards, or in their files.

    Example:
    ```python
    with ringar.ParameterServer(model, keras.optimizers.SGD(0.01), servers=[0]) as server:
        if server.is_worker:
            model.compile(ringar.Downpour(keras.optimizers.SGD(0.01), server), "mse")
            model.fit(data, callbacks=[ringar.callbacks.Distributed()])
    ```
    """

    def __init__(
        self,
        model_or_variables: keras.Model | Sequence[keras.Variable],
        optimizer: keras.optimizers.Optimizer,
        shards: int | None = None,
        servers: Sequence[int] | None = None,
        *,
        control: StalenessControl | None = None,
        directory: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        schedule: Iterable[Entry] | None = None,
        log_size: int | None = 1_000_000,
        process_set: ProcessSet | None = None,
        name: str = "parameters",
    ) -> None:
        self._deadline = place.require("ringar.ParameterServer()").deadline
        self._ranks = or_all(process_set)
        self._name = name
        self.variables = server_arguments.variables_of(model_or_variables)
        self._model = model_or_variables if isinstance(model_or_variables, keras.Model) else None
        serving, working = server_arguments.roles(servers, self._ranks.size(), process_set)
        # Otherwise a worker that waits for its own shards would block TensorFlow's threads.
        self._serves_only = servers is not None
        shards = len(serving) if shards is None else shards
        control = Asynchronous() if control is None else control
        server_arguments.check(optimizer, shards, save_every, log_size)
        self._log_size = log_size
        control.judge(len(working))  # raises, if it does not fit
        self.workers = self._worker_set(working)
        self.is_worker = self.workers.included()
        self.worker = self.workers.rank()
        descriptions = [describe(variable) for variable in self.variables]
        self._pieces = partition(descriptions, shards)
        server_arguments.check_cut(optimizer, self._pieces)
        servers_of = [serving[number % len(serving)] for number in range(shards)]
        optional = {"directory": directory, "schedule": schedule}
        options = [name for name, value in optional.items() if value is not None]
        server_arguments.agree(
            self.variables, descriptions, servers_of, control, optimizer, options, self._ranks
        )
        broadcast_variables(self.variables, self._ranks.ranks[0], process_set=process_set)
        self._mailboxes = Mailboxes(
            self._pieces, servers_of, len(working), self._ranks, f"{name}/shards"
        )
        numbers = [n for n, rank in enumerate(servers_of) if rank == self._ranks.rank()]
        values = [np.asarray(keras.ops.convert_to_numpy(v)) for v in self.variables]
        self.control, self.optimizer = control, optimizer
        self.shards = {number: self._make_shard(number, values, optimizer) for number in numbers}
        statistics.count_staleness(self)
        self._files = ShardFiles(directory, save_every, self._pieces, name)
        self._files.load(self.shards, process_set)
        rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        for shard in self.shards.values():
            shard.learning_rate = rate  # a file has what callbacks had made of it
        turnstiles = [] if schedule is None else self._turnstiles(list(schedule))
        self._service = Service(
            self._mailboxes,
            self.shards,
            working,
            self._ranks.rank(),
            turnstiles,
            self._files.after_update,
            hosts=[self._host(worker) for worker in working],
            host=self._host(self._ranks.rank()),
        )
        self._failures = Failures(process_set, "ringar.ParameterServer", f"{name}/failures")
        barrier(name=f"{name}/begin", process_set=process_set)  # all shards are published
        self._replica: Replica | None = None
        self._is_closed = False
        self._before_close: list[Callable[[], None]] = []
        self._versions: list[int] | None = None
        if self.is_worker:
            self._replica = Replica(
                self._mailboxes, descriptions, self.worker, self._deadline, name, turnstiles
            )
            self._first_versions = self._update_variables()

    @property
    def replica(self) -> Replica:
        """This worker's end of the server.

        Raises:
            MismatchError: this rank does not work.
        """
        if self._replica is None:
            raise self._refusal(
                "a rank that works, before `close`",
                "another one",
                "Ask for `server.is_worker` before training.",
            )
        return self._replica

    def pull(self) -> list[np.ndarray]:
        """Return the newest values of all variables. Any worker may call it at any time."""
        values, self._versions = self.replica.pull()
        return values

    def versions_of_variables(self) -> list[int]:
        """Return the versions of the shards that the variables of this worker have.

        A worker that has pushed before gets the newest values: its own may be older than they seem.
        """
        return self._update_variables() if self.replica.pushes else self._first_versions

    def _update_variables(self) -> list[int]:
        """Give the variables of this worker their newest values; return the shards' versions."""
        values, versions = self.replica.pull()
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)
        return versions

    def push(self, gradients: Sequence[Gradient], rate: float = 1.0) -> None:
        """Push gradients that a worker has computed from its last `pull`.

        It returns before the shards have applied them. A second push waits for that.

        Args:
            gradients: for each variable an array of its shape, None, or
                `ringar.asynchronous.Rows`: the rows that have a gradient, and their values.
            rate: a factor for the learning rate of the shards, from this push on.

        Raises:
            MismatchError: a gradient does not fit, or nothing was pulled before. Nothing is pushed.
            PeerLostError: a rank that serves has died.
            DeadlineError: a shard did not take this worker's last push in time.
        """
        if self._versions is None:
            raise self._refusal(
                "a pull before the first push", "none", "Call `pull`: a push tells its versions."
            )
        self.replica.push(gradients, self._versions, rate)

    def log(self) -> list[Entry]:
        """Return the logs of this rank's shards, each in the order of its pushes."""
        return [entry for shard in self.shards.values() for entry in shard.log]

    def staleness(self) -> collections.Counter[int]:
        """Return how many pushes of each staleness the shards of this rank have applied."""
        # Copies, each in one step of the interpreter: the service of the shards goes on counting.
        counted = (dict(shard.staleness) for shard in self.shards.values())
        return sum(map(collections.Counter, counted), collections.Counter())

    def before_close(self, act: Callable[[], None]) -> None:
        """Let `close` first call a function that pushes the gradients that are left."""
        self._before_close.append(act)

    def new_shards(
        self, values: Sequence[np.ndarray], optimizer: keras.optimizers.Optimizer
    ) -> list[Shard]:
        """Return shards like this server's, for `ringar.asynchronous.replay`.

        Args:
            values: the values of all variables when the server was made.
            optimizer: an optimizer as the server's was then. Each shard has a copy.
        """
        return [self._make_shard(number, values, optimizer) for number in range(len(self._pieces))]

    def close(self) -> None:
        """End this rank's work, and wait until all workers have ended or died.

        Gradients that this worker has left are pushed. All ranks then hold the last weights of the
        server, or their averages if its optimizer has `use_ema`, and the moving statistics of all
        workers.
        The shared memory stays until `ringar.shutdown`.

        Raises:
            DeadlineError: workers have neither ended nor pushed within the deadline.
        """
        replica = self._replica
        if replica is not None:
            for act in self._before_close:
                act()
            replica.end()
            self._replica = None
        self._wait_for_workers()
        if self._service.failure is not None:
            raise self._service.failure
        self._files.save(self.shards.values())
        self._files.release()
        if not self._is_closed:
            self._is_closed = True
            self._service.finish()
            self._take_final()
            if replica is not None:
                replica.leave()
            self._service.wait_for_readers(self._deadline)

    def _take_final(self) -> None:
        """Give all ranks the last weights, and the moving statistics of all workers."""
        descriptions = [describe(variable) for variable in self.variables]
        reader = Replica(self._mailboxes, descriptions, -1, self._deadline, self._name)
        values, workers_are_lost = reader.final()
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)
        if self._model is None:
            return
        if workers_are_lost:
            _log.warning("Workers were lost: each rank keeps its own moving statistics.")
            return
        if self.is_worker:
            moving_statistics.combine(self._model, self.workers)
        moving = [
            weight
            for weight in self._model.non_trainable_weights
            if keras.backend.is_float_dtype(weight.dtype)
        ]
        if moving:
            root = self.workers.ranks[0]
            broadcast_variables(moving, root, process_set=self._ranks)

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.close()
                return
        except RingarError as failure:
            raise self._failures.first(failure) from None
        self._leave(error)
        first = self._failures.first(error)
        if first is not error:
            raise first from None

    def _leave(self, error: BaseException) -> None:
        """Let the other ranks go on without this one, which has failed."""
        self._failures.tell(error)
        if self._replica is not None:
            with suppress(RingarError):
                self._replica.end(wait=False)
            self._replica = None
        self._files.release()

    def _wait_for_workers(self) -> None:
        while not self._service.join(0.05):
            silent = self._service.since_push.seconds()
            if silent > self._deadline:
                raise DeadlineError(
                    Call("window", name=self._name).refusal(
                        "all workers to push or end",
                        f"nothing of rank {', '.join(map(str, self._service.participants))} "
                        f"for {silent:.0f} s",
                        "If they are only slow, raise the deadline (ringar.init(deadline=...), "
                        "RINGAR_DEADLINE or ringarrun --deadline).",
                    )
                )

    def _turnstiles(self, schedule: Sequence[Entry]) -> list[Turnstile]:
        pushes: dict[int, int] = {}
        of_shards = {number: shard.taken for number, shard in self.shards.items()}
        for of_rank in allgather_object(
            of_shards, name=f"{self._name}/taken", process_set=self._ranks
        ):
            pushes |= of_rank
        server_arguments.check_schedule(schedule, pushes)
        return [Turnstile(schedule, number) for number in range(len(self._pieces))]

    def _host(self, rank: int) -> int:
        """Return the number of the host of a rank of the process set."""
        hosts = place.require("ringar.ParameterServer()").hosts
        return int(hosts[self._ranks.ranks[rank]]) if hosts else 0

    def _worker_set(self, working: Sequence[int]) -> ProcessSet:
        ranks = [self._ranks.ranks[worker] for worker in working]
        if ranks == self._ranks.ranks:
            return self._ranks
        return add_process_set(ranks)

    def _make_shard(
        self, number: int, values: Sequence[np.ndarray], optimizer: keras.optimizers.Optimizer
    ) -> Shard:
        pieces = self._pieces[number]
        return Shard(
            number,
            [np.array(piece.of(values[piece.variable])) for piece in pieces],
            copy_of(optimizer),
            self.control,
            self.workers.size(),
            [piece.name for piece in pieces],
            traced=self._serves_only,
            log_size=self._log_size,
            originals=[self.variables[piece.variable] for piece in pieces],
        )

    def check_variables(self, variables: Sequence[keras.Variable] | None) -> None:
        """Raise a MismatchError unless these are the variables that are served, in this order."""
        listed = list(variables or ())
        if [id(variable) for variable in listed] != [id(variable) for variable in self.variables]:
            raise self._refusal(
                f"an optimizer of the {len(self.variables)} variables that are served",
                f"one of {len(listed)}: {', '.join(describe(v).name for v in listed[:5])}",
                "Make the server of the model that is trained.",
            )

    def _refusal(self, expected: str, received: str, remedy: str) -> MismatchError:
        return MismatchError(Call("window", name=self._name).refusal(expected, received, remedy))
