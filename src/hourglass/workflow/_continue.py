"""Ending a run by beginning the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from hourglass._engine.commands import ContinueAsNew
from hourglass._engine.fibers import require_fiber
from hourglass._engine.messages import ContinueAsNewRequest
from hourglass._engine.options import Duration, RetryPolicy, optional_seconds
from hourglass.converter import SearchAttributes, encode_search_attributes
from hourglass.workflow._given import given_workflow


def continue_as_new(
    *args: Any,
    workflow: object = None,
    task_queue: str = "",
    run_timeout: Duration | None = None,
    task_timeout: Duration | None = None,
    retry_policy: RetryPolicy | None = None,
    memo: Mapping[str, Any] | None = None,
    search_attributes: SearchAttributes | None = None,
) -> NoReturn:
    """End this run and begin a new one with these arguments and an empty history.

    It is of the same workflow unless another is given, as its decorated object or its name; the arguments are checked
    against its signature before this run ends. What is not given stays as it is.
    """
    fiber = require_fiber("workflow.continue_as_new")
    live = fiber.run
    if workflow is None:
        workflow_type = live.state.workflow_type
        arguments = live.definition.signature.encode(live.converter, args, {})
    else:
        given = given_workflow(workflow)
        workflow_type, arguments = given.name, given.encode(live.converter, args)
    raise ContinueAsNewRequest(
        ContinueAsNew(
            workflow_type=workflow_type,
            task_queue=task_queue,
            arguments=arguments,
            run_timeout=optional_seconds(run_timeout, "run_timeout"),
            task_timeout=optional_seconds(task_timeout, "task_timeout"),
            retry_policy=None if retry_policy is None else retry_policy.rule(),
            memo={key: live.converter.encode(value) for key, value in (memo or {}).items()},
            search_attributes=encode_search_attributes(search_attributes or {}),
        )
    )
