"""Conversion of exceptions and return values of activities to `ActivityResult`s. Pure functions that run no
user code except the converter.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import msgspec

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
)
from hourglass.activity._context import DeferredCompletion, check_size
from hourglass.converter import ApplicationFailure, CanceledFailure, Converter, Failure
from hourglass.errors import ArgumentError, Cancelled, CancelledError, EncodeError, PayloadError, UsageError

_LOOP_BLOCKED = "ActivityLoopBlocked"

# The number of characters to which the message of a failure above the size limit is truncated.
_SHORT = 1000

# The cancellation reasons after which the server accepts a cancelled result. After other reasons, it would
# reject the result.
_CANCEL_ACCEPTED = frozenset({"CANCELLED", "NOT_FOUND", "TIMED_OUT"})


def failed(task: ActivityTask, type_: str, message: str, *, non_retryable: bool = False) -> AttemptFailed:
    """Return a failed result for an error detected by the worker."""
    info = ApplicationFailure(type=type_, non_retryable=non_retryable)
    return AttemptFailed(task.token, Failure(message=message, info=info))


def rejected(task: ActivityTask, error: BaseException) -> AttemptFailed:
    """Return a failed result for an attempt that could not begin, or whose result cannot be encoded.

    The failure is retryable if another worker, or this worker after a deployment, may succeed, e.g. for an
    unknown activity.
    """
    hopeless = isinstance(error, (ArgumentError, PayloadError))
    return failed(task, type(error).__name__, _text(error), non_retryable=hopeless)


def abandoned(task: ActivityTask, reason: str) -> AttemptFailed:
    """Return a retryable failure for an attempt that this worker no longer waits for."""
    return failed(task, "WorkerShutdown", f"activity {task.activity_type}: {reason}")


def returned(task: ActivityTask, value: Any, converter: Converter, limit: int | None) -> ActivityResult:
    """Return the result for an activity's return value."""
    try:
        payload = converter.encode(value)
        check_size((payload,), limit, "it")
    except Exception as error:
        note = EncodeError(f"the result of activity {task.activity_type} cannot be encoded: {_text(error)}")
        return rejected(task, note)
    return ActivityOk(task.token, payload)


def died(task: ActivityTask, exit_code: int | None) -> AttemptFailed:
    """Return a retryable failure: the process that ran the attempt ended before the attempt did."""
    return failed(
        task, "ProcessDied", f"the process that ran activity {task.activity_type} {_exit(exit_code)}"
    )


def died_thread(task: ActivityTask) -> AttemptFailed:
    """Return a retryable failure: the thread that ran the attempt was ended from outside."""
    return failed(
        task, "ThreadDied", f"the thread that ran activity {task.activity_type} was ended from outside"
    )


def loop_blocked(task: ActivityTask, running: str, stack: str) -> AttemptFailed:
    """Return a retryable failure: another activity blocked the attempt's event loop for too long."""
    text = (
        f"the event loop of activity {task.activity_type} was blocked by {running}: the activity is retried on another loop. "
        "Make blocking calls in a `def` activity or with asyncio.to_thread"
    )
    info = ApplicationFailure(type=_LOOP_BLOCKED)
    return AttemptFailed(task.token, Failure(message=text, info=info, stack_trace=stack))


def is_retryable(task: ActivityTask) -> bool:
    """Whether the engine retries an attempt that fails with `loop_blocked`."""
    rule = task.spec.retry_policy
    if rule is None:
        return True
    is_last = bool(rule.maximum_attempts) and task.attempt >= rule.maximum_attempts
    return not is_last and _LOOP_BLOCKED not in rule.non_retryable_error_types


def stopped(task: ActivityTask, reason: str) -> ActivityResult:
    """Return the result of an attempt that was cancelled and has ended, or was given up."""
    if reason in _CANCEL_ACCEPTED:
        return AttemptCancelled(task.token, Failure(message="Cancelled", info=CanceledFailure()))
    if reason == "WORKER_SHUTDOWN":
        return abandoned(task, "stopped because its worker is shutting down")
    return failed(task, "AttemptStopped", f"activity {task.activity_type} was stopped: {reason}")


def ended_by(
    task: ActivityTask,
    error: BaseException,
    cancel_reason: str | None,
    converter: Converter,
    limit: int | None = None,
) -> ActivityResult:
    """Return the result for an exception that an activity raised."""
    match error:
        case DeferredCompletion():
            return ActivityDeferred(task.token)
        case Cancelled() | CancelledError() | asyncio.CancelledError() if cancel_reason is not None:
            return stopped(task, cancel_reason)
        case UsageError():
            return AttemptFailed(task.token, _without_retry(_as_failure(error, converter, limit)))
        case Exception():
            return AttemptFailed(task.token, _as_failure(error, converter, limit))
        case _:
            # SystemExit, KeyboardInterrupt, or a cancellation that neither the engine nor the worker requested.
            # The activity itself has failed, with the type of the exception.
            kind = type(error).__name__
            made = _as_failure(error, converter, limit)
            info = ApplicationFailure(type=kind)
            return AttemptFailed(
                task.token, msgspec.structs.replace(made, message=made.message or kind, info=info)
            )


def _as_failure(error: BaseException, converter: Converter, limit: int | None) -> Failure:
    try:
        return _within(converter.to_failure(error), limit)
    except Exception as problem:
        info = ApplicationFailure(type=type(error).__name__)
        note = f"{_text(error)[:_SHORT]} (its details cannot be encoded: {type(problem).__name__})"
        return Failure(message=note, info=info)


def _within(failure: Failure, limit: int | None) -> Failure:
    """Return the failure, truncated if its size exceeds the limit above which a server rejects it."""
    size = len(msgspec.msgpack.encode(failure))
    if limit is None or size <= limit:
        return failure
    note = f"(truncated: the failure has {size:,} bytes, more than the limit of {limit:,})"
    info = failure.info
    if isinstance(info, ApplicationFailure):
        info = msgspec.structs.replace(info, type=info.type[:_SHORT], details=())
    return Failure(
        message=f"{failure.message[:_SHORT]} {note}",
        info=info if isinstance(info, ApplicationFailure) else ApplicationFailure(type="Failure"),
        stack_trace=failure.stack_trace[-10 * _SHORT :],
        source=failure.source,
    )


def _without_retry(failure: Failure) -> Failure:
    """Return the failure as non-retryable, because misuse of the API would fail in every attempt."""
    if not isinstance(failure.info, ApplicationFailure):
        return failure
    info = msgspec.structs.replace(failure.info, non_retryable=True)
    return msgspec.structs.replace(failure, info=info)


def _exit(code: int | None) -> str:
    if code is None:
        return "was lost"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (possibly out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return type(error).__name__
