"""Ending a run by beginning the next one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NoReturn

from hourglass._engine.commands import ContinueAsNew
from hourglass._engine.fibers import require_fiber
from hourglass._engine.interception import ContinueAsNewInput
from hourglass._engine.messages import ContinueAsNewRequest
from hourglass._engine.options import (
    Duration,
    RetryPolicy,
    check_text,
    named_values,
    optional_seconds,
    retry_rule,
)
from hourglass._engine.versions import ContinueAsNewVersioningBehavior
from hourglass.converter import Converter, SearchAttributes, encode_search_attributes
from hourglass.errors import UsageError
from hourglass.workflow._given import Given, given_workflow

_AS_BEFORE = ContinueAsNewVersioningBehavior.UNSPECIFIED


def continue_as_new(
    *args: Any,
    workflow: object = None,
    task_queue: str = "",
    run_timeout: Duration | None = None,
    task_timeout: Duration | None = None,
    retry_policy: RetryPolicy | None = None,
    memo: Mapping[str, Any] | None = None,
    search_attributes: SearchAttributes | None = None,
    initial_versioning_behavior: ContinueAsNewVersioningBehavior = _AS_BEFORE,
) -> NoReturn:
    """End this run and begin a new one with these arguments and an empty history.

    It is of the same workflow unless another is given, as its decorated object or its name; the arguments are checked
    against its signature before this run ends. What is not given stays as it is. A run that is pinned to a version of the
    worker stays with it, unless `initial_versioning_behavior` is `AUTO_UPGRADE`.
    """
    live = require_fiber("workflow.continue_as_new").run
    if workflow is None:
        signature = None if live.definition.dynamic else live.definition.signature
        given = Given("the workflow", live.state.workflow_type, signature)
    else:
        given = given_workflow(workflow)
    call = ContinueAsNewInput(
        workflow=given.name,
        args=list(args),
        options={
            "task_queue": task_queue,
            "run_timeout": run_timeout,
            "task_timeout": task_timeout,
            "retry_policy": retry_policy,
            "memo": memo,
            "search_attributes": search_attributes,
            "initial_versioning_behavior": initial_versioning_behavior,
        },
        _proceed=functools.partial(_continue, live.converter, given),
    )
    if live.outbound is None:
        _continue(live.converter, given, call)
    live.outbound.continue_as_new(call)
    raise UsageError(
        "an interceptor of continue_as_new returned: it must call the next one, which ends the run"
    )


def _continue(converter: Converter, given: Given, call: ContinueAsNewInput) -> NoReturn:
    options = call.options
    memo = named_values(options["memo"] or {}, "memo")
    raise ContinueAsNewRequest(
        ContinueAsNew(
            workflow_type=call.workflow,
            task_queue=check_text(options["task_queue"], "task_queue"),
            arguments=given.encode(converter, call.args),
            run_timeout=optional_seconds(options["run_timeout"], "run_timeout"),
            task_timeout=optional_seconds(options["task_timeout"], "task_timeout"),
            retry_policy=retry_rule(options["retry_policy"]),
            memo={key: converter.encode(value) for key, value in memo.items()},
            search_attributes=encode_search_attributes(options["search_attributes"] or {}),
            headers=call.headers,
            versioning=ContinueAsNewVersioningBehavior(options["initial_versioning_behavior"]),
        )
    )
