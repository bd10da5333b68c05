"""Failures of runs: what a workflow raises and what the client receives."""

from __future__ import annotations

from hourglass import RetryPolicy, workflow
from hourglass.errors import ApplicationError, RetryState, TimedOutError

from . import activities
from .scenario import scenario
from .world import World, event_types


class OutOfStock(ApplicationError):
    """A subclass of ApplicationError."""


class Rejected(Exception):
    """An exception that fails a run only if `failure_exceptions` lists it."""


@workflow.defn(failure_exceptions=[Rejected])
def raises(what: str) -> None:
    match what:
        case "application":
            raise ApplicationError("no money", {"short": 3}, [1, 2], type="Broke", non_retryable=True)
        case "subclass":
            raise OutOfStock("none left")
        case "cause":
            try:
                try:
                    raise KeyError("inner")
                except KeyError as inner:
                    raise ValueError("middle") from inner
            except ValueError as middle:
                raise ApplicationError("outer") from middle
        case "timeout":
            raise TimeoutError("took too long")
        case "condition":
            workflow.wait_condition(lambda: False, timeout=0.01)
        case "listed":
            raise Rejected("by rule")
        case "unlisted":
            raise LookupError("by the worker's rule")


@scenario()
def application_error_keeps_message_type_details_and_non_retryable(world: World) -> None:
    error = world.run_failing(raises, "application")
    assert isinstance(error, ApplicationError)
    assert (error.message, error.type, error.non_retryable) == ("no money", "Broke", True)
    assert list(error.details) == [{"short": 3}, [1, 2]]


@scenario()
def subclass_of_application_error_has_its_class_name_as_type(world: World) -> None:
    assert world.run_failing(raises, "subclass").type == "OutOfStock"


@scenario()
def chain_of_causes_reaches_client(world: World) -> None:
    error = world.run_failing(raises, "cause")
    assert [error.type, error.cause.type, error.cause.cause.type] == [
        "ApplicationError",
        "ValueError",
        "KeyError",
    ]


@scenario()
def uncaught_timeout_error_fails_run(world: World) -> None:
    assert "took too long" in str(world.run_failing(raises, "timeout"))


@scenario()
def uncaught_condition_timeout_fails_run(world: World) -> None:
    handle = world.start(raises, "condition")
    world.failure(handle)
    assert event_types(handle.history())[-1] == "WORKFLOW_EXECUTION_FAILED"


@scenario()
def failure_exceptions_of_workflow_fail_run(world: World) -> None:
    assert world.run_failing(raises, "listed").type == "Rejected"


@scenario(failure_exceptions=[LookupError])
def failure_exceptions_of_worker_fail_run(world: World) -> None:
    assert world.run_failing(raises, "unlisted").type == "LookupError"


@workflow.defn
def succeeds_on_third_attempt() -> int:
    attempt = workflow.info().attempt
    if attempt < 3:
        raise ApplicationError(f"attempt {attempt}")
    return attempt


@scenario()
def workflow_with_retry_policy_retries_until_success(world: World) -> None:
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=5)
    assert world.run(succeeds_on_third_attempt, retry_policy=policy) == 3
    assert len(world.histories()) == 3


@scenario()
def workflow_fails_with_last_error_when_attempts_are_used_up(world: World) -> None:
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=2)
    error = world.run_failing(succeeds_on_third_attempt, retry_policy=policy)
    assert error.message == "attempt 2"


@workflow.defn
def sleeps_long() -> str:
    workflow.sleep(3600)
    return "never"


@scenario()
def run_timeout_ends_run(world: World) -> None:
    error = world.run_failing(sleeps_long, run_timeout=1)
    assert isinstance(error, TimedOutError)


@scenario()
def terminated_run_ends_with_reason_and_details(world: World) -> None:
    handle = world.start(sleeps_long)
    world.wait_for_event(handle, "TIMER_STARTED")
    handle.terminate("enough", "for", "today")
    error = world.failure(handle)
    assert type(error).__name__ == "TerminatedError"
    assert "enough" in str(error)
    assert list(error.details) == ["for", "today"]
    types = event_types(handle.history())
    assert types[-1] == "WORKFLOW_EXECUTION_TERMINATED"


@workflow.defn
def calls_failing_activity() -> None:
    activities.raises_value_error.options(retry_policy=RetryPolicy(maximum_attempts=1))()


@scenario()
def activity_exception_becomes_application_error_with_cause(world: World) -> None:
    error = world.run_failing(calls_failing_activity)
    assert error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
    assert (error.cause.type, error.cause.cause.type) == ("LookupError", "ValueError")
