"""A run in memory (`LoadedRun`): its history, the workers with its task or attempts, its waiting queries, and its
deadlines (`Wakes`), when its pending activities and timers, its task or the run itself must be checked.

Must not know: other runs, how runs change, stores. The functions that compute a deadline are pure. `Wakes` keeps the
earliest deadlines in a heap, so that the cost of a change does not depend on the number of pending activities and
timers. A heap entry may be earlier than the current deadline, for example after a heartbeat. The later deadline is
noted separately and the entry is corrected when it reaches the front, which is cheaper than keeping all entries
exact.

Invariants:

- All attributes except `run` and `events` can be derived from these two or concern only this process. A record can
  therefore be dropped and recreated from the store.
- For each pending deadline there is a heap entry at that time or earlier.
- A deadline is computed once per change.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.clock import Bell, Cancel, later, storable, to_ns
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.store.store import AT_ONCE
from hourglass._embedded.transitions import activities
from hourglass._embedded.transitions import tasks as tasks
from hourglass._embedded.transitions.activities import deadline
from hourglass._embedded.transitions.run import RUNNING, Change, OpenActivity, Run, first_task_ns
from hourglass._embedded.transitions.size_limits import Limits, encoded_size
from hourglass._embedded.transitions.updates import Updates
from hourglass._evaluator.events import QueryReceived
from hourglass._history import events as h
from hourglass.converter import Failure, Payload
from hourglass.errors import HourglassError, QueryFailedError


def timer_wake_ns(run: Run, event_id: int) -> int:
    """Return when a timer fires; 0 if the timer is not running."""
    timer = run.timers.get(event_id)
    return 0 if timer is None else timer.due_ns


def activity_wake_ns(activity: OpenActivity, now_ns: int) -> int:
    """Return when an activity times out or becomes available to workers, whichever is earlier; 0 for never."""
    when = activities.deadline(activity)[0]
    if not activity.started_ns and activity.available_ns > now_ns:
        available = storable(activity.available_ns)
        return min(when, available) if when else available
    return when


def run_wake_ns(run: Run, now_ns: int) -> int:
    """Return the next deadline of the run as a whole; 0 for none."""
    if run.status is not RUNNING:
        return 0
    when, task = 0, run.task
    if task is not None and task.started_event_id:
        when = later(task.started_ns, to_ns(run.started.spec.task_timeout))
    elif task is not None and task.available_ns > now_ns:
        when = task.available_ns
    elif run.needs_first_task:
        when = first_task_ns(run)
    started = run.started
    deadline = storable(run.deadline_ns) if started.spec.run_timeout or started.expiration_ns else 0
    return min(when, deadline) if when and deadline else when or deadline


class Wakes:
    """The deadlines of the pending activities and timers of one run."""

    __slots__ = ("_at", "_heap", "_later")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._at: dict[int, int] = {}
        self._later = _NONE

    def enter(self, event_id: int, when: int) -> None:
        """Set the deadline of an activity or timer that has changed; 0 for none."""
        at = self._at.get(event_id)
        if not when:
            if at is not None:
                self._forget(event_id)
        elif at is None:
            self._at[event_id] = when
            heapq.heappush(self._heap, (when, event_id))
        elif when < at:
            self._enter(when, event_id)
        elif when > at:
            self._put_off(when, event_id)
        elif self._later:
            self._later.pop(event_id, None)

    def put_off(self, event_ids: Iterable[int], until_ns: int) -> None:
        """Postpone activities or timers that are due but cannot be handled now, until this time or their next change."""
        for event_id in event_ids:
            self._enter(until_ns, event_id)

    def next_ns(self, run: Run, now_ns: int) -> int:
        """Return the next deadline of the run; 0 for none."""
        if run.status is not RUNNING:
            return 0
        item = self._first(now_ns) if self._heap else 0
        run_wake = run_wake_ns(run, now_ns)
        return min(item, run_wake) if item and run_wake else item or run_wake

    def due(self, now_ns: int) -> list[int]:
        """Remove and return the ids of the activities and timers whose deadline has come. The caller must handle each
        of them and set its next deadline with `enter` or `put_off`.
        """
        event_ids: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns:
            when, event_id = heapq.heappop(self._heap)
            if self._at.get(event_id) == when:
                self._forget(event_id)
                event_ids.append(event_id)
        return sorted(event_ids)

    def _first(self, now_ns: int) -> int:
        heap = self._heap
        while heap:
            when, event_id = heap[0]
            counts = self._at.get(event_id) == when
            if counts and (when <= now_ns or event_id not in self._later):
                return when
            heapq.heappop(heap)
            if counts:
                self._enter(self._later[event_id], event_id)
        return 0

    def _enter(self, when: int, event_id: int) -> None:
        self._at[event_id] = when
        heapq.heappush(self._heap, (when, event_id))
        if self._later:
            self._later.pop(event_id, None)

    def _put_off(self, when: int, event_id: int) -> None:
        if self._later is _NONE:
            self._later = {}
        self._later[event_id] = when

    def _forget(self, event_id: int) -> None:
        del self._at[event_id]
        if self._later:
            self._later.pop(event_id, None)
        if not self._at:
            self._heap.clear()  # outdated entries would otherwise stay in the heap until they become due


_NONE: dict[int, int] = {}
"""The `_later` of every `Wakes` without later deadlines: a shared empty dict that is never written to."""


@dataclass(eq=False)
class WaitingQuery:
    """A query for a worker, and the future on which its client waits. If the client has gone, answering the query has
    no effect.
    """

    event: QueryReceived
    answer: asyncio.Future[Payload | None]

    def succeed(self, result: Payload | None) -> None:
        """Answer the query with the handler's result."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, failure: Failure) -> None:
        """Fail the query because its handler raised an exception or the run could not be replayed."""
        self.reject(QueryFailedError(failure.message or "the query failed"))

    def reject(self, error: HourglassError) -> None:
        """Reject the query with an error of the engine."""
        if not self.answer.done():
            self.answer.set_exception(error)


class AttemptToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The identity of one attempt of an activity."""

    run_id: str
    scheduled_event_id: int
    attempt: int

    def encode(self) -> bytes:
        """Return the token as bytes, the form in which workers receive it."""
        return _encode(self)

    @staticmethod
    def decode(data: bytes) -> AttemptToken:
        """Return the attempt that a token identifies. Raise `ValueError` for a malformed token."""
        return _decoder.decode(data)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AttemptToken)


@dataclass(eq=False, slots=True)
class TakenAttempt:
    """An attempt of this run that was assigned to a handle."""

    token: AttemptToken
    poller: QueuePoller
    record: LoadedRun
    told_to_cancel: bool = False
    handed_out: bool = False
    """Whether the attempt was sent to the worker. Until then, it waits for a commit, and its timeouts do not run."""


@dataclass(eq=False, slots=True)
class LoadedRun:
    """A run, its history, and the handles and requests that currently use the run.

    - `number` is the number of the run's newest change in the store, and `stored_wake_ns` is its wake time there.
    - `unsaved` has the events and the touched ids of the changes that were not passed to the store yet.
    - `seen` contains the ids of the requests carried out since the run was loaded. With `has_past`, this run or
      earlier runs of its workflow may have carried out other requests before.
    - `live` contains the activities that a worker is executing or could receive.
    - `changed` rings at every change, and `closed` at the last change.
    - `users` counts the caches and requests that use the record.
    """

    run: Run
    events: list[h.HistoryEvent] = field(default_factory=list)
    number: int = 0
    has_past: bool = False
    seen: set[str] = field(default_factory=set)
    changed: Bell = field(default_factory=Bell)
    closed: Bell = field(default_factory=Bell)
    wakes: Wakes = field(default_factory=Wakes)
    stored_wake_ns: int = 0
    unsaved: Change | None = None
    alarm: Cancel | None = None
    alarm_ns: int = 0
    live: set[int] = field(default_factory=set)
    sticky: QueuePoller | None = None
    attempts: dict[int, TakenAttempt] = field(default_factory=dict)
    queries: list[WaitingQuery] = field(default_factory=list)
    updates: Updates | None = None
    users: int = 0
    signals: int = 0
    """The number of signals among the first `signals_until` events."""
    signals_until: int = 0
    held_count: int = 0
    held_size: int = 0
    """The size in bytes of the first `held_count` held events."""
    late: bool = False
    """Whether the run became active because of time alone: its own timer fired, or the engine found the run due in
    the store. The next request from a client resets the flag.
    """
    resting: bool = False
    """Whether the run's task waits for a local activity while no activation is in progress."""

    def refresh_deadlines(self, event_ids: Iterable[int], now_ns: int) -> int:
        """Recompute the deadlines of these pending activities and timers. Return the earliest, or 0."""
        pending, earliest = self.run.activities, 0
        for event_id in event_ids:
            activity = pending.get(event_id)
            if activity is None:
                self.live.discard(event_id)
                when = timer_wake_ns(self.run, event_id) if self.run.timers else 0
            else:
                if activity.started_ns:
                    lives, when = not activity.deferred, deadline(activity)[0]
                else:
                    waits = activity.available_ns <= now_ns and self.run.paused is None
                    lives, when = waits and not activity.paused, activity_wake_ns(activity, now_ns)
                if lives:
                    self.live.add(event_id)
                else:
                    self.live.discard(event_id)
            self.wakes.enter(event_id, when)
            if when and (not earliest or when < earliest):
                earliest = when
        return earliest

    def update(
        self, change: Change, event_ids: Collection[int], request_ids: tuple[str, ...], now_ns: int
    ) -> int:
        """Apply the result of a transition in memory. Return the earliest deadline of these activities and timers, or
        0.
        """
        self.run = change.run
        self.events += change.events
        self.unsaved = change if self.unsaved is None else self.unsaved.followed_by(change)
        if request_ids:
            self.seen.update(request_ids)
            self.late = False
        return self.refresh_deadlines(event_ids, now_ns) if event_ids else 0

    def has_signals(self, many: int) -> bool:
        """Whether the run has received at least this number of signals."""
        held = len(self.run.held)
        # The first condition is cheap, and usually false.
        return self.run.length + held > many and self._count_signals() >= many

    def _count_signals(self) -> int:
        signaled = h.WorkflowExecutionSignaled
        new = self.events[self.signals_until :]
        self.signals += sum(type(event.attributes) is signaled for event in new)
        self.signals_until += len(new)
        return self.signals + sum(type(attributes) is signaled for attributes in self.run.held)

    def wake_ns(self, now_ns: int) -> int:
        """Return the run's wake time as stored: when the run must be loaded if it is not in memory."""
        task = self.run.task
        if self.live or (task is not None and (task.started_event_id or task.available_ns <= now_ns)):
            return AT_ONCE
        return self.wakes.next_ns(self.run, now_ns)

    def exceeds_held_limits(self, limits: Limits) -> bool:
        """Whether too many events have occurred during a workflow task: their number or size exceeds the limits."""
        held = self.run.held
        if len(held) < self.held_count:
            self.held_count = self.held_size = 0
        self.held_size += sum(map(encoded_size, held[self.held_count :]))
        self.held_count = len(held)
        return len(held) > limits.held_events or self.held_size > limits.held_bytes

    @property
    def is_in_flight(self) -> bool:
        """Whether a worker has a task, an attempt or a query of the run."""
        if self.attempts or self.queries:
            return True
        task = self.run.task
        return task is not None and task.started_event_id != 0 and not self.resting

    def is_quiet(self, now_ns: int) -> bool:
        """Whether the run may be dropped: nothing in this process uses it, and it has no work for a worker."""
        awaited = self.run.is_open and self.updates is not None and self.updates.waiting
        return not self.users and not self.is_in_flight and not awaited and self.wake_ns(now_ns) != AT_ONCE

    def holders(self) -> list[QueuePoller]:
        """Return the pollers of the workers that have attempts of the run or have cached it."""
        pollers = {id(attempt.poller): attempt.poller for attempt in self.attempts.values()}
        if self.sticky is not None:
            pollers[id(self.sticky)] = self.sticky
        return list(pollers.values())

    def close_unstored(self, now_ns: int) -> tuple[int, ...]:
        """Turn the record into that of a closed run, because its changes cannot be stored. Caches and requests may
        still use it.

        Return the ids of the activities and timers that were pending.
        """
        pending = (*self.run.activities, *self.run.timers)
        self.run = msgspec.structs.replace(
            self.run,
            status=WorkflowStatus.TERMINATED,
            task=None,
            held=(),
            activities={},
            timers={},
            children={},
        )
        self.refresh_deadlines(pending, now_ns)
        return pending

    def notify_holders(self, ids: Iterable[int]) -> None:
        """Notify the workers whose attempts of these activities are no longer current or must be cancelled."""
        for event_id in ids:
            attempt = self.attempts.get(event_id)
            if attempt is None:
                continue
            activity = self.run.activities.get(event_id)
            if activity is None or activity.attempt != attempt.token.attempt or not activity.started_ns:
                del self.attempts[event_id]
                reason = "TIMED_OUT" if self.run.is_open else "NOT_FOUND"
                attempt.poller.receiver.cancel_attempt(attempt.token.encode(), reason, self.number)
            elif activity.cancel_requested_event_id and not attempt.told_to_cancel:
                attempt.told_to_cancel = True
                attempt.poller.receiver.cancel_attempt(attempt.token.encode(), "CANCELLED", self.number)
