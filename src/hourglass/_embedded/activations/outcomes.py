"""Outcomes of the activities and timers that a run has requested (`Outcomes`): commands in, events for the worker
out.

Must not know: whether events are live or replayed, activations, the engine. The rules are Core's. They decide which
cancellations take effect immediately, which ones wait, which outcomes are dropped, and how outcomes are wrapped.
Children and other workflows are in `child_outcomes`, local activities in `local_activities`, updates in
`update_outcomes`, because most runs need none of these.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from hourglass._embedded.activations.child_outcomes import ChildOutcomes, OtherCommand
from hourglass._embedded.activations.local_activities import LocalActivities
from hourglass._embedded.activations.nexus_outcomes import NexusOutcomes
from hourglass._embedded.activations.update_outcomes import UpdateOutcomes
from hourglass._embedded.transitions.tasks import Sent
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import ActivityCancellationType
from hourglass._history import events as h
from hourglass.converter import ActivityFailure, CanceledFailure, Failure
from hourglass.errors import HourglassError, RetryState

_WITHOUT_OUTCOME = frozenset(kind for kind in c.COMMANDS if "seq" not in kind.__struct_fields__) - {
    c.AnswerQuery
}
"""Commands that have neither an outcome for the run nor a sequence number."""


class BadCommand(HourglassError):
    """A command that cannot be carried out because this engine does not support it, its sequence number is in use, or
    it is out of order.
    """


class _Request(msgspec.Struct, gc=False):
    """An activity or timer that is unsent (`event_id` is 0), pending, or over."""

    command: c.ScheduleActivity | c.StartTimer
    event_id: int = 0
    over: bool = False
    cancelling: bool = False


@dataclass(eq=False, slots=True)
class Outcomes:
    """The numbered requests of one run, and its commands that have no event yet. `expects` is true while the next
    event may belong to a command, or may show that no command is left (see `command_matching`).
    """

    run_id: str = ""
    namespace: str = "default"
    issued: deque[c.Command] = field(default_factory=deque)
    expects: bool = False
    local: LocalActivities | None = None
    known_updates: UpdateOutcomes | None = None
    nexus: NexusOutcomes | None = None
    """The Nexus operations. Set only for replays of histories that a server wrote."""
    _others: ChildOutcomes | None = None
    _activities: dict[int, _Request] = field(default_factory=dict)
    _timers: dict[int, _Request] = field(default_factory=dict)
    _by_event: dict[int, _Request] = field(default_factory=dict)
    _patches: frozenset[str] = frozenset()

    @property
    def updates(self) -> UpdateOutcomes:
        """The updates that the run has received, created on first use."""
        if self.known_updates is None:
            self.known_updates = UpdateOutcomes(self.issued)
        return self.known_updates

    def local_from(self, time_ns: int = 0, activation: int = 0) -> LocalActivities:
        """Return the local activities of the run. They are created on first use, with the time and the activation
        number of the current task.
        """
        if self.local is None:
            self.local = LocalActivities(self.issued, time_ns, activation)
        return self.local

    def issue(self, command: c.Command, replaying: bool = False, now_ns: int = 0) -> list[e.AnyEvent]:
        """Record a command from the worker. Return the events that result immediately. Raise `BadCommand` if it
        cannot be carried out.
        """
        match command:
            case c.ScheduleActivity():
                _enter(self._activities, command)
            case c.StartTimer():
                _enter(self._timers, command)
            case c.CancelTimer():
                return self._cancel_timer(command)
            case c.RequestCancelActivity():
                return self._cancel_activity(command)
            case c.ScheduleLocalActivity():
                self._schedule_local(command, replaying, now_ns)
                return []
            case c.RequestCancelLocalActivity():
                return [] if self.local is None else self.local.cancel(command.seq)
            case c.SetPatchMarker():
                if command.patch_id in self._patches:
                    return []
                self._patches |= {command.patch_id}
            case (
                c.StartChildWorkflow()
                | c.CancelChildWorkflow()
                | c.SignalExternalWorkflow()
                | c.CancelSignalExternal()
                | c.RequestCancelExternal()
            ):
                return self._issue_other(command)
            case c.AcceptUpdate() | c.RejectUpdate() | c.CompleteUpdate():
                wrong = self.updates.issue(command)
                if wrong:
                    raise BadCommand(wrong)
                return []
            case c.ScheduleNexusOperation() | c.CancelNexusOperation():
                if self.nexus is not None:
                    return self.nexus.issue(command)
                raise BadCommand(
                    "the embedded engine does not support Nexus, because it has only one namespace: run this workflow "
                    "on a Temporal server, or call the code as an activity or a child workflow"
                )
            case _ if type(command) not in _WITHOUT_OUTCOME:
                raise BadCommand(
                    f"the embedded engine does not support {type(command).__name__} yet: run this workflow on a "
                    "Temporal server"
                )
        self.issued.append(command)
        return []

    def _schedule_local(self, command: c.ScheduleLocalActivity, replaying: bool, now_ns: int) -> None:
        if not (command.spec.schedule_to_close_timeout or command.spec.start_to_close_timeout):
            raise BadCommand(
                f"local activity {command.activity_id} has no timeout: set start_to_close_timeout or "
                "schedule_to_close_timeout"
            )
        local = self.local_from()
        if local.is_taken(command.seq):
            raise _number_in_use(command)
        local.schedule(command, replaying=replaying, now_ns=now_ns)

    def _issue_other(self, command: OtherCommand) -> list[e.AnyEvent]:
        if self._others is None:
            self._others = ChildOutcomes(self.issued, self.run_id, self.namespace)
        if self._others.is_taken(command):
            raise _number_in_use(command)
        return self._others.issue(command)

    def waiting(self) -> tuple[Sent, ...]:
        """Return the commands that have no event yet, each with the event that it refers to."""
        sent = []
        for command in self.issued:
            sent.append(Sent(command) if isinstance(command, c.ScheduleActivity) else self._sent(command))
        return tuple(sent)

    def _sent(self, command: c.Command) -> Sent:
        if isinstance(command, (c.AcceptUpdate, c.RejectUpdate, c.CompleteUpdate)):
            return Sent(command, self.updates.link_of(command), self.updates.request_of(command))
        return Sent(command, self.link_of(command))

    def bind(self, command: c.Command, event_id: int) -> None:
        """Record the id of the event that a command led to. From then on, the event id identifies the request."""
        match command:
            case c.ScheduleActivity():
                request = self._activities[command.seq]
            case c.StartTimer():
                request = self._timers[command.seq]
            case _:
                self._bind_other(command, event_id)
                return
        request.event_id = event_id
        self._by_event[event_id] = request

    def _bind_other(self, command: c.Command, event_id: int) -> None:
        match command:
            case c.CancelTimer():
                self._finish(self._timers[command.seq].event_id)
            case c.AcceptUpdate() | c.RejectUpdate() | c.CompleteUpdate():
                self.updates.bind(command, event_id)
            case h.RecordLocalActivity(marker) if self.local is not None:
                self.local.recorded(marker.seq)
            case c.ScheduleNexusOperation() if self.nexus is not None:
                self.nexus.bind(command, event_id)
            case _ if self._others is not None:
                self._others.bind(command, event_id)

    def resolve(self, attributes: h.Attributes, event_id: int = 0) -> list[e.AnyEvent]:
        """Record the outcome of a request. Return the events for the worker."""
        match attributes:
            case h.ActivityTaskCompleted():
                request = self._finish(attributes.scheduled_event_id)
                return [e.ActivityCompleted(request.command.seq, attributes.result)] if request else []
            case h.TimerFired():
                request = self._finish(attributes.started_event_id)
                return [e.TimerFired(request.command.seq)] if request else []
            case h.ActivityTaskFailed() | h.ActivityTaskTimedOut():
                request = self._finish(attributes.scheduled_event_id)
                return (
                    [e.ActivityFailed(request.command.seq, _failed(request, attributes))] if request else []
                )
            case h.ActivityTaskCanceled():
                request = self._finish(attributes.scheduled_event_id)
                return (
                    [e.ActivityCancelled(request.command.seq, _cancelled(request, attributes))]
                    if request
                    else []
                )
            case _ if self.nexus is not None and (events := self.nexus.resolve(attributes)):
                return events
            case _:
                return [] if self._others is None else self._others.resolve(attributes, event_id)

    @classmethod
    def for_replay(cls, run_id: str) -> Outcomes:
        """Return outcomes for the replay of a history that a server wrote and that may contain Nexus operations."""
        made = cls(run_id)
        made.nexus = NexusOutcomes(made.issued)
        return made

    def _finish(self, event_id: int) -> _Request | None:
        """Remove the request with this event id. Return it if the worker is still waiting for its outcome."""
        request = self._by_event.pop(event_id, None)
        if request is None:
            return None
        table = self._timers if isinstance(request.command, c.StartTimer) else self._activities
        table.pop(request.command.seq, None)
        was_over = request.over
        request.over = True
        return None if was_over else request

    def _cancel_timer(self, command: c.CancelTimer) -> list[e.AnyEvent]:
        request = self._timers.get(command.seq)
        if request is None or request.over:
            return []
        request.over = True
        if request.event_id:
            self.issued.append(command)
        else:
            self.issued.remove(request.command)
            del self._timers[command.seq]
        return []

    def _cancel_activity(self, command: c.RequestCancelActivity) -> list[e.AnyEvent]:
        request = self._activities.get(command.seq)
        if request is None or request.over or request.cancelling:
            return []
        kind = _schedule(request).spec.cancellation_type
        request.cancelling = True
        if not request.event_id:
            self.issued.remove(request.command)
        elif kind is not ActivityCancellationType.ABANDON:
            self.issued.append(command)
            if kind is ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
                return []
        request.over = True
        return [e.ActivityCancelled(command.seq, _cancelled(request, None))]

    def link_of(self, command: c.Command) -> int:
        """Return the id of the event that a cancellation command refers to; 0 for other commands."""
        match command:
            case c.CancelTimer():
                return self._timers[command.seq].event_id
            case c.RequestCancelActivity():
                return self._activities[command.seq].event_id
            case c.CancelNexusOperation() if self.nexus is not None:
                return self.nexus.link_of(command)
            case _:
                return 0


def _enter(table: dict[int, _Request], command: c.ScheduleActivity | c.StartTimer) -> None:
    if command.seq in table:
        raise _number_in_use(command)
    table[command.seq] = _Request(command)


def _number_in_use(
    command: c.ScheduleActivity | c.ScheduleLocalActivity | c.StartTimer | OtherCommand,
) -> BadCommand:
    return BadCommand(f"the sequence number {command.seq} of {type(command).__name__} is already in use")


def _schedule(request: _Request) -> c.ScheduleActivity:
    assert isinstance(request.command, c.ScheduleActivity)
    return request.command


def _failed(request: _Request, attributes: h.ActivityTaskFailed | h.ActivityTaskTimedOut) -> Failure:
    timed_out = isinstance(attributes, h.ActivityTaskTimedOut)
    return Failure(
        "Activity task timed out" if timed_out else "Activity task failed",
        ActivityFailure(
            activity_type=_schedule(request).activity_type,
            activity_id=_schedule(request).activity_id,
            identity="" if isinstance(attributes, h.ActivityTaskTimedOut) else attributes.identity,
            scheduled_event_id=attributes.scheduled_event_id,
            started_event_id=attributes.started_event_id,
            retry_state=attributes.retry_state,
        ),
        cause=attributes.failure,
    )


def _cancelled(request: _Request, attributes: h.ActivityTaskCanceled | None) -> Failure:
    return Failure(
        "Activity cancelled",
        ActivityFailure(
            activity_type=_schedule(request).activity_type,
            activity_id=_schedule(request).activity_id,
            identity=attributes.identity if attributes else "",
            scheduled_event_id=attributes.scheduled_event_id if attributes else 0,
            started_event_id=attributes.started_event_id if attributes else 0,
            retry_state=RetryState.CANCEL_REQUESTED,
        ),
        cause=Failure(info=CanceledFailure(attributes.details if attributes else ())),
    )
