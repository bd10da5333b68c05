"""The runs of an engine (`RunTable`): in memory, ahead of a store (`write_behind`), each with an alarm on the clock at the
earliest time that something of it needs (`timers`).

Must not know: handles, activations, requests, how a store remembers. It decides nothing: every change is a
transition's `Transition`, which goes into memory and to the store at once; then the task queues, handles and waiters that
it concerns are told. Nothing here waits.

Invariants: a workflow id has at most one open run; a step, the run that it leads to and all that it asks of other
runs are one change in the store; so are a step and the ids of the requests that it carries out, which are found along
all runs of a workflow; a run that is in memory is there once, and is dropped only when nothing uses it and all of it
is durable; a step costs the same however much is pending.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from typing import TypeVarTuple, Unpack

import msgspec

from hourglass._embedded.clock import Clock
from hourglass._embedded.matching.task_queues import TaskQueues
from hourglass._embedded.runs.lost_attempts import LOST_WITH_PROCESS, KeptAttempts, say_lost
from hourglass._embedded.runs.run import EndListener, LoadedRun
from hourglass._embedded.runs.timers import RunTimers
from hourglass._embedded.runs.transactions import EffectsOnOthers, LimitKeeping, Part, Transaction
from hourglass._embedded.runs.write_behind import WriteBehind
from hourglass._embedded.store.search_attributes import SearchAttributes
from hourglass._embedded.store.store import AT_ONCE, Refusal, ScheduleChange, Store, Stored
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.run import RUNNING, GiveUpClaims, Run, TellSchedule, Transition
from hourglass._embedded.transitions.size_limits import Limits, Overgrown
from hourglass._evaluator.specs import VersioningOverride
from hourglass._history import events as h
from hourglass.errors import StorageError

logger = logging.getLogger("hourglass.embedded")

Arguments = TypeVarTuple("Arguments")

_NOTHING: frozenset[int] = frozenset()


class RunTable:
    """The table of runs, by workflow id and run id, over a store."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        limits: Limits,
        queues: TaskQueues,
        namespace: str = "default",
    ) -> None:
        self.store = store
        self.writes = WriteBehind(store, clock)
        self.is_durable: Callable[[int], bool] = store.is_durable
        """Whether what rests on this change may leave the engine."""
        self.clock = clock
        self.limits = limits
        self.queues = queues
        self.attributes = SearchAttributes(store.attribute_types, limits)
        self.stopped = False
        self.in_flight: set[str] = set()
        """The runs of which a worker has a task, an attempt or a query, and owes an answer."""
        self.new_run_id: Callable[[], str] = queues.policy.new_run_id
        self.awaiting: EndListener
        self.keeping: LimitKeeping
        self.has_version: Callable[[VersioningOverride, str], bool]
        """Whether some worker of a queue was of the version that an override names: the engine's table of versions knows."""
        self.claims: dict[str, set[str]] = {}
        """The ids of the limits that each run has something of, by run id; `keeping` keeps it."""
        self.idle: dict[str, LoadedRun] = {}
        """Runs that nothing uses, as far as is known here: `upkeep` looks whether they can be dropped."""
        self.timers = RunTimers(self)
        self._transaction = Transaction(EffectsOnOthers(self, namespace).carry_out, self._settle)
        self._records: dict[str, LoadedRun] = {}
        self._current: dict[str, str] = {}
        self.kept_attempts = KeptAttempts()
        """The attempts that workers had under the process which owned the file before."""
        self.parked: dict[str, StorageError] = {}
        """Runs of which something could not be written, and why: nothing of them is given out until the store is
        opened anew; they can be looked at, and ended.
        """
        self._parked_at: dict[str, int] = {}

    def stop(self) -> None:
        """Time passes no more, and nothing changes any more."""
        self.stopped = True
        self.writes.stop()
        for record in self._records.values():
            self.timers.silence(record)

    def realign(self) -> None:
        """Time has jumped: what is due by it may be taken, and what no longer is may not."""
        self.timers.realign()
        now = self.clock.now_ns()
        for record in tuple(self._records.values()):
            if record.run.run_id not in self.parked:
                self.queues.offer(record.run, record.run.activities, now, record.sticky, late=record.late)
        for poller in self.queues.all_pollers():
            poller.realign()
        self.awaiting.realign()
        self.keeping.realign()

    # --- runs -----------------------------------------------------------------------------------------------

    def records(self) -> Iterator[LoadedRun]:
        """The runs that are in memory, oldest first."""
        return iter(self._records.values())

    def in_memory(self, run_id: str) -> LoadedRun | None:
        """The run of this id, if it is in memory."""
        return self._records.get(run_id)

    def record(self, run_id: str, *, late: bool = False) -> LoadedRun | None:
        """The run of this id; `late`: it is to come into memory because its time has come."""
        record = self._records.get(run_id)
        if record is None and run_id:
            stored = self.store.load(run_id)
            record = None if stored is None else self._brought_in(stored, late)
        return record

    def current(self, workflow_id: str) -> LoadedRun | None:
        """The latest run of a workflow."""
        record = self.record(self._current.get(workflow_id) or self.store.current(workflow_id))
        if record is not None:
            self._current.setdefault(workflow_id, record.run.run_id)
        # One that was overdue when it came into memory has closed there, and another may have followed it.
        return self._records.get(self._current.get(workflow_id, ""), record)

    def open(
        self,
        started: h.WorkflowExecutionStarted,
        signal: h.WorkflowExecutionSignaled | None = None,
        request_ids: tuple[str, ...] = (),
        *,
        is_first: bool = False,
    ) -> LoadedRun:
        """Begin a run, by a signal or without; its id is `started.original_run_id`. `is_first`: the caller knows that its
        workflow has no other.
        """
        now = self.clock.now_ns()
        signals = () if signal is None else (signal,)
        record, earliest = self._begin(started, signals, request_ids, now, is_first=is_first)
        if self._transaction.is_open:
            self._transaction.add(
                Part(record, self.writes.change_of(record, request_ids, now), _NOTHING, earliest)
            )
        else:
            self.writes.append(record, request_ids, now)
            self._announce(record, _NOTHING, earliest, now)
        return record

    def begin_anew(self, step: Transition, request_ids: tuple[str, ...]) -> LoadedRun:
        """Begin a run that has a history already. The caller has seen to it that no other run of the workflow is
        open.
        """
        now = self.clock.now_ns()
        record = LoadedRun(step.run, has_past=True)
        self._records[step.run.run_id] = record
        self._current[step.run.started.workflow_id] = step.run.run_id
        earliest = self._take_in(record, step, step.touched, request_ids, now)
        with self._transaction.begin(now) as changes:
            changes.add(Part(record, self.writes.change_of(record, request_ids, now), step.touched, earliest))
            changes.ask(record, step.asks)
        return record

    def transaction(self) -> contextlib.AbstractContextManager[Transaction]:
        """What is done in here becomes durable as one change."""
        return self._transaction.begin(self.clock.now_ns())

    def keep_schedule(self, change: ScheduleChange) -> None:
        """Store a schedule, together with what else happens in the `transaction`."""
        with self.transaction():
            self.writes.keep_schedule(change)

    @property
    def in_transaction(self) -> bool:
        """Whether what happens now is a part of a transaction."""
        return self._transaction.is_open

    def change(
        self,
        record: LoadedRun,
        transition: Callable[[Run, Unpack[Arguments], int], Transition],
        *arguments: *Arguments,
        request_ids: tuple[str, ...] = (),
        looked: frozenset[int] = _NOTHING,
        to_worker: bool = False,
    ) -> str:
        """Apply a transition to a run, now: `transition(run, *arguments, now_ns)`. It carries out the requests with these ids.
        `looked` are the pending activities and timers that were due. `to_worker`: a worker receives the run's task with it, so
        that the change may be stored together with the worker's answer.

        A run that has outgrown its limits is terminated instead; then the reason is returned, else an empty string. After the
        engine has stopped nothing happens.
        """
        if self.stopped:
            return ""
        run, now, limits = record.run, self.clock.now_ns(), self.limits
        if run.status is RUNNING and (
            run.length > limits.history_events or run.history_size > limits.history_bytes
        ):
            reason = limits.overgrown(run)
            self._apply(record, transitions.end_overgrown(run, reason, now), looked, now)
            return reason
        try:
            step = transition(run, *arguments, now)
            size = step.run.history_size - run.history_size
            if size > limits.transaction_bytes:
                limits.check_step(size)
        except Overgrown as error:
            self._apply(record, transitions.end_overgrown(run, str(error), now), looked, now)
            return str(error)
        self._apply(record, step, looked, now, request_ids, to_worker)
        if record.run.held and record.held_too_much(limits):
            cause, run = h.FORCE_CLOSE_COMMAND, record.run
            self._apply(record, tasks.fail_task(run, cause, None, "history-service", now), _NOTHING, now)
        return ""

    def may_go_on(self, record: LoadedRun) -> bool:
        """Whether `go_on` may be asked for a run: it is open, not paused, within its limits, and nothing keeps it from being
        changed.
        """
        run, limits = record.run, self.limits
        return (
            run.status is RUNNING
            and run.paused is None
            and run.length <= limits.history_events
            and run.history_size <= limits.history_bytes
            and not self.stopped
            and not self._transaction.is_open
            and not (self.parked and run.run_id in self.parked)
        )

    def find_request(self, latest: LoadedRun, request_id: str) -> str:
        """The run id of the run that carried out a request, among all runs of a workflow, whose latest is given;
        empty if none did.
        """
        if request_id in latest.seen:
            return latest.run.run_id
        if not latest.has_past:
            return ""
        return self.writes.find_request(latest.run.started.workflow_id, request_id)

    def newest_of(self, workflow_id: str, run_id: str) -> int:
        """The number of the newest change of a workflow's latest run, and of this run, that are in memory; 0 if none
        is.
        """
        found = (self._records.get(self._current.get(workflow_id, "")), self._records.get(run_id))
        return max((self.writes.number_of(record) for record in found if record is not None), default=0)

    # --- what is in memory ----------------------------------------------------------------------------------

    def hold(self, record: LoadedRun) -> None:
        """A cache or a request uses a record: it stays in memory until `let_go`."""
        record.users += 1

    def let_go(self, record: LoadedRun) -> None:
        """A cache or a request no longer uses a record."""
        record.users -= 1
        if not record.users:
            self.idle[record.run.run_id] = record

    def drop(self, record: LoadedRun) -> bool:
        """Forget a run until it is asked for again, if nothing uses it and it is durable."""
        if self._records.get(record.run.run_id) is not record:
            return True  # it was parked, and another may be in its place
        now = self.clock.now_ns()
        if not record.is_quiet(now):
            return False
        if record.stored_wake_ns == AT_ONCE:  # a clock that was set back has put its task off
            self.writes.append(record, (), now)
        if not self.is_durable(self.writes.number_of(record)):
            return False
        if AT_ONCE < record.stored_wake_ns <= now:
            return False  # the store has given it out as due: it would not come again
        self._remove(record)
        return True

    def forget(self, record: LoadedRun) -> int:
        """Remove a run that has closed, and is durable, for good; gives the number of the change."""
        self._remove(record)
        return self.writes.forget(record.run.run_id)

    def park(self, run_id: str, refusal: Refusal) -> LoadedRun | None:
        """What is in memory of a run cannot be stored: drop it, so that the run is again as it stands in the store,
        and give nothing of it out any more. Gives the record, which for caches and requests that still hold it is
        that of a closed run.
        """
        if refusal.number <= self._parked_at.get(run_id, 0):
            return None  # it rested on what was refused before: what is in memory now does not
        # Changes up to here may rest on the refused one.
        self._parked_at[run_id] = max(self.writes.appended, refusal.number)
        record = self._records.get(run_id)
        self.writes.drop(run_id)
        if run_id not in self.parked:
            self.parked[run_id] = refusal.error
            logger.error(
                "run %s of workflow %r is parked, as it stood before, until the file is opened anew: %s",
                run_id,
                "" if record is None else record.run.started.workflow_id,
                refusal.error,
            )
        if record is None:
            return None
        self._remove(record)
        now = self.clock.now_ns()
        pending = record.close_unstored(now)
        self.queues.offer(record.run, pending, now, record.sticky)
        holders = record.holders()
        record.tell_holders(pending)
        self.note_in_flight(record)
        for holder in holders:
            holder.parked(run_id)
        record.changed.ring()
        record.closed.ring()
        return record

    def _remove(self, record: LoadedRun) -> None:
        self.timers.silence(record)
        run_id, workflow_id = record.run.run_id, record.run.started.workflow_id
        self._records.pop(run_id, None)
        self.idle.pop(run_id, None)
        if self._current.get(workflow_id) == run_id:
            del self._current[workflow_id]

    # --- storing and telling --------------------------------------------------------------------------------

    def _brought_in(self, stored: Stored, late: bool) -> LoadedRun:
        try:
            return self._bring_in(stored, late)
        except StorageError:
            raise
        except Exception as error:  # it can be read, and makes no sense
            run_id = stored.run.run_id
            logger.exception("run %s cannot be taken up", run_id)
            self._records.pop(run_id, None)
            raise StorageError(
                f"the run {run_id} cannot be taken up as it is stored ({type(error).__name__})",
                status="DATA_LOSS",
            ) from error

    def _bring_in(self, stored: Stored, late: bool) -> LoadedRun:
        """A run comes into memory. What workers of an earlier owner had of it is lost (see `recover`)."""
        now = self.clock.now_ns()
        run = stored.run
        if not run.latest_ns:  # it was written before this was kept
            run = msgspec.structs.replace(run, latest_ns=max(event.time_ns for event in stored.events))
        record = LoadedRun(
            run, list(stored.events), has_past=True, stored_events=len(stored.events), late=late
        )
        self._records[stored.run.run_id] = record
        pending = frozenset((*stored.run.activities, *stored.run.timers))
        earliest = record.look(pending, now)
        record.stored_wake_ns = record.wake_ns(now)
        if stored.run.run_id in self.parked:
            return record
        if transitions.needs_recovery(stored.run):
            recovered = self.kept_attempts.recover(record.run, self.new_run_id(), now)
            self._apply(record, recovered, pending, now)
            say_lost(stored.run, record.run, stored.run.activities, LOST_WITH_PROCESS)
        else:
            self._announce(record, pending, earliest, now)
        self.timers.set_back(record, now)
        if record.alarm is not None and record.alarm_ns <= now:
            self.timers.elapse(record)
        return record

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
        step = transitions.open_run(started.original_run_id, started, now, signals)
        record = LoadedRun(step.run, has_past=has_past)
        self._records[step.run.run_id] = record
        self._current[started.workflow_id] = step.run.run_id
        return record, self._take_in(record, step, step.touched, request_ids, now)

    def _apply(
        self,
        record: LoadedRun,
        step: Transition,
        looked: frozenset[int],
        now: int,
        request_ids: tuple[str, ...] = (),
        to_worker: bool = False,
    ) -> None:
        ids = step.touched | looked if looked else step.touched
        run, asks = step.run, step.asks
        if run.status is not RUNNING and self.awaiting.awaits(run.started.workflow_id):
            asks = (*asks, TellSchedule())
        if self.claims and run.status is not RUNNING and run.run_id in self.claims:
            asks = (*asks, GiveUpClaims())
        changed = run is not record.run or bool(request_ids)
        earliest = self._take_in(record, step, ids, request_ids, now)
        if step.follower is None and not asks and not self._transaction.is_open:
            if to_worker and self.writes.patience and run.task is not None and run.task.started_event_id:
                self.writes.keep_back(record)
            elif changed or record.wake_ns(now) != record.stored_wake_ns:
                self.writes.append(record, request_ids, now)
            self._announce(record, ids, earliest, now)
            return
        changed = changed or record.wake_ns(now) != record.stored_wake_ns
        with self._transaction.begin(now) as changes:
            change = self.writes.change_of(record, request_ids, now) if changed else None
            changes.add(Part(record, change, ids, earliest))
            if step.follower is not None:
                following, first = self._begin(step.follower, step.signals, (), now)
                changes.add(Part(following, self.writes.change_of(following, (), now), _NOTHING, first))
            changes.ask(record, asks)

    def _settle(self, parts: list[Part], now: int) -> None:
        """The parts of a transaction are in memory: store them as one change, then announce each. In this order, so
        that what a handle takes when it is woken rests on a change that has its number.
        """
        changes = [(part.change, part.record) for part in parts if part.change is not None]
        if changes or self.writes.has_schedules:
            self.writes.append_whole(changes)
        for part in parts:
            self._announce(part.record, part.ids, part.earliest, now)

    def _take_in(
        self,
        record: LoadedRun,
        step: Transition,
        ids: Collection[int],
        request_ids: tuple[str, ...],
        now: int,
    ) -> int:
        """Put a step into memory; gives the earliest time that it needs."""
        record.run = step.run
        if step.events:
            record.events += step.events
            record.unstored = record.unstored + step.encoded if record.unstored else step.encoded
        if step.touched:
            record.touched = record.touched | step.touched if record.touched else step.touched
        if request_ids:
            record.seen.update(request_ids)
            record.late = False
        return record.look(ids, now) if ids else 0

    def _announce(self, record: LoadedRun, ids: Collection[int], earliest: int, now: int) -> None:
        """Tell the clock, the task queues, the handles and the waiters that a change concerns."""
        run = record.run
        if run.run_id not in self.parked:
            self.timers.set(record, earliest, now)
            self.queues.offer(run, ids, now, record.sticky, late=record.late)
        if record.attempts:
            record.tell_holders(ids)
        self.note_in_flight(record)
        if record.changed.waiters:
            record.changed.ring()
        if run.status is not RUNNING:
            if record.sticky is not None:
                record.sticky.closed(run.run_id)
            record.closed.ring()
        if not record.users:
            self.idle[run.run_id] = record

    def note_in_flight(self, record: LoadedRun) -> None:
        """Whether something of a run is in flight may have changed."""
        run, task = record.run, record.run.task
        # As `is_in_flight`, without a call: every step comes by.
        if (
            record.attempts
            or record.queries
            or (task is not None and task.started_event_id and not record.resting)
        ):
            self.in_flight.add(run.run_id)
        else:
            self.in_flight.discard(run.run_id)
