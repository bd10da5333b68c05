"""Why nothing happens any more: what the workflows that somebody waits for wait for themselves, and where they stand.

Asks the engine and the runs; changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from typing import Any, Protocol

from hourglass._contract.service import Connection, DescribeWorkflow, QueryWorkflow, WaitForClose
from hourglass._runtime.code_origin import is_library, is_ours
from hourglass.converter import default_converter
from hourglass.errors import HourglassError, WorkflowStuck
from hourglass.testing._trouble import Troubles

_PATIENCE = 2.0
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class Scene(Protocol):
    """What is asked of a driver."""

    connection: Connection
    waited_for: list[WaitForClose]
    troubles: Troubles

    def ask(self, coro: Coroutine[Any, Any, str]) -> str:
        """Run a coroutine without letting time pass."""
        ...


def explain(scene: Scene, why: str) -> WorkflowStuck:
    """The error that says so."""
    said = [scene.ask(_said(scene.connection, each)) for each in tuple(scene.waited_for)]
    parked = scene.troubles.known()
    said += [str(each) for each in parked]
    stuck = WorkflowStuck(f"{why}: {'; '.join(said)}" if said else why)
    stuck.__cause__ = parked[0] if parked else None
    return stuck


async def _said(connection: Connection, waited: WaitForClose) -> str:
    name = f"workflow {waited.workflow_id!r}"
    try:
        description = await connection.call(
            DescribeWorkflow(workflow_id=waited.workflow_id, run_id=waited.run_id)
        )
    except HourglassError as error:
        return f"{name}: {error}"
    pending = [
        f"activity {each.activity_type} ({each.state.lower().replace('_', ' ')}, attempt {each.attempt})"
        for each in description.pending_activities
    ]
    if pending:
        return f"{name} waits for {', '.join(pending)}, which somebody else must complete"
    place = await _place(connection, waited)
    return (
        f"{name} waits{place} for a signal, or for a condition that no timer and no activity will make true"
    )


async def _place(connection: Connection, waited: WaitForClose) -> str:
    question = QueryWorkflow(
        workflow_id=waited.workflow_id,
        run_id=waited.run_id,
        query_name="__stack_trace",
        rpc_timeout=_PATIENCE,
    )
    try:
        answer = await connection.call(question)
    except HourglassError:
        return ""
    place = place_of(default_converter.decode(answer.result[0], str))
    return f" at {place}" if place else ""


def place_of(stacks: str) -> str:
    """The line of the author's own that a stack of a workflow ends at; empty if there is none."""
    found = [match.groupdict() for match in _FRAME.finditer(stacks)]
    own = [each for each in found if not is_ours(each["file"]) and not is_library(each["file"])]
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else ""
