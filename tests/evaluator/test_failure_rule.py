"""What a workflow lets out decides its fate: a failure fails the run, anything else is a bug and parks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import messages
from hourglass._evaluator.commands import CompleteRun, ContinueAsNew, FailRun, TaskFailed
from hourglass._evaluator.events import ActivityCompleted, RunStarted
from hourglass.converter import ApplicationFailure, Payload
from hourglass.errors import (
    ActivityError,
    ApplicationError,
    ArgumentError,
    EncodeError,
    NondeterminismError,
    TimedOutError,
)

from .acts import charge, work
from .conftest import Drive
from .driver import arguments_of, brief, decode, error_of, run_settings, signal


class Refused(ApplicationError):
    """An application error of the author's own."""


class Odd(Exception):
    """No failure, unless somebody says so."""


def raising(make: Callable[[], BaseException], **options: Any) -> Any:
    """A workflow that takes a step and raises, a new error each time it is executed."""

    @workflow.defn(**options)
    def run() -> None:
        work("step")
        raise make()

    return run


def after_a_step(drive: Drive, make: Callable[[], BaseException], **options: Any) -> Any:
    """A driver, and the completion of the step after which the workflow raised."""
    settings = options.pop("settings", None)
    d = drive(raising(make, **options), settings=settings)
    d.begin()
    return d, d.offer(d.done("work"))


@pytest.mark.parametrize(
    "kind", [ApplicationError, Refused, TimeoutError, TimedOutError], ids=lambda kind: kind.__name__
)
def test_failures_fail_the_run(drive: Drive, kind: type[Exception]) -> None:
    """An application error, an escaping `TimeoutError` and their like end the run as failed."""
    d, _ = after_a_step(drive, lambda: kind("no"))
    assert isinstance(d.terminal, FailRun)
    assert d.terminal.failure.message == "no"


def test_application_error_keeps_its_fields(drive: Drive) -> None:
    """Type, details, retryability and cause are kept."""

    def make() -> Exception:
        error = ApplicationError("no", 1, "two", type="Mine", non_retryable=True)
        error.__cause__ = ValueError("deep down")
        return error

    d, _ = after_a_step(drive, make)
    failure = d.terminal.failure
    assert isinstance(failure.info, ApplicationFailure)
    assert (failure.info.type, failure.info.non_retryable) == ("Mine", True)
    assert [decode(payload) for payload in failure.info.details] == [1, "two"]
    assert failure.cause.message == "deep down"


def test_activity_failure_fails_the_run(drive: Drive) -> None:
    """An `ActivityError` that nobody catches."""

    @workflow.defn
    def run() -> None:
        charge("a")

    d = drive(run)
    d.begin()
    d.send(d.failed("charge", "broke"))
    assert isinstance(d.failure, ActivityError)
    assert str(d.failure.cause) == "broke"


def test_gather_reraises_failures(drive: Drive) -> None:
    """A failing child of `gather` fails the run if nobody catches it."""

    @workflow.defn
    def run() -> None:
        def broken() -> None:
            raise ApplicationError("from a child")

        workflow.gather(workflow.spawn(broken), charge.start("a"))

    d = drive(run)
    d.begin()
    assert str(d.failure) == "from a child"


@pytest.mark.parametrize(
    "kind", [ValueError, KeyError, Odd, AssertionError, RecursionError], ids=lambda kind: kind.__name__
)
def test_bug_parks_the_run(drive: Drive, kind: type[Exception]) -> None:
    """The task fails, the run does not; the reason is kept with the type that was raised."""
    d, completion = after_a_step(drive, lambda: kind("bug"))
    assert isinstance(completion, TaskFailed)
    assert "bug" in error_of(completion).message
    assert d.terminal is None
    assert type(d.run.error) is kind


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit], ids=lambda kind: kind.__name__
)
def test_system_exit_parks_the_run(drive: Drive, kind: type[BaseException]) -> None:
    """`SystemExit` and similar exceptions are bugs too: they end neither the lane nor the run."""
    d, completion = after_a_step(drive, kind)
    assert isinstance(completion, TaskFailed)
    assert d.terminal is None
    assert kind.__name__ in str(d.run.error)


def test_parked_run_is_retried(drive: Drive) -> None:
    """After the failed task the same activation is executed again from the journal, and fixed code continues."""
    broken = [True]

    @workflow.defn
    def run() -> str:
        result = charge("a")
        if broken:
            raise ValueError("bug")
        return result

    d = drive(run)
    d.begin()
    activation = d.activation(d.done("charge", "A"))
    assert isinstance(d.deliver(activation), TaskFailed)
    broken.clear()
    assert isinstance(d.deliver(activation), type(d.completions[0]))
    assert d.result == "A"


def test_failure_exceptions_of_the_definition(drive: Drive) -> None:
    """What a workflow lists fails its runs, subclasses included."""
    d, _ = after_a_step(drive, lambda: KeyError("listed"), failure_exceptions=[LookupError])
    assert isinstance(d.terminal, FailRun)


def test_failure_exceptions_of_the_worker(drive: Drive) -> None:
    """What a worker lists fails the runs of all its workflows."""
    d, _ = after_a_step(drive, lambda: Odd("listed"), settings=run_settings(failure_exceptions=(Odd,)))
    assert isinstance(d.terminal, FailRun)


