"""Requests that change a running workflow and wait for its word: updates, update with start, reset. Frozen data, as in
`service`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from hourglass._bridge.service import Request, Started, StartWorkflow
from hourglass._engine.events import Payloads
from hourglass.converter import Failure, Payload


class UpdateStage(IntEnum):
    """How far an update has come (Temporal's numbers)."""

    UNSPECIFIED = 0
    ADMITTED = 1
    ACCEPTED = 2
    COMPLETED = 3


class UpdateState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an update: at COMPLETED exactly one of `result` and `failure` counts (a failure if there is one).

    A stage below the one that was waited for means that the engine's long poll ended: ask again with `PollUpdate`.
    """

    update_id: str
    workflow_id: str
    run_id: str = ""
    stage: UpdateStage = UpdateStage.UNSPECIFIED
    result: Payload | None = None
    failure: Failure | None = None


class UpdateWorkflow(Request[UpdateState], frozen=True, kw_only=True):
    """Ask for an update and wait until it has come to `wait_stage`. The same `update_id` again is the same update.

    `request_id` names the call, however often it is sent: for the embedded engine, a server knows none here.
    """

    workflow_id: str
    update_id: str
    update_name: str
    run_id: str = ""
    first_execution_run_id: str = ""
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    identity: str = ""
    wait_stage: UpdateStage = UpdateStage.ACCEPTED
    request_id: str = ""


class PollUpdate(Request[UpdateState], frozen=True, kw_only=True):
    """Wait on for an update."""

    workflow_id: str
    update_id: str
    run_id: str = ""
    identity: str = ""
    wait_stage: UpdateStage = UpdateStage.COMPLETED


class UpdateStarted(msgspec.Struct, frozen=True):
    """The run that was started or used, and its update."""

    start: Started
    update: UpdateState


class UpdateWithStart(Request[UpdateStarted], frozen=True, kw_only=True):
    """Start a workflow, or use the one that runs, and update it in one step."""

    start: StartWorkflow
    update: UpdateWorkflow


class ResetWorkflow(Request[Started], frozen=True, kw_only=True):
    """End a run and begin it anew from one of its workflow tasks; the answer names the new run.

    `event_id` is the id of the WorkflowTaskCompleted (or failed, timed out, started) event after which history is dropped.
    What arrived after that is sent to the new run again, unless it is excluded.
    """

    workflow_id: str
    event_id: int
    request_id: str
    run_id: str = ""
    reason: str = ""
    identity: str = ""
    reapply_signals: bool = True
    reapply_updates: bool = True


CHANGES: tuple[type[Request[Any]], ...] = (UpdateWorkflow, PollUpdate, UpdateWithStart, ResetWorkflow)
