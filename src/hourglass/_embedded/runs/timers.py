"""Timers of runs (`RunTimers`). Each run has an alarm on the clock at its earliest deadline, which applies the due
transitions. Activities that are overdue only because the engine withheld them while its store was stalled do not time
out.

Must not know: handles, requests, how a store keeps data. This module makes no decisions: transitions do. Invariant:
an open run with a deadline has an alarm at that deadline or earlier.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from hourglass._embedded.clock import SECOND
from hourglass._embedded.runs.lost_attempts import log_lost
from hourglass._embedded.runs.run import LoadedRun, run_wake_ns
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.activities import deadline
from hourglass._embedded.transitions.run import RUNNING, OpenActivity, Run

if TYPE_CHECKING:
    from hourglass._embedded.runs.runs import RunTable

LOOK_AGAIN = 5 * SECOND
"""The maximum delay before a withheld and overdue activity is checked again."""


class RunTimers:
    """The alarms of all runs in memory."""

    def __init__(self, runs: RunTable) -> None:
        self._runs = runs
        self._clock = runs.clock
        self.early_is_harmless = runs.clock.early_is_harmless
        """Whether an alarm that fires too early has no effect except to arm the next alarm."""

    def set(self, record: LoadedRun, earliest: int, now: int) -> None:
        """Arm the run's timer. `earliest` is the earliest deadline among the changed activities and timers."""
        run = record.run
        if record.alarm is not None and self.early_is_harmless and run.status is RUNNING:
            due, task = record.alarm_ns, run.task
            # An alarm that fires too early finds nothing due and is rearmed. Of the deadlines of the run as a
            # whole, only the workflow task's can become earlier.
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
        """Disarm the run's timer."""
        if record.alarm is not None:
            record.alarm()
            record.alarm = None

    def elapse(self, record: LoadedRun) -> None:
        """Apply everything that is due, except timeouts of activities that are overdue only because the store is slow."""
        self.silence(record)
        still = self.store_is_stalled()
        runs, now = self._runs, self._clock.now_ns()
        due = frozenset(record.wakes.due(now))
        record.late = record.late or bool(due)
        if not record.run.is_open:
            return
        withheld = _withheld(record, due, now, is_stalled=still)
        if withheld:
            record.wakes.put_off(withheld, now + LOOK_AGAIN)
            due -= withheld
        ids = runs.queues.policy.due_now(sorted(due))
        if runs.may_change(record) and _only_available(record.run, ids, now):
            self._offer(record, due, now)
            return
        follower = runs.new_run_id() if record.run.deadline_ns else ""
        before = record.run
        # A worker that has the attempt is notified and logs the timeout itself.
        alone = [event_id for event_id in ids if event_id not in record.attempts] if before.activities else ()
        runs.change(
            record,
            lambda run, now: transitions.elapse(run, ids, follower, now, task_is_withheld=still),
            looked=due,
        )
        if alone:
            log_lost(before, record.run, alone, "timed out while no worker was executing it")
        if not runs.in_transaction:
            runs.queues.dispatch()

    def _offer(self, record: LoadedRun, due: frozenset[int], now: int) -> None:
        """Offer attempts that have become available to workers.

        The run does not change, except for its next deadline. The new deadline is stored with the change that assigns
        an attempt to a worker, or separately if no worker receives one.
        """
        runs = self._runs
        self.set(record, record.refresh_deadlines(due, now), now)
        runs.queues.offer(record.run, due, now, record.sticky, late=record.late)
        runs.queues.dispatch()
        if record.wake_ns(now) != record.stored_wake_ns:
            runs.writes.append(record, (), now)

    def realign(self) -> None:
        """Rearm all alarms after the clock has jumped. Timers and attempts that started while the clock was ahead are
        treated as started now. Postponed activities are checked without further delay.
        """
        now = self._clock.now_ns()
        for record in tuple(self._runs.records()):
            self.set_back(record, now)
            record.refresh_deadlines((*record.run.activities, *record.run.timers), now)
            self.silence(record)
            self.set(record, 0, now)

    def set_back(self, record: LoadedRun, now: int) -> None:
        """Move the start times of a run's timers, attempts and task to the present if they are in the future. This
        happens when the clock was set back.
        """
        if record.run.is_open and transitions.began_later(record.run, now):
            self._runs.change(record, transitions.set_back)
            self.silence(record)
            self.set(record, 0, now)

    def store_is_stalled(self) -> bool:
        """Return whether the store is stalled: it has written nothing for a while although changes are pending.
        Workers then receive no new work.

        When the store has recovered, extend the timeouts of waiting activities by the duration of the stall.
        """
        writes = self._runs.writes
        since = writes.check_stall()
        if since:
            self._extend_deadlines(since)
        return writes.is_stalled

    def _extend_deadlines(self, since: int) -> None:
        now = self._clock.now_ns()
        for record in tuple(self._runs.records()):
            activities = record.run.activities
            ids = [
                event_id for event_id, activity in activities.items() if _waits_with_a_limit(activity, now)
            ]
            if ids:
                self._put_off(record, ids, since)

    def _put_off(self, record: LoadedRun, ids: list[int], since: int) -> None:
        self._runs.change(record, transitions.put_off_activities, ids, since)


def _withheld(record: LoadedRun, due: frozenset[int], now: int, *, is_stalled: bool) -> frozenset[int]:
    """Return the activities among `due` that are overdue only because the engine has not sent them to a worker."""
    withheld: list[int] = []
    for event_id in due:
        activity = record.run.activities.get(event_id)
        if activity is None or not 0 < deadline(activity)[0] <= now:
            continue
        attempt = record.attempts.get(event_id)
        if attempt is not None and not attempt.handed_out if activity.started_ns else is_stalled:
            withheld.append(event_id)
    return frozenset(withheld)


def _only_available(run: Run, ids: Collection[int], now_ns: int) -> bool:
    """Whether nothing else of the run is due now, and each of these activities is due only because its next attempt
    has become available.
    """
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
    """Whether an activity is waiting for a worker and has a timeout for that wait."""
    spec = activity.spec
    limited = spec.schedule_to_start_timeout or spec.schedule_to_close_timeout
    return bool(limited) and not activity.started_ns and activity.available_ns <= now_ns