def test_failure_exceptions_of_the_process(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bridge to a library counts as failures fails the runs of all workers."""
    monkeypatch.setattr(messages, "_failures", set())
    messages.count_as_failures(Odd)
    d, _ = after_a_step(drive, lambda: Odd("the library's"))
    assert isinstance(d.terminal, FailRun)


def test_bug_in_a_handler_parks_the_run(drive: Drive) -> None:
    """A bug in a signal handler fails the task like one in the body."""

    @workflow.defn
    class Handled:
        @workflow.run
        def run(self) -> None:
            workflow.sleep(10)

        @workflow.signal
        def poke(self) -> None:
            raise ZeroDivisionError("in a handler")

    d = drive(Handled)
    d.begin()
    assert isinstance(d.offer(signal("poke")), TaskFailed)
    assert isinstance(d.run.error, ZeroDivisionError)


def test_unread_bug_of_a_spawned_task_does_not_fail_the_run(drive: Drive) -> None:
    """A task that failed and that nobody looked at does not end the run; its failure is noticed when the run closes."""

    @workflow.defn
    def run() -> str:
        def broken() -> None:
            raise ValueError("unseen")

        workflow.spawn(broken)
        work("step")
        return "done"

    d = drive(run)
    d.begin()
    d.send(d.done("work"))
    assert d.result == "done"
    assert any("broken" in notice and "ValueError" in notice for notice in d.run.notices)


def test_unencodable_result_parks_the_run(drive: Drive) -> None:
    """The author returned something that has no encoding: the run parks, with a message that shows no contents."""

    @workflow.defn
    def run() -> Any:
        return {"secret": lambda: 1}

    d = drive(run)
    assert isinstance(d.offer(d.started), TaskFailed)
    assert isinstance(d.run.error, EncodeError)


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), ("x",)], ids=["too few", "too many", "wrong type"])
def test_invalid_start_arguments_park_the_run(drive: Drive, arguments: tuple[Any, ...]) -> None:
    """A start with wrong arguments is visible as a failed task that names the parameter."""

    @workflow.defn
    def run(number: int) -> None:
        """Takes a number."""

    d = drive(run, *arguments)
    assert isinstance(d.offer(d.started), TaskFailed)
    assert isinstance(d.run.error, ArgumentError)


def test_undecodable_payload_parks_without_its_contents(drive: Drive) -> None:
    """Neither the failure nor the error contains the payload."""

    @workflow.defn
    def run(number: int) -> None:
        """Takes a number."""

    d = drive(run)
    started = RunStarted(workflow_type="run", workflow_id="w", arguments=(Payload(b"{top secret"),))
    completion = d.offer(started)
    assert isinstance(completion, TaskFailed)
    assert "top secret" not in repr(completion) + repr(d.run.error)


def test_result_without_a_command_is_nondeterminism(drive: Drive) -> None:
    """The history has a result that the code did not request: the code has changed."""

    @workflow.defn
    def run() -> None:
        workflow.sleep(10)

    d = drive(run)
    d.begin()
    assert isinstance(d.offer(ActivityCompleted(3)), TaskFailed)
    assert isinstance(d.run.error, NondeterminismError)
    assert "activity number 3" in d.run.error.expected


# --- the other ends ---------------------------------------------------------------------------------------------------


def test_continue_as_new(drive: Drive) -> None:
    """The run ends with the arguments of the next one, bound by its own signature."""

    @workflow.defn
    def loop(page: int, size: int = 10) -> None:
        work("page")
        workflow.continue_as_new(page + 1, run_timeout=5, task_queue="other")

    d = drive(loop, 1)
    d.begin()
    (command,) = d.send(d.done("work"))
    assert isinstance(command, ContinueAsNew)
    assert arguments_of(command)[0] == 2
    assert (command.workflow_type, command.spec.task_queue, command.spec.run_timeout) == (
        "loop",
        "other",
        5.0,
    )


def test_continue_as_new_checks_its_arguments(drive: Drive) -> None:
    """Wrong arguments are refused before the run ends."""

    @workflow.defn
    def loop(page: int) -> str:
        try:
            workflow.continue_as_new(1, 2)
        except ArgumentError:
            return "refused"

    d = drive(loop, 1)
    d.begin()
    assert d.result == "refused"


def test_continue_as_new_from_a_helper_runs_finally(drive: Drive) -> None:
    """It ends the body from any depth; `finally` blocks run, `except Exception` does not catch it."""

    @workflow.defn
    def loop(page: int) -> None:
        def helper() -> None:
            try:
                workflow.continue_as_new(page + 1)
            except Exception:
                work("caught")
            finally:
                work("finally")

        helper()

    d = drive(loop, 1)
    assert brief(d.begin()) == ["work(finally)"]
    d.send(d.done("work"))
    assert isinstance(d.terminal, ContinueAsNew)


def test_results_of_each_kind_are_encoded(drive: Drive) -> None:
    """None, bytes and plain values."""

    def returning(value: Any) -> Callable[[], Any]:
        def run() -> Any:
            return value

        return run

    for value, encoding in ((None, "binary/null"), (b"raw", "binary/plain"), ([1], "json/plain")):
        d = drive(workflow.defn(returning(value)))
        (command,) = d.begin()
        assert isinstance(command, CompleteRun)
        assert command.result.encoding == encoding
