"""A run that fails although an `except` names the exception of its activity: the log explains which handler to fix, and
how.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from hourglass import RetryPolicy, activity, aio, workflow
from hourglass._worker.lanes.passed_handlers import passed_handler
from hourglass.errors import ActivityError, ApplicationError, TimedOutError, WorkflowFailedError
from hourglass.testing import Environment

THIS_MODULE = sys.modules[__name__]
ONCE = RetryPolicy(maximum_attempts=1)


class DeclinedError(Exception): ...


class BlockedError(DeclinedError): ...


@activity.defn(retry_policy=ONCE)
def charge(cents: int) -> int:
    raise BlockedError(f"{cents} are too much")


@activity.defn(retry_policy=ONCE)
async def acharge(cents: int) -> int:
    raise BlockedError(f"{cents} are too much")


@workflow.defn
def rejects(cents: int) -> int:
    raise ApplicationError("no", type="Refused")


@workflow.defn
def catches_the_activitys_exception(cents: int) -> int:
    try:
        return charge(cents)
    except BlockedError:  # here
        return 0


@workflow.defn
def catches_its_base_class(cents: int) -> int:
    def pay() -> int:
        return charge(cents)

    try:
        if cents:
            return pay()
    except (
        KeyError,
        THIS_MODULE.DeclinedError,  # type: ignore[name-defined]  # here
    ):
        return 0
    return 1


@workflow.defn
def catches_the_childs_application_error(cents: int) -> int:
    try:
        return rejects(cents)
    except ApplicationError:  # here
        return 0


@aio.workflow.defn
class CatchesInCoroutine:
    @aio.workflow.run
    async def run(self, cents: int) -> int:
        try:
            return await aio.workflow.execute_activity(
                acharge, cents, start_to_close_timeout=timedelta(seconds=9)
            )
        except BlockedError:  # here
            return 0


@workflow.defn
def catches_something_else(cents: int) -> int:
    try:
        return charge(cents)
    except (KeyError, TimedOutError):
        return 0


@workflow.defn
def catches_around_other_code(cents: int) -> int:
    try:
        cents += 1
    except BlockedError:
        return 0
    return charge(cents)


@workflow.defn
def raises_its_own_error(cents: int) -> int:
    try:
        return charge(cents)
    except ActivityError as error:
        raise ApplicationError(str(error.cause)) from error


def logged_failure(function: Any, caplog: pytest.LogCaptureFixture) -> str:
    """Return the log message of the failed run."""
    with (
        Environment() as environment,
        caplog.at_level(logging.WARNING, "hourglass.runs"),
        pytest.raises(WorkflowFailedError),
    ):
        environment.execute_workflow(function, 3)
    return caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("function", "handler", "instead"),
    [
        (
            catches_the_activitys_exception,
            "BlockedError",
            '`except ActivityError as error:` and test `error.cause.type == "BlockedError"`',
        ),
        (
            catches_its_base_class,
            "THIS_MODULE.DeclinedError",
            'ActivityError as error:` and test `error.cause.type == "BlockedError"`',
        ),
        (
            catches_the_childs_application_error,
            "ApplicationError",
            'ChildWorkflowError as error:` and test `error.cause.type == "Refused"`',
        ),
        (
            CatchesInCoroutine,
            "BlockedError",
            'ActivityError as error:` and test `error.cause.type == "BlockedError"`',
        ),
    ],
)
def test_log_names_the_except_clause_that_did_not_catch_and_its_fix(
    function: Any, handler: str, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = logged_failure(function, caplog)
    assert f"  except {handler} ({__file__}:" in text
    line = int(text.partition(f"({__file__}:")[2].partition(")")[0])
    with open(__file__) as source:
        assert "# here" in source.readlines()[line - 1]
    assert text.endswith(instead)


@pytest.mark.parametrize(
    "function", [catches_something_else, catches_around_other_code, raises_its_own_error]
)
def test_failures_without_a_mistaken_except_clause_get_no_hint(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert "does not catch" not in logged_failure(function, caplog)


def test_except_timeout_error_around_a_call_is_recognized() -> None:
    def fails() -> None:
        try:
            raise ActivityError("too late") from TimedOutError("Timeout")
        except TimeoutError:
            pass

    assert "except TimeoutError (" in passed_handler(_raised_by(fails))
    assert passed_handler(_raised_by(fails)).endswith("and test `error.cause`")


def test_code_without_source_gets_no_except_clause_hint() -> None:
    namespace: dict[str, Any] = {"ActivityError": ActivityError, "BlockedError": BlockedError}
    text = "def fails():\n    try:\n        raise ActivityError('x') from BlockedError()\n    except BlockedError: ..."
    exec(compile(text, "nowhere.py", "exec"), namespace)
    assert passed_handler(_raised_by(namespace["fails"])) == ""
    assert passed_handler(ActivityError("x")) == ""
    assert passed_handler(None) == ""


def _raised_by(function: Callable[[], object]) -> BaseException:
    with pytest.raises(ActivityError) as caught:
        function()
    return caught.value
