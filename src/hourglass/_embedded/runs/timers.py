"""Time. What happens to runs as it passes (`RunTimers`): each has an alarm on the clock at the earliest time that something of it
needs, and what is due then happens; but for what is overdue only because the engine withheld it, while its store stood
still. `DueTimes` is the same for schedules and limits: a time for each of many, and one alarm for all.

Must not know: handles, requests, how a store remembers. It decides nothing: what follows from time is a transition's.
Invariant: an open run that needs a time has an alarm at that time or before.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Protocol, TypeVarTuple, Unpack

from hourglass._embedded.clock import SECOND, Cancel, Clock
from hourglass._embedded.matching.task_queues import TaskQueues
from hourglass._embedded.runs.lost_attempts import say_lost
from hourglass._embedded.runs.run import LoadedRun, run_wake_ns
from hourglass._embedded.runs.write_behind import WriteBehind
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.activities import deadline
from hourglass._embedded.transitions.run import RUNNING, Change, OpenActivity, Run

LOOK_AGAIN = 5 * SECOND
"""When something that is withheld and overdue comes up again, at the latest."""


Arguments = TypeVarTuple("Arguments")


class TimedRuns(Protocol):
    """What is needed of `runs.RunTable`."""

    clock: Clock
    queues: TaskQueues
    writes: WriteBehind
    new_run_id: Callable[[], str]

    @property
    def in_transaction(self) -> bool:
        """Whether what happens now is a part of a transaction."""
        ...

    def may_go_on(self, record: LoadedRun) -> bool:
        """Whether a run is open, not paused, within its limits, and nothing keeps it from being changed."""
        ...

    def records(self) -> Iterator[LoadedRun]:
        """The runs that are in memory."""
        ...

    def change(
        self,
        record: LoadedRun,
        transition: Callable[[Run, Unpack[Arguments], int], Change],
        *arguments: *Arguments,
        looked: frozenset[int] = ...,
    ) -> str:
        """Apply `transition(run, *arguments, now_ns)` to a run. `looked` are its activities and timers that were due."""
        ...


class RunTimers:
    """See the module."""

    def __init__(self, runs: TimedRuns) -> None:
        self._runs = runs
        self._clock = runs.clock
        self.early_is_harmless = runs.clock.early_is_harmless
        """Whether an alarm that goes off too early costs nothing but a look."""

    def set(self, record: LoadedRun, earliest: int, now: int) -> None:
        """Let the run be looked at when it must be; `earliest` is what the things that changed need."""
        run = record.run
        if record.alarm is not None and self.early_is_harmless and run.status is RUNNING:
            due, task = record.alarm_ns, run.task
            # Where it is too early it will find nothing due and be set anew. Of the run as a whole, a task's times
            # alone can be earlier than before.
            if not 0 < earliest < due and (task is None or not 0 < run_wake_ns(run, now) < due):
                return
        wake = record.wakes.next_ns(record.run, now)
        if record.alarm is not None:
            if wake == record.alarm_ns:
                return
            record.alarm()
            record.alarm = None
        if wake:
            record.alarm_ns = wake
            record.alarm = self._clock.call_at(wake, partial(self.elapse, record))

    def silence(self, record: LoadedRun) -> None:
        """Do not look at the run any more."""
        if record.alarm is not None:
            record.alarm()
            record.alarm = None

    def elapse(self, record: LoadedRun) -> None:
        """A run's alarm: what is due happens, but for activities that are overdue only because the disk is slow."""
        self.silence(record)
        still = self.store_stands_still()
        runs, now = self._runs, self._clock.now_ns()
        due = frozenset(record.wakes.due(now))
        record.late = record.late or bool(due)
        if not record.run.is_open:
            return
        withheld = _withheld(record, due, now, stands_still=still)
        if withheld:
            record.wakes.put_off(withheld, now + LOOK_AGAIN)
            due -= withheld
        ids = runs.queues.policy.due_now(sorted(due))
        if runs.may_go_on(record) and _only_available(record.run, ids, now):
            self._offer(record, due, now)
            return
        follower = runs.new_run_id() if record.run.deadline_ns else ""
        before = record.run
        # Of an attempt that a worker has, the worker is told, and its log tells.
        alone = [each for each in ids if each not in record.attempts] if before.activities else ()
        runs.change(
            record,
            lambda run, now: transitions.elapse(run, ids, follower, now, task_is_withheld=still),
            looked=due,
        )
        if alone:
            say_lost(before, record.run, alone, "timed out, and no worker had it")
        if not runs.in_transaction:
            runs.queues.dispatch()

    def _offer(self, record: LoadedRun, due: frozenset[int], now: int) -> None:
        """Attempts of a run may be taken from now on. That changes nothing of it but when it must be looked at next, which is
        stored with the change by which they are taken; where none is, by itself.
        """
        runs = self._runs
        self.set(record, record.look(due, now), now)
        runs.queues.offer(record.run, due, now, record.sticky, late=record.late)
        runs.queues.dispatch()
        if record.wake_ns(now) != record.stored_wake_ns:
            runs.writes.append(record, (), now)

    # --- a clock that jumps ---------------------------------------------------------------------------------

    def realign(self) -> None:
        """Time has jumped: set all alarms anew. What began while the clock was ahead begins now, and what was put off then
        is put off no more.
        """
        now = self._clock.now_ns()
        for record in tuple(self._runs.records()):
            self.set_back(record, now)
            record.look((*record.run.activities, *record.run.timers), now)
            self.silence(record)
            self.set(record, 0, now)

    def set_back(self, record: LoadedRun, now: int) -> None:
        """What of a run began later than now begins now."""
        if record.run.is_open and transitions.began_later(record.run, now):
            self._runs.change(record, transitions.set_back)
            self.silence(record)
            self.set(record, 0, now)

    # --- a store that stands still --------------------------------------------------------------------------

    def store_stands_still(self) -> bool:
        """Whether the store has written nothing for a while though there is something to write: nothing new reaches a
        worker then. When it moves again, that time is given back to the activities that waited.
        """
        writes = self._runs.writes
        since = writes.look()
        if since:
            self._give_time_back(since)
        return writes.stands_still

    def _give_time_back(self, since: int) -> None:
        now = self._clock.now_ns()
        for record in tuple(self._runs.records()):
            activities = record.run.activities
            ids = [event_id for event_id, each in activities.items() if _waits_with_a_limit(each, now)]
            if ids:
                self._put_off(record, ids, since)

    def _put_off(self, record: LoadedRun, ids: list[int], since: int) -> None:
        self._runs.change(record, lambda run, now: transitions.put_off_activities(run, ids, since, now))


