"""Uncaught exceptions: a failure fails the run; any other exception is a bug and parks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import messages
from hourglass._evaluator.commands import CompleteRun, ContinueAsNew, FailRun, TaskFailed
from hourglass._evaluator.events import ActivityCompleted, RunStarted
from hourglass.converter import Payload
from hourglass.errors import (
    ApplicationError,
    ArgumentError,
    EncodeError,
    NondeterminismError,
    TimedOutError,
)

from .activities import charge, work
from .conftest import Drive
from .driver import arguments_of, brief, error_in_workflow, error_of, signal


class OwnError(ApplicationError): ...


class UnlistedError(Exception):
    """An exception that is a failure only if it is listed as one."""


def raising(make: Callable[[], BaseException], **options: Any) -> Any:
    """Return a workflow that executes an activity and then raises a new error."""

    @workflow.defn(**options)
    def run() -> None:
        work("step")
        raise make()

    return run


def raise_after_an_activity(begin_run: Drive, make: Callable[[], BaseException], **options: Any) -> Any:
    """Return a driver, and the completion of the task in which its workflow raised."""
    settings = options.pop("settings", None)
    d = begin_run(raising(make, **options), settings=settings)
    return d, d.offer(d.done("work"))


@pytest.mark.parametrize(
    "kind", [ApplicationError, OwnError, TimeoutError, TimedOutError], ids=lambda kind: kind.__name__
)
def test_uncaught_failure_fails_the_run(begin_run: Drive, kind: type[Exception]) -> None:
    d, _ = raise_after_an_activity(begin_run, lambda: kind("no"))
    assert isinstance(d.terminal, FailRun)
    assert d.terminal.failure.message == "no"


def test_uncaught_failure_of_gather_fails_the_run(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        def broken() -> None:
            raise ApplicationError("from a child")

        workflow.gather(workflow.spawn(broken), charge.start("a"))

    d = begin_run(run)
    assert str(d.failure) == "from a child"


@pytest.mark.parametrize(
    "kind",
    [ValueError, KeyError, UnlistedError, AssertionError, RecursionError],
    ids=lambda kind: kind.__name__,
)
def test_uncaught_exception_that_is_not_a_failure_parks_the_run(
    begin_run: Drive, kind: type[Exception]
) -> None:
    d, completion = raise_after_an_activity(begin_run, lambda: kind("bug"))
    assert isinstance(completion, TaskFailed)
    assert "bug" in error_of(completion).message
    assert d.terminal is None
    assert type(d.run.error) is kind


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit], ids=lambda kind: kind.__name__
)
def test_system_exit_parks_the_run_and_keeps_the_lane(begin_run: Drive, kind: type[BaseException]) -> None:
    d, completion = raise_after_an_activity(begin_run, kind)
    assert isinstance(completion, TaskFailed)
    assert d.terminal is None
    assert kind.__name__ in str(d.run.error)


def test_parked_run_continues_after_the_code_is_fixed(begin_run: Drive) -> None:
    """The failed activation is executed again, from the journal."""
    broken = [True]

    @workflow.defn
    def run() -> str:
        result = charge("a")
        if broken:
            raise ValueError("bug")
        return result

    d = begin_run(run)
    activation = d.activation(d.done("charge", "A"))
    assert isinstance(d.deliver(activation), TaskFailed)
    broken.clear()
    assert isinstance(d.deliver(activation), type(d.completions[0]))
    assert d.result == "A"


def test_failure_exceptions_of_a_library_fail_all_runs(
    begin_run: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_failures", set())
    messages.count_as_failures(UnlistedError)
    d, _ = raise_after_an_activity(begin_run, lambda: UnlistedError("the library's"))
    assert isinstance(d.terminal, FailRun)


def test_bug_in_a_signal_handler_parks_the_run(begin_run: Drive) -> None:
    @workflow.defn
    class Handled:
        @workflow.run
        def run(self) -> None:
            workflow.sleep(10)

        @workflow.signal
        def poke(self) -> None:
            raise ZeroDivisionError("in a handler")

    d = begin_run(Handled)
    assert isinstance(d.offer(signal("poke")), TaskFailed)
    assert isinstance(d.run.error, ZeroDivisionError)


def test_unretrieved_exception_of_a_spawned_task_is_logged_when_the_run_closes(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        def broken() -> None:
            raise ValueError("unseen")

        workflow.spawn(broken)
        work("step")
        return "done"

    d = begin_run(run)
    d.send(d.done("work"))
    assert d.result == "done"
    assert any("broken" in notice and "ValueError" in notice for notice in d.run.notices)


def test_unencodable_result_parks_the_run(drive: Drive) -> None:
    @workflow.defn
    def run() -> Any:
        return {"secret": lambda: 1}

    d = drive(run)
    assert isinstance(d.offer(d.started), TaskFailed)
    assert isinstance(d.run.error, EncodeError)


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), ("x",)], ids=["too few", "too many", "wrong type"])
def test_invalid_start_arguments_park_the_run(drive: Drive, arguments: tuple[Any, ...]) -> None:
    @workflow.defn
    def run(number: int) -> None:
        """Takes a number."""

    d = drive(run, *arguments)
    assert isinstance(d.offer(d.started), TaskFailed)
    assert isinstance(d.run.error, ArgumentError)


def test_error_of_an_undecodable_payload_does_not_contain_it(drive: Drive) -> None:
    @workflow.defn
    def run(number: int) -> None:
        """Takes a number."""

    d = drive(run)
    started = RunStarted(workflow_type="run", workflow_id="w", arguments=(Payload(b"{top secret"),))
    completion = d.offer(started)
    assert isinstance(completion, TaskFailed)
    assert "top secret" not in repr(completion) + repr(d.run.error)


def test_result_of_an_unknown_command_is_nondeterminism(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        workflow.sleep(10)

    d = begin_run(run)
    assert isinstance(d.offer(ActivityCompleted(3)), TaskFailed)
    assert isinstance(d.run.error, NondeterminismError)
    assert "activity number 3" in d.run.error.expected


# --- other outcomes ---------------------------------------------------------------------------------------------------


def test_continue_as_new_ends_the_run_with_the_next_arguments(begin_run: Drive) -> None:
    @workflow.defn
    def loop(page: int, size: int = 10) -> None:
        work("page")
        workflow.continue_as_new(page + 1, run_timeout=5, task_queue="other")

    d = begin_run(loop, 1)
    (command,) = d.send(d.done("work"))
    assert isinstance(command, ContinueAsNew)
    assert arguments_of(command)[0] == 2
    assert (command.workflow_type, command.spec.task_queue, command.spec.run_timeout) == (
        "loop",
        "other",
        5.0,
    )


def test_continue_as_new_rejects_wrong_arguments() -> None:
    assert isinstance(error_in_workflow(lambda: workflow.continue_as_new(1, 2)), ArgumentError)


def test_continue_as_new_in_a_nested_call_runs_finally_but_not_except_exception(drive: Drive) -> None:
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


def test_workflow_results_are_encoded_by_type(drive: Drive) -> None:
    def returning(value: Any) -> Callable[[], Any]:
        def run() -> Any:
            return value

        return run

    for value, encoding in ((None, "binary/null"), (b"raw", "binary/plain"), ([1], "json/plain")):
        d = drive(workflow.defn(returning(value)))
        (command,) = d.begin()
        assert isinstance(command, CompleteRun)
        assert command.result.encoding == encoding
