"""What a list says of a run: its summary."""

from __future__ import annotations

from hourglass._contract.service import WorkflowSummary
from hourglass._embedded.rules.draft import first_task_ns
from hourglass._embedded.rules.run import Run


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
        parent_workflow_id=run.started.parent_workflow_id,
        parent_run_id=run.started.parent_run_id,
        root_workflow_id=run.started.root_workflow_id or run.started.workflow_id,
        root_run_id=run.started.root_run_id or run.run_id,
        memo=run.memo,
        search_attributes=run.search_attributes,
    )
