"""The engine: runs over a store, their tasks and attempts, and what happens to all of them when the store fails.

Must not know: activations (see `activations`), requests (see `api`). It is composed of parts, each with its own invariants:
`runs` (runs, and how they change), `matching` (which worker receives which task, attempt and update), `upkeep` (runs that
nothing uses now), `schedules`, `keepers` (limits), `progress` (progress of activities), `deployments` (versions of workers).
Everything runs on one asyncio loop, and only `durable` waits: the engine is ahead of its store, and every effect waits in the
`outbox` for its change. Several connections may use one engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

import msgspec

from hourglass._contract.deployments import QueueStats
from hourglass._contract.handle import ActivityResult, HandleBroken
from hourglass._embedded.clock import Clock, RealClock
from hourglass._embedded.limits.bursts import NOTE
from hourglass._embedded.limits.keepers import Keepers
from hourglass._embedded.matching.activity_dispatch import ActivityDispatch
from hourglass._embedded.matching.deployments import Deployments
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.matching.task_dispatch import TaskDispatch
from hourglass._embedded.matching.task_queues import DispatchPolicy, TaskQueues
from hourglass._embedded.matching.update_dispatch import UpdateDispatch
from hourglass._embedded.runs.lost_attempts import KeptAttempts
from hourglass._embedded.runs.outbox import Outbox
from hourglass._embedded.runs.progress import ProgressMemory
from hourglass._embedded.runs.run import AttemptToken, LoadedRun
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.runs.upkeep import DEFAULT_RETENTION, StoredBacklog, Upkeep
from hourglass._embedded.runs.write_behind import WriteBehind
from hourglass._embedded.schedules.scheduler import Schedules
from hourglass._embedded.store.store import Refusal, Store
from hourglass._embedded.transitions.size_limits import Limits
from hourglass.errors import ConnectionFailedError, HourglassError, StorageError

logger = logging.getLogger("hourglass.embedded")


class EngineFigures(msgspec.Struct, frozen=True):
    """Statistics: the number of open runs, and for each queue its workflow tasks and its activity attempts."""

    open_runs: int | None = None
    queues: dict[str, tuple[QueueStats, QueueStats]] = {}


class Engine:
    """See the module. `failed` is the error for which it must be opened again, if there is one."""

    def __init__(
        self,
        *,
        store: Store,
        namespace: str = "default",
        clock: Clock | None = None,
        limits: Limits | None = None,
        retention: float = DEFAULT_RETENTION,
        policy: DispatchPolicy | None = None,
    ) -> None:
        self.namespace = namespace
        self.store = store
        self.clock: Clock = RealClock() if clock is None else clock
        keep = Upkeep(retention)
        keep.resume_clock(self.clock, store)
        self.limits = Limits() if limits is None else limits
        self.writes = WriteBehind(store, self.clock)
        self.queues = TaskQueues(self.writes, self._assign, policy)
        self._upkeep = keep
        self.runs = RunTable(
            store=store,
            writes=self.writes,
            clock=self.clock,
            limits=self.limits,
            queues=self.queues,
            namespace=namespace,
        )
        self.deployments = Deployments(self.runs)
        self.runs.has_version = self.deployments.has_version
        self.tasks = TaskDispatch(self.runs, self.deployments)
        self.updates = UpdateDispatch(self.runs)
        self.attempts = ActivityDispatch(self.runs, namespace, self.deployments)
        self.progress = ProgressMemory()
        self.schedules = Schedules(self.runs, self.doubt)
        self.runs.awaiting = self.schedules
        self.keepers = Keepers(self.runs)
        self.runs.keeping = self.keepers
        store.on_refusal(self._refused)
        self.outbox = Outbox(store, self.die)
        self.failed: StorageError | None = None
        self.closed = False
        self.is_over = False
        """Whether it has failed or was closed."""
        self.is_recovered = False
        """Whether the runs that were in flight are in memory: not if a process has opened the file for one transaction."""
        self._counted: tuple[int, StoredBacklog | None] = (0, None)
        self.figures = EngineFigures()
        """The figures of the last sample. May be read from any thread."""

    async def open_existing(self, *, took_over: bool = False, living: frozenset[str] = frozenset()) -> None:
        """Begin an epoch: recover the runs of the store that were in flight or are due, and take care of those that are not in
        memory from now on. Returns when enough tasks are offered that workers need not wait for more. Raises `StorageError`.
        `took_over`: another process has just ended, and the attempts of its workers are retried without a pause; but the
        workers with the `living` identities are in other processes, and keep their attempts if they `claim` them soon.
        """
        self.runs.kept_attempts = KeptAttempts(took_over=took_over, living=living)
        self.deployments.load()
        self.schedules.load()  # runs that are overdue may close on the way
        self.is_recovered = True
        await self._upkeep.open(self.runs, durable=self.durable, die=self.die, sample=self._sample)
        if not self.is_over:
            self.begin()

    def begin(self) -> None:
        """Let schedules and limits act from now on."""
        self.schedules.begin()
        self.keepers.begin()

    def join(self, poller: QueuePoller) -> None:
        """Let a worker serve its queue."""
        self.queues.join(poller)
        self.deployments.joined(poller)
        self._upkeep.wake_sleepers()

    def _assign(self, poller: QueuePoller) -> None:
        """Assign what waits to a worker, as far as it has free slots. Raises nothing: the caller is in the middle of another
        operation, which must not fail by this.
        """
        try:
            if poller.queue.tasks or poller.own_tasks or self.tasks.queried:
                self.tasks.assign(poller)
            if poller.queue.attempts:
                self.attempts.assign(poller)
        except Exception:
            logger.exception("what waits for a worker of %s could not be assigned", poller.task_queue)
            asyncio.get_running_loop().call_soon(self._assign_again, poller)

    def _assign_again(self, poller: QueuePoller) -> None:
        """Assign what waits after a failure. If it fails again, it is unknown what the worker has: its handle breaks."""
        try:
            self.tasks.assign(poller)
            self.attempts.assign(poller)
        except Exception as error:
            why = f"the engine cannot assign work: {type(error).__name__}"
            poller.receiver.break_off(HandleBroken(why))

    def claim(self, tokens: Iterable[bytes]) -> None:
        """Record that a worker which outlived the previous owner still has these attempts."""
        for token in map(AttemptToken.decode, tokens):
            with contextlib.suppress(StorageError):  # it is logged when its time comes
                # At this point, while attempts are still reserved for the workers that claim them.
                self.runs.record(token.run_id, late=True)
            self.runs.kept_attempts.claim(token)

    def lose_attempts(self, tokens: Iterable[bytes]) -> None:
        """Fail these claimed attempts, because the process that had claimed them has ended."""
        for token in () if self.is_over else tokens:
            self.attempts.lose(AttemptToken.decode(token))
        self.queues.dispatch()

    def lose_unclaimed(self, of: frozenset[str] | None = None, alive: frozenset[str] = frozenset()) -> None:
        """End the wait for claims of workers with these identities, or of all (None). Attempts that they have not claimed
        are lost; but where all workers of an identity are `alive`, none has begun them, and others get them.
        """
        for token, identity in () if self.is_over else self.runs.kept_attempts.give_up(of):
            if identity in alive:
                self.attempts.give_back(token)
            else:
                self.attempts.lose(token)
        self.queues.dispatch()

    def end_attempt(self, result: ActivityResult) -> None:
        """Record the result of an attempt that its worker has kept since an earlier owner. One that counts no more is
        dropped. Raises `ValueError` for a token that names no attempt.
        """
        token = AttemptToken.decode(result.token)
        if self.is_over:
            return
        with contextlib.suppress(StorageError):  # a run that cannot be read is logged when its time comes
            current = self.attempts.find(token)
            if current is not None:
                self.attempts.end(token, result, current[1].identity)
        self.queues.dispatch()

    def close(self) -> None:
        """Stop, and let the store write what is queued and let go: it may block for one commit. Queries that
        wait are refused, polls raise `HandleBroken`. Safe to call twice.
        """
        if not self.closed:
            if self.failed is None:
                self._upkeep.end()
                self.writes.store_all()
            self.closed = self.is_over = True
            self._stop(ConnectionFailedError("the connection was closed", status="UNAVAILABLE"))
            self.failed = self.store.close() or self.failed

    def record(self, run_id: str) -> LoadedRun | None:
        """Return the run of this id; None if there is none."""
        return self.runs.record(run_id)

    def current(self, workflow_id: str) -> LoadedRun | None:
        """Return the latest run of a workflow; None if there is none."""
        return self.runs.current(workflow_id)

    @property
    def held(self) -> str:
        """The reason for which the store cannot write at present; "" if it can."""
        return self.store.held

    @property
    def trouble(self) -> str:
        """The reason for which the store accepts no new workflows, for people; "" if it does."""
        return self.store.refuses_starts()

    async def durable(self, number: int) -> None:
        """Wait until effects that depend on this change may leave the engine. Raises `StorageError` if they never may."""
        if self.failed is not None:
            raise self.failed
        await self.outbox.wait(number)

    def _refused(self, refusal: Refusal) -> None:
        """Park the runs of a change that cannot be written, in their stored state; others continue."""
        if self.writes.appended == refusal.number:
            self.writes.forget_newest()
        for run_id in refusal.run_ids:
            record = self.runs.park(run_id, refusal)
            if record is not None:
                self.tasks.refuse_queries(record, refusal.error)
        for schedule_id in refusal.schedule_ids:
            if schedule_id.startswith(NOTE):
                self.keepers.read_again(schedule_id)
                continue
            self.schedules.read_again(schedule_id)
            logger.error("schedule %r stays as it was: %s", schedule_id, refusal.error)

    def queue_stats(self, queue: str, *, activities: bool) -> QueueStats:
        """Return the backlog of a queue, the age of its oldest task, and the recent rates per second."""
        if not self.is_recovered:
            newest, counted = self._counted
            if counted is None or newest != self.writes.newest:
                counted = StoredBacklog(self.store, self.clock.now_ns())
                self._counted = (self.writes.newest, counted)
            return counted.stats(queue, activities=activities)
        waiting, now = self.queues.of(queue), self.clock.now_ns()
        since = now
        if activities:
            backlog = len(waiting.attempts)
            for run_id, scheduled in waiting.attempts.heads():
                record = self.runs.in_memory(run_id)
                activity = None if record is None else record.run.activities.get(scheduled)
                since = since if activity is None else min(since, activity.available_ns)
        else:
            backlog = len(waiting.tasks) + self._upkeep.due(queue)
            for run_id in waiting.tasks.heads():
                record = self.runs.in_memory(run_id)
                task = None if record is None else record.run.task
                since = since if task is None else min(since, task.available_ns)
        return QueueStats(backlog, (now - since) / 1e9, *self.queues.rates(queue, activities))

    def _sample(self) -> None:
        self.keepers.sweep()
        self.figures = EngineFigures(
            open_runs=self.store.open_runs(),
            queues={
                queue: (self.queue_stats(queue, activities=False), self.queue_stats(queue, activities=True))
                for queue in self.queues.busy()
            },
        )

    def doubt(self, error: StorageError) -> None:
        """Stop the engine after a failed read, unless only one run cannot be read."""
        try:
            self.store.next_due_ns()
        except StorageError:
            self.die(error)

    def die(self, error: StorageError) -> None:
        """Stop the engine because its store cannot be used any more, and notify handles, queries and waiting clients."""
        if self.failed is None and not self.closed:
            self.failed, self.is_over = error, True
            self._stop(error)

    def over(self) -> HandleBroken:
        """Return the error of calls on an engine that has failed or was closed."""
        if self.failed is not None:
            return HandleBroken(f"the engine's store has failed: {self.failed}")
        return HandleBroken("the engine was closed")

    def _stop(self, error: HourglassError) -> None:
        self._upkeep.close()
        self.schedules.stop()
        self.keepers.stop()
        self.runs.stop()
        for record in self.runs.records():
            self.tasks.refuse_queries(record, error)
            record.changed.ring()
            record.closed.ring()
        for poller in self.queues.pollers.all():
            poller.receiver.break_off(self.over())
