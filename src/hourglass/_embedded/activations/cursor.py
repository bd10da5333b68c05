"""The cursor of a run: walks the run's history, creates activations from its events, and accepts the worker's
commands for each activation. In Temporal's SDKs, Core does this.

Must not know: handles, queues, clocks, the engine. A cursor may begin in the middle of a history (a cached run) or at
the first event (after an eviction). Both lead to the same activations, except for `is_replaying`. Invariants:

- There is one activation at a time. Its commands are accepted before the next activation is requested.
- A stretch (see `end_of_stretch`) is the part of a history between two successful tasks. Failed and timed-out tasks
  leave no trace in activations.
- Issued commands are compared, in order, with the events that they led to. A difference is `NondeterminismError`. The
  commands that are left at the end of the history are the answer to the task. Once the engine has applied the answer,
  the cursor walks over its events.
- An activity or timer that is cancelled before it was sent leaves nothing in the history.
- A task that was completed without commands and followed immediately by the next task was a heartbeat. The stretch
  continues after it, unless an update was accepted in it.
- The result of a local activity is reported in the task in progress, or in the next task.
"""

from __future__ import annotations

import sys
from _imp import source_hash
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from hourglass._embedded.activations.command_matching import COMMAND_OF, MATTERS, match, own_events
from hourglass._embedded.activations.local_activities import LocalActivities, LocalRequest, LocalResult
from hourglass._embedded.activations.outcomes import BadCommand, Outcomes
from hourglass._embedded.transitions.tasks import Sent
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.behaviour import NO_FLAGS
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass._history import events as h
from hourglass._history.events import (
    UpdateRequest,
    WorkflowExecutionUpdateAccepted,
    WorkflowExecutionUpdateAdmitted,
)
from hourglass.converter import Failure
from hourglass.errors import NondeterminismError

__all__ = ["BadCommand", "Cursor"]


_ENDS = frozenset((*h.FINAL, h.WorkflowTaskStarted))
"""The kinds of events that can end a stretch."""

_BROKEN_OFF = (
    h.WorkflowTaskFailed,
    h.WorkflowTaskTimedOut,
    h.WorkflowExecutionTerminated,
    h.WorkflowExecutionTimedOut,
)


def end_of_stretch(
    history: Sequence[h.HistoryEvent], position: int, stop: int, *, live: bool, updates: bool
) -> int | None:
    """Return the index after the last event of the stretch that begins at `position`; None if the history up to
    `stop` does not contain the whole stretch. With `live`, the stretch may end with the start of the task in
    progress. `updates` states whether updates were assigned together with that task.
    """
    commands = False
    beats: list[int] = []
    for index in range(position, stop):
        kind = type(history[index].attributes)
        if kind not in _ENDS:
            commands = commands or kind in COMMAND_OF
            continue
        if kind is not h.WorkflowTaskStarted:
            return index + 1
        following = history[index + 1].attributes if index + 1 < stop else None
        if following is None and not live:
            return None
        if following is None:
            # A replay finds the updates of this task accepted right after the preceding task. The updates
            # must be delivered at the same place now.
            return (beats[-1] if beats and updates else index) + 1
        if isinstance(following, _BROKEN_OFF):
            continue
        if commands or not _is_heartbeat(history, index, stop):
            return _before_update(history, index, stop, beats) + 1
        beats.append(index)
    return None


def _before_update(history: Sequence[h.HistoryEvent], started: int, stop: int, beats: list[int]) -> int:
    """Return the index of the last task in `beats` after which the update accepted in the task at `started` was
    sequenced. Return `started` if there is no such task, or if no update was accepted.

    A task in which an update was accepted is not a heartbeat, even if it was completed without commands.
    """
    after = started + 2
    accepted = history[after].attributes if after < stop else None
    if isinstance(accepted, WorkflowExecutionUpdateAccepted):
        for index in reversed(beats):
            if history[index].id < accepted.sequencing_event_id:
                return index
    return started


