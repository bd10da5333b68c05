"""Events, commands, values and times of a workflow as text, for the story of an order. Pure.

The text may contain the test's own data. For kinds of events and commands without a text, the name is used. Must not know
drivers and choices.
"""

from __future__ import annotations

from typing import Any

from hourglass._embedded.clock import SECOND
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.words import spaced
from hourglass.converter import ApplicationFailure, Converter, Failure, Payload, TimeoutFailure

_LONGEST = 60
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


def clock_text(ns: int) -> str:
    """Return a time since the start as text: `0:00:10`, `7d 0:00:00`."""
    seconds, fraction = divmod(ns, SECOND)
    days, day = divmod(seconds, 86_400)
    hours, minutes, second = day // 3600, day // 60 % 60, day % 60
    part = f".{fraction // 1_000_000:03}" if fraction >= 1_000_000 else ""
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{second:02}{part}"


def duration_text(ns: int) -> str:
    """Return a duration as text: `7 days`, `90 s`."""
    seconds, fraction = divmod(ns, SECOND)
    for length, name in _UNITS:
        if seconds and not fraction and not seconds % length:
            count = seconds // length
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{ns / SECOND:g} s"


class Wording:
    """Formats the events and commands of a workflow's runs. Remembers the names of activities, timers and children by
    command id.
    """

    def __init__(self, converter: Converter) -> None:
        self._converter = converter
        self._activities: dict[tuple[str, int], str] = {}
        self._timers: dict[tuple[str, int], str] = {}
        self._children: dict[tuple[str, int], str] = {}

    def value(self, payload: Payload | None) -> str:
        """Return the `repr` of a payload's value, shortened."""
        if payload is None:
            return "None"
        try:
            text = repr(self._converter.decode(payload, Any))
        except Exception:  # raised by the test's converter: the story omits the value
            return "…"
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

    def call(self, name: str, arguments: Payloads) -> str:
        """Return the text of a call with its arguments."""
        return f"{name}({', '.join(map(self.value, arguments))})"

    def failure(self, failure: Failure | None) -> str:
        """Return the text of the innermost cause of a failure that is an application failure or a timeout."""
        if failure is None:
            return "an unknown failure"
        while failure.cause is not None and not isinstance(
            failure.info, (ApplicationFailure, TimeoutFailure)
        ):
            failure = failure.cause
        match failure.info:
            case ApplicationFailure(type=name) if name:
                return f"{name}: {failure.message}" if failure.message else name
            case TimeoutFailure(type=kind):
                return f"timed out ({kind.name.lower().replace('_', ' ')})"
            case info:
                return failure.message or type(info).__name__

    def event(self, run_id: str, event: e.AnyEvent) -> str:
        """Return the text of an event that a workflow receives."""
        match event:
            case e.RunStarted():
                return f"{self.call(event.workflow_type, event.arguments)} starts"
            case e.ActivityCompleted():
                return f"{self._activity(run_id, event.seq)} completed: {self.value(event.result)}"
            case e.ActivityFailed():
                return f"{self._activity(run_id, event.seq)} failed: {self.failure(event.failure)}"
            case e.ActivityCancelled():
                return f"{self._activity(run_id, event.seq)} was cancelled"
            case e.TimerFired():
                return f"the timer of {self._timers.get((run_id, event.seq), '…')} fired"
            case e.SignalReceived():
                return f"signal {self.call(event.name, event.arguments)}"
            case e.UpdateReceived():
                return f"update {self.call(event.name, event.arguments)}"
            case e.CancelRequested():
                return "a cancellation request"
            case e.ChildStarted():
                return f"{self._child(run_id, event.seq)} started"
            case e.ChildCompleted():
                return f"{self._child(run_id, event.seq)} completed: {self.value(event.result)}"
            case e.ChildFailed():
                return f"{self._child(run_id, event.seq)} failed: {self.failure(event.failure)}"
            case _:
                return spaced(type(event).__name__)

    def _activity(self, run_id: str, seq: int) -> str:
        return self._activities.get((run_id, seq), "an activity")

    def _child(self, run_id: str, seq: int) -> str:
        return self._children.get((run_id, seq), "a child")

    def command(self, run_id: str, command: c.Command) -> str:
        """Return the text of a command that a workflow issues."""
        match command:
            case c.ScheduleActivity() | c.ScheduleLocalActivity():
                self._activities[run_id, command.seq] = command.activity_type
                return f"calls {self.call(command.activity_type, command.arguments)}"
            case c.StartTimer():
                self._timers[run_id, command.seq] = text = duration_text(command.duration_ns)
                return f"starts a timer of {text}"
            case c.CancelTimer():
                return f"cancels the timer of {self._timers.get((run_id, command.seq), '…')}"
            case c.RequestCancelActivity() | c.RequestCancelLocalActivity():
                return f"cancels {self._activity(run_id, command.seq)}"
            case c.StartChildWorkflow():
                self._children[run_id, command.seq] = command.workflow_type
                return f"starts the child {self.call(command.workflow_type, command.arguments)}"
            case c.CancelChildWorkflow():
                return f"cancels the child {self._child(run_id, command.seq)}"
            case c.SignalExternalWorkflow():
                signal = self.call(command.signal_name, command.arguments)
                return f"signals {signal} to {command.workflow_id}"
            case _:
                return self._end(command)

    def _end(self, command: c.Command) -> str:
        match command:
            case c.CompleteRun():
                return f"returns {self.value(command.result)}"
            case c.FailRun():
                return f"fails: {self.failure(command.failure)}"
            case c.CancelRun():
                return "ends as cancelled"
            case c.ContinueAsNew():
                return f"continues as new{self.call('', command.arguments)}"
            case c.AcceptUpdate():
                return "accepts the update"
            case c.CompleteUpdate():
                return f"completes the update: {self.value(command.result)}"
            case c.RejectUpdate():
                return f"rejects the update: {self.failure(command.failure)}"
            case _:
                return spaced(type(command).__name__)
