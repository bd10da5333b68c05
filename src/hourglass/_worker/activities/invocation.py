"""The call of an activity's function. Only this module executes activity code, in the threads, on the activity
loop and in the processes of a worker.

Invariants:

- Every exception that the function raises becomes a result. No exception escapes.
- If the function forks, and the child process also returns from the function, the child is ended here. It is a
  copy of the worker, but threads, results and queued tasks belong to the parent.
"""

from __future__ import annotations

import contextvars
import logging
import os
from collections.abc import Callable
from typing import Any

from hourglass import _forks
from hourglass._contract.handle import ActivityOk, ActivityResult, ActivityTask
from hourglass._worker.activities.outcomes import ended_by, rejected, returned
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import ActivityContext, activity_call, current

logger = logging.getLogger("hourglass.worker")


def call_plainly(
    task: ActivityTask, context: ActivityContext, definition: ActivityDefinition
) -> ActivityResult:
    """Run a `def` activity in this thread and return its result."""
    home = _forks.pid
    try:
        arguments = definition.arguments(context.equipment.converter, task.arguments)
    except BaseException as error:
        return rejected(task, error)
    try:
        # Each call has its own context, so that context variables that the activity sets do not affect the next
        # activity in this thread.
        inherited = context.equipment.variables
        variables = contextvars.Context() if inherited is None else inherited.copy()
        if definition.on_cancel == "heartbeat":
            value = variables.run(_call, task, context, definition.fn, arguments)
        else:
            value = context.run_interruptibly(
                lambda: variables.run(_call, task, context, definition.fn, arguments),
                silent=definition.on_cancel == "silent",
            )
    except BaseException as error:
        end_fork(home, 1)
        return _ended_by(task, context, error)
    if _forks.pid != home:
        end_fork(home, 0)
    return _returned(task, context, value)


async def call_on_loop(
    task: ActivityTask, context: ActivityContext, definition: ActivityDefinition
) -> ActivityResult:
    """Run an `async def` activity on this loop and return its result."""
    home = _forks.pid
    current.set(context)
    try:
        arguments = definition.arguments(context.equipment.converter, task.arguments)
    except BaseException as error:
        return rejected(task, error)
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
    """End this process if it is a fork of the worker (`home` is the worker's `_forks.pid`)."""
    if _forks.pid == home:
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
    except (
        BaseException
    ) as problem:  # raised by the user's converter, or for lack of memory; the attempt must end nevertheless
        return rejected(task, problem)


def _returned(task: ActivityTask, context: ActivityContext, value: Any) -> ActivityResult:
    own = context.equipment
    try:
        result = returned(task, value, own.converter, own.payload_limit)
    except BaseException as problem:
        return rejected(task, problem)
    most = own.payload_warn
    if most and type(result) is ActivityOk and result.result is not None and len(result.result.data) > most:
        logger.warning(
            "large result of activity %s: %s bytes; the recommended maximum is %s. "
            "Store large data elsewhere, and return a reference",
            task.activity_type,
            f"{len(result.result.data):,}",
            f"{most:,}",
        )
    return result
