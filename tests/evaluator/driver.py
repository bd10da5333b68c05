"""Drives one run by hand: a scripted engine that remembers what is pending, and answers when a test says so.

    d = drive(workflow, 3)
    d.begin()                        # the first activation
    d.send(d.done("charge", "ok"))   # the activity `charge` returned
    assert d.result == "ok"

Each activation is also given to the pure form, `evaluate`, on the state before it: both must give the same bytes (I2), so
that every example is a test of re-execution too. And each completion must keep the protocol's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hourglass._evaluator.commands import (
    TERMINAL,
    CancelRun,
    CancelTimer,
    Command,
    CompleteRun,
    Completion,
    FailRun,
    RequestCancelActivity,
    RequestCancelLocalActivity,
    ScheduleActivity,
    ScheduleLocalActivity,
    StartTimer,
    Succeeded,
    TaskFailed,
)
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import WorkflowDefinition, workflow_definition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import (
    Activation,
    ActivityBackedOff,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    AnyEvent,
    CancelRequested,
    QueryReceived,
    RunStarted,
    SignalReceived,
    TimerFired,
    UpdateReceived,
)
from hourglass._evaluator.state import State
from hourglass._evaluator.verify import verify_run
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    Failure,
    Payload,
    default_converter,
)
from hourglass.workflow import ActivityCancellationType

from .protocol import STARTS, Key, Protocol

EPOCH = 1_700_000_000 * 10**9
SECOND = 10**9


def evaluate(
    workflow: Any,
    state: State,
    activation: Activation,
    settings: RunSettings | None = None,
) -> tuple[State, Completion]:
    """The engine as a pure function: from the state and new events to the new state and the answer, no fibers kept in between."""
    fresh = State(run_id=state.run_id, task_queue=state.task_queue, journal=list(state.journal))
    definition = workflow if isinstance(workflow, WorkflowDefinition) else workflow_definition(workflow)
    assert definition is not None, f"{workflow} is no workflow"
    run = Evaluator(definition, state.run_id, settings or RunSettings(task_queue=state.task_queue), fresh)
    try:
        completion = run.activate(activation)
        return run.state, completion
    finally:
        run.drop()


def run_settings(**options: Any) -> RunSettings:
    """Return what a worker tells the evaluator of a run."""
    return RunSettings(**options)


def open_run(
    workflow: Any, state: State | None = None, settings: RunSettings | None = None, **options: Any
) -> Evaluator:
    """Return the evaluator of a run, which begins with `state`; the options are those of `run_settings`."""
    definition = workflow if isinstance(workflow, WorkflowDefinition) else workflow_definition(workflow)
    assert definition is not None, f"{workflow} is no workflow"
    return Evaluator(definition, "run-1", settings or RunSettings(**options), state)


def state_of(journal: Sequence[Activation] = ()) -> State:
    """Return the state of a run that has had these activations and has not executed them."""
    return State(run_id="run-1", task_queue="default", journal=list(journal))


def verify(run: Evaluator) -> Any:
    """Execute the run again. Return the difference, or None."""
    return verify_run(run)


def encode(value: Any) -> Payload:
    """A value as the wire carries it."""
    return default_converter.encode(value)


def decode(payload: Payload | None) -> Any:
    """A value from the wire."""
    return None if payload is None else default_converter.decode(payload)


def as_bytes(value: Any) -> bytes:
    """Anything of the engine's, for comparisons byte by byte."""
    return msgspec.msgpack.encode(value)


def copy_of(state: State) -> State:
    """The state as it stands, safe from what happens to the run."""
    return State(run_id=state.run_id, task_queue=state.task_queue, journal=list(state.journal))


