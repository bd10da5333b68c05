"""A run in memory (`LoadedRun`): its history, the workers that have its task or attempts, the queries that wait for it, and its
deadlines (`Wakes`): when its pending activities and timers, its task and the run itself must be looked at again.

Must not know: other runs, how runs change, stores. The functions that compute a deadline are pure; `Wakes` keeps the earliest
deadlines in a heap, so that a change costs the same however much is pending. An entry may be earlier than the current deadline (a
heartbeat has arrived): this is noted, and corrected when the entry comes up, which is cheaper than keeping all entries exact.

Invariants: everything except `run` and `events` follows from them or concerns this process alone, so that a record can be dropped
and made again from the store; for each pending deadline there is an entry at that time or before; a deadline is computed once per
change.
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
    """Return when a timer fires; 0 if it is not running."""
    timer = run.timers.get(event_id)
    return 0 if timer is None else timer.due_ns


def activity_wake_ns(activity: OpenActivity, now_ns: int) -> int:
    """Return when an activity times out or may be received; 0: never."""
    when = activities.deadline(activity)[0]
    if not activity.started_ns and activity.available_ns > now_ns:
        available = storable(activity.available_ns)
        return min(when, available) if when else available
    return when


def run_wake_ns(run: Run, now_ns: int) -> int:
    """Return when a deadline of the run as a whole is due; 0: never."""
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
        """Set the deadline of an activity or timer that has changed; 0: none."""
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
        """Postpone activities or timers that were due and cannot be handled now, until this time or their next change."""
        for event_id in event_ids:
            self._enter(until_ns, event_id)

    def next_ns(self, run: Run, now_ns: int) -> int:
        """Return the next deadline of the run; 0: none."""
        if run.status is not RUNNING:
            return 0
        item = self._first(now_ns) if self._heap else 0
        run_wake = run_wake_ns(run, now_ns)
        return min(item, run_wake) if item and run_wake else item or run_wake

    def due(self, now_ns: int) -> list[int]:
        """Remove and return the ids whose deadline has come. The caller handles each, and enters it again by `enter` or
        `put_off`.
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
            self._heap.clear()  # outdated entries would otherwise stay until their time


_NONE: dict[int, int] = {}
"""The `_later` of all `Wakes` without later deadlines: one shared empty table, never written to."""


@dataclass(eq=False)
class WaitingQuery:
    """A query on its way to a worker, and the future of its client. If the client has gone, answering it has no effect."""

    event: QueryReceived
    answer: asyncio.Future[Payload | None]

    def succeed(self, result: Payload | None) -> None:
        """Answer the query with the handler's result."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, failure: Failure) -> None:
        """Fail the query, because its handler raised or the run could not be replayed."""
        self.refuse(QueryFailedError(failure.message or "the query failed"))

    def refuse(self, error: HourglassError) -> None:
        """End the query with an error of the engine."""
        if not self.answer.done():
            self.answer.set_exception(error)


class AttemptToken(msgspec.Struct, frozen=True, array_like=True):
    """The identity of one attempt of an activity."""

    run_id: str
    scheduled_event_id: int
    attempt: int

    def encode(self) -> bytes:
        """Return the token in the form in which a worker has it."""
        return _encode(self)

    @staticmethod
    def decode(data: bytes) -> AttemptToken:
        """Return the attempt that a token names. Raises `ValueError` for a malformed token."""
        return _decoder.decode(data)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AttemptToken)


@dataclass(eq=False, slots=True)
class TakenAttempt:
    """An attempt of this run that a handle has received for its worker."""

    token: AttemptToken
    poller: QueuePoller
    record: LoadedRun
    told_to_cancel: bool = False
    handed_out: bool = False
    """Whether the worker has received it. Until then it waits for a commit, and its timeouts do not run."""


@dataclass(eq=False, slots=True)
class LoadedRun:
    """A run, its history, and the handles and requests that use it now.

    `number` is that of its last change in the store, and `stored_wake_ns` the wake time in the store. Not in the store yet
    are the events from index `stored_events` on, as bytes in `unstored`, and the changes of what they `touched`. `seen` has
    the ids of the requests that were carried out since the run is in memory (`has_past`: there may be others, by this run
    before or by earlier runs of its workflow). `live` has the activities that a worker has or could receive. `changed`
    rings at every change, `closed` at the last one; `users` counts the caches and requests that use the record.
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
    stored_events: int = 0
    unstored: bytes = b""
    touched: frozenset[int] = frozenset()
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
    """Whether the run was activated by time alone: by its own timer, or by the engine, which found it due in the store.
    The next request of a client resets this.
    """
    resting: bool = False
    """Whether the run's task waits for a local activity, so that its worker is idle."""

    def refresh_deadlines(self, event_ids: Iterable[int], now_ns: int) -> int:
        """Recompute the deadlines of these pending activities and timers. Return the earliest, or 0."""
        pending, earliest = self.run.activities, 0
        for event_id in event_ids:
            activity = pending.get(event_id)
            if activity is None:
                self.live.discard(event_id)
                when = timer_wake_ns(self.run, event_id) if self.run.timers else 0
            else:
                waits = activity.available_ns <= now_ns and self.run.paused is None and not activity.paused
                if not activity.deferred if activity.started_ns else waits:
                    self.live.add(event_id)
                else:
                    self.live.discard(event_id)
                when = deadline(activity)[0] if activity.started_ns else activity_wake_ns(activity, now_ns)
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
        if change.events:
            self.events += change.events
            self.unstored = self.unstored + change.encoded if self.unstored else change.encoded
        if change.touched:
            self.touched = self.touched | change.touched if self.touched else change.touched
        if request_ids:
            self.seen.update(request_ids)
            self.late = False
        return self.refresh_deadlines(event_ids, now_ns) if event_ids else 0

    def has_signals(self, many: int) -> bool:
        """Whether the run has received at least this number of signals."""
        held = len(self.run.held)
        # The first condition is cheap, and usually suffices.
        return self.run.length + held > many and self._count_signals() >= many

    def _count_signals(self) -> int:
        signaled = h.WorkflowExecutionSignaled
        new = self.events[self.signals_until :]
        self.signals += sum(type(event.attributes) is signaled for event in new)
        self.signals_until += len(new)
        return self.signals + sum(type(attributes) is signaled for attributes in self.run.held)

    def wake_ns(self, now_ns: int) -> int:
        """Return when the run must be loaded, if it is not in memory then, in the store's format."""
        task = self.run.task
        if self.live or (task is not None and (task.started_event_id or task.available_ns <= now_ns)):
            return AT_ONCE
        return self.wakes.next_ns(self.run, now_ns)

    def held_too_much(self, limits: Limits) -> bool:
        """Whether more events than allowed have occurred during a task."""
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
        """Whether nothing in this process uses the run and it has nothing for a worker, so that it may be dropped."""
        awaited = self.run.is_open and self.updates is not None and self.updates.waiting
        return not self.users and not self.is_in_flight and not awaited and self.wake_ns(now_ns) != AT_ONCE

    def holders(self) -> list[QueuePoller]:
        """Return the handles that have attempts of the run, or have cached it."""
        pollers = {id(attempt.poller): attempt.poller for attempt in self.attempts.values()}
        if self.sticky is not None:
            pollers[id(self.sticky)] = self.sticky
        return list(pollers.values())

    def close_unstored(self, now_ns: int) -> tuple[int, ...]:
        """Make the record that of a closed run, because its changes cannot be stored, for the caches and requests that
        still use it.

        Return the ids of its pending activities and timers.
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
        """Notify the handles that attempts of these activities are no longer current, or must be cancelled."""
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
