"""How an attempt of an activity ended, as the engine wants to hear it. Pure: exceptions in, results out."""

from __future__ import annotations

import asyncio

import msgspec

from hourglass._bridge.handle import (
    ActivityCancelled,
    ActivityDeferred,
    ActivityFailed,
    ActivityResult,
    ActivityTask,
)
from hourglass.activity._context import DeferredCompletion
from hourglass.converter import ApplicationFailure, CanceledFailure, Converter, Failure
from hourglass.errors import ArgumentError, Cancelled, PayloadError, UsageError

# Only these reasons mean that the server waits for a cancellation; for the others it would refuse one.
_ASKED_FOR = frozenset({"CANCELLED", "NOT_FOUND", "TIMED_OUT"})


def failed(task: ActivityTask, type_: str, message: str, *, non_retryable: bool = False) -> ActivityFailed:
    """An attempt that failed for a reason of ours."""
    info = ApplicationFailure(type=type_, non_retryable=non_retryable)
    return ActivityFailed(task.token, Failure(message=message, info=info))


def refused(task: ActivityTask, error: BaseException) -> ActivityFailed:
    """An attempt that could not begin, or whose result cannot be told.

    Repeating it would change nothing, unless the activity is not known here: another worker may know it, or
    this one after its next deploy.
    """
    hopeless = isinstance(error, (ArgumentError, PayloadError))
    return failed(task, type(error).__name__, _text(error), non_retryable=hopeless)


def abandoned(task: ActivityTask, reason: str) -> ActivityFailed:
    """An attempt that this worker no longer waits for; another worker may try."""
    return failed(task, "WorkerShutdown", f"activity {task.activity_type}: {reason}")


def ended_by(
    task: ActivityTask, error: BaseException, cancel_reason: str | None, converter: Converter
) -> ActivityResult:
    """What an exception means that an activity let out."""
    match error:
        case DeferredCompletion():
            return ActivityDeferred(task.token)
        case Cancelled() | asyncio.CancelledError() if cancel_reason is not None:
            return _stopped(task, cancel_reason)
        case UsageError():
            return ActivityFailed(task.token, _without_retry(_as_failure(error, converter)))
        case Exception():
            return ActivityFailed(task.token, _as_failure(error, converter))
        case _:
            # SystemExit, KeyboardInterrupt, a cancellation that nobody asked for: of the activity's own
            # making.
            return failed(task, type(error).__name__, _text(error))


def _stopped(task: ActivityTask, reason: str) -> ActivityResult:
    if reason in _ASKED_FOR:
        return ActivityCancelled(task.token, Failure(message="Cancelled", info=CanceledFailure()))
    if reason == "WORKER_SHUTDOWN":
        return abandoned(task, "stopped because its worker shuts down")
    return failed(task, "AttemptStopped", f"activity {task.activity_type} was stopped: {reason}")


def _as_failure(error: Exception, converter: Converter) -> Failure:
    try:
        return converter.to_failure(error)
    except Exception as problem:
        info = ApplicationFailure(type=type(error).__name__)
        note = f"{_text(error)} (its details cannot be encoded: {type(problem).__name__})"
        return Failure(message=note, info=info)


def _without_retry(failure: Failure) -> Failure:
    """The API was misused: trying again meets the same code."""
    if not isinstance(failure.info, ApplicationFailure):
        return failure
    info = msgspec.structs.replace(failure.info, non_retryable=True)
    return msgspec.structs.replace(failure, info=info)


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