class Driver:
    """One run, and the engine that it believes in."""

    def __init__(
        self,
        workflow: Any,
        *arguments: Any,
        seed: int = 7,
        settings: RunSettings | None = None,
        shadow: bool = True,
        replaying: bool = False,
        flags: tuple[int, ...] = (),
    ) -> None:
        self.settings = settings or RunSettings(verify=True)
        self.run = open_run(workflow, settings=self.settings)
        self.definition = self.run.definition
        self.started = RunStarted(
            workflow_type=self.definition.name,
            workflow_id="workflow-1",
            arguments=tuple(encode(argument) for argument in arguments),
            seed=seed,
            start_time_ns=EPOCH,
        )
        self.shadow = shadow
        self.replaying = replaying
        self.flags = flags
        self.protocol = Protocol()
        self.pending: dict[Key, Command] = {}
        self.owed: list[AnyEvent] = []
        self.activations: list[Activation] = []
        self.completions: list[Completion] = []
        self.terminal: Command | None = None

    # --- activations --------------------------------------------------------------------------------------------------

    def begin(self, *events: AnyEvent) -> tuple[Command, ...]:
        """The first activation; what came together with the start comes after it."""
        return self.send(self.started, *events)

    def send(self, *events: AnyEvent, **facts: Any) -> tuple[Command, ...]:
        """Deliver events, together with what is owed; the run must be able to handle them."""
        completion = self.offer(*events, **facts)
        assert isinstance(completion, Succeeded), getattr(self.run.error, "__cause__", None) or self.run.error
        return completion.commands

    def offer(self, *events: AnyEvent, **facts: Any) -> Completion:
        """Deliver events and return the completion, a failed task included."""
        owed, self.owed = self.owed, []
        return self.deliver(self.activation(*owed, *events, **facts))

    def activation(self, *events: AnyEvent, **facts: Any) -> Activation:
        """The next activation, a second after the last."""
        given: dict[str, Any] = {
            "timestamp_ns": EPOCH + len(self.activations) * SECOND,
            "is_replaying": self.replaying,
            "history_length": 3 * len(self.activations) + 3,
            "flags": self.flags,
        }
        return Activation(run_id="run-1", events=events, **(given | facts))

    def deliver(self, activation: Activation) -> Completion:
        """Deliver an activation as it is."""
        before = copy_of(self.run.state)
        completion = self.run.activate(activation)
        if self.shadow:
            _, pure = evaluate(self.definition, before, activation, self.settings)
            assert as_bytes(pure) == as_bytes(completion), "executed again, the run answered differently"
        self.activations.append(activation)
        self.completions.append(completion)
        if isinstance(completion, Succeeded):
            for event in activation.events:
                self._settled(event)
            self.protocol.check(completion.commands)
            for command in completion.commands:
                self._issued(command)
        return completion

    # --- the scripted engine ------------------------------------------------------------------------------------------

    def _settled(self, event: AnyEvent) -> None:
        match event:
            case TimerFired():
                self.pending.pop(("timer", event.seq), None)
            case ActivityCompleted() | ActivityFailed() | ActivityCancelled() | ActivityBackedOff():
                self.pending.pop(("activity", event.seq), None)
            case _:
                pass

    def _issued(self, command: Command) -> None:
        kind = STARTS.get(type(command))
        match command:
            case CancelTimer():
                self.pending.pop(("timer", command.seq), None)
            case RequestCancelActivity() | RequestCancelLocalActivity():
                self._cancel_activity(command.seq)
            case _ if kind is not None:
                self.pending[kind, command.seq] = command  # type: ignore[attr-defined]
            case _ if isinstance(command, TERMINAL) and self.terminal is None:
                self.terminal = command
            case _:
                pass

    def _cancel_activity(self, seq: int) -> None:
        command = self.pending.get(("activity", seq))
        if not isinstance(command, (ScheduleActivity, ScheduleLocalActivity)):
            return
        if command.spec.cancellation_type != ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
            del self.pending["activity", seq]
            self.owed.append(self.cancelled_activity(command))

    # --- events -------------------------------------------------------------------------------------------------------

    def activity(self, name: str | int) -> ScheduleActivity | ScheduleLocalActivity:
        """A pending activity: the one of that number, or the first of that type."""
        for (kind, seq), command in self.pending.items():
            if kind == "activity":
                assert isinstance(command, (ScheduleActivity, ScheduleLocalActivity))
                if name in (seq, command.activity_type):
                    return command
        raise AssertionError(f"no activity {name} is pending: {sorted(self.pending)}")

    def done(self, name: str | int, value: Any = None) -> ActivityCompleted:
        """An activity returned."""
        command = self.activity(name)
        return ActivityCompleted(command.seq, encode(value), isinstance(command, ScheduleLocalActivity))

    def failed(self, name: str | int, message: str = "broken", type: str = "Broken") -> ActivityFailed:
        """An activity failed for good."""
        command = self.activity(name)
        cause = Failure(message, ApplicationFailure(type=type))
        return ActivityFailed(
            command.seq, activity_failure(command, cause), isinstance(command, ScheduleLocalActivity)
        )

    def cancelled_activity(
        self, command: ScheduleActivity | ScheduleLocalActivity | str | int
    ) -> ActivityCancelled:
        """An activity ended as cancelled."""
        if isinstance(command, (str, int)):
            command = self.activity(command)
        failure = activity_failure(command, Failure("cancelled", CanceledFailure()))
        return ActivityCancelled(command.seq, failure, isinstance(command, ScheduleLocalActivity))

    def fired(self, seq: int | None = None) -> TimerFired:
        """A timer fired: the one of that number, or the oldest."""
        timers = [number for kind, number in self.pending if kind == "timer"]
        number = min(timers) if seq is None else seq
        assert number in timers, f"timer {number} is not pending: {timers}"
        return TimerFired(number)

    @property
    def timers(self) -> dict[int, float]:
        """The pending timers: number and seconds."""
        return {
            command.seq: command.duration_ns / SECOND
            for command in self.pending.values()
            if isinstance(command, StartTimer)
        }

    @property
    def activities(self) -> list[str]:
        """The types of the pending activities, in the order of their numbers."""
        return [
            command.activity_type
            for _, command in sorted(self.pending.items())
            if isinstance(command, (ScheduleActivity, ScheduleLocalActivity))
        ]

    def query(self, name: str, *arguments: Any) -> Any:
        """Ask a question; returns the answer's value, or raises its failure."""
        answer = self.ask(name, *arguments)
        if answer.failure is not None:
            raise default_converter.from_failure(answer.failure)
        return decode(answer.result)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Ask a question; returns the command that answers it."""
        event = QueryReceived("q", name, tuple(encode(argument) for argument in arguments))
        completion = self.run.activate(self.activation(event))
        assert isinstance(completion, Succeeded)
        (answer,) = completion.commands
        return answer

    def finish(self, answer: Callable[[str, list[Any]], Any] | None = None, limit: int = 200) -> Any:
        """Answer everything, oldest first, one at a time, until the run closes; returns its result."""
        for _ in range(limit):
            if self.terminal is not None:
                break
            if self.owed:
                self.send()
                continue
            assert self.pending, "the run waits, but for nothing"
            (kind, seq), command = next(iter(self.pending.items()))
            if kind == "timer":
                self.send(TimerFired(seq))
            else:
                assert isinstance(command, (ScheduleActivity, ScheduleLocalActivity))
                value = answer(command.activity_type, arguments_of(command)) if answer is not None else None
                self.send(self.done(seq, value))
        return self.result

    # --- what became of it --------------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """What the run returned."""
        assert isinstance(self.terminal, CompleteRun), f"not completed: {self.terminal}, {self.pending}"
        return decode(self.terminal.result)

    @property
    def failure(self) -> BaseException:
        """Why the run failed, as a client would see it."""
        assert isinstance(self.terminal, FailRun), f"not failed: {self.terminal}, {self.pending}"
        return default_converter.from_failure(self.terminal.failure)

    @property
    def was_cancelled(self) -> bool:
        """Whether the run ended as cancelled."""
        return isinstance(self.terminal, CancelRun)


def activity_failure(command: ScheduleActivity | ScheduleLocalActivity, cause: Failure) -> Failure:
    """An activity's failure, as engines report it."""
    info = ActivityFailure(activity_type=command.activity_type, activity_id=command.activity_id)
    return Failure("activity error", info, cause)


