"""Two layers of the part `floor`: the rules of a step, and the workflow's code, without an engine around them."""

from __future__ import annotations

from typing import Any

from hourglass._embedded.store.sqlite import run_rows
from hourglass._embedded.store.sqlite.records import encode_pending, encode_state
from hourglass._embedded.transitions import tasks, transitions
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._embedded.transitions.task_starts import Eager
from hourglass._evaluator.commands import Command, ScheduleActivity
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import workflow_definition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import Activation, ActivityCompleted, RunStarted
from hourglass._evaluator.specs import ActivitySpec, StartSpec
from hourglass._history import events as h
from hourglass._history.encoding import array
from hourglass.converter import Payload

from .subjects_hourglass import sequence

NOW = 1_700_000_000_000_000_000
_EAGER = Eager("floor", "default", Limits(history_events=1 << 40, history_bytes=1 << 60), 9)
_SPEC = ActivitySpec(start_to_close_timeout=30.0)
_ENDLESS = Payload(b"1000000000", "json/plain")
_VALUE = Payload(b"1", "json/plain")


class Rules:
    """One run: what is asked for in its next step, and the rows of that."""

    def __init__(self, key: int, *, evaluates: bool) -> None:
        self.name = f"{key:036d}"
        self._key, self._seq, self._is_new = key, 0, True
        spec = StartSpec(task_queue="default", task_timeout=10.0)
        started = h.WorkflowExecutionStarted(
            workflow_id=self.name,
            workflow_type="Sequence",
            original_run_id=self.name,
            first_run_id=self.name,
            spec=spec,
            arguments=(_ENDLESS,),
        )
        opened = transitions.open_run(self.name, started, NOW).run
        self._run = tasks.start_task(opened, "floor", _EAGER.limits, None, NOW).run
        self._length = self._run.length
        definition = workflow_definition(sequence)
        assert definition is not None
        self._live = Evaluator(definition, self.name, RunSettings()) if evaluates else None

    def evaluate(self) -> tuple[Command, ...]:
        """What the run asks for, on the lane."""
        self._seq += 1
        if self._live is None:
            return (ScheduleActivity(self._seq, str(self._seq), "echo", _SPEC, (_VALUE,)),)
        event: Any = ActivityCompleted(self._seq - 1, _VALUE)
        if self._seq == 1:
            event = RunStarted(workflow_type="Sequence", workflow_id=self.name, arguments=(_ENDLESS,), seed=1)
        activation = Activation(run_id=self.name, events=(event,), timestamp_ns=NOW + self._seq)
        completion: Any = self._live.activate(activation)
        self._live.state.journal.clear()  # it would grow for as long as the measurement lasts
        found: tuple[Command, ...] = completion.commands
        return found

    def rows(self, asked: tuple[Command, ...], result: bytes | None) -> list[Any]:
        """The end of the activity before, the task that it leads to, its answer and the next activity, as rows."""
        run, encoded, dropped = self._run, b"", ()
        count = 0
        if result is not None:
            (activity,) = run.activities.values()
            value = Payload(result, "json/plain")
            ended = transitions.complete_activity(run, activity, value, "floor", _EAGER, NOW)
            run, encoded, count = ended.run, ended.encoded, len(ended.events)
            dropped = ((activity.scheduled_event_id, activity.scheduled_event_id),)
        answer = tasks.TaskCompletion(commands=tuple(map(tasks.Sent, asked)), identity="floor")
        step = tasks.complete_task(run, answer, "", _EAGER.limits, _EAGER, NOW)
        first, self._run = self._run.length + 1, step.run
        encoded, count = encoded + step.encoded, count + len(step.events)
        kept = [(key, bytearray(encode_pending(each))) for key, each in step.run.activities.items()]
        state = bytearray(encode_state(step.run))
        named = (self.name, self.name) if self._is_new else ("", "")
        self._is_new = False
        return run_rows.rows(
            self._key, (*named, 1, 0, state), (first, array(count, encoded)), kept, dropped, ()
        )
