"""The call itself: arguments decoded, the function called, its end turned into a result. Where user code runs.

Used in the worker's threads, on its activity loop, and in the processes beside it. Must not know any of them.

Invariants:

- Whatever the function lets out becomes a result; nothing escapes.
- A process that the function forked, and that came back out of it, ends there: it is a copy of the worker,
  whose threads, results and queued work are not its own.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from typing import Any

from hourglass._contract.handle import ActivityResult, ActivityTask
from hourglass._runtime import outcomes
from hourglass.activity import ActivityDefinition
from hourglass.activity._context import ActivityContext, current
from hourglass.activity._interception import activity_call


def call_plainly(
    task: ActivityTask, context: ActivityContext, definition: ActivityDefinition
) -> ActivityResult:
    """Run a `def` activity here, to its end."""
    home = os.getpid()
    try:
        arguments = definition.arguments(context.equipment.converter, task.arguments)
    except BaseException as error:
        return outcomes.refused(task, error)
    try:
        # A context of its own: what the activity sets in context variables must not meet the next one in
        # this thread.
        value = contextvars.Context().run(_call, task, context, definition.fn, arguments)
    except BaseException as error:
        end_fork(home, 1)
        return _ended_by(task, context, error)
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
        return outcomes.refused(task, error)
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
        return outcomes.ended_by(task, error, context.cancel_reason, own.converter, own.payload_limit)
    except BaseException as problem:  # a converter of the user's, or no memory: the attempt ends all the same
        return outcomes.refused(task, problem)


def _returned(task: ActivityTask, context: ActivityContext, value: Any) -> ActivityResult:
    own = context.equipment
    try:
        return outcomes.returned(task, value, own.converter, own.payload_limit)
    except BaseException as problem:
        return outcomes.refused(task, problem)