def signal(name: str, *arguments: Any) -> SignalReceived:
    """A signal."""
    return SignalReceived(name, tuple(encode(argument) for argument in arguments))


def update(name: str, *arguments: Any, id: str = "u", run_validator: bool = True) -> UpdateReceived:
    """An update."""
    return UpdateReceived(
        id=id,
        protocol_instance_id=id,
        name=name,
        arguments=tuple(encode(argument) for argument in arguments),
        run_validator=run_validator,
    )


def cancel(reason: str = "enough") -> CancelRequested:
    """A request to cancel the run."""
    return CancelRequested(reason)


def arguments_of(command: Command) -> list[Any]:
    """The arguments that a command carries."""
    return [decode(payload) for payload in command.arguments]  # type: ignore[attr-defined]


def brief(commands: Sequence[Command]) -> list[str]:
    """Commands in a word each: the kind, the number, and an activity's first argument or type."""
    return [_brief(command) for command in commands]


def _brief(command: Command) -> str:
    match command:
        case ScheduleActivity() | ScheduleLocalActivity():
            arguments = arguments_of(command)
            return f"{command.activity_type}({', '.join(map(str, arguments))})"
        case StartTimer():
            return f"timer {command.seq}"
        case CancelTimer():
            return f"cancel timer {command.seq}"
        case RequestCancelActivity() | RequestCancelLocalActivity():
            return f"cancel activity {command.seq}"
        case _:
            return type(command).__name__


def error_of(completion: Completion) -> Failure:
    """Why a task failed."""
    assert isinstance(completion, TaskFailed)
    return completion.failure
