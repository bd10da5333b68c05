"""Shortcuts that create workflows, activations and activity tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tests.specs import made

from hourglass._contract.handle import ActivityTask
from hourglass._evaluator.commands import Command, Succeeded
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import define_function
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import Activation, RunEvicted, RunStarted
from hourglass._evaluator.specs import Payloads
from hourglass._worker.lanes.cache import CacheLimits, StateCache
from hourglass._worker.lanes.evaluation import Evaluations, LaneContext
from hourglass._worker.resolver import Resolver
from hourglass.converter import default_converter

F = TypeVar("F", bound=Callable[..., Any])


def workflow(fn: F) -> F:
    """Mark a function as a workflow, without the public decorator's call behaviour."""
    fn.__hourglass_workflow__ = define_function(fn, None, ())  # type: ignore[attr-defined]
    return fn


def payloads(*values: Any) -> Payloads:
    return default_converter.encode_all(values)


def start(run_id: str, workflow_type: str, *args: Any, **facts: Any) -> Activation:
    """The first activation of a run."""
    event = RunStarted(workflow_type=workflow_type, workflow_id=f"id of {run_id}", arguments=payloads(*args))
    return Activation(run_id=run_id, events=(event,), **facts)


def on(run_id: str, *events: Any, **facts: Any) -> Activation:
    """A later activation."""
    return Activation(run_id=run_id, events=events, **facts)


def evict(run_id: str) -> Activation:
    return Activation(run_id=run_id, events=(RunEvicted("CACHE_FULL"),))


def attempt(activity_type: str, *args: Any, token: bytes = b"t", **facts: Any) -> ActivityTask:
    fields = {"activity_id": "1", "workflow_id": "w", "run_id": "r", **facts}
    return made(ActivityTask, token=token, activity_type=activity_type, arguments=payloads(*args), **fields)


async def settled(condition: Callable[[], object]) -> None:
    """Yield to other tasks and threads until a condition holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - fulfilled by another thread without an event
            await asyncio.sleep(0)


def lane_of(
    workflows: Sequence[Any] | Callable[[str], Any], *, cache: Mapping[str, int] | None = None, **options: Any
) -> Evaluations:
    """Return the evaluations of one lane, without a thread.

    `workflows` may also be a function that looks one up by its name. `cache` sets limits of the lane's cache.
    """
    find = workflows if callable(workflows) else Resolver(workflows=workflows).workflow
    if cache is not None:
        options["cache"] = StateCache(CacheLimits(**cache))
    return Evaluations(LaneContext(find, RunSettings(task_queue="q"), **options))


def first_commands(fn: Any) -> Sequence[Command]:
    """Return the commands of a workflow's first activation."""
    run = Evaluator(workflow(fn).__hourglass_workflow__, "r", RunSettings())
    completion = run.activate(start("r", fn.__name__))
    run.drop()
    assert isinstance(completion, Succeeded), run.error
    return completion.commands
