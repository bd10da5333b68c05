"""Ending a run by beginning the next one."""

from __future__ import annotations

from typing import Any, NoReturn

from hourglass._engine.commands import ContinueAsNew
from hourglass._engine.fibers import require_fiber
from hourglass._engine.messages import ContinueAsNewRequest
from hourglass._engine.options import Duration, optional_seconds


def continue_as_new(
    *args: Any,
    task_queue: str = "",
    run_timeout: Duration | None = None,
    task_timeout: Duration | None = None,
) -> NoReturn:
    """End this run and begin a new one of the same workflow with these arguments and an empty history."""
    fiber = require_fiber("workflow.continue_as_new")
    live = fiber.run
    raise ContinueAsNewRequest(
        ContinueAsNew(
            workflow_type=live.state.workflow_type,
            task_queue=task_queue,
            arguments=live.definition.signature.encode(live.converter, args, {}),
            run_timeout=optional_seconds(run_timeout, "run_timeout"),
            task_timeout=optional_seconds(task_timeout, "task_timeout"),
        )
    )
