"""The explanation of a wait that will never end: the pending activities, or the current line of code, of each awaited
workflow.

Queries the engine and the runs without changing them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hourglass._contract.service import Connection
from hourglass._contract.workflows import DescribeWorkflow, QueryWorkflow, WaitForClose
from hourglass._worker.code_origin import is_library, is_ours
from hourglass.converter import default_converter
from hourglass.errors import HourglassError, WorkflowStuck

if TYPE_CHECKING:
    from hourglass.testing._driver import EnvironmentDriver

_PATIENCE = 2.0
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def explain(driver: EnvironmentDriver, reason: str) -> WorkflowStuck:
    """Return the error for a wait that will never end: the reason, and the position of each awaited workflow."""
    parts = [driver.run_now(_position(driver.connection, wait)) for wait in tuple(driver.waited_for)]
    parked = driver.errors.known()
    parts += [str(error) for error in parked]
    stuck = WorkflowStuck(f"{reason}: {'; '.join(parts)}" if parts else reason)
    stuck.__cause__ = parked[0] if parked else None
    return stuck


async def _position(connection: Connection, waited: WaitForClose) -> str:
    name = f"workflow {waited.workflow_id!r}"
    try:
        description = await connection.call(
            DescribeWorkflow(workflow_id=waited.workflow_id, run_id=waited.run_id)
        )
    except HourglassError as error:
        return f"{name}: {error}"
    pending = [
        f"activity {activity.activity_type} ({activity.state.lower().replace('_', ' ')}, attempt {activity.attempt})"
        for activity in description.pending_activities
    ]
    if pending:
        return f"{name} waits for {', '.join(pending)}, which code outside the workflow must complete"
    place = await _place(connection, waited)
    return f"{name} waits{place} for a signal, or for a condition that no timer or activity will make true"


async def _place(connection: Connection, waited: WaitForClose) -> str:
    query = QueryWorkflow(
        workflow_id=waited.workflow_id,
        run_id=waited.run_id,
        query_name="__stack_trace",
        rpc_timeout=_PATIENCE,
    )
    try:
        answer = await connection.call(query)
    except HourglassError:
        return ""
    place = place_of(default_converter.decode(answer.result[0], str))
    return f" at {place}" if place else ""


def place_of(stacks: str) -> str:
    """Return the innermost line of user code in the stacks of a workflow; "" if there is none."""
    frames = [match.groupdict() for match in _FRAME.finditer(stacks)]
    own = [frame for frame in frames if not is_ours(frame["file"]) and not is_library(frame["file"])]
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else ""
