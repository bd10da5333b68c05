"""Waits with a limit. An exceeded limit raises `Stuck`, which describes what is open: the tree, the statistics, the handles,
and the ends of the histories of open runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from hourglass import Worker, WorkflowHandle

_SHOWN_RUNS = 3
_SHOWN_EVENTS = 6
_PAUSE = 0.01


class Stuck(AssertionError):
    """A wait has exceeded its limit."""


def until(what: str, condition: Callable[[], object], limit: float, worker: Worker | None = None) -> float:
    """Wait until a condition holds; return the seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit:
            raise Stuck(f"{what}: not within {limit:g} s\n{describe(worker)}")
        time.sleep(_PAUSE)
    return time.monotonic() - began


def results(handles: Sequence[WorkflowHandle[Any]], limit: float, worker: Worker | None = None) -> list[Any]:
    """Return the results of runs within one limit. For a known worker the limit starts at its last task, up to
    five limits in all, so that a slow machine does not count as a hang."""
    last, begun, values = time.monotonic() + 5 * limit, -1, []
    deadline = time.monotonic() + limit
    for place, handle in enumerate(handles):
        while True:
            try:
                values.append(handle.result(timeout=max(0.05, deadline - time.monotonic())))
                break
            except TimeoutError:
                before, begun = begun, -1 if worker is None else worker.statistics().activations
                if begun == before or time.monotonic() > last:
                    raise Stuck(
                        f"{handle.id} did not finish within {limit:g} s\n"
                        f"{describe(worker)}\n{histories(handles[place:])}"
                    ) from None
                deadline = time.monotonic() + limit
    return values


def describe(worker: Worker | None) -> str:
    """Return a worker's tree, statistics and handles as text."""
    if worker is None:
        return ""
    try:
        app = worker._app
        recent = [f"{r.kind} {r.path} {r.detail}" for r in app.require_tree().reports()][-15:]
        tasks = worker._portal.call(named_tasks(), timeout=5)
        tree = app.require_tree().render() if app.tree is not None else "no tree"
        parts = [tree, repr(worker.statistics()), *map(repr, app.tables.records.values()), *recent, *tasks]
        return "\n".join(parts)
    except Exception as error:
        return f"(the worker cannot be looked at: {type(error).__name__}: {error})"


async def named_tasks() -> list[str]:
    """Return the tasks of the control loop and their positions."""
    return sorted(f"{task.get_name()}: {_place(task)}" for task in asyncio.all_tasks())


def _place(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    where = f" at {stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else ""
    return f"{getattr(task.get_coro(), '__qualname__', '')}{where}"


def histories(handles: Sequence[WorkflowHandle[Any]]) -> str:
    """Return the state of the first open runs as text."""
    lines: list[str] = []
    for handle in handles:
        if len(lines) == _SHOWN_RUNS:
            break
        try:
            description = handle.describe(rpc_timeout=5)
            if description.status.name != "RUNNING":
                continue
            events = [
                f"    {event['eventId']} {event['eventTime']} {event['eventType']}{_reason(event)}"
                for event in handle.history().events[-_SHOWN_EVENTS:]
            ]
            waits = [f"    waits for {activity!r}" for activity in description.pending_activities]
            lines.append(
                "\n".join([f"  {handle.id}, task attempt {description.task_attempt}", *events, *waits])
            )
        except Exception as error:
            lines.append(f"  {handle.id}: {type(error).__name__}: {error}")
    return "\n".join(lines)


def _reason(event: dict[str, Any]) -> str:
    for name, attributes in event.items():
        if name.endswith("Attributes") and isinstance(attributes, dict) and "failure" in attributes:
            return f": {attributes['failure'].get('message', '')}"
    return ""
