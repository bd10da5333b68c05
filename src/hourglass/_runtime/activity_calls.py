"""The call of an activity: arguments decoded, the function called, its end turned into a result. User code runs here.

Used in the worker's threads, on its activity loop, and in the processes beside it. Must not know any of them. The
first part, how an attempt ended as the engine wants to hear it, is pure: exceptions in, results out.

Invariants:

- Whatever the function lets out becomes a result; nothing escapes.
- A process that the function forked, and that came back out of it, ends there: it is a copy of the worker,
  whose threads, results and queued work are not its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
from collections.abc import Callable
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
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import (
    ActivityContext,
    DeferredCompletion,
    activity_call,
    check_size,
    current,
)
from hourglass.converter import ApplicationFailure, CanceledFailure, Converter, Failure
from hourglass.errors import ArgumentError, Cancelled, EncodeError, PayloadError, UsageError

# --- outcomes --------------------------------------------------------------------------------------------------------


_LOOP_BLOCKED = "ActivityLoopBlocked"

# A failure that is larger than the limit is told in this many characters.
_SHORT = 1000

# Only these reasons mean that the server waits for a cancellation; for the others it would refuse one.
_ASKED_FOR = frozenset({"CANCELLED", "NOT_FOUND", "TIMED_OUT"})


def failed(task: ActivityTask, type_: str, message: str, *, non_retryable: bool = False) -> AttemptFailed:
    """An attempt that failed for a reason of ours."""
    info = ApplicationFailure(type=type_, non_retryable=non_retryable)
    return AttemptFailed(task.token, Failure(message=message, info=info))


def refused(task: ActivityTask, error: BaseException) -> AttemptFailed:
    """An attempt that could not begin, or whose result cannot be told.

    Repeating it would change nothing, unless the activity is not known here: another worker may know it, or
    this one after its next deploy.
    """
    hopeless = isinstance(error, (ArgumentError, PayloadError))
    return failed(task, type(error).__name__, _text(error), non_retryable=hopeless)


def abandoned(task: ActivityTask, reason: str) -> AttemptFailed:
    """An attempt that this worker no longer waits for; another worker may try."""
    return failed(task, "WorkerShutdown", f"activity {task.activity_type}: {reason}")


def returned(task: ActivityTask, value: Any, converter: Converter, limit: int | None) -> ActivityResult:
    """What an activity's return value means."""
    try:
        payload = converter.encode(value)
        check_size((payload,), limit, "it")
    except Exception as error:
        note = EncodeError(f"the result of activity {task.activity_type} cannot be encoded: {_text(error)}")
        return refused(task, note)
    return ActivityOk(task.token, payload)


def died(task: ActivityTask, exit_code: int | None) -> AttemptFailed:
    """The process that ran the attempt ended before the attempt did. It may be tried again."""
    return failed(
        task, "ProcessDied", f"the process that ran activity {task.activity_type} {_exit(exit_code)}"
    )


def died_thread(task: ActivityTask) -> AttemptFailed:
    """The thread that ran the attempt was ended from outside."""
    return failed(
        task, "ThreadDied", f"the thread that ran activity {task.activity_type} was ended from outside"
    )


def loop_blocked(task: ActivityTask, running: str, stack: str) -> AttemptFailed:
    """The loop of an attempt was blocked for too long, by another activity; a new attempt is made on another loop."""
    text = (
        f"activity {task.activity_type}: the loop on which it waited was blocked by {running}, so that it is tried again on "
        f"another; blocking calls belong in a `def` activity or in asyncio.to_thread"
    )
    info = ApplicationFailure(type=_LOOP_BLOCKED)
    return AttemptFailed(task.token, Failure(message=text, info=info, stack_trace=stack))


def can_be_tried_again(task: ActivityTask) -> bool:
    """Whether the engine makes another attempt where this one fails as its loop is blocked."""
    rule = task.spec.retry_policy
    if rule is None:
        return True
    is_last = bool(rule.maximum_attempts) and task.attempt >= rule.maximum_attempts
    return not is_last and _LOOP_BLOCKED not in rule.non_retryable_error_types


def stopped(task: ActivityTask, reason: str) -> ActivityResult:
    """An attempt that was asked to stop, and did, or was made to."""
    if reason in _ASKED_FOR:
        return AttemptCancelled(task.token, Failure(message="Cancelled", info=CanceledFailure()))
    if reason == "WORKER_SHUTDOWN":
        return abandoned(task, "stopped because its worker shuts down")
    return failed(task, "AttemptStopped", f"activity {task.activity_type} was stopped: {reason}")


