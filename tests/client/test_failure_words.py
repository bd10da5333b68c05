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


def with_causes(error: BaseException, *causes: BaseException) -> BaseException:
    """Chain these causes to the error and return it."""
    link = error
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return error


def activity_error() -> ActivityError:
    return ActivityError("Activity task failed", activity_type="charge")


def child_workflow_error() -> ChildWorkflowError:
    return ChildWorkflowError("Child failed", workflow_type="pay", workflow_id="pay-1")


WRONG = ApplicationError("no such card\nsecond line", type="CardError")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            with_causes(activity_error(), ApplicationError("no money", type="Broke")),
            "activity charge failed: Broke: no money",
        ),
        (with_causes(activity_error(), WRONG), "activity charge failed: CardError: no such card"),
        (
            with_causes(
                activity_error(), ApplicationError("no", type="A"), ApplicationError("deep", type="B")
            ),
            "activity charge failed: A: no (because B: deep)",
        ),
        (
            with_causes(activity_error(), TimedOutError("late", type=TimeoutType.START_TO_CLOSE)),
            "activity charge timed out (start to close)",
        ),
        (with_causes(activity_error(), TimedOutError("late")), "activity charge timed out"),
        (with_causes(activity_error(), CancelledError()), "activity charge was cancelled"),
        (
            with_causes(child_workflow_error(), TerminatedError("by hand")),
            "child workflow pay (pay-1) was terminated",
        ),
        (
            with_causes(child_workflow_error(), activity_error(), ApplicationError("no money", type="Broke")),
            "child workflow pay (pay-1) failed: activity charge failed: Broke: no money",
        ),
        (activity_error(), "activity charge: Activity task failed"),
        (ActivityError("as it was raised by hand"), "as it was raised by hand"),
    ],
)
def test_str_of_failure_names_the_activity_and_its_causes_in_one_line(
    error: BaseException, text: str
) -> None:
    assert str(error) == text


def test_summary_names_the_error_type_and_message() -> None:
    assert summary(ApplicationError("no money", type="Broke")) == "Broke: no money"
    assert summary(KeyError("apples")) == "KeyError: 'apples'"
    assert summary(ValueError()) == "ValueError"


def test_root_cause_of_circular_causes_terminates() -> None:
    first, second = activity_error(), ApplicationError("second")
    with_causes(first, second)
    second.__cause__ = first
    assert first.root_cause is second


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def pay(cents: int) -> str:
    raise ValueError("no payment") from ConnectionError("refused")


@workflow.defn
def catches_payment_error(cents: int) -> str:
    try:
        return pay(cents)
    except ActivityError as error:
        return f"{error} / {error.root_cause}"


@workflow.defn
def fails_with_payment_error(cents: int) -> str:
    return pay(cents)


def test_failure_text_is_the_same_in_workflow_and_client() -> None:
    with Environment(workflows=[catches_payment_error, fails_with_payment_error], activities=[pay]) as env:
        line = "activity pay failed: ValueError: no payment (because ConnectionError: refused)"
        assert env.execute_workflow(catches_payment_error, 1) == f"{line} / refused"
        with pytest.raises(WorkflowFailedError, match="failed: activity pay failed: ValueError") as caught:
            env.execute_workflow(fails_with_payment_error, 1)
    assert str(caught.value.root_cause) == "refused"
