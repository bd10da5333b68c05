"""A driver of one run: a scripted engine that keeps the pending commands and delivers events when a test says so.

    d = drive(workflow, 3)
    d.begin()                        # the first activation
    d.send(d.done("charge", "ok"))   # the activity `charge` returned
    assert d.result == "ok"

Each activation is also passed to the pure function `evaluate` with the previous state. Both must return the same bytes (I2), so
every example is also a test of re-execution. Each completion must follow the rules of `protocol.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hourglass import workflow
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
    """Evaluate an activation without live fibers: return the new state and the completion."""
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
    """Return the settings that a worker passes to the evaluator of a run."""
    return RunSettings(**options)


def open_run(
    workflow: Any, state: State | None = None, settings: RunSettings | None = None, **options: Any
) -> Evaluator:
    """Return the evaluator of a run that begins with `state`; the options are those of `run_settings`."""
    definition = workflow if isinstance(workflow, WorkflowDefinition) else workflow_definition(workflow)
    assert definition is not None, f"{workflow} is no workflow"
    return Evaluator(definition, "run-1", settings or RunSettings(**options), state)


def state_of(journal: Sequence[Activation] = ()) -> State:
    """Return the state of a run with this journal that has not executed it."""
    return State(run_id="run-1", task_queue="default", journal=list(journal))


def verify(run: Evaluator) -> Any:
    """Execute the run again. Return the difference, or None."""
    return verify_run(run)


def encode(value: Any) -> Payload:
    return default_converter.encode(value)


def decode(payload: Payload | None) -> Any:
    return None if payload is None else default_converter.decode(payload)


def as_bytes(value: Any) -> bytes:
    """Serialize a value of the evaluator, for comparison byte by byte."""
    return msgspec.msgpack.encode(value)


def copy_state(state: State) -> State:
    return State(run_id=state.run_id, task_queue=state.task_queue, journal=list(state.journal))


class Driver:
    """One run, driven by a scripted engine."""

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
        """Deliver the first activation: the start, then these events."""
        return self.send(self.started, *events)

    def send(self, *events: AnyEvent, **facts: Any) -> tuple[Command, ...]:
        """Deliver events and the owed ones; fail if the task fails."""
        completion = self.offer(*events, **facts)
        assert isinstance(completion, Succeeded), getattr(self.run.error, "__cause__", None) or self.run.error
        return completion.commands

    def offer(self, *events: AnyEvent, **facts: Any) -> Completion:
        """Deliver events and return the completion, which may be a failed task."""
        owed, self.owed = self.owed, []
        return self.deliver(self.activation(*owed, *events, **facts))

    def activation(self, *events: AnyEvent, **facts: Any) -> Activation:
        """Return the next activation, one second after the previous one."""
        defaults: dict[str, Any] = {
            "timestamp_ns": EPOCH + len(self.activations) * SECOND,
            "is_replaying": self.replaying,
            "history_length": 3 * len(self.activations) + 3,
            "flags": self.flags,
        }
        return Activation(run_id="run-1", events=events, **(defaults | facts))

    def deliver(self, activation: Activation) -> Completion:
        """Deliver this activation and compare its completion with the one of `evaluate`."""
        before = copy_state(self.run.state)
        completion = self.run.activate(activation)
        if self.shadow:
            _, pure = evaluate(self.definition, before, activation, self.settings)
            assert as_bytes(pure) == as_bytes(completion), "re-execution returned a different completion"
        self.activations.append(activation)
        self.completions.append(completion)
        if isinstance(completion, Succeeded):
            for event in activation.events:
                self._record_event(event)
            self.protocol.check(completion.commands)
            for command in completion.commands:
                self._record_command(command)
        return completion

    # --- the scripted engine ------------------------------------------------------------------------------------------

    def _record_event(self, event: AnyEvent) -> None:
        match event:
            case TimerFired():
                self.pending.pop(("timer", event.seq), None)
            case ActivityCompleted() | ActivityFailed() | ActivityCancelled() | ActivityBackedOff():
                self.pending.pop(("activity", event.seq), None)
            case _:
                pass

    def _record_command(self, command: Command) -> None:
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
        """Return the pending activity with this number, or the first of this type."""
        for (kind, seq), command in self.pending.items():
            if kind == "activity":
                assert isinstance(command, (ScheduleActivity, ScheduleLocalActivity))
                if name in (seq, command.activity_type):
                    return command
        raise AssertionError(f"no activity {name} is pending: {sorted(self.pending)}")

    def done(self, name: str | int, value: Any = None) -> ActivityCompleted:
        """Return the event of an activity that returned `value`."""
        command = self.activity(name)
        return ActivityCompleted(command.seq, encode(value), isinstance(command, ScheduleLocalActivity))

    def failed(self, name: str | int, message: str = "broken", type: str = "Broken") -> ActivityFailed:
        """Return the event of an activity that failed and is not retried."""
        command = self.activity(name)
        cause = Failure(message, ApplicationFailure(type=type))
        return ActivityFailed(
            command.seq, activity_failure(command, cause), isinstance(command, ScheduleLocalActivity)
        )

    def cancelled_activity(
        self, command: ScheduleActivity | ScheduleLocalActivity | str | int
    ) -> ActivityCancelled:
        """Return the event of an activity that ended as cancelled."""
        if isinstance(command, (str, int)):
            command = self.activity(command)
        failure = activity_failure(command, Failure("cancelled", CanceledFailure()))
        return ActivityCancelled(command.seq, failure, isinstance(command, ScheduleLocalActivity))

    def fired(self, seq: int | None = None) -> TimerFired:
        """Return the event of this timer, or of the oldest."""
        timers = [number for kind, number in self.pending if kind == "timer"]
        number = min(timers) if seq is None else seq
        assert number in timers, f"timer {number} is not pending: {timers}"
        return TimerFired(number)

    @property
    def timers(self) -> dict[int, float]:
        """The duration in seconds of each pending timer, by number."""
        return {
            command.seq: command.duration_ns / SECOND
            for command in self.pending.values()
            if isinstance(command, StartTimer)
        }

    @property
    def activities(self) -> list[str]:
        """The types of the pending activities, by number."""
        return [
            command.activity_type
            for _, command in sorted(self.pending.items())
            if isinstance(command, (ScheduleActivity, ScheduleLocalActivity))
        ]

    def query(self, name: str, *arguments: Any) -> Any:
        """Query the run; return the result or raise the failure."""
        answer = self.answer_query(name, *arguments)
        if answer.failure is not None:
            raise default_converter.from_failure(answer.failure)
        return decode(answer.result)

    def answer_query(self, name: str, *arguments: Any) -> Any:
        """Query the run; return the command that answers."""
        event = QueryReceived("q", name, tuple(encode(argument) for argument in arguments))
        completion = self.run.activate(self.activation(event))
        assert isinstance(completion, Succeeded)
        (answer,) = completion.commands
        return answer

    def finish(self, answer: Callable[[str, list[Any]], Any] | None = None, limit: int = 200) -> Any:
        """Complete the oldest pending command repeatedly until the run closes; return its result."""
        for _ in range(limit):
            if self.terminal is not None:
                break
            if self.owed:
                self.send()
                continue
            assert self.pending, "the run is open but has no pending command"
            (kind, seq), command = next(iter(self.pending.items()))
            if kind == "timer":
                self.send(TimerFired(seq))
            else:
                assert isinstance(command, (ScheduleActivity, ScheduleLocalActivity))
                value = answer(command.activity_type, arguments_of(command)) if answer is not None else None
                self.send(self.done(seq, value))
        return self.result

    # --- outcome -----------------------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        assert isinstance(self.terminal, CompleteRun), f"not completed: {self.terminal}, {self.pending}"
        return decode(self.terminal.result)

    @property
    def failure(self) -> BaseException:
        """The run's failure, as clients see it."""
        assert isinstance(self.terminal, FailRun), f"not failed: {self.terminal}, {self.pending}"
        return default_converter.from_failure(self.terminal.failure)

    @property
    def was_cancelled(self) -> bool:
        return isinstance(self.terminal, CancelRun)


