"""The table of runs (`RunTable`): runs in memory, ahead of the store (see `write_behind`), and the application of
changes to them.

Must not know: handles, activations, requests, how a store keeps data. This module makes no decisions: every change is
the result of a transition. A change is applied in memory and passed to the store immediately. Then the affected task
queues, handles and waiters are notified. No method here waits.

Invariants:

- A workflow id has at most one open run.
- A change, the run that it opens and all its effects on other runs are one change in the store. The same applies to a
  change and the ids of the requests that it carries out. Request ids are looked up in all runs of a workflow.
- A run is in memory at most once. It is dropped only when nothing uses it and all its changes are durable.
- The time to apply a change does not depend on the number of pending activities and timers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import TypeVarTuple, Unpack

from hourglass._embedded.clock import Clock
from hourglass._embedded.matching.task_queues import TaskQueues
from hourglass._embedded.runs.effects import EffectsOnOthers, EndListener, LimitKeeping
from hourglass._embedded.runs.loading import load
from hourglass._embedded.runs.lost_attempts import KeptAttempts
from hourglass._embedded.runs.parking import park
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.timers import RunTimers
from hourglass._embedded.runs.transactions import AppliedChange, Transaction
from hourglass._embedded.runs.write_behind import WriteBehind
from hourglass._embedded.store.search_attributes import SearchAttributes
from hourglass._embedded.store.store import AT_ONCE, Rejection, ScheduleChange, Store
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.run import RUNNING, Change, NotifySchedule, ReleaseClaims, Run
from hourglass._embedded.transitions.size_limits import Limits, Overgrown
from hourglass._evaluator.specs import VersioningOverride
from hourglass._history import events as h
from hourglass.errors import StorageError

Arguments = TypeVarTuple("Arguments")

_NOTHING: frozenset[int] = frozenset()


class RunTable:
    """The runs of an engine, by workflow id and run id, backed by a store."""

    def __init__(
        self,
        *,
        store: Store,
        writes: WriteBehind,
        clock: Clock,
        limits: Limits,
        queues: TaskQueues,
        namespace: str = "default",
    ) -> None:
        self.store = store
        self.writes = writes
        self.clock = clock
        self.limits = limits
        self.queues = queues
        self.parked_until: dict[str, int] = {}
        """For each parked run, the number of the newest change that may depend on the rejected change."""
        self.attributes = SearchAttributes(store.attribute_types, limits)
        self.stopped = False
        self.new_run_id: Callable[[], str] = queues.policy.new_run_id
        self.awaiting: EndListener
        self.keeping: LimitKeeping
        self.has_version: Callable[[VersioningOverride, str], bool]
        """Whether a worker of this queue has ever had the version that an override names."""
        self.claims: dict[str, set[str]] = {}
        """The ids of the limits of which a run holds a slot or waits for one, by run id. Maintained by `keeping`."""
        self.idle: dict[str, LoadedRun] = {}
        """Runs without users. `upkeep` drops idle runs once they are quiet and durable."""
        self.timers = RunTimers(self)
        self._transaction = Transaction(EffectsOnOthers(self, namespace).carry_out, self._store_transaction)
        self._records: dict[str, LoadedRun] = {}
        self._current: dict[str, str] = {}
        self.kept_attempts = KeptAttempts()
        """The attempts that workers received from the previous owner of the file."""
        self.parked: dict[str, StorageError] = {}
        """Runs with a change that could not be stored, each with the error (see `parking`). Parked runs can be read
        and ended, but workers receive no work of a parked run until the store is reopened.
        """

    def stop(self) -> None:
        """Stop all timers, and ignore all later changes."""
        self.stopped = True
        self.writes.stop()
        for record in self._records.values():
            self.timers.silence(record)

    def realign(self) -> None:
        """After the clock has jumped, rearm all timers and offer everything that is now due."""
        self.timers.realign()
        now = self.clock.now_ns()
        for record in tuple(self._records.values()):
            if record.run.run_id not in self.parked:
                self.queues.offer(record.run, record.run.activities, now, record.sticky, late=record.late)
        for poller in self.queues.pollers.all():
            poller.receiver.realign()
        self.awaiting.realign()
        self.keeping.realign()

    def records(self) -> Iterator[LoadedRun]:
        """Return the runs in memory, oldest first."""
        return iter(self._records.values())

    def in_memory(self, run_id: str) -> LoadedRun | None:
        """Return the run with this id if it is in memory, else None."""
        return self._records.get(run_id)

    def record(self, run_id: str, *, late: bool = False) -> LoadedRun | None:
        """Return the run with this id, loading it if necessary; None if there is none. `late` states that the run is
        loaded because a deadline has come, not for a request.
        """
        record = self._records.get(run_id)
        if record is None and run_id:
            stored = self.store.load(run_id)
            record = None if stored is None else load(self, stored, late=late)
        return record

    def adopt(self, record: LoadedRun) -> None:
        """Add a run to the table."""
        self._records[record.run.run_id] = record

    def discard(self, run_id: str) -> None:
        """Remove a run that could not be loaded."""
        self._records.pop(run_id, None)

    def current(self, workflow_id: str) -> LoadedRun | None:
        """Return the latest run of a workflow; None if there is none."""
        record = self.record(self._current.get(workflow_id) or self.store.current(workflow_id))
        if record is not None:
            self._current.setdefault(workflow_id, record.run.run_id)
        # An overdue run may have closed while it was loaded, and a new run may have replaced it.
        return self._records.get(self._current.get(workflow_id, ""), record)

    def open(
        self,
        started: h.WorkflowExecutionStarted,
        signal: h.WorkflowExecutionSignaled | None = None,
        request_ids: tuple[str, ...] = (),
        *,
        is_first: bool = False,
    ) -> LoadedRun:
        """Open a run with the id `started.original_run_id`, and deliver the signal if there is one. `is_first` states
        that the workflow is known to have no other run.
        """
        now = self.clock.now_ns()
        signals = () if signal is None else (signal,)
        record, earliest = self._begin(started, signals, request_ids, now, is_first=is_first)
        if self._transaction.is_open:
            self._transaction.add(
                AppliedChange(record, self.writes.change_of(record, request_ids, now), _NOTHING, earliest)
            )
        else:
            self.writes.append(record, request_ids, now)
            self.notify(record, _NOTHING, earliest, now)
        return record

    def open_with_history(self, change: Change, request_ids: tuple[str, ...]) -> LoadedRun:
        """Open a run that already has a history. The caller ensures that the workflow has no other open run."""
        now = self.clock.now_ns()
        record = LoadedRun(change.run, has_past=True)
        self._records[change.run.run_id] = record
        self._current[change.run.started.workflow_id] = change.run.run_id
        earliest = record.update(change, change.touched, request_ids, now)
        with self._transaction.begin(now) as transaction:
            transaction.add(
                AppliedChange(
                    record, self.writes.change_of(record, request_ids, now), change.touched, earliest
                )
            )
            transaction.add_effects(record, change.effects)
        return record

    def transaction(self) -> contextlib.AbstractContextManager[Transaction]:
        """Return a context in which all changes become durable together."""
        return self._transaction.begin(self.clock.now_ns())

    def keep_schedule(self, change: ScheduleChange) -> None:
        """Store a schedule, together with the other changes of the current transaction."""
        with self.transaction():
            self.writes.keep_schedule(change)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, so that changes applied now become part of it."""
        return self._transaction.is_open

    def change(
        self,
        record: LoadedRun,
        transition: Callable[[Run, Unpack[Arguments], int], Change],
        *arguments: *Arguments,
        request_ids: tuple[str, ...] = (),
        looked: frozenset[int] = _NOTHING,
        to_worker: bool = False,
    ) -> str:
        """Apply `transition(run, *arguments, now_ns)` to a run immediately.

        `request_ids` are the requests that the change carries out. `looked` contains the ids of the pending
        activities and timers that were due. With `to_worker`, the change hands the run's task to a worker and may be
        stored together with the worker's completion.

        A run that has exceeded its limits is terminated instead, and the reason is returned. Otherwise an empty
        string is returned. After the engine has stopped, the call has no effect.
        """
        if self.stopped:
            return ""
        run, now, limits = record.run, self.clock.now_ns(), self.limits
        if run.status is RUNNING and (
            run.length > limits.history_events or run.history_size > limits.history_bytes
        ):
            reason = limits.overgrown(run)
            self.apply(record, transitions.end_overgrown(run, reason, now), looked, now)
            return reason
        try:
            change = transition(run, *arguments, now)
            if len(change.encoded) > limits.transaction_bytes:
                limits.check_step(len(change.encoded))
        except Overgrown as error:
            self.apply(record, transitions.end_overgrown(run, str(error), now), looked, now)
            return str(error)
        self.apply(record, change, looked, now, request_ids, to_worker)
        if record.run.held and record.exceeds_held_limits(limits):
            cause, run = h.FORCE_CLOSE_COMMAND, record.run
            self.apply(record, tasks.fail_task(run, cause, None, "history-service", now), _NOTHING, now)
        return ""

    def may_change(self, record: LoadedRun) -> bool:
        """Whether a run is open, not paused and within its limits, and its changes can be applied and stored now."""
        run, limits = record.run, self.limits
        return (
            run.status is RUNNING
            and run.paused is None
            and run.length <= limits.history_events
            and run.history_size <= limits.history_bytes
            and not self.stopped
            and not self._transaction.is_open
            and run.run_id not in self.parked
        )

    def find_request(self, latest: LoadedRun, request_id: str) -> str:
        """Return the id of the run that carried out a request, among all runs of a workflow. Return an empty string
        if no run has carried it out. `latest` is the workflow's latest run.
        """
        if request_id in latest.seen:
            return latest.run.run_id
        if not latest.has_past:
            return ""
        return self.writes.find_request(latest.run.started.workflow_id, request_id)

    def newest_of(self, workflow_id: str, run_id: str) -> int:
        """Return the number of the newest change to a workflow's latest run or to this run; 0 if neither is in memory."""
        records = (self._records.get(self._current.get(workflow_id, "")), self._records.get(run_id))
        return max((self.writes.number_of(record) for record in records if record is not None), default=0)

    def hold(self, record: LoadedRun) -> None:
        """Keep a run in memory for a cache or a request until `release` is called."""
        record.users += 1

    def release(self, record: LoadedRun) -> None:
        """Release a run that a cache or a request has kept in memory with `hold`."""
        record.users -= 1
        if not record.users:
            self.idle[record.run.run_id] = record

    def drop(self, record: LoadedRun) -> bool:
        """Remove a run from memory if nothing uses it and all its changes are durable. Return whether the run is gone."""
        if self._records.get(record.run.run_id) is not record:
            return True  # the run was parked, and another record may have replaced this one
        now = self.clock.now_ns()
        if not record.is_quiet(now):
            return False
        # The run's task was delayed because the clock was set back.
        if record.stored_wake_ns == AT_ONCE:
            self.writes.append(record, (), now)
        if not self.writes.is_stored(record):
            return False
        if AT_ONCE < record.stored_wake_ns <= now:
            # The store has already reported the run as due, and will not report it a second time.
            return False
        self.remove(record)
        return True

    def forget(self, record: LoadedRun) -> int:
        """Delete a closed and durable run permanently. Return the number of the change."""
        self.remove(record)
        return self.writes.forget(record.run.run_id)

    def remove(self, record: LoadedRun) -> None:
        """Remove a run from memory, even if it is in use."""
        self.timers.silence(record)
        run_id, workflow_id = record.run.run_id, record.run.started.workflow_id
        self._records.pop(run_id, None)
        self.idle.pop(run_id, None)
        if self._current.get(workflow_id) == run_id:
            del self._current[workflow_id]

    def park(self, run_id: str, rejection: Rejection) -> LoadedRun | None:
        """Park a run with a change that the store has rejected (see `parking`). Return the run's record if it was in
        memory.
        """
        return park(self, run_id, rejection)

    def _begin(
        self,
        started: h.WorkflowExecutionStarted,
        signals: tuple[h.WorkflowExecutionSignaled, ...],
        request_ids: tuple[str, ...],
        now: int,
        *,
        is_first: bool = False,
    ) -> tuple[LoadedRun, int]:
        workflow_id = started.workflow_id
        has_past = not is_first and bool(
            started.continued_run_id or self._current.get(workflow_id) or self.store.current(workflow_id)
        )
        change = transitions.open_run(started.original_run_id, started, now, signals)
        record = LoadedRun(change.run, has_past=has_past)
        self._records[change.run.run_id] = record
        self._current[started.workflow_id] = change.run.run_id
        return record, record.update(change, change.touched, request_ids, now)

    def apply(
        self,
        record: LoadedRun,
        change: Change,
        looked: frozenset[int],
        now: int,
        request_ids: tuple[str, ...] = (),
        to_worker: bool = False,
    ) -> None:
        """Apply the result of a transition in memory, and pass it to the store together with all its effects."""
        ids = change.touched | looked if looked else change.touched
        run, effects = change.run, change.effects
        if run.status is not RUNNING:
            if self.awaiting.awaits(run.started.workflow_id):
                effects = (*effects, NotifySchedule())
            if run.run_id in self.claims:
                effects = (*effects, ReleaseClaims())
        before = record.run
        earliest = record.update(change, ids, request_ids, now)
        if change.follower is None and not effects and not self._transaction.is_open:
            if to_worker and self.writes.patience and run.task is not None and run.task.started_event_id:
                self.writes.defer(record)
            elif run is not before or request_ids or record.wake_ns(now) != record.stored_wake_ns:
                self.writes.append(record, request_ids, now)
            self.notify(record, ids, earliest, now)
            return
        is_changed = run is not before or request_ids or record.wake_ns(now) != record.stored_wake_ns
        with self._transaction.begin(now) as transaction:
            unsaved = self.writes.change_of(record, request_ids, now) if is_changed else None
            transaction.add(AppliedChange(record, unsaved, ids, earliest))
            if change.follower is not None:
                following, first = self._begin(change.follower, change.signals, (), now)
                transaction.add(
                    AppliedChange(following, self.writes.change_of(following, (), now), _NOTHING, first)
                )
            transaction.add_effects(record, effects)

    def _store_transaction(self, applied: list[AppliedChange], now: int) -> None:
        """Store the changes of a transaction as one change, and notify all affected components."""
        # The store must be called before the handles are notified: an item that a handle receives must depend
        # on a change that already has a number.
        changes = [(change.unsaved, change.record) for change in applied if change.unsaved is not None]
        if changes or self.writes.has_schedules:
            self.writes.append_together(changes)
        for change in applied:
            self.notify(change.record, change.ids, change.earliest, now)

    def notify(self, record: LoadedRun, ids: Collection[int], earliest: int, now: int) -> None:
        """Notify the clock, the task queues, the handles and the waiters of a change to these activities, timers and
        children. `earliest` is the earliest of their deadlines.
        """
        run = record.run
        if run.run_id not in self.parked:
            self.timers.set(record, earliest, now)
            self.queues.offer(run, ids, now, record.sticky, late=record.late)
        if record.attempts:
            record.notify_holders(ids)
        if record.changed.waiters:
            record.changed.ring()
        if run.status is not RUNNING:
            if record.sticky is not None:
                record.sticky.receiver.closed(run.run_id)
            record.closed.ring()
        if not record.users:
            self.idle[run.run_id] = record
