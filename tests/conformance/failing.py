"""How runs fail: what a workflow lets out, and what the client sees of it."""

from __future__ import annotations

from hourglass import RetryPolicy, workflow
from hourglass.errors import ApplicationError, RetryState, TimedOutError

from . import acts
from .scenario import scenario
from .world import World, kinds


class OutOfStock(ApplicationError):
    """A failure of the program's own."""


class Rejected(Exception):
    """Not a failure unless somebody says so."""


@workflow.defn(failure_exceptions=[Rejected])
def lets_out(what: str) -> None:
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
def application_error(world: World) -> None:
    """Message, type, details and the promise not to retry arrive."""
    error = world.fails(lets_out, "application")
    assert isinstance(error, ApplicationError)
    assert (error.message, error.type, error.non_retryable) == ("no money", "Broke", True)
    assert list(error.details) == [{"short": 3}, [1, 2]]


@scenario()
def own_subclass(world: World) -> None:
    """A subclass's name is its type."""
    assert world.fails(lets_out, "subclass").type == "OutOfStock"


@scenario()
def chain_of_causes(world: World) -> None:
    """Causes travel, however they were raised."""
    error = world.fails(lets_out, "cause")
    assert [error.type, error.cause.type, error.cause.cause.type] == [
        "ApplicationError",
        "ValueError",
        "KeyError",
    ]


@scenario()
def timeout_error_escapes(world: World) -> None:
    """A TimeoutError that the workflow lets out fails the run."""
    assert "took too long" in str(world.fails(lets_out, "timeout"))


@scenario()
def condition_timeout_escapes(world: World) -> None:
    """So does one of a condition."""
    handle = world.start(lets_out, "condition")
    world.failure(handle)
    assert kinds(handle.history())[-1] == "WORKFLOW_EXECUTION_FAILED"


@scenario()
def failure_exceptions_of_workflow(world: World) -> None:
    """An exception that the workflow lists fails the run."""
    assert world.fails(lets_out, "listed").type == "Rejected"


@scenario(failure_exceptions=[LookupError])
def failure_exceptions_of_worker(world: World) -> None:
    """So does one that the worker lists."""
    assert world.fails(lets_out, "unlisted").type == "LookupError"


@workflow.defn
def retried() -> int:
    attempt = workflow.info().attempt
    if attempt < 3:
        raise ApplicationError(f"attempt {attempt}")
    return attempt


@scenario()
def workflow_retries(world: World) -> None:
    """A run with a retry policy is run again after a failure, and the result is the last run's."""
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=5)
    assert world.run(retried, retry_policy=policy) == 3
    assert len(world.histories()) == 3


@scenario()
def workflow_retries_used_up(world: World) -> None:
    """After the last attempt the failure is the last one's."""
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=2)
    error = world.fails(retried, retry_policy=policy)
    assert error.message == "attempt 2"


@workflow.defn
def sleeps_long() -> str:
    workflow.sleep(3600)
    return "never"


@scenario()
def run_timeout(world: World) -> None:
    """A run that takes too long is timed out by the engine."""
    error = world.fails(sleeps_long, run_timeout=1)
    assert isinstance(error, TimedOutError)


@scenario()
def terminate(world: World) -> None:
    """A terminated run ends at once, with the reason; its code is not asked."""
    handle = world.start(sleeps_long)
    world.until(handle, "TIMER_STARTED")
    handle.terminate("enough", "for", "today")
    error = world.failure(handle)
    assert type(error).__name__ == "TerminatedError"
    assert "enough" in str(error)
    assert list(error.details) == ["for", "today"]
    handle_kinds = kinds(handle.history())
    assert handle_kinds[-1] == "WORKFLOW_EXECUTION_TERMINATED"


@workflow.defn
def passes_on() -> None:
    acts.raises_value_error.options(retry_policy=RetryPolicy(maximum_attempts=1))()


@scenario()
def plain_exception_of_activity(world: World) -> None:
    """An activity's ordinary exception becomes an ApplicationError of its name, cause included."""
    error = world.fails(passes_on)
    assert error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
    assert (error.cause.type, error.cause.cause.type) == ("LookupError", "ValueError")
