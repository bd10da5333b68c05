"""Attempts of activities, from the runs that want them to the handles that take them.

Must not know: workflow tasks, how runs change. Invariant: an attempt is in the hands of one handle at most.
"""

from __future__ import annotations

from collections.abc import Callable

from hourglass._contract.handle import (
    ActivityCancelled,
    ActivityDeferred,
    ActivityFailed,
    ActivityOk,
    ActivityResult,
    ActivityTask,
)
from hourglass._embedded.clock import to_ns
from hourglass._embedded.rules import transitions
from hourglass._embedded.rules.activities import narrowest_timeout
from hourglass._embedded.rules.draft import Eager
from hourglass._embedded.rules.run import Activity
from hourglass._embedded.running.activity_tasks import activity_task, unasked
from hourglass._embedded.running.deployments import Deployments
from hourglass._embedded.running.ledger import Ledger
from hourglass._embedded.running.offers import Taker
from hourglass._embedded.running.record import InHand, Record, Token
from hourglass._engine.events import Payloads
from hourglass.converter import CanceledFailure

NEGLIGIBLE = 100
"""A wait of less than one part in so many of an attempt's shortest timeout is not made up for."""


class AttemptDesk:
    """Gives out attempts, and knows who has which."""

    def __init__(self, ledger: Ledger, namespace: str, deployments: Deployments) -> None:
        self._ledger = ledger
        self._namespace = namespace
        self._deployments = deployments

    def take(self, taker: Taker) -> tuple[ActivityTask, Token, int] | None:
        """Give a handle an attempt of an activity, if one waits on its queue, its name and the change it rests on."""
        ledger = self._ledger
        now = ledger.clock.now_ns()
        for run_id, scheduled in () if ledger.stopped else ledger.offers.attempts(taker.task_queue):
            record = ledger.in_memory(run_id)
            activity = None if record is None else record.run.activities.get(scheduled)
            if record is None or activity is None or activity.started_ns or activity.available_ns > now:
                continue
            versions = self._deployments
            if versions.in_use and not versions.takes_attempt(taker, record.run, activity):
                continue
            token = Token(run_id, scheduled, activity.attempt)
            record.attempts[scheduled] = InHand(token, taker)
            if self._start(record, activity, taker.identity):
                return self.take(taker)  # the run was ended: the offers have changed under us
            started = record.run.activities[scheduled]
            return activity_task(self._namespace, record.run, started, token.encode()), token, record.number
        return None

    def hand_out(self, task: ActivityTask, token: Token) -> ActivityTask:
        """An attempt that was taken reaches its worker, and its clocks begin. The wait for a commit before that counts
        for no timeout; where it was too short to matter for any, nothing is written.
        """
        record = self._ledger.in_memory(token.run_id)
        in_hand = None if record is None else record.attempts.get(token.scheduled_event_id)
        if record is None or in_hand is None or in_hand.token != token:
            return task
        in_hand.handed_out = True
        activity = record.run.activities[token.scheduled_event_id]
        late = self._ledger.clock.now_ns() - activity.started_ns
        if late <= to_ns(narrowest_timeout(activity)) // NEGLIGIBLE:
            return task
        self._ledger.change(record, lambda run, now: transitions.hand_out_attempt(run, activity, now))
        started = record.run.activities.get(token.scheduled_event_id)
        return task if started is None else activity_task(self._namespace, record.run, started, task.token)

    def begun(self, record: Record, since: int, taker: Taker) -> list[tuple[ActivityTask, Token]]:
        """The attempts that a handle took at once, by the change that wrote the events from this index on, and their
        names.
        """
        run = record.run
        tasks: list[tuple[ActivityTask, Token]] = []
        for event in record.events[since:] if run.activities else ():
            activity = run.activities.get(event.id)
            if activity is not None and activity.started_ns:
                token = Token(run.run_id, event.id, activity.attempt)
                record.attempts[event.id] = InHand(token, taker)
                tasks.append((activity_task(self._namespace, run, activity, token.encode()), token))
        if tasks:
            self._ledger.in_hand.add(run.run_id)
        return tasks

    def _start(self, record: Record, activity: Activity, identity: str) -> str:
        return self._ledger.change(
            record, lambda run, now: transitions.start_attempt(run, activity, identity, now)
        )

    def find(self, token: Token) -> tuple[Record, Activity] | None:
        """The attempt that a token names, if it is still the one that counts."""
        record = self._ledger.record(token.run_id)
        activity = record.run.activities.get(token.scheduled_event_id) if record else None
        if record is None or activity is None or activity.attempt != token.attempt or not activity.started_ns:
            return None
        return record, activity

    def end(
        self, token: Token, result: ActivityResult, who: str, wants_task: Callable[[Record], Eager | None]
    ) -> Record | None:
        """An attempt ended. The end of one that no longer counts is dropped, as a server does. If whoever ended it
        wants the task that it leads to at once, gives the run whose task that worker has now.
        """
        found = self.find(token)
        if found is None:
            self.release(token)
            return None
        record, activity = found
        record.attempts.pop(token.scheduled_event_id, None)
        change = self._ledger.change
        match result:
            case ActivityOk(result=value):
                eager = wants_task(record)
                change(
                    record,
                    lambda run, now: transitions.complete_activity(run, activity, value, who, now, eager),
                )
                return record if eager is not None and record.run.task_is_started else None
            case ActivityDeferred():
                change(record, lambda run, now: transitions.defer_activity(run, activity, now))
            case ActivityCancelled() if activity.cancel_requested_event_id:
                info = result.failure.info
                details = info.details if isinstance(info, CanceledFailure) else ()
                change(record, lambda run, now: transitions.cancel_activity(run, activity, details, who, now))
            case ActivityFailed() | ActivityCancelled():
                failure = result.failure if isinstance(result, ActivityFailed) else unasked(result.failure)
                change(record, lambda run, now: transitions.fail_activity(run, activity, failure, who, now))
        return None

    def record_heartbeat(self, token: bytes, details: Payloads) -> None:
        """An attempt lives; so much is written down."""
        found = self.find(Token.decode(token))
        if found is not None:
            record, activity = found
            self._ledger.change(record, lambda run, now: transitions.heartbeat(run, activity, details, now))

    def release(self, token: Token) -> None:
        """The holder of an attempt has let go of it: there is nobody to tell any more."""
        record = self._ledger.in_memory(token.run_id)
        in_hand = record.attempts.get(token.scheduled_event_id) if record is not None else None
        if record is not None and in_hand is not None and in_hand.token == token:
            del record.attempts[token.scheduled_event_id]
            self._ledger.note_hands(record)

    def give_back(self, token: Token) -> None:
        """An attempt that was taken did not reach a worker: it waits again."""
        self.release(token)
        found = self.find(token)
        if found is not None:
            record, activity = found
            self._ledger.change(record, lambda run, now: transitions.give_back_attempt(run, activity, now))
