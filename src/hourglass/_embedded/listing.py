"""Listing runs: a summary of each, and the small part of Temporal's filter language that is understood so
far.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hourglass._bridge.service import WorkflowStatus, WorkflowSummary
from hourglass._embedded.draft import first_task_ns
from hourglass._embedded.run import Run
from hourglass.errors import ServiceError

_TERM = re.compile(r"""\s*`?(\w+)`?\s*=\s*(?:'([^']*)'|"([^"]*)")\s*""")
_AND = re.compile(r"\s*\band\b\s*", re.IGNORECASE)

STATUS_NAMES = {
    WorkflowStatus.RUNNING: "Running",
    WorkflowStatus.COMPLETED: "Completed",
    WorkflowStatus.FAILED: "Failed",
    WorkflowStatus.CANCELED: "Canceled",
    WorkflowStatus.TERMINATED: "Terminated",
    WorkflowStatus.CONTINUED_AS_NEW: "ContinuedAsNew",
    WorkflowStatus.TIMED_OUT: "TimedOut",
}

_FIELDS: dict[str, Callable[[Run], str]] = {
    "WorkflowType": lambda run: run.started.workflow_type,
    "WorkflowId": lambda run: run.started.workflow_id,
    "RunId": lambda run: run.run_id,
    "TaskQueue": lambda run: run.started.task_queue,
    "ExecutionStatus": lambda run: STATUS_NAMES[run.status],
}


def parse_filter(query: str) -> dict[str, set[str]]:
    """A filter as the values that each field must have; raises `ServiceError` for what is not understood."""
    terms: dict[str, set[str]] = {}
    position = 0
    while query[position:].strip():
        term = _TERM.match(query, position)
        if term is None or term[1] not in _FIELDS:
            raise _not_understood(query)
        terms.setdefault(term[1], set()).add(term[2] if term[2] is not None else term[3])
        position = term.end()
        if not query[position:].strip():
            break
        joint = _AND.match(query, position)
        if joint is None or not query[joint.end() :].strip():
            raise _not_understood(query)
        position = joint.end()
    return terms


def matches(run: Run, terms: dict[str, set[str]]) -> bool:
    """Whether a run passes a filter."""
    return all(values == {_FIELDS[name](run)} for name, values in terms.items())


def summary(run: Run) -> WorkflowSummary:
    """What a list says of a run."""
    return WorkflowSummary(
        workflow_id=run.started.workflow_id,
        run_id=run.run_id,
        workflow_type=run.started.workflow_type,
        status=run.status,
        task_queue=run.started.task_queue,
        start_time_ns=run.start_ns,
        execution_time_ns=first_task_ns(run),
        close_time_ns=run.close_ns,
        history_length=run.length,
        root_workflow_id=run.started.workflow_id,  # until runs have parents, each is its own root
        root_run_id=run.run_id,
        memo=run.memo,
        search_attributes=run.search_attributes,
    )


def _not_understood(query: str) -> ServiceError:
    return ServiceError(
        f"the filter {query!r} is not understood by the in-memory engine, which knows only "
        f"{', '.join(_FIELDS)} compared by = with a quoted value and joined by AND",
        status="INVALID_ARGUMENT",
    )
