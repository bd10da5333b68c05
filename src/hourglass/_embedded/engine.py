"""The engine: runs over a store, their tasks and attempts, and the handling of a store failure.

Must not know: activations (see `activations`), requests (see `api`). The engine is composed of parts, each with its
own invariants: `runs` (runs, and how they change), `matching` (which worker receives which task, attempt and update),
`upkeep` (runs that nothing currently uses), `schedules`, `keepers` (limits), `progress` (progress of activities),
`deployments` (versions of workers).

Everything runs on one asyncio event loop, and only `durable` waits. The engine is ahead of its store, and every
effect waits in the `outbox` until its change is durable. Several connections may use the same engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from hourglass._contract.engine_status import EngineFigures, QueueStats
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
from hourglass._embedded.store.store import Rejection, Store
from hourglass._embedded.transitions.size_limits import Limits
from hourglass.errors import ConnectionFailedError, HourglassError, StorageError

logger = logging.getLogger("hourglass.embedded")


class Engine:
    """The embedded engine (see the module). `failed` is the error for which the engine has stopped and must be
    reopened, or None.
    """

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
        self.schedules = Schedules(self.runs, self.stop_if_unreadable)
        self.runs.awaiting = self.schedules
        self.keepers = Keepers(self.runs)
        self.runs.keeping = self.keepers
        store.on_rejection(self._change_rejected)
        self.outbox = Outbox(store, self.fail)
        self.failed: StorageError | None = None
        self.closed = False
        self.is_over = False
        """Whether the engine has failed or was closed."""
        self.is_recovered = False
        """Whether the runs that were in flight have been recovered. False if a process has opened the file only for a
        moment.
        """
        self._counted: tuple[int, StoredBacklog | None] = (0, None)
        self.figures = EngineFigures()
        """The engine's figures at the last sample. May be read from any thread."""

    async def open_existing(self, *, took_over: bool = False, living: frozenset[str] = frozenset()) -> None:
        """Recover the runs in the store that were in flight or are due, and start the upkeep of all other runs.
        Return when enough tasks have been offered that workers need not wait for more. Raise `StorageError` if the
        store cannot be read.

        `took_over` states that another process has just ended; the attempts of its workers are retried without a
        backoff. Workers with the `living` identities are in other processes. They keep their attempts if they `claim`
        them soon.
        """
        self.runs.kept_attempts = KeptAttempts(took_over=took_over, living=living)
        self.deployments.load()
        self.schedules.load()  # overdue runs may close during the recovery, and schedules must be notified
        self.is_recovered = True
        await self._upkeep.open(self.runs, durable=self.durable, fail=self.fail, sample=self._sample)
        if not self.is_over:
            self.begin()

    def begin(self) -> None:
        """Start the actions of schedules and limits."""
        self.schedules.begin()
        self.keepers.begin()

    def join(self, poller: QueuePoller) -> None:
        """Add a worker to its task queue."""
        self.queues.join(poller)
        self.deployments.joined(poller)
        self._upkeep.wake_sleepers()

    def _assign(self, poller: QueuePoller) -> None:
        """Assign waiting tasks and attempts to a worker, as far as it has free slots. Log exceptions instead of
        raising them, because the caller is in the middle of another operation that must not fail.
        """
        try:
            if poller.queue.tasks or poller.own_tasks or self.queues.queried:
                self.tasks.assign(poller)
            if poller.queue.attempts:
                self.attempts.assign(poller)
        except Exception:
            logger.exception(
                "the backlog of task queue %r could not be assigned to a worker; the engine tries again",
                poller.task_queue,
            )
            asyncio.get_running_loop().call_soon(self._assign_again, poller)

    def _assign_again(self, poller: QueuePoller) -> None:
        """Retry an assignment that has failed. If it fails again, break the worker's handle, because it is unknown
        which tasks the worker has.
        """
        try:
            self.tasks.assign(poller)
            self.attempts.assign(poller)
        except Exception as error:
            why = f"the engine cannot assign work: {type(error).__name__}"
            poller.receiver.break_off(HandleBroken(why))

    def claim(self, tokens: Iterable[bytes]) -> None:
        """Record that a worker that survived the previous owner still has these attempts."""
        for token in map(AttemptToken.decode, tokens):
            with contextlib.suppress(StorageError):  # the error is logged when the run becomes due
                # Load the run now, while attempts are still reserved for the workers that claim them.
                self.runs.record(token.run_id, late=True)
            self.runs.kept_attempts.claim(token)

    def lose_attempts(self, tokens: Iterable[bytes]) -> None:
        """Fail these claimed attempts, because the process that claimed them has ended."""
        for token in () if self.is_over else tokens:
            self.attempts.lose(AttemptToken.decode(token))
        self.queues.dispatch()

    def lose_unclaimed(self, of: frozenset[str] | None = None, alive: frozenset[str] = frozenset()) -> None:
        """Stop waiting for claims by workers with these identities, or with any identity (None). Their unclaimed
        attempts are lost. If all workers of an identity are `alive`, however, none of them has started the attempts,
        and other workers receive them.
        """
        for token, identity in () if self.is_over else self.runs.kept_attempts.release_unclaimed(of):
            if identity in alive:
                self.attempts.give_back(token)
            else:
                self.attempts.lose(token)
        self.queues.dispatch()

    def end_attempt(self, result: ActivityResult) -> None:
        """Record the result of an attempt that a worker has kept since an earlier owner of the file. Ignore the
        result if the attempt is no longer current. Raise `ValueError` for a malformed token.
        """
        token = AttemptToken.decode(result.token)
        if self.is_over:
            return
        # If the run cannot be read, the error is logged when the run becomes due.
        with contextlib.suppress(StorageError):
            current = self.attempts.find(token)
            if current is not None:
                self.attempts.end(token, result, current[1].identity)
        self.queues.dispatch()

    def close(self) -> None:
        """Stop the engine, write all queued changes, and release the store. May block for one commit. Waiting queries
        are rejected, and handles end with `HandleBroken`. Safe to call twice.
        """
        if not self.closed:
            if self.failed is None:
                self._upkeep.end()
                self.writes.store_all()
            self.closed = self.is_over = True
            self._stop(ConnectionFailedError("the connection was closed", status="UNAVAILABLE"))
            self.failed = self.store.close() or self.failed

    def record(self, run_id: str) -> LoadedRun | None:
        """Return the run with this id; None if there is none."""
        return self.runs.record(run_id)

    def current(self, workflow_id: str) -> LoadedRun | None:
        """Return the latest run of a workflow; None if there is none."""
        return self.runs.current(workflow_id)

    @property
    def held(self) -> str:
        """The reason why the store currently cannot write; "" if it can."""
        return self.store.held

    @property
    def trouble(self) -> str:
        """The reason why the store accepts no new workflows, as a message for users; "" if it does."""
        return self.store.start_rejection()

    @property
    def awaits_workers(self) -> bool:
        """Whether a worker has a task or an attempt in progress, or a query waits for a worker."""
        pollers = self.queues.pollers.all()
        return bool(self.queues.queried) or any(poller.active_runs or poller.attempts for poller in pollers)

    async def durable(self, number: int) -> None:
        """Wait until effects that depend on this change may leave the engine. Raise `StorageError` if they never can."""
        if self.failed is not None:
            raise self.failed
        await self.outbox.wait(number)

    def _change_rejected(self, rejection: Rejection) -> None:
        """Park the runs of a change that cannot be written, in their stored state. Other runs continue."""
        if self.writes.appended == rejection.number:
            self.writes.forget_newest()
        for run_id in rejection.run_ids:
            record = self.runs.park(run_id, rejection)
            if record is not None:
                self.tasks.reject_queries(record, rejection.error)
        for schedule_id in rejection.schedule_ids:
            if schedule_id.startswith(NOTE):
                self.keepers.read_again(schedule_id)
                continue
            self.schedules.read_again(schedule_id)
            logger.error(
                "a change of schedule %r could not be stored, and the schedule keeps its previous state: %s",
                schedule_id,
                rejection.error,
            )

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

    def stop_if_unreadable(self, error: StorageError) -> None:
        """Stop the engine after a failed read, unless the failure concerns only a single run."""
        try:
            self.store.next_due_ns()
        except StorageError:
            self.fail(error)

    def fail(self, error: StorageError) -> None:
        """Stop the engine because its store can no longer be used. Notify handles, queries and waiting clients."""
        if self.failed is None and not self.closed:
            self.failed, self.is_over = error, True
            self._stop(error)

    def over(self) -> HandleBroken:
        """Return the error for calls on an engine that has failed or was closed."""
        if self.failed is not None:
            return HandleBroken(f"the engine's store has failed: {self.failed}")
        return HandleBroken("the engine was closed")

    def _stop(self, error: HourglassError) -> None:
        self._upkeep.close()
        self.schedules.stop()
        self.keepers.stop()
        self.runs.stop()
        for record in self.runs.records():
            self.tasks.reject_queries(record, error)
            record.changed.ring()
            record.closed.ring()
        for poller in self.queues.pollers.all():
            poller.receiver.break_off(self.over())
