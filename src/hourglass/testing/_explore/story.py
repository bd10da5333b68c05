"""The story of one order: numbered lines with the virtual time, the steps, and the workflow's commands.

Deviations are marked. The driver reports the steps (`Teller`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hourglass._embedded.runs.run import LoadedRun
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass.testing._explore.driver import Exploring
from hourglass.testing._explore.options import Option
from hourglass.testing._explore.wording import Words, clock_text

_CRASH = "the worker crashes; another one takes over, and executes the workflow again from its history"
_DIES = "the worker dies before anybody heard of that, and another one takes over"
_LATE = "this takes so long that its task times out: it will be refused"

# Of a story that goes on and on the middle is left out, but for its deviations.
_HEAD, _TAIL = 60, 30


@dataclass
class StoryLine:
    """Something that happened, when (in nanoseconds since the beginning), and what was done in answer."""

    time_ns: int
    text: str
    deviates: bool = False
    answers: list[str] = field(default_factory=list)


@dataclass
class OrderStory:
    """What happened, line by line."""

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


class StoryTeller:
    """Turns what the driver does into a story."""

    def __init__(self, driver: Exploring, words: Words, workflow_id: str) -> None:
        self.story = OrderStory()
        self._driver = driver
        self._words = words
        self._workflow_id = workflow_id
        self._begin_ns = driver.clock.now_ns()
        self._option = Option("task")
        self._deviates = False
        self._attempts: dict[tuple[str, int], int] = {}
        self._happened: dict[str, int] = {}

    # --- from the driver ------------------------------------------------------------------------------------

    def chosen(self, option: Option, deviates: bool) -> None:
        """Record the option that was chosen."""
        self._option, self._deviates = option, deviates
        match option.kind:
            case "crash":
                self._say(_CRASH)
                self._deviates = False
            case "fail" | "silent" | "unheard":
                self._say(self._attempt_text(option))
            case "arrival":
                self._say(f"{self._driver.arrivals[option.place][0].name} comes")
            case "step":
                self._say(self._step_text(option))
            case _:
                pass  # said when it is known what came of it

    def done(self, option: Option) -> None:
        """It has happened."""
        match option.kind:
            case "attempt":
                self._say(self._attempt_text(option))
            case "die":
                self._say(_DIES, deviates=True)
            case "late":
                self._say(_LATE, deviates=True)
            case _:
                pass
        self._look()

    def evaluated(self, activation: e.Activation, completion: c.Completion | None) -> None:
        """A workflow has gone on, or (None) hangs."""
        if activation.is_replaying:
            return
        run_id = activation.run_id
        heard = "; ".join(self._words.event(run_id, event) for event in activation.events)
        begins = isinstance(activation.events[0], e.RunStarted)
        deviates = self._deviates and self._option.kind == "task"
        self._say(heard if begins else f"{self._name(run_id)} hears: {heard}", deviates=deviates)
        answers = self.story.lines[-1].answers
        if completion is None:
            answers.append("does not come back")
        elif isinstance(completion, c.Succeeded):
            answers += [self._words.command(run_id, command) for command in completion.commands]
        else:
            answers.append(f"raises {self._words.failure(completion.failure)}")

    def passed(self) -> None:
        """Time has passed."""
        for record in self._driver.engine.runs.records():
            for text in (*self._timed_out(record), *self._new_events(record)):
                self._say(text)
                self._deviates = False
        if self._deviates:
            self._say("time has passed, and what was ready still is")
        self._look()

    # --- words ----------------------------------------------------------------------------------------------

    def _say(self, text: str, deviates: bool | None = None) -> None:
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
            return "the late answer comes, and is refused: the workflow is executed again from its history"
        return f"{step.name} ends" if step.kind in ("woke", "ended") else step.name

    def _attempt_text(self, option: Option) -> str:
        number = self._attempts.get((option.run_id, option.event_id), 1)
        name, call = self._called(option)
        attempt = f"{call}, attempt {number}," if number > 1 else call
        match option.kind:
            case "silent":
                return f"{attempt} never answers, and has done nothing"
            case "unheard":
                return f"{attempt} does its work, but its answer is lost"
            case "fail":
                made = option.error() if isinstance(option.error, type) else option.error
                kind = getattr(made, "type", None) or type(made).__name__
                final = ", for good" if getattr(made, "non_retryable", False) else ""
                return f"{attempt} fails{final}: {kind}"
            case _:
                calls = self._driver.stage.calls(name)
                return f"{attempt} {'does its work' if calls and calls[-1].returned else 'is carried out'}"

    def _called(self, option: Option) -> tuple[str, str]:
        record = self._driver.engine.record(option.run_id)
        if record is not None:
            for event in record.events:
                if event.id == option.event_id and isinstance(event.attributes, h.ActivityTaskScheduled):
                    scheduled = event.attributes
                    return scheduled.activity_type, self._words.call(
                        scheduled.activity_type, scheduled.arguments
                    )
        return "", "an activity"

    # --- what time brings -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Remember which attempts and events are known."""
        for record in self._driver.engine.runs.records():
            for event_id, activity in record.run.activities.items():
                self._attempts[record.run.run_id, event_id] = activity.attempt
            self._happened[record.run.run_id] = len(_happenings(record))

    def _timed_out(self, record: LoadedRun) -> Iterator[str]:
        for event_id, activity in record.run.activities.items():
            known = self._attempts.get((record.run.run_id, event_id), 1)
            if activity.attempt > known:
                reason = self._words.failure(activity.last_failure)
                yield f"{activity.scheduled.activity_type}, attempt {known}, {reason}; it will be tried again"

    def _new_events(self, record: LoadedRun) -> Iterator[str]:
        for attributes in _happenings(record)[self._happened.get(record.run.run_id, 0) :]:
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
                    yield f"{name} has {self._words.failure(attributes.failure)}, for good"
                case h.WorkflowTaskTimedOut():
                    yield "the task has timed out, and will be delivered again"
                case _:
                    yield "the workflow has timed out"


def _happenings(record: LoadedRun) -> list[h.Attributes]:
    """What time has brought a run so far, what waits to be written included."""
    kinds = (
        h.TimerFired,
        h.ActivityTaskTimedOut,
        h.WorkflowTaskTimedOut,
        h.WorkflowExecutionTimedOut,
    )
    everything = [*(event.attributes for event in record.events), *record.run.held]
    return [each for each in everything if isinstance(each, kinds)]
