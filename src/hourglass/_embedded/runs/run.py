"""A run in memory (`LoadedRun`): what the engine knows of it, which handle has what of it, the queries that wait for it,
and when it must be looked at again (`Wakes`).

Must not know: other runs, how runs change, stores. `EndListener` is the seam through which runs tell schedules of their
ends. Invariant: what a record has beside `run` and `events` follows from them or concerns this process alone, so that
a record can be dropped and made again from the store.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.clock import Bell, Cancel, later, storable, to_ns
from hourglass._embedded.matching.task_queues import QueuePoller
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

# --- when a run must be looked at again -----------------------------------------------------------------------
#
# Kept so that a step costs the same however much is pending. What each pending thing needs is pure (`activity_wake_ns`,
# `timer_wake_ns`, `run_wake_ns`); `Wakes` keeps the earliest of them in a heap. An entry may be earlier than what its thing
# needs by now (a heartbeat came): that is noted, and mended when it comes up, which is cheaper than keeping all of them
# exact. Invariants: for everything pending that needs a time there is an entry at that time or before; whatever changes is
# looked at, so that what a thing needs is worked out once per change.


def timer_wake_ns(run: Run, event_id: int) -> int:
    """Return when a timer fires; 0 if it does not run."""
    timer = run.timers.get(event_id)
    return 0 if timer is None else timer.due_ns


def activity_wake_ns(activity: OpenActivity, now_ns: int) -> int:
    """When an activity times out, or may be taken; 0: never."""
    when = activities.deadline(activity)[0]
    if not activity.started_ns and activity.available_ns > now_ns:
        available = storable(activity.available_ns)
        return min(when, available) if when else available
    return when


def run_wake_ns(run: Run, now_ns: int) -> int:
    """When something is due that concerns the run as a whole; 0: never."""
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
    """The times at which one run's pending things must be looked at."""

    __slots__ = ("_at", "_heap", "_later")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._at: dict[int, int] = {}
        self._later = _NONE

    def enter(self, event_id: int, when: int) -> None:
        """This has changed, and needs this time; 0: none."""
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
        """These were due, and cannot be dealt with now: they come up again at this time, or when they change."""
        for event_id in event_ids:
            self._enter(until_ns, event_id)

    def next_ns(self, run: Run, now_ns: int) -> int:
        """When the run must be looked at next; 0: never."""
        if run.status is not RUNNING:
            return 0
        item = self._first(now_ns) if self._heap else 0
        whole = run_wake_ns(run, now_ns)
        return min(item, whole) if item and whole else item or whole

    def due(self, now_ns: int) -> list[int]:
        """What must be looked at now, by event id. Its entries are gone: the caller deals with each, and enters it
        again by `enter` or `put_off`.
        """
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns:
            when, event_id = heapq.heappop(self._heap)
            if self._at.get(event_id) == when:
                self._forget(event_id)
                found.append(event_id)
        return sorted(found)

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
            self._heap.clear()  # entries that no longer count would stay until their time


_NONE: dict[int, int] = {}
"""The `_later` of all `Wakes` that have nothing later than its entry: one empty table for all, never written to."""


# --- a run in memory ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class WaitingQuery:
    """A query on its way to a worker, and the future that its client waits for. A client that has gone away is no
    harm.
    """

    event: QueryReceived
    answer: asyncio.Future[Payload | None]

    def succeed(self, result: Payload | None) -> None:
        """The handler returned."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, failure: Failure) -> None:
        """The handler raised, or the run could not be brought to where it answers."""
        self.refuse(QueryFailedError(failure.message or "the query failed"))

    def refuse(self, error: HourglassError) -> None:
        """The engine cannot ask."""
        if not self.answer.done():
            self.answer.set_exception(error)


class AttemptToken(msgspec.Struct, frozen=True, array_like=True):
    """Names one attempt of an activity."""

    run_id: str
    scheduled_event_id: int
    attempt: int

    def encode(self) -> bytes:
        """The token as a worker carries it."""
        return _encode(self)

    @staticmethod
    def decode(data: bytes) -> AttemptToken:
        """The attempt that a token names; raises ValueError for what is no token."""
        return _decoder.decode(data)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AttemptToken)


@dataclass(eq=False, slots=True)
class TakenAttempt:
    """An attempt that a handle's worker has, of this run."""

    token: AttemptToken
    poller: QueuePoller
    record: LoadedRun
    told_to_cancel: bool = False
    handed_out: bool = False
    """Whether the worker has it: until then it waits here for a commit, and its clocks stand still."""


