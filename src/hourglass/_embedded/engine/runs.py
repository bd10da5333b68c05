"""The runs of an engine (`RunTable`): in memory, ahead of a store, each with an alarm on the clock (`Alarms`) at the
earliest time that something of it needs.

Must not know: handles, activations, requests, how a store remembers. It decides nothing: every change is a
transition's `Transition`, which goes into memory and to the store at once; then the task queues, handles and waiters that
it concerns are told. Nothing here waits.

Invariants: a workflow id has at most one open run; a step, the run that it leads to and all that it asks of other
runs are one change in the store; so are a step and the ids of the requests that it carries out, which are found along
all runs of a workflow; a run that is in memory is there once, and is dropped only when nothing uses it and all of it
is durable; an open run that needs a time has an alarm at that time or before; a step costs the same however much is
pending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.clock import SECOND, Clock, to_ns
from hourglass._embedded.engine.run import (
    Alarms,
    AttemptToken,
    EndListener,
    LoadedRun,
    NoListener,
)
from hourglass._embedded.engine.task_queues import TaskQueues
from hourglass._embedded.engine.transactions import EffectsOnOthers, LimitKeeping, Part, Transaction, joined
from hourglass._embedded.rules import tasks as tasks
from hourglass._embedded.rules import transitions
from hourglass._embedded.rules.activities import deadline
from hourglass._embedded.rules.limits import Limits, Overgrown
from hourglass._embedded.rules.run import RUNNING, GiveUpClaims, OpenActivity, Run, TellSchedule, Transition
from hourglass._embedded.rules.transitions import needs_recovery, recover
from hourglass._embedded.store.search_attributes import SearchAttributes
from hourglass._embedded.store.store import AT_ONCE, Change, Refusal, ScheduleChange, Store, Stored
from hourglass._engine.versions import VersioningOverride
from hourglass._history import events as h
from hourglass.errors import StorageError

# --- what the store has not written yet -----------------------------------------------------------------------


STANDSTILL = SECOND // 4
"""A store that has not written a change for so long stands still."""


class CommitWatch:
    """Watches for the commit of some change, so that a store that stands still is noticed."""

    def __init__(self, is_durable: Callable[[int], bool], clock: Clock) -> None:
        self._is_durable = is_durable
        self._clock = clock
        self._number = 0  # a change whose commit is watched for, and since when it is on its way
        self._since_ns = 0
        self.still_since = 0
        """Since when the store stands still, as far as it was noticed; 0: it moves."""

    def appended(self, number: int) -> None:
        """The store was given this change: if no commit is watched for, this one is."""
        if not self.still_since and self._is_durable(self._number) and not self._is_durable(number):
            self._number, self._since_ns = number, self._clock.now_ns()

    def look(self, newest: int) -> int:
        """Look whether the store moves; if it stood still until now, gives since when."""
        now = self._clock.now_ns()
        since = 0
        if self._is_durable(self._number):
            since, self.still_since = self.still_since, 0
            if not self._is_durable(newest):
                self._number, self._since_ns = newest, now
        elif not self.still_since and now - self._since_ns > STANDSTILL:
            self.still_since = self._since_ns
        return since


class CarriedOut:
    """The runs that carried out requests, by workflow id and request id, each with the number of the change: until
    that is durable, and the store knows them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_durable = store.is_durable
        self._runs: dict[tuple[str, str], tuple[str, int]] = {}
        self._unstored: deque[tuple[int, tuple[str, str]]] = deque()

    def note(self, change: Change, number: int) -> None:
        """A change carries out requests. Of earlier ones the store knows by now; they need not be kept here."""
        unstored = self._unstored
        for request_id in change.request_ids:
            key = (change.run.started.workflow_id, request_id)
            self._runs[key] = (change.run.run_id, number)
            unstored.append((number, key))
        while unstored and self._is_durable(unstored[0][0]):
            earlier, key = unstored.popleft()
            # Several runs of one change may carry out the same request: then it is gone already.
            if self._runs.get(key, ("", 0))[1] == earlier:
                del self._runs[key]

    def find(self, workflow_id: str, request_id: str) -> str:
        """The run id of the run that carried out a request; empty if none did."""
        run_id, number = self._runs.get((workflow_id, request_id), ("", 0))
        return self._store.find_request(workflow_id, request_id) if self._is_durable(number) else run_id


