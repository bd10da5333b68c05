"""Drives one run as fast as possible: all pending commands are answered, `at_a_time` per activation. Without an engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from hourglass._evaluator.commands import (
    Command,
    CompleteRun,
    Completion,
    ScheduleActivity,
    StartTimer,
    Succeeded,
)
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import workflow_definition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import (
    Activation,
    ActivityCompleted,
    AnyEvent,
    RunStarted,
    SignalReceived,
    TimerFired,
)
from hourglass.converter import default_converter


def run_of(workflow: Any, **settings: Any) -> Evaluator:
    definition = workflow_definition(workflow)
    assert definition is not None
    return Evaluator(definition, "run", RunSettings(**settings))


def numbers(count: int) -> list[SignalReceived]:
    """Return `count` signals to the channel or handler `number`."""
    return [SignalReceived("number", (default_converter.encode(1),)) for _ in range(count)]


class Pump:
    """Answers one run like an engine. `activate` receives each activation."""

    def __init__(self, activate: Callable[[Activation], Completion], workflow: Any, *arguments: Any) -> None:
        definition = workflow_definition(workflow)
        assert definition is not None
        self._activate = activate
        self._waiting: deque[AnyEvent] = deque()
        self.events = 0
        self.activations = 0
        self.result: Any = None
        self.closed = False
        self.started = RunStarted(
            workflow_type=definition.name,
            workflow_id="workflow",
            arguments=tuple(map(default_converter.encode, arguments)),
            seed=1,
        )

    def begin(self, *signals: AnyEvent) -> None:
        """Send the first activation, with signals that came before it."""
        self.send((self.started, *signals))

    def send(self, events: Iterable[AnyEvent]) -> None:
        """Send one activation."""
        delivered = tuple(events)
        self.activations += 1
        self.events += len(delivered)
        completion = self._activate(Activation(run_id="run", events=delivered, timestamp_ns=self.activations))
        assert isinstance(completion, Succeeded), completion
        for command in completion.commands:
            self._take(command)

    def _take(self, command: Command) -> None:
        match command:
            case ScheduleActivity():
                self._waiting.append(ActivityCompleted(command.seq, command.arguments[0]))
            case StartTimer():
                self._waiting.append(TimerFired(command.seq))
            case CompleteRun():
                self.result = default_converter.decode(command.result)
                self.closed = True
            case _:
                raise AssertionError(f"not expected: {command}")

    def finish(self, at_a_time: int = 1) -> None:
        """Answer pending commands, oldest first, until the run closes."""
        while not self.closed:
            assert self._waiting, "the run waits without a pending command"
            count = min(at_a_time, len(self._waiting))
            self.send([self._waiting.popleft() for _ in range(count)])