def _withheld(record: LoadedRun, due: frozenset[int], now: int, *, stands_still: bool) -> frozenset[int]:
    """Which of these activities are overdue only because the engine did not give them to a worker."""
    found: list[int] = []
    for event_id in due:
        activity = record.run.activities.get(event_id)
        if activity is None or not 0 < deadline(activity)[0] <= now:
            continue
        taken = record.attempts.get(event_id)
        if taken is not None and not taken.handed_out if activity.started_ns else stands_still:
            found.append(event_id)
    return frozenset(found)


def _only_available(run: Run, ids: Collection[int], now_ns: int) -> bool:
    """Whether these are activities whose next attempt may be taken from now on, and nothing else is due of a run."""
    if not ids or run.needs_first_task or 0 < run_wake_ns(run, now_ns) <= now_ns:
        return False
    for event_id in ids:
        activity = run.activities.get(event_id)
        if activity is None or activity.started_ns or activity.available_ns > now_ns:
            return False
        if 0 < deadline(activity)[0] <= now_ns:
            return False
    return True


def _waits_with_a_limit(activity: OpenActivity, now_ns: int) -> bool:
    """Whether an activity waits for a worker, and times out if none comes."""
    spec = activity.spec
    limited = spec.schedule_to_start_timeout or spec.schedule_to_close_timeout
    return bool(limited) and not activity.started_ns and activity.available_ns <= now_ns


class DueTimes:
    """When each of many keys is due, and one alarm on the clock at the earliest of these times, which calls `elapse`; none before
    `begin`, nor after `stop`.
    """

    def __init__(self, clock: Clock, elapse: Callable[[], None]) -> None:
        self._clock = clock
        self._elapse = elapse
        self._times: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # with entries that count no more, until they come up
        self._acts = False
        self._alarm: Cancel | None = None
        self._alarm_ns = 0

    def begin(self) -> None:
        """Ring from now on."""
        self._acts = True
        if self._heap:
            self.set_alarm()

    def stop(self) -> None:
        """Ring no more."""
        self._acts = False
        self._silence()

    def set(self, key: str, due_ns: int) -> None:
        """A key is due at this time; 0: never. The alarm follows at `set_alarm`."""
        if not due_ns:
            self._times.pop(key, None)
        elif self._times.get(key) != due_ns:
            self._times[key] = due_ns
            heapq.heappush(self._heap, (due_ns, key))

    def take(self, now_ns: int) -> str | None:
        """The next key whose time has come, which has none from now on; None: no other is due, or the alarm was stopped."""
        while self._acts and self._heap and self._heap[0][0] <= now_ns:
            due = heapq.heappop(self._heap)
            if self._counts(due):
                del self._times[due[1]]
                return due[1]
        return None

    def set_alarm(self) -> None:
        """Times may have changed: ring at the earliest."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._acts or not self._heap:
            self._silence()
        elif self._alarm is None or self._alarm_ns != self._heap[0][0]:
            self._silence()
            self._alarm_ns = self._heap[0][0]
            self._alarm = self._clock.call_at(self._alarm_ns, self._ring)

    def realign(self) -> None:
        """Time has jumped: set the alarm anew."""
        self._silence()
        self.set_alarm()

    def _counts(self, due: tuple[int, str]) -> bool:
        return self._times.get(due[1]) == due[0]

    def _ring(self) -> None:
        self._alarm = None
        self._elapse()
        self.set_alarm()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm()
            self._alarm = None
