"""The supported names of `temporalio.exceptions`: the failures of workflows and activities."""

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
    """Return whether an exception means that this code, or an awaited activity or child, was cancelled."""
    return isinstance(exception, asyncio.CancelledError) or is_cancellation(exception)
