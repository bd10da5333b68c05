"""The story of an order: numbered lines with the virtual time, the steps, and the workflow's commands.

Deviations are marked. The driver reports the steps to this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hourglass._embedded.runs.run import LoadedRun
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass.testing._explore.choices import Option
from hourglass.testing._explore.driver import OrderDriver
from hourglass.testing._explore.wording import Wording, clock_text

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