def ended_by(
    task: ActivityTask,
    error: BaseException,
    cancel_reason: str | None,
    converter: Converter,
    limit: int | None = None,
) -> ActivityResult:
    """What an exception means that an activity let out."""
    match error:
        case DeferredCompletion():
            return ActivityDeferred(task.token)
        case Cancelled() | asyncio.CancelledError() if cancel_reason is not None:
            return stopped(task, cancel_reason)
        case UsageError():
            return AttemptFailed(task.token, _without_retry(_as_failure(error, converter, limit)))
        case Exception():
            return AttemptFailed(task.token, _as_failure(error, converter, limit))
        case _:
            # SystemExit, KeyboardInterrupt, a cancellation that neither the engine nor the worker asked for: of the
            # activity's own making.
            return failed(task, type(error).__name__, _text(error))


def _as_failure(error: Exception, converter: Converter, limit: int | None) -> Failure:
    try:
        return _within(converter.to_failure(error), limit)
    except Exception as problem:
        info = ApplicationFailure(type=type(error).__name__)
        note = f"{_text(error)[:_SHORT]} (its details cannot be encoded: {type(problem).__name__})"
        return Failure(message=note, info=info)


def _within(failure: Failure, limit: int | None) -> Failure:
    """The failure, or a short one where a server would refuse it for its size."""
    size = len(msgspec.msgpack.encode(failure))
    if limit is None or size <= limit:
        return failure
    note = f"(cut: the failure takes {size:,} bytes, more than the limit of {limit:,})"
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
    """The API was misused: trying again meets the same code."""
    if not isinstance(failure.info, ApplicationFailure):
        return failure
    info = msgspec.structs.replace(failure.info, non_retryable=True)
    return msgspec.structs.replace(failure, info=info)


def _exit(code: int | None) -> str:
    if code is None:
        return "was lost"
    if code >= 0:
        return f"ended by itself, with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": out of memory, perhaps" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return type(error).__name__


# --- calls -----------------------------------------------------------------------------------------------------------


def call_plainly(
    task: ActivityTask, context: ActivityContext, definition: ActivityDefinition
) -> ActivityResult:
    """Run a `def` activity here, to its end."""
    home = os.getpid()
    try:
        arguments = definition.arguments(context.equipment.converter, task.arguments)
    except BaseException as error:
        return refused(task, error)
    try:
        # A context of its own: what the activity sets in context variables must not meet the next one in
        # this thread.
        value = contextvars.Context().run(_call, task, context, definition.fn, arguments)
    except BaseException as error:
        end_fork(home, 1)
        return _ended_by(task, context, error)
    if os.getpid() != home:
        end_fork(home, 0)
    return _returned(task, context, value)


async def call_on_loop(
    task: ActivityTask, context: ActivityContext, definition: ActivityDefinition
) -> ActivityResult:
    """Run an `async def` activity on this loop, to its end."""
    home = os.getpid()
    current.set(context)
    try:
        arguments = definition.arguments(context.equipment.converter, task.arguments)
    except BaseException as error:
        return refused(task, error)
    try:
        inbound = context.equipment.inbound
        if inbound is None:
            value = await definition.fn(*arguments)
        else:
            call = activity_call(task.activity_type, definition.fn, arguments, task.headers)
            value = await inbound.execute_async_activity(call)
    except BaseException as error:
        end_fork(home, 1)
        return _ended_by(task, context, error)
    end_fork(home, 0)
    return _returned(task, context, value)


def end_fork(home: int, code: int) -> None:
    """End this process if it is not the one that it should be."""
    if os.getpid() == home:
        return
    try:
        os.write(2, b"hourglass: a process that an activity forked has left the activity, and ends here\n")
    finally:
        os._exit(code)


def _call(task: ActivityTask, context: ActivityContext, fn: Callable[..., Any], arguments: list[Any]) -> Any:
    current.set(context)
    inbound = context.equipment.inbound
    if inbound is None:
        return fn(*arguments)
    return inbound.execute_activity(activity_call(task.activity_type, fn, arguments, task.headers))


def _ended_by(task: ActivityTask, context: ActivityContext, error: BaseException) -> ActivityResult:
    own = context.equipment
    try:
        return ended_by(task, error, context.cancel_reason, own.converter, own.payload_limit)
    except BaseException as problem:  # a converter of the user's, or no memory: the attempt ends all the same
        return refused(task, problem)


def _returned(task: ActivityTask, context: ActivityContext, value: Any) -> ActivityResult:
    own = context.equipment
    try:
        return returned(task, value, own.converter, own.payload_limit)
    except BaseException as problem:
        return refused(task, problem)
