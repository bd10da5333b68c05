"""The story of an order: numbered lines with the virtual time, the steps, and the workflow's commands.

Deviations are marked. The driver reports the steps to this module. The text may contain the test's own data. For kinds of
events and commands without a text, the name is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hourglass._embedded.clock import SECOND
from hourglass._embedded.runs.run import LoadedRun
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.words import spaced
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Converter, Failure, Payload, TimeoutFailure
from hourglass.testing._explore.choices import Option
from hourglass.testing._explore.driver import OrderDriver

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


_CRASH = "the worker crashes; another one takes over and replays the workflow from its history"
_DIES = "the worker crashes before it reports that, and another one takes over"
_LATE = "the task times out before this is reported: the completion will be rejected"

# The middle of a long story is omitted, except for its deviations.
_HEAD, _TAIL = 60, 30


@dataclass
class StoryLine:
    """A step, its time in nanoseconds since the start, and the commands that followed it."""

    time_ns: int
    text: str
    deviates: bool = False
    answers: list[str] = field(default_factory=list)


@dataclass
class OrderStory:
    """The steps of an order, as lines."""

    lines: list[StoryLine] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[StoryLine]:
        return iter(self.lines)

    def __str__(self) -> str:
        width = max((len(clock_text(line.time_ns)) for line in self.lines), default=0)
        text: list[str] = []
        for number, line in enumerate(self.lines, 1):
            if _HEAD < number <= len(self.lines) - _TAIL and not line.deviates:
                if number == _HEAD + 1:
                    text.append("     …")
                continue
            mark = "!" if line.deviates else " "
            text.append(f" {mark}{number:>3}  {clock_text(line.time_ns):>{width}}  {line.text}")
            text += [f"{'':{width + 9}}→ {answer}" for answer in line.answers]
        return "\n".join(text)


class StoryWriter:
    """Writes the story of an order."""

    def __init__(self, driver: OrderDriver, wording: Wording, workflow_id: str) -> None:
        self.story = OrderStory()
        self._driver = driver
        self._wording = wording
        self._workflow_id = workflow_id
        self._begin_ns = driver.clock.now_ns()
        self._option = Option("task")
        self._deviates = False
        self._attempts: dict[tuple[str, int], int] = {}
        self._events_seen: dict[str, int] = {}

    def chosen(self, option: Option, deviates: bool) -> None:
        """Record the option that was chosen."""
        self._option, self._deviates = option, deviates
        match option.kind:
            case "crash":
                self._add(_CRASH)
                self._deviates = False
            case "fail" | "silent" | "unheard":
                self._add(self._attempt_text(option))
            case "arrival":
                self._add(f"{self._driver.arrivals[option.place][0].name} arrives")
            case "step":
                self._add(self._step_text(option))
            case _:
                pass  # written when the result is known

    def done(self, option: Option) -> None:
        """Record that an option was carried out."""
        match option.kind:
            case "attempt":
                self._add(self._attempt_text(option))
            case "die":
                self._add(_DIES, deviates=True)
            case "late":
                self._add(_LATE, deviates=True)
            case _:
                pass
        self._record_state()

    def evaluated(self, activation: e.Activation, completion: c.Completion | None) -> None:
        """Record an activation that was evaluated, and its completion; None if the workflow hangs."""
        if activation.is_replaying:
            return
        run_id = activation.run_id
        events = "; ".join(self._wording.event(run_id, event) for event in activation.events)
        begins = isinstance(activation.events[0], e.RunStarted)
        deviates = self._deviates and self._option.kind == "task"
        self._add(events if begins else f"{self._name(run_id)} receives: {events}", deviates=deviates)
        answers = self.story.lines[-1].answers
        if completion is None:
            answers.append("does not return")
        elif isinstance(completion, c.Succeeded):
            answers += [self._wording.command(run_id, command) for command in completion.commands]
        else:
            answers.append(f"raises {self._wording.failure(completion.failure)}")

    def passed(self) -> None:
        """Record that virtual time has passed."""
        for record in self._driver.engine.runs.records():
            for text in (*self._timed_out(record), *self._new_events(record)):
                self._add(text)
                self._deviates = False
        if self._deviates:
            self._add("time passes while steps are still ready")
        self._record_state()

    def _add(self, text: str, deviates: bool | None = None) -> None:
        now = self._driver.clock.now_ns() - self._begin_ns
        self.story.lines.append(StoryLine(now, text, self._deviates if deviates is None else deviates))

    def _name(self, run_id: str) -> str:
        record = self._driver.engine.record(run_id)
        if record is None or record.run.started.workflow_id == self._workflow_id:
            return "the workflow"
        return f"{record.run.started.workflow_type} ({record.run.started.workflow_id})"

    def _step_text(self, option: Option) -> str:
        step = self._driver.steps[option.place]
        if step.kind == "action" and step.name == "late":
            return "the late completion arrives and is rejected: the workflow is replayed from its history"
        return f"{step.name} ends" if step.kind in ("woke", "ended") else step.name

    def _attempt_text(self, option: Option) -> str:
        number = self._attempts.get((option.run_id, option.event_id), 1)
        name, call = self._called(option)
        attempt = f"{call}, attempt {number}," if number > 1 else call
        match option.kind:
            case "silent":
                return f"{attempt} never executes, and never has a result"
            case "unheard":
                return f"{attempt} executes, but its result is lost"
            case "fail":
                made = option.error() if isinstance(option.error, type) else option.error
                kind = getattr(made, "type", None) or type(made).__name__
                final = " permanently" if getattr(made, "non_retryable", False) else ""
                return f"{attempt} fails{final}: {kind}"
            case _:
                calls = self._driver.stage.calls(name)
                return f"{attempt} {'succeeds' if calls and calls[-1].returned else 'executes'}"

    def _called(self, option: Option) -> tuple[str, str]:
        record = self._driver.engine.record(option.run_id)
        if record is not None:
            for event in record.events:
                if event.id == option.event_id and isinstance(event.attributes, h.ActivityTaskScheduled):
                    scheduled = event.attributes
                    return scheduled.activity_type, self._wording.call(
                        scheduled.activity_type, scheduled.arguments
                    )
        return "", "an activity"

    def _record_state(self) -> None:
        """Record the attempts and events so far."""
        for record in self._driver.engine.runs.records():
            for event_id, activity in record.run.activities.items():
                self._attempts[record.run.run_id, event_id] = activity.attempt
            self._events_seen[record.run.run_id] = len(_timed_events(record))

    def _timed_out(self, record: LoadedRun) -> Iterator[str]:
        for event_id, activity in record.run.activities.items():
            attempt = self._attempts.get((record.run.run_id, event_id), 1)
            if activity.attempt > attempt:
                reason = self._wording.failure(activity.last_failure)
                yield f"{activity.scheduled.activity_type}, attempt {attempt}, {reason}; it will be retried"

    def _new_events(self, record: LoadedRun) -> Iterator[str]:
        for attributes in _timed_events(record)[self._events_seen.get(record.run.run_id, 0) :]:
            match attributes:
                case h.TimerFired():
                    yield "a timer fires"
                case h.ActivityTaskTimedOut():
                    scheduled = record.events[attributes.scheduled_event_id - 1].attributes
                    name = (
                        scheduled.activity_type
                        if isinstance(scheduled, h.ActivityTaskScheduled)
                        else "an activity"
                    )
                    yield f"{name} {self._wording.failure(attributes.failure)} permanently"
                case h.WorkflowTaskTimedOut():
                    yield "the workflow task timed out and will be delivered again"
                case _:
                    yield "the workflow has timed out"


def _timed_events(record: LoadedRun) -> list[h.Attributes]:
    """Return the timeouts and fired timers of a run, including events that are not yet in its history."""
    kinds = (
        h.TimerFired,
        h.ActivityTaskTimedOut,
        h.WorkflowTaskTimedOut,
        h.WorkflowExecutionTimedOut,
    )
    events = [*(event.attributes for event in record.events), *record.run.held]
    return [event for event in events if isinstance(event, kinds)]