def _is_heartbeat(history: Sequence[h.HistoryEvent], started: int, stop: int) -> bool:
    """Whether the task that started at this index was a heartbeat."""
    after = started + 2
    return after < stop and isinstance(history[after].attributes, h.WorkflowTaskScheduled)


@lru_cache(maxsize=1024)  # every replay of a run needs its seed
def seed_of(run_id: str) -> int:
    """Return the 64-bit seed of a run's random numbers, derived from the id of its original run.

    Core derives the same number, so that a run can move between engines: SipHash-1-3 with a zero key over the run
    id's UTF-8 bytes and 0xFF, which is Rust's hash of a string. CPython uses the same function for hash-based pycs
    (PEP 552).
    """
    return int.from_bytes(source_hash(0, run_id.encode() + b"\xff"), "little")


def _check_seed() -> None:
    """Raise `RuntimeError` if this Python's source hash is not SipHash-1-3, because runs would draw different random
    numbers.
    """
    if seed_of("01234567-89ab-cdef-0123-000000000001") != 0x372AFB2DF019857D:
        raise RuntimeError(
            f"{sys.implementation.name} {sys.version.split()[0]} does not support SipHash-1-3, which is needed for the "
            "random numbers of workflows: use CPython 3.11 or newer"
        )


_check_seed()


def worker_event_of(attributes: h.Attributes) -> e.AnyEvent | None:
    """Return the event for the worker that follows from a history event alone. Return None if there is none, or if it
    depends on the run's requests.
    """
    match attributes:
        case h.WorkflowExecutionSignaled():
            return e.SignalReceived(
                attributes.signal_name, attributes.arguments, attributes.identity, attributes.headers
            )
        case h.WorkflowTaskFailed(cause=h.RESET_WORKFLOW):
            return e.SeedChanged(seed_of(attributes.new_run_id))
        case h.WorkflowExecutionCancelRequested():
            return e.CancelRequested(attributes.reason)
        case _:
            return None


def rank(event: e.AnyEvent) -> int:
    """Return the sort key of an event within an activation, in Core's order. Events of equal rank keep the order of
    the history.
    """
    match event:
        case e.RunStarted():
            return 0
        case e.PatchNoticed():
            return 1
        case e.SeedChanged():
            return 2
        case e.SignalReceived() | e.UpdateReceived():
            return 3
        case e.ActivityCompleted(is_local=True) | e.ActivityFailed(is_local=True):
            return 5
        case e.ActivityCancelled(is_local=True) | e.ActivityBackedOff():
            return 5
        case _:
            return 4


def run_started(a: h.WorkflowExecutionStarted, start_ns: int) -> e.RunStarted:
    """Return the first event of a run for the worker."""
    return e.RunStarted(
        workflow_type=a.workflow_type,
        workflow_id=a.workflow_id,
        arguments=a.arguments,
        headers=a.headers,
        spec=a.spec,
        seed=seed_of(a.original_run_id),
        attempt=a.attempt,
        identity=a.identity,
        parent_namespace=a.parent_namespace,
        parent_workflow_id=a.parent_workflow_id,
        parent_run_id=a.parent_run_id,
        root_workflow_id=a.root_workflow_id,
        root_run_id=a.root_run_id,
        continued_run_id=a.continued_run_id,
        first_execution_run_id=a.first_run_id,
        original_execution_run_id=a.original_run_id,
        last_completion_result=a.last_completion_result,
        last_failure=a.continued_failure,
        start_time_ns=start_ns,
    )