@dataclass(eq=False, slots=True)
class LoadedRun:
    """A run, its history, and which handles and requests use it now.

    `number` is that of its last change in the store, `stored_wake_ns` the wake time that stands there. What the store
    has not got yet: the events from index `stored_events` on, as bytes in `unstored`, and what they `touched`; `seen`
    are the requests carried out since it is in memory (`has_past`: of its workflow there may be others, by this run
    before it came into memory or by earlier runs); `live` are
    the activities that a worker has or could take; `changed` rings at every change, `closed` at the last;
    `users` counts the caches and requests that hold on to the record.
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
    """How many signals are among the first `signals_until` events."""
    signals_until: int = 0
    held_count: int = 0
    held_size: int = 0
    """How many of the events that are held were measured, and how many bytes they have."""
    late: bool = False
    """Whether time has brought it here: a timer of its own, or the engine, which found it due in the store. What a client
    asks of it ends that.
    """
    resting: bool = False
    """Whether the run's task, which a worker has, waits for a local activity: no worker computes anything for it."""

    def look(self, event_ids: Iterable[int], now_ns: int) -> int:
        """These of the things that are pending have changed, or their time has come; gives the earliest time that
        they need, 0 for none.
        """
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
        """Put the result of a transition into memory. Return the earliest deadline of these activities and timers, or 0."""
        self.run = change.run
        if change.events:
            self.events += change.events
            self.unstored = self.unstored + change.encoded if self.unstored else change.encoded
        if change.touched:
            self.touched = self.touched | change.touched if self.touched else change.touched
        if request_ids:
            self.seen.update(request_ids)
            self.late = False
        return self.look(event_ids, now_ns) if event_ids else 0

    def has_signals(self, many: int) -> bool:
        """Whether the run has got so many signals, or more."""
        held = len(self.run.held)
        # The first is cheap, and mostly enough.
        return self.run.length + held > many and self._count_signals() >= many

    def _count_signals(self) -> int:
        signaled = h.WorkflowExecutionSignaled
        new = self.events[self.signals_until :]
        self.signals += sum(type(event.attributes) is signaled for event in new)
        self.signals_until += len(new)
        return self.signals + sum(type(each) is signaled for each in self.run.held)

    def wake_ns(self, now_ns: int) -> int:
        """When the run must be looked at if it is not in memory then, as the store keeps it."""
        task = self.run.task
        if self.live or (task is not None and (task.started_event_id or task.available_ns <= now_ns)):
            return AT_ONCE
        return self.wakes.next_ns(self.run, now_ns)

    def held_too_much(self, limits: Limits) -> bool:
        """Whether more has happened during a task than may be held until its end."""
        held = self.run.held
        if len(held) < self.held_count:
            self.held_count = self.held_size = 0
        self.held_size += sum(map(encoded_size, held[self.held_count :]))
        self.held_count = len(held)
        return len(held) > limits.held_events or self.held_size > limits.held_bytes

    @property
    def is_in_flight(self) -> bool:
        """Whether a worker of ours has a task, an attempt or a query of the run, and owes an answer."""
        if self.attempts or self.queries:
            return True
        task = self.run.task
        return task is not None and task.started_event_id != 0 and not self.resting

    def is_quiet(self, now_ns: int) -> bool:
        """Whether nothing in this process uses the run and no worker could take anything of it: it may be dropped."""
        awaited = self.run.is_open and self.updates is not None and self.updates.waiting
        return not self.users and not self.is_in_flight and not awaited and self.wake_ns(now_ns) != AT_ONCE

    def holders(self) -> list[QueuePoller]:
        """The handles that have attempts of the run, or know it."""
        found = {id(each.poller): each.poller for each in self.attempts.values()}
        if self.sticky is not None:
            found[id(self.sticky)] = self.sticky
        return list(found.values())

    def close_unstored(self, now_ns: int) -> tuple[int, ...]:
        """What is known of the run cannot be stored: for the caches and requests that hold on to the record it is that of a
        closed run. Gives what was pending.
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
        self.look(pending, now_ns)
        return pending

    def tell_holders(self, ids: Iterable[int]) -> None:
        """Tell the handles that have attempts of these activities which no longer count or are to be cancelled."""
        for event_id in ids:
            taken = self.attempts.get(event_id)
            if taken is None:
                continue
            activity = self.run.activities.get(event_id)
            if activity is None or activity.attempt != taken.token.attempt or not activity.started_ns:
                del self.attempts[event_id]
                reason = "TIMED_OUT" if self.run.is_open else "NOT_FOUND"
                taken.poller.cancel_attempt(taken.token.encode(), reason, self.number)
            elif activity.cancel_requested_event_id and not taken.told_to_cancel:
                taken.told_to_cancel = True
                taken.poller.cancel_attempt(taken.token.encode(), "CANCELLED", self.number)


# --- the seam between runs and schedules ----------------------------------------------------------------------


class EndListener(Protocol):
    """What the runs know of schedules, which wait for the ends of workflows. An end is the end of a whole chain:
    retries, continuations and resets go on under the same id.
    """

    def awaits(self, workflow_id: str) -> bool:
        """Whether a schedule waits for the end of this workflow."""
        ...

    def ended(self, record: LoadedRun) -> None:
        """A run of a workflow that a schedule waits for has closed. What comes of it is part of the same change."""
        ...

    def realign(self) -> None:
        """Time has jumped."""
        ...
