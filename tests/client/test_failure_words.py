"""The one-line text of failures: activity or child, its error, and the root cause."""

from __future__ import annotations

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimedOutError,
    TimeoutType,
    WorkflowFailedError,
    summary,
)
from hourglass.testing import Environment


def caused(error: BaseException, *causes: BaseException) -> BaseException:
    """Chain these causes to the error and return it."""
    link = error
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return error


def failed() -> ActivityError:
    return ActivityError("Activity task failed", activity_type="charge")


def child() -> ChildWorkflowError:
    return ChildWorkflowError("Child failed", workflow_type="pay", workflow_id="pay-1")


WRONG = ApplicationError("no such card\nsecond line", type="CardError")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            caused(failed(), ApplicationError("no money", type="Broke")),
            "activity charge failed: Broke: no money",
        ),
        (caused(failed(), WRONG), "activity charge failed: CardError: no such card"),
        (
            caused(failed(), ApplicationError("no", type="A"), ApplicationError("deep", type="B")),
            "activity charge failed: A: no (because B: deep)",
        ),
        (
            caused(failed(), TimedOutError("late", type=TimeoutType.START_TO_CLOSE)),
            "activity charge timed out (start to close)",
        ),
        (caused(failed(), TimedOutError("late")), "activity charge timed out"),
        (caused(failed(), CancelledError()), "activity charge was cancelled"),
        (caused(child(), TerminatedError("by hand")), "child workflow pay (pay-1) was terminated"),
        (
            caused(child(), failed(), ApplicationError("no money", type="Broke")),
            "child workflow pay (pay-1) failed: activity charge failed: Broke: no money",
        ),
        (failed(), "activity charge: Activity task failed"),
        (ActivityError("as it was raised by hand"), "as it was raised by hand"),
    ],
)
def test_failure_text_has_one_line(error: BaseException, said: str) -> None:
    assert str(error) == said


def test_failure_summaries_name_the_error() -> None:
    assert summary(ApplicationError("no money", type="Broke")) == "Broke: no money"
    assert summary(KeyError("apples")) == "KeyError: 'apples'"
    assert summary(ValueError()) == "ValueError"


def test_circular_causes_end() -> None:
    first, second = failed(), ApplicationError("second")
    caused(first, second)
    second.__cause__ = first
    assert first.root_cause is second


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def pay(cents: int) -> str:
    raise ValueError("no payment") from ConnectionError("refused")


@workflow.defn
def buys(cents: int) -> str:
    try:
        return pay(cents)
    except ActivityError as error:
        return f"{error} / {error.root_cause}"


@workflow.defn
def insists(cents: int) -> str:
    return pay(cents)


def test_workflow_and_caller_see_the_same_failure() -> None:
    with Environment(workflows=[buys, insists], activities=[pay]) as env:
        line = "activity pay failed: ValueError: no payment (because ConnectionError: refused)"
        assert env.execute_workflow(buys, 1) == f"{line} / refused"
        with pytest.raises(WorkflowFailedError, match="failed: activity pay failed: ValueError") as caught:
            env.execute_workflow(insists, 1)
    assert str(caught.value.root_cause) == "refused"
