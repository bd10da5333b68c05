"""A run that fails past an `except` which names what the activity raised: its log says which, and what to write."""

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

HERE = sys.modules[__name__]
ONCE = RetryPolicy(maximum_attempts=1)


class Declined(Exception):
    """What the activity's error is made of."""


class Blocked(Declined):
    """What the activity raises."""


@activity.defn(retry_policy=ONCE)
def charge(cents: int) -> int:
    raise Blocked(f"{cents} are too much")


@activity.defn(retry_policy=ONCE)
async def acharge(cents: int) -> int:
    raise Blocked(f"{cents} are too much")


@workflow.defn
def refuses(cents: int) -> int:
    raise ApplicationError("no", type="Refused")


@workflow.defn
def by_name(cents: int) -> int:
    try:
        return charge(cents)
    except Blocked:  # here
        return 0


@workflow.defn
def by_base(cents: int) -> int:
    def pay() -> int:
        return charge(cents)

    try:
        if cents:
            return pay()
    except (
        KeyError,
        HERE.Declined,  # type: ignore[name-defined]  # here
    ):
        return 0
    return 1


@workflow.defn
def by_ours(cents: int) -> int:
    try:
        return refuses(cents)
    except ApplicationError:  # here
        return 0


@aio.workflow.defn
class Awaited:
    @aio.workflow.run
    async def run(self, cents: int) -> int:
        try:
            return await aio.workflow.execute_activity(
                acharge, cents, start_to_close_timeout=timedelta(seconds=9)
            )
        except Blocked:  # here
            return 0


@workflow.defn
def by_another(cents: int) -> int:
    try:
        return charge(cents)
    except (KeyError, TimedOutError):
        return 0


@workflow.defn
def not_around(cents: int) -> int:
    try:
        cents += 1
    except Blocked:
        return 0
    return charge(cents)


@workflow.defn
def raised_again(cents: int) -> int:
    try:
        return charge(cents)
    except ActivityError as error:
        raise ApplicationError(str(error.cause)) from error


def told(function: Any, caplog: pytest.LogCaptureFixture) -> str:
    """What the log says of the run that fails."""
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
        (by_name, "Blocked", '`except ActivityError as error:` and test `error.cause.type == "Blocked"`'),
        (by_base, "HERE.Declined", 'ActivityError as error:` and test `error.cause.type == "Blocked"`'),
        (
            by_ours,
            "ApplicationError",
            'ChildWorkflowError as error:` and test `error.cause.type == "Refused"`',
        ),
        (Awaited, "Blocked", 'ActivityError as error:` and test `error.cause.type == "Blocked"`'),
    ],
)
def test_except_clause_is_named(
    function: Any, handler: str, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    """File and line of the handler, and what to write in its place."""
    text = told(function, caplog)
    assert f"  except {handler} ({__file__}:" in text
    line = int(text.partition(f"({__file__}:")[2].partition(")")[0])
    with open(__file__) as source:
        assert "# here" in source.readlines()[line - 1]
    assert text.endswith(instead)


@pytest.mark.parametrize("function", [by_another, not_around, raised_again])
def test_other_failures_get_no_hint(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A handler of something else, one that is not around the call, an error that was raised by the author."""
    assert "does not catch" not in told(function, caplog)


def test_except_timeout_error_around_a_call_is_explained() -> None:
    """`except TimeoutError` around a call whose time ran out: the cause is looked at itself."""

    def fails() -> None:
        try:
            raise ActivityError("too late") from TimedOutError("Timeout")
        except TimeoutError:
            pass

    assert "except TimeoutError (" in passed_handler(_raised(fails))
    assert passed_handler(_raised(fails)).endswith("and test `error.cause`")


def test_code_without_source_gets_no_hint() -> None:
    """Functions that stand in no file, and errors that no code raised, give no hint and no error."""
    known: dict[str, Any] = {"ActivityError": ActivityError, "Blocked": Blocked}
    text = "def fails():\n    try:\n        raise ActivityError('x') from Blocked()\n    except Blocked: ..."
    exec(compile(text, "nowhere.py", "exec"), known)
    assert passed_handler(_raised(known["fails"])) == ""
    assert passed_handler(ActivityError("x")) == ""
    assert passed_handler(None) == ""


def _raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(ActivityError) as caught:
        function()
    return caught.value