class Cursor:
    """A position in a run's history, for one worker."""

    def __init__(
        self, run_id: str, namespace: str = "default", version: WorkerDeploymentVersion | None = None
    ) -> None:
        self.run_id = run_id
        self._own_version = version
        self._version: WorkerDeploymentVersion | None = None
        self._target_changed = False
        self._history: Sequence[h.HistoryEvent] = ()
        self._stop = 0
        self._ends_live = False
        self._is_up_to_date = False
        self._position = 0
        self._length = 0
        self._outcomes = Outcomes(run_id, namespace)
        self._jobs: list[e.AnyEvent] = []
        self.flags: frozenset[int] = NO_FLAGS
        """The flags in the history up to the current position."""
        self._told_flags: tuple[int, ...] = ()
        self._time_ns = 0
        self._replaying = True
        self._suggest = False
        self._size = 0
        self._activation = 0
        self.local: LocalActivities | None = None
        """The run's local activities; None if the run has not used any."""
        self._early: tuple[LocalResult, ...] = ()
        self._in_task = False
        self._closing = False
        self._updates: Sequence[UpdateRequest] = ()
        self._admitted: dict[str, tuple[int, UpdateRequest]] = {}

    def extend(
        self,
        history: Sequence[h.HistoryEvent],
        *,
        live: bool,
        updates: Sequence[UpdateRequest] = (),
    ) -> None:
        """Set the current history. With `live`, its last event is the start of the task in progress, which was
        assigned together with these updates.

        The history may grow while the cursor walks. The cursor stops at the length that the history had in this call.
        """
        self._history = history
        self._stop = len(history)
        self._ends_live = live
        self._updates = updates

    def step_back(self, history: Sequence[h.HistoryEvent]) -> None:
        """Step back over the start of the task in progress, because the task had no effect and its two events were
        not added to the history.
        """
        self._position -= 2
        self._length = history[self._position - 1].id if self._position else 0
        self.extend(history, live=False)
        self._stop = self._position

    def step_over(self, history: Sequence[h.HistoryEvent]) -> None:
        """Walk over the events of the answer to the task in progress, which the engine has applied. The run
        continues.

        From now on, this worker completes every successful task itself, so that all events before the next task are
        one stretch.
        """
        completed = history[self._position]
        assert isinstance(completed.attributes, h.WorkflowTaskCompleted)
        self._read_task_completed(completed, completed.attributes)
        self._is_up_to_date = True
        self._position = self._stop = own_events(self._outcomes, history, self._position)

    def next_activation(self) -> e.Activation | None:
        """Return the next activation; None at the end of the history. Raise `NondeterminismError` if commands do not
        match events.
        """
        self.walk_on()
        jobs = self._jobs
        if not jobs:
            return None
        self._jobs = []
        self._activation += 1
        if self.local is not None:
            self.local.activation = self._activation
        if len(jobs) > 1:
            jobs.sort(key=rank)
        return self._make(tuple(jobs), is_replaying=self._replaying)

    def walk_on(self) -> None:
        """Walk to the next events for the worker, or to the end. Raise `NondeterminismError` if commands do not match
        events.
        """
        while not self._jobs and self._position < self._stop:
            end: int | None = self._stop
            if not (self._is_up_to_date and self._ends_live):
                end = self._end_of_stretch()
            if end is None:
                return
            self._walk(end)

    def query_activation(self, queries: tuple[e.AnyEvent, ...]) -> e.Activation:
        """Return an activation that contains only queries, at the current position."""
        return self._make(queries, is_replaying=True)

    def accept(self, commands: Sequence[c.Command], now_ns: Callable[[], int]) -> bool:
        """Accept the worker's commands for the last activation. Return whether the task needs another activation, or
        a check for local activities, before its answer.

        `now_ns` is called when a local activity is scheduled. Raise `BadCommand` if a command cannot be carried out.
        """
        for command in commands:
            kind, now = type(command), 0
            if kind in c.TERMINAL_KINDS:
                self._closing = True
            elif kind is c.ScheduleLocalActivity:
                self._with_local()
                now = now_ns()
            events = self._outcomes.issue(command, self._replaying, now)
            if events:
                self._jobs += events
        if self.local is None:
            return bool(self._jobs) or self._position < self._stop
        if self.local.markers:
            self._report_foreseen(self.local)
        return True

    @property
    def local_outstanding(self) -> int:
        """The number of local activities that the run is waiting for; 0 if the run has closed."""
        return 0 if self._closing or self.local is None else self.local.outstanding

    def take_local_requests(self) -> list[LocalRequest]:
        """Remove and return the requests to execute or cancel local activities."""
        requests = [] if self.local is None else self.local.take_requests()
        return [] if self._closing else requests

    def resolve_local(self, result: LocalResult) -> None:
        """Record the result of a local activity."""
        if self._in_task:
            local = self._with_local()
            self._jobs += local.resolve(result)
            self._keep_time(local)
        else:
            self._early += (result,)

    def _with_local(self) -> LocalActivities:
        if self.local is None:
            self.local = self._outcomes.local_from(self._time_ns, self._activation)
        return self.local

    def _report_foreseen(self, local: LocalActivities) -> None:
        self._jobs += local.foreseen(all_of_them=False)
        if not self._jobs:
            self._jobs += local.foreseen(all_of_them=True)
        self._keep_time(local)

    def _keep_time(self, local: LocalActivities) -> None:
        self._time_ns = local.time_ns = max(self._time_ns, local.time_ns)

    def answer(self) -> tuple[Sent, ...]:
        """Return the commands of the answer to the task in progress. The first terminal command is last, and others
        are dropped.
        """
        self._in_task = False
        sent = self._outcomes.waiting()
        if len(sent) < 2:
            return sent
        ordinary = tuple(request for request in sent if not isinstance(request.command, c.TERMINAL))
        terminal = tuple(request for request in sent if isinstance(request.command, c.TERMINAL))
        return ordinary + terminal[:1]

    def take_rejections(self) -> tuple[tuple[str, Failure], ...]:
        """Remove and return the updates that were rejected in the task in progress."""
        updates = self._outcomes.known_updates
        return () if updates is None else updates.take_rejections()

    def _end_of_stretch(self) -> int | None:
        if self._is_up_to_date and self._ends_live:
            return self._stop
        return end_of_stretch(
            self._history, self._position, self._stop, live=self._ends_live, updates=bool(self._updates)
        )

    def _walk(self, end: int) -> None:
        last = end == self._stop and self._ends_live
        self._replaying = not last
        self._activation = 0
        outcomes = self._outcomes
        for event in self._history[self._position : end]:
            attributes = event.attributes
            kind = type(attributes)
            if outcomes.expects or kind in MATTERS:
                match(outcomes, event)
            if (read := _READERS[kind]) is not None:
                read(self, event, attributes)
        newest = self._history[end - 1]
        if newest.time_ns > self._time_ns and type(newest.attributes) is h.WorkflowTaskStarted:
            self._time_ns = newest.time_ns
        self._position, self._length = end, newest.id
        if last:
            self._in_task = True
            self._version = self._own_version
        if self.local is not None:
            self._continue_local(self.local)
        if end < self._stop:
            self._look_ahead()
        if self.local is not None and self.local.markers:
            self._report_foreseen(self.local)
        if self._admitted or self._updates or self._early:
            if last:
                self._add_waiting_events()
            self._admitted.clear()

    def _continue_local(self, local: LocalActivities) -> None:
        """Continue the local activities in the task that the cursor has reached."""
        local.activation = 0
        self._keep_time(local)
        if not self._replaying:
            local.go_live()

    def _add_waiting_events(self) -> None:
        """Add the events of this task that are not in the history: updates, and results of local activities that
        ended between two tasks.
        """
        if self._admitted or self._updates:
            self._receive_updates()
        if self._early:
            early, self._early = self._early, ()
            for result in early:
                self.resolve_local(result)

    def _read_start(self, event: h.HistoryEvent, attributes: h.WorkflowExecutionStarted) -> None:
        self._time_ns = event.time_ns
        self._jobs.append(run_started(attributes, event.time_ns))

    def _read_task_started(self, event: h.HistoryEvent, attributes: h.WorkflowTaskStarted) -> None:
        self._suggest = attributes.suggest_continue_as_new
        self._target_changed = attributes.target_version_changed
        self._size = attributes.history_size

    def _read_task_completed(self, event: h.HistoryEvent, attributes: h.WorkflowTaskCompleted) -> None:
        if attributes.flags:
            self.flags |= frozenset(attributes.flags)
            self._told_flags = tuple(sorted(self.flags))

    def _read_admitted(self, event: h.HistoryEvent, attributes: WorkflowExecutionUpdateAdmitted) -> None:
        self._admitted[attributes.request.update_id] = (event.id, attributes.request)

    def _read_outcome(self, event: h.HistoryEvent, attributes: h.Attributes) -> None:
        self._jobs += self._outcomes.resolve(attributes, event.id)

    def _read_other(self, event: h.HistoryEvent, attributes: h.Attributes) -> None:
        news = worker_event_of(attributes)
        self._jobs += self._outcomes.resolve(attributes, event.id) if news is None else (news,)

    def _look_ahead(self) -> None:
        """Read ahead in a replay: the flags in this task's completion, the recorded patches, the markers of local
        activities, and the accepted updates.
        """
        completed = self._history[self._position]
        if isinstance(completed.attributes, h.WorkflowTaskCompleted):
            self._read_task_completed(completed, completed.attributes)
            self._version = completed.attributes.version
        end = self._end_of_stretch()
        stop = self._stop if end is None else end
        for event in self._history[self._position : stop]:
            if isinstance(event.attributes, h.MarkerRecorded):
                self._jobs.append(e.PatchNoticed(event.attributes.patch_id))
            elif isinstance(event.attributes, h.LocalActivityMarkerRecorded):
                self._with_local().foresee(event.attributes)
            elif isinstance(event.attributes, WorkflowExecutionUpdateAccepted):
                self._receive_again(event.attributes)

    def _receive_updates(self) -> None:
        """Add the updates of the task in progress after all its other events, because the history only records after
        which task an update was accepted.
        """
        for event_id, request in self._admitted.values():
            self._jobs.append(self._outcomes.updates.receive(request, event_id, is_replaying=False))
        for request in self._updates:
            self._jobs.append(self._outcomes.updates.receive(request, 0, is_replaying=False))

    def _receive_again(self, accepted: WorkflowExecutionUpdateAccepted) -> None:
        event_id, request = self._admitted.get(accepted.update_id, (0, accepted.request))
        if request is None:
            raise NondeterminismError(
                f"the history contains the acceptance of update {accepted.update_id!r}, but not its request"
            )
        self._jobs.append(self._outcomes.updates.receive(request, event_id, is_replaying=True))

    def _make(self, jobs: tuple[e.AnyEvent, ...], *, is_replaying: bool) -> e.Activation:
        return e.Activation(
            run_id=self.run_id,
            events=jobs,
            timestamp_ns=self._time_ns,
            is_replaying=is_replaying,
            history_length=self._length,
            history_size=self._size,
            continue_as_new_suggested=self._suggest,
            flags=self._told_flags,
            deployment_version=self._version,
            target_version_changed=self._target_changed,
        )


_READERS: dict[type[h.Attributes], Callable[[Cursor, h.HistoryEvent, Any], None] | None] = {
    **dict.fromkeys((*h.KINDS, h.UnknownEvent), Cursor._read_other),
    h.WorkflowTaskScheduled: None,
    h.ActivityTaskScheduled: None,
    h.ActivityTaskStarted: None,
    h.WorkflowExecutionStarted: Cursor._read_start,
    h.WorkflowTaskStarted: Cursor._read_task_started,
    h.WorkflowTaskCompleted: Cursor._read_task_completed,
    WorkflowExecutionUpdateAdmitted: Cursor._read_admitted,
    h.ActivityTaskCompleted: Cursor._read_outcome,
    h.TimerFired: Cursor._read_outcome,
}
"""The reader of each kind of event. Events with None have no effect."""