# --- runs -----------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.embedded")

LOOK_AGAIN = 5 * SECOND
"""When something that is withheld and overdue comes up again, at the latest."""

_NOTHING: frozenset[int] = frozenset()


class RunTable:
    """The table of runs, by workflow id and run id, over a store. `idle` hears of records that may be dropped."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        limits: Limits,
        queues: TaskQueues,
        idle: Callable[[LoadedRun], None],
        namespace: str = "default",
    ) -> None:
        self.store = store
        self.is_durable: Callable[[int], bool] = store.is_durable
        """Whether what rests on this change may leave the engine."""
        self.clock = clock
        self.limits = limits
        self.queues = queues
        self.attributes = SearchAttributes(store.attribute_types, limits)
        self.appended = 0
        """The number of the newest change that the store was given."""
        self.stopped = False
        self.in_hand: set[str] = set()
        self.new_run_id: Callable[[], str] = queues.policy.new_run_id
        self.awaiting: EndListener = NoListener()
        self.keeping: LimitKeeping
        self.has_version: Callable[[VersioningOverride, str], bool]
        """Whether some worker of a queue was of the version that an override names: the engine's table of versions knows."""
        self.claims: dict[str, set[str]] = {}
        """The ids of the limits that each run has something of, by run id; `keeping` keeps it."""
        self._idle = idle
        self._alarms = Alarms(clock, self._elapse)
        self._transaction = Transaction(EffectsOnOthers(self, namespace).carry_out, self._settle)
        self._records: dict[str, LoadedRun] = {}
        self._current: dict[str, str] = {}
        self._schedules: dict[tuple[type[ScheduleChange], str], ScheduleChange] = {}
        self._patience = store.patience
        self._kept_back: dict[str, LoadedRun] = {}
        self._kept_long: list[LoadedRun] = []
        self._timer_runs = False
        self.took_over = False
        """Whether another process has just ended, and this one goes on with what it had."""
        self.living: frozenset[str] = frozenset()
        """The identities of workers that outlived the process which owned the file before, while they may come back."""
        self.kept: dict[AttemptToken, str] = {}
        """The attempts that these had, and have not claimed yet, and the identity of the worker of each."""
        self.parked: dict[str, StorageError] = {}
        """Runs of which something could not be written, and why: nothing of them is given out until the store is
        opened anew; they can be looked at, and ended.
        """
        self._parked_at: dict[str, int] = {}
        self._requests = CarriedOut(store)
        self._commits = CommitWatch(store.is_durable, clock)

    def stop(self) -> None:
        """Time passes no more, and nothing changes any more."""
        self.stopped = True
        for record in self._records.values():
            self._alarms.silence(record)

    def realign(self) -> None:
        """Time has jumped: set all alarms anew. What began while the clock was ahead begins now, and what was put off then
        is put off no more.
        """
        now = self.clock.now_ns()
        for record in tuple(self._records.values()):
            self._set_back(record, now)
            record.look((*record.run.activities, *record.run.timers), now)
            self._alarms.silence(record)
            self._alarms.set(record, 0, now)
        for taker in self.queues.all_takers():
            taker.realign()
        self.awaiting.realign()
        self.keeping.realign()

    def _set_back(self, record: LoadedRun, now: int) -> None:
        if record.run.is_open and transitions.began_later(record.run, now):
            self.change(record, transitions.set_back)
            self._alarms.silence(record)
            self._alarms.set(record, 0, now)

    # --- a store that stands still --------------------------------------------------------------------------

    def store_stands_still(self) -> bool:
        """Whether the store has written nothing for a while though there is something to write: nothing new reaches a
        worker then. When it moves again, that time is given back to the activities that waited.
        """
        since = self._commits.look(self.appended)
        if since:
            self._give_time_back(since)
        return self._commits.still_since != 0

    def _give_time_back(self, since: int) -> None:
        now = self.clock.now_ns()
        for record in tuple(self._records.values()):
            activities = record.run.activities
            ids = [event_id for event_id, each in activities.items() if _waits_with_a_limit(each, now)]
            if ids:
                self._put_off(record, ids, since)

    def _put_off(self, record: LoadedRun, ids: list[int], since: int) -> None:
        self.change(record, lambda run, now: transitions.put_off_activities(run, ids, since, now))

    @staticmethod
    def _withheld(record: LoadedRun, due: frozenset[int], now: int, *, stands_still: bool) -> frozenset[int]:
        """Which of these activities are overdue only because the engine did not give them to a worker."""
        found: list[int] = []
        for event_id in due:
            activity = record.run.activities.get(event_id)
            if activity is None or not 0 < deadline(activity)[0] <= now:
                continue
            in_hand = record.attempts.get(event_id)
            if in_hand is not None and not in_hand.handed_out if activity.started_ns else stands_still:
                found.append(event_id)
        return frozenset(found)

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
            self._transaction.add(Part(record, self._change_of(record, request_ids, now), _NOTHING, earliest))
        else:
            self._append_one(record, request_ids, now)
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
            changes.add(Part(record, self._change_of(record, request_ids, now), step.touched, earliest))
            changes.ask(record, step.asks)
        return record

    def transaction(self) -> contextlib.AbstractContextManager[Transaction]:
        """What is done in here becomes durable as one change."""
        return self._transaction.begin(self.clock.now_ns())

    def keep_schedule(self, change: ScheduleChange) -> None:
        """Store a schedule, together with what else happens in the `transaction`."""
        with self.transaction():
            self._schedules[type(change), change.schedule_id] = change

    def change(
        self,
        record: LoadedRun,
        transition: Callable[[Run, int], Transition],
        *,
        request_ids: tuple[str, ...] = (),
        looked: frozenset[int] = _NOTHING,
        to_worker: bool = False,
    ) -> str:
        """Apply a transition to a run, now; it carries out these requests. `to_worker`: a worker takes the run's task
        by it, and what the worker answers may be stored together with it.

        A run that has outgrown its limits is ended instead: gives the reason then, else nothing. When the
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
            step = transition(run, now)
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

    def go_on(self, record: LoadedRun, step: Transition, now: int, *, to_worker: bool = False) -> None:
        """Apply a step by which the handle that has the run's task or attempt takes what it leads to: it concerns no task
        queue, no other run and no request. All that `change` does then, in one piece: most steps come by here. `to_worker`:
        the handle takes the run's task; else it has taken an attempt at least.
        """
        run, events = step.run, record.events
        record.run = run
        events += step.events
        encoded = record.unstored + step.encoded if record.unstored else step.encoded
        touched = record.touched | step.touched if record.touched else step.touched
        if to_worker and self._patience:
            record.unstored, record.touched = encoded, touched
            self._keep_back(record)
        else:
            if self._kept_back:
                self._kept_back.pop(run.run_id, None)
            change = Change(
                run=run,
                events=tuple(events[record.stored_events :]),
                encoded=encoded,
                touched=touched,
                wake_ns=AT_ONCE,  # a worker has something of it
            )
            record.stored_events, record.unstored, record.touched = len(events), b"", _NOTHING
            record.number = self.appended = number = self.store.append(change)
            record.stored_wake_ns = AT_ONCE
            self._commits.appended(number)
        earliest, due = record.look(step.touched, now), record.alarm_ns
        is_late = 0 < earliest < due or (to_worker and now + to_ns(run.started.spec.task_timeout) < due)
        if record.alarm is None or not self._alarms.early_is_harmless or is_late:
            self._alarms.set(record, earliest, now)
        if record.changed.waiters:
            record.changed.ring()

    def find_request(self, latest: LoadedRun, request_id: str) -> str:
        """The run id of the run that carried out a request, among all runs of a workflow, whose latest is given;
        empty if none did.
        """
        if request_id in latest.seen:
            return latest.run.run_id
        if not latest.has_past:
            return ""
        return self._requests.find(latest.run.started.workflow_id, request_id)

    def newest_of(self, workflow_id: str, run_id: str) -> int:
        """The number of the newest change of a workflow's latest run, and of this run, that are in memory; 0 if none
        is.
        """
        found = (self._records.get(self._current.get(workflow_id, "")), self._records.get(run_id))
        return max((self.number_of(record) for record in found if record is not None), default=0)

    # --- changes that are kept back -------------------------------------------------------------------------

    def number_of(self, record: LoadedRun) -> int:
        """The number of the newest change of a run: the store is given what was kept back of it."""
        if record.run.run_id in self._kept_back:
            self._append_one(record, (), self.clock.now_ns())
        return record.number

    @property
    def newest(self) -> int:
        """The number of the newest change of all: the store is given all that was kept back."""
        if self._kept_back:
            self.store_all()
        return self.appended

    def store_all(self) -> None:
        """Give the store all that was kept back."""
        for record in tuple(self._kept_back.values()):
            self._append_one(record, (), self.clock.now_ns())

    def forget_newest(self) -> None:
        """The newest change will never be written: a wait for all changes need not wait for it."""
        self.appended -= 1

    def _keep_back(self, record: LoadedRun) -> None:
        """A worker has the run's task, and nothing else waits for what led to that: it is stored together with the
        answer, as one change; or when a call asks for its number; or after a moment. A crash before that loses no
        more than one before a commit does.
        """
        self._kept_back[record.run.run_id] = record
        if not self._timer_runs:
            self._timer_runs = True
            asyncio.get_running_loop().call_later(self._patience, self._store_what_waits_long)

    def _store_what_waits_long(self) -> None:
        for record in self._kept_long:
            if self._kept_back.get(record.run.run_id) is record and not self.stopped:
                self._append_one(record, (), self.clock.now_ns())
        self._kept_long = list(self._kept_back.values())
        self._timer_runs = bool(self._kept_long)
        if self._timer_runs:
            asyncio.get_running_loop().call_later(self._patience, self._store_what_waits_long)

    # --- what is in memory ----------------------------------------------------------------------------------

    def hold(self, record: LoadedRun) -> None:
        """A cache or a request uses a record: it stays in memory until `let_go`."""
        record.users += 1

    def let_go(self, record: LoadedRun) -> None:
        """A cache or a request no longer uses a record."""
        record.users -= 1
        if not record.users:
            self._idle(record)

    def drop(self, record: LoadedRun) -> bool:
        """Forget a run until it is asked for again, if nothing uses it and it is durable."""
        if self._records.get(record.run.run_id) is not record:
            return True  # it was parked, and another may be in its place
        now = self.clock.now_ns()
        if not record.is_quiet(now):
            return False
        if record.stored_wake_ns == AT_ONCE:  # a clock that was set back has put its task off
            self._append_one(record, (), now)
        if not self.is_durable(self.number_of(record)):
            return False
        if AT_ONCE < record.stored_wake_ns <= now:
            return False  # the store has given it out as due: it would not come again
        self._alarms.silence(record)
        del self._records[record.run.run_id]
        workflow_id = record.run.started.workflow_id
        if self._current.get(workflow_id) == record.run.run_id:
            del self._current[workflow_id]
        return True

    def forget(self, record: LoadedRun) -> int:
        """Remove a run that has closed, and is durable, for good; gives the number of the change."""
        self._alarms.silence(record)
        run_id, workflow_id = record.run.run_id, record.run.started.workflow_id
        self._records.pop(run_id, None)
        self._kept_back.pop(run_id, None)
        if self._current.get(workflow_id) == run_id:
            del self._current[workflow_id]
        self.appended = self.store.forget(run_id)
        return self.appended

    def park(self, run_id: str, refusal: Refusal) -> LoadedRun | None:
        """What is in memory of a run cannot be stored: drop it, so that the run is again as it stands in the store,
        and give nothing of it out any more. Gives the record, which for caches and requests that still hold it is
        that of a closed run.
        """
        if refusal.number <= self._parked_at.get(run_id, 0):
            return None  # it rested on what was refused before: what is in memory now does not
        # Changes up to here may rest on the refused one.
        self._parked_at[run_id] = max(self.appended, refusal.number)
        record = self._records.pop(run_id, None)
        self._kept_back.pop(run_id, None)
        if run_id not in self.parked:
            self.parked[run_id] = refusal.error
            workflow_id = "" if record is None else record.run.started.workflow_id
            logger.error(
                "run %s of workflow %r is parked, as it stood before, until the file is opened anew: %s",
                run_id,
                workflow_id,
                refusal.error,
            )
        if record is None:
            return None
        self._alarms.silence(record)
        workflow_id = record.run.started.workflow_id
        if self._current.get(workflow_id) == run_id:
            del self._current[workflow_id]
        pending = (*record.run.activities, *record.run.timers)
        record.run = msgspec.structs.replace(
            record.run,
            status=WorkflowStatus.TERMINATED,
            task=None,
            held=(),
            activities={},
            timers={},
            children={},
        )
        record.look(pending, self.clock.now_ns())
        self.queues.offer(record.run, pending, self.clock.now_ns(), record.sticky)
        holders = {id(each.taker): each.taker for each in record.attempts.values()}
        if record.sticky is not None:
            holders[id(record.sticky)] = record.sticky
        record.tell_holders(pending)
        self.note_hands(record)
        for holder in holders.values():
            holder.parked(run_id)
        record.changed.ring()
        record.closed.ring()
        return record

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
        if needs_recovery(stored.run):
            self._apply(record, self._recovered(record.run, now), pending, now)
            say_lost(stored.run, record.run, stored.run.activities, LOST_WITH_PROCESS)
        else:
            self._announce(record, pending, earliest, now)
        self._set_back(record, now)
        if record.alarm is not None and record.alarm_ns <= now:
            self._elapse(record)
        return record

    def _recovered(self, run: Run, now: int) -> Transition:
        """What follows from the end of the process that served a run. Attempts of workers that live are kept for them."""
        living = self.living
        if living:
            self.kept.update(
                (AttemptToken(run.run_id, each.scheduled_event_id, each.attempt), each.identity)
                for each in run.activities.values()
                if each.started_ns and not each.deferred and each.identity in living
            )
        return recover(run, self.new_run_id(), now, at_once=self.took_over, living=living)

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
            if to_worker and self._patience and run.task is not None and run.task.started_event_id:
                self._keep_back(record)
            elif changed or record.wake_ns(now) != record.stored_wake_ns:
                self._append_one(record, request_ids, now)
            self._announce(record, ids, earliest, now)
            return
        changed = changed or record.wake_ns(now) != record.stored_wake_ns
        with self._transaction.begin(now) as changes:
            change = self._change_of(record, request_ids, now) if changed else None
            changes.add(Part(record, change, ids, earliest))
            if step.follower is not None:
                following, first = self._begin(step.follower, step.signals, (), now)
                changes.add(Part(following, self._change_of(following, (), now), _NOTHING, first))
            changes.ask(record, asks)

    def _settle(self, parts: list[Part], now: int) -> None:
        """The parts of a transaction are in memory: store them as one change, then announce each. In this order, so
        that what a handle takes when it is woken rests on a change that has its number.
        """
        changes = [(part.change, part.record) for part in parts if part.change is not None]
        if changes or self._schedules:
            schedules, self._schedules = self._schedules, {}
            whole = joined((*(change for change, _ in changes), *schedules.values()))
            self._append(whole, *(record for _, record in changes))
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

    def _change_of(self, record: LoadedRun, request_ids: tuple[str, ...], now: int) -> Change:
        """What the store has not got yet of a run; from now on it has."""
        if self._kept_back:
            self._kept_back.pop(record.run.run_id, None)
        events, begin = record.events, record.stored_events
        change = Change(
            run=record.run,
            events=tuple(events[begin:] if begin else events),
            encoded=record.unstored,
            touched=record.touched,
            wake_ns=record.wake_ns(now),
            request_ids=request_ids,
        )
        record.stored_events, record.unstored, record.touched = len(events), b"", _NOTHING
        return change

    def _append_one(self, record: LoadedRun, request_ids: tuple[str, ...], now: int) -> None:
        change = self._change_of(record, request_ids, now)
        record.number = self.appended = self.store.append(change)
        record.stored_wake_ns = change.wake_ns
        if request_ids:
            self._requests.note(change, self.appended)
        self._commits.appended(self.appended)

    def _append(self, change: Change | ScheduleChange, *records: LoadedRun) -> None:
        self.appended = self.store.append(change)
        self._commits.appended(self.appended)
        for record, each in zip(records, (change, *change.also), strict=False):  # schedules come last
            record.number = self.appended
            record.stored_wake_ns = each.wake_ns
            if isinstance(each, Change) and each.request_ids:
                self._requests.note(each, self.appended)

    def _announce(self, record: LoadedRun, ids: Collection[int], earliest: int, now: int) -> None:
        """Tell the clock, the task queues, the handles and the waiters that a change concerns."""
        run = record.run
        if run.run_id not in self.parked:
            self._alarms.set(record, earliest, now)
            self.queues.offer(run, ids, now, record.sticky, late=record.late)
        if record.attempts:
            record.tell_holders(ids)
        self.note_hands(record)
        if record.changed.waiters:
            record.changed.ring()
        if run.status is not RUNNING:
            if record.sticky is not None:
                record.sticky.closed(run.run_id)
            record.closed.ring()
        if not record.users:
            self._idle(record)

    def note_hands(self, record: LoadedRun) -> None:
        """Which handles have something of a run may have changed."""
        run, task = record.run, record.run.task
        # As `is_in_hand`, without a call: every step comes by.
        if (
            record.attempts
            or record.queries
            or (task is not None and task.started_event_id and not record.resting)
        ):
            self.in_hand.add(run.run_id)
        else:
            self.in_hand.discard(run.run_id)

    def _elapse(self, record: LoadedRun) -> None:
        """A run's alarm: what is due happens, but for activities that are overdue only because the disk is slow."""
        self._alarms.silence(record)
        still = self.store_stands_still()
        now = self.clock.now_ns()
        due = frozenset(record.wakes.due(now))
        record.late = record.late or bool(due)
        if record.run.is_open:
            withheld = self._withheld(record, due, now, stands_still=still)
            if withheld:
                record.wakes.put_off(withheld, now + LOOK_AGAIN)
                due -= withheld
            ids = self.queues.policy.due_now(sorted(due))
            follower = self.new_run_id() if record.run.deadline_ns else ""
            before = record.run
            # Of an attempt that a worker has, the worker is told, and its log tells.
            alone = [each for each in ids if each not in record.attempts] if before.activities else ()
            self.change(
                record,
                lambda run, now: transitions.elapse(run, ids, follower, now, task_is_withheld=still),
                looked=due,
            )
            if alone:
                say_lost(before, record.run, alone, "timed out, and no worker had it")
            if not self._transaction.is_open:
                self.queues.dispatch()


