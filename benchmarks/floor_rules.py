"""The layers `rules` and `evaluator` of the part `floor`: state transitions and workflow code without an engine."""

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
_STEPS = Payload(b"1000000000", "json/plain")
_VALUE = Payload(b"1", "json/plain")


class Rules:
    """State of one run: the commands of its next step, and the rows that the step writes."""

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
            arguments=(_STEPS,),
        )
        run = transitions.open_run(self.name, started, NOW).run
        self._run = tasks.start_task(run, "floor", _EAGER.limits, None, NOW).run
        self._length = self._run.length
        definition = workflow_definition(sequence)
        assert definition is not None
        self._evaluator = Evaluator(definition, self.name, RunSettings()) if evaluates else None

    def evaluate(self) -> tuple[Command, ...]:
        """Return the commands of the next step. Called on the lane."""
        self._seq += 1
        if self._evaluator is None:
            return (ScheduleActivity(self._seq, str(self._seq), "echo", _SPEC, (_VALUE,)),)
        event: Any = ActivityCompleted(self._seq - 1, _VALUE)
        if self._seq == 1:
            event = RunStarted(workflow_type="Sequence", workflow_id=self.name, arguments=(_STEPS,), seed=1)
        activation = Activation(run_id=self.name, events=(event,), timestamp_ns=NOW + self._seq)
        completion: Any = self._evaluator.activate(activation)
        self._evaluator.state.journal.clear()  # it would grow throughout the measurement
        commands: tuple[Command, ...] = completion.commands
        return commands

    def rows(self, commands: tuple[Command, ...], result: bytes | None) -> list[Any]:
        """Return the rows of a step: the completed activity, the workflow task, its commands and the next activity."""
        run, encoded, removed = self._run, b"", ()
        count = 0
        if result is not None:
            (activity,) = run.activities.values()
            value = Payload(result, "json/plain")
            completed = transitions.complete_activity(run, activity, value, "floor", _EAGER, NOW)
            run, encoded, count = completed.run, completed.encoded, len(completed.events)
            removed = ((activity.scheduled_event_id, activity.scheduled_event_id),)
        completion = tasks.TaskCompletion(commands=tuple(map(tasks.Sent, commands)), identity="floor")
        step = tasks.complete_task(run, completion, "", _EAGER.limits, _EAGER, NOW)
        first, self._run = self._run.length + 1, step.run
        encoded, count = encoded + step.encoded, count + len(step.events)
        pending = [
            (key, bytearray(encode_pending(activity))) for key, activity in step.run.activities.items()
        ]
        state = bytearray(encode_state(step.run))
        ids = (self.name, self.name) if self._is_new else ("", "")
        self._is_new = False
        return run_rows.rows(
            self._key, (*ids, 1, 0, state), (first, array(count, encoded)), pending, removed, ()
        )
