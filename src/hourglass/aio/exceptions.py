"""What `temporalio.exceptions` has, as far as it is here: failures that travel, under the names that they have there."""

from __future__ import annotations

import asyncio

from hourglass._evaluator.fibers import is_cancellation
from hourglass.errors import (
    ActivityAlreadyStartedError,
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    InvalidVersioningOverrideError,
    NexusOperationError,
    RetryState,
    ServerError,
    TerminatedError,
    TimeoutType,
    WorkflowAlreadyStartedError,
)
from hourglass.errors import HourglassError as TemporalError
from hourglass.errors import TimedOutError as TimeoutError

__all__ = [
    "ActivityAlreadyStartedError",
    "ActivityError",
    "ApplicationError",
    "ApplicationErrorCategory",
    "CancelledError",
    "ChildWorkflowError",
    "FailureError",
    "InvalidVersioningOverrideError",
    "NexusOperationError",
    "RetryState",
    "ServerError",
    "TemporalError",
    "TerminatedError",
    "TimeoutError",
    "TimeoutType",
    "WorkflowAlreadyStartedError",
    "is_cancelled_exception",
]


def is_cancelled_exception(exception: BaseException) -> bool:
    """Whether an exception means that this code, or the activity or child that it waited for, was cancelled."""
    return isinstance(exception, asyncio.CancelledError) or is_cancellation(exception)