def error_in_workflow(call: Callable[[], object]) -> Exception:
    """Execute a workflow that makes this call; return the exception that the call raised. It must issue no commands."""
    errors: list[Exception] = []

    @workflow.defn
    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    driver = Driver(run)
    assert brief(driver.begin()) == ["CompleteRun"]
    return errors[-1]


def activity_failure(command: ScheduleActivity | ScheduleLocalActivity, cause: Failure) -> Failure:
    """Return an activity's failure as engines report it."""
    info = ActivityFailure(activity_type=command.activity_type, activity_id=command.activity_id)
    return Failure("activity error", info, cause)


def signal(name: str, *arguments: Any) -> SignalReceived:
    return SignalReceived(name, tuple(encode(argument) for argument in arguments))


def update(name: str, *arguments: Any, id: str = "u", run_validator: bool = True) -> UpdateReceived:
    return UpdateReceived(
        id=id,
        protocol_instance_id=id,
        name=name,
        arguments=tuple(encode(argument) for argument in arguments),
        run_validator=run_validator,
    )


def cancel(reason: str = "enough") -> CancelRequested:
    return CancelRequested(reason)


def arguments_of(command: Command) -> list[Any]:
    return [decode(payload) for payload in command.arguments]  # type: ignore[attr-defined]


def brief(commands: Sequence[Command]) -> list[str]:
    """Describe each command in a few words, such as `charge(a)` or `cancel timer 1`."""
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
    assert isinstance(completion, TaskFailed)
    return completion.failure