LOST_WITH_PROCESS = "was lost with the process of its worker"


def say_lost(before: Run, after: Run, ids: Iterable[int], what: str) -> None:
    """Log the attempts of these activities that a change has ended, where no worker is there to log them."""
    if not after.is_open:
        return  # it ended with all that it had
    for event_id in ids:
        activity, now = before.activities.get(event_id), after.activities.get(event_id)
        if activity is None or (now is not None and now.attempt == activity.attempt):
            continue
        scheduled, workflow_id = activity.scheduled, before.started.workflow_id
        logger.log(
            logging.ERROR if now is None else logging.WARNING,
            "activity %s of workflow %s (id %s, attempt %d) %s%s",
            scheduled.activity_type,
            workflow_id,
            scheduled.activity_id,
            activity.attempt,
            what,
            ": it is not tried again" if now is None else "; it is tried again",
            extra={
                "workflow_id": workflow_id,
                "run_id": before.run_id,
                "workflow_type": before.started.workflow_type,
                "task_queue": activity.spec.task_queue,
                "activity_type": scheduled.activity_type,
                "activity_id": scheduled.activity_id,
                "attempt": activity.attempt,
            },
        )


def _waits_with_a_limit(activity: OpenActivity, now_ns: int) -> bool:
    """Whether an activity waits for a worker, and times out if none comes."""
    spec = activity.spec
    limited = spec.schedule_to_start_timeout or spec.schedule_to_close_timeout
    return bool(limited) and not activity.started_ns and activity.available_ns <= now_ns
