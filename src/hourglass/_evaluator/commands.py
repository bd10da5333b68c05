"""What a run can ask for: frozen data, named in the imperative.

`COMMANDS` lists every kind; tests walk it: each has a translation and an example. Numbered commands carry their `seq`,
counted from 1 for each kind (local and remote activities share a counter).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias, get_args

import msgspec

from hourglass._evaluator.specs import (
    ActivitySpec,
    ChildWorkflowSpec,
    ContinueAsNewVersioningBehavior,
    Payloads,
    StartSpec,
    VersioningBehavior,
)
from hourglass.converter import Failure, Payload


class EventGroupMarker(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """To which group of events something belongs: one of the author's, by its id, or (in histories of temporalio, which groups
    what a handler asks for) that of an event or an update.
    """

    id: str = ""
    label: Payload | None = None
    inbound_event_id: int = 0
    inbound_update_id: str = ""


class Command(msgspec.Struct, frozen=True, gc=False, tag=True, kw_only=True, omit_defaults=True):
    """One thing a run asks for. `event_groups` only tell a reader of the history what belongs together."""

    event_groups: tuple[EventGroupMarker, ...] = ()


class StartTimer(Command, frozen=True):
    """Wake me after so many nanoseconds."""

    seq: int
    duration_ns: int
    summary: Payload | None = None


class CancelTimer(Command, frozen=True):
    """Never mind that timer."""

    seq: int


class ScheduleActivity(Command, frozen=True):
    """Run an activity."""

    seq: int
    activity_id: str
    activity_type: str
    spec: ActivitySpec = ActivitySpec()
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    summary: Payload | None = None


class ScheduleLocalActivity(Command, frozen=True):
    """Run an activity on this worker, within the workflow task."""

    seq: int
    activity_id: str
    activity_type: str
    spec: ActivitySpec = ActivitySpec()
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    summary: Payload | None = None
    attempt: int = 0
    original_schedule_time_ns: int = 0


class RequestCancelActivity(Command, frozen=True):
    """Cancel an activity."""

    seq: int


class RequestCancelLocalActivity(Command, frozen=True):
    """Cancel a local activity."""

    seq: int


class StartChildWorkflow(Command, frozen=True, kw_only=True):
    """Start a child workflow. An empty namespace means the run's own."""

    seq: int
    workflow_id: str
    workflow_type: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    namespace: str = ""
    spec: StartSpec = StartSpec()
    child: ChildWorkflowSpec = ChildWorkflowSpec()


class CancelChildWorkflow(Command, frozen=True):
    """Cancel a child workflow."""

    seq: int
    reason: str = ""


class ScheduleNexusOperation(Command, frozen=True, kw_only=True):
    """Call an operation of a Nexus service, behind an endpoint. `headers` are texts, and travel in clear."""

    seq: int
    endpoint: str
    service: str
    operation: str
    argument: Payload
    headers: dict[str, str] = {}
    schedule_to_close_timeout: float | None = None
    schedule_to_start_timeout: float | None = None
    start_to_close_timeout: float | None = None
    cancellation_type: int = 0
    summary: Payload | None = None


class CancelNexusOperation(Command, frozen=True):
    """Cancel a Nexus operation."""

    seq: int


class SignalExternalWorkflow(Command, frozen=True, kw_only=True):
    """Signal another workflow; `is_child` addresses a child of this run by its id."""

    seq: int
    workflow_id: str
    signal_name: str
    run_id: str = ""
    namespace: str = ""
    is_child: bool = False
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}


class CancelSignalExternal(Command, frozen=True):
    """Do not send that signal, if it has not left yet."""

    seq: int


class RequestCancelExternal(Command, frozen=True, kw_only=True):
    """Ask another workflow to cancel."""

    seq: int
    workflow_id: str
    run_id: str = ""
    namespace: str = ""
    reason: str = ""


class SetPatchMarker(Command, frozen=True):
    """Record that this run took the new way."""

    patch_id: str
    deprecated: bool = False


class UpsertSearchAttributes(Command, frozen=True):
    """Change search attributes."""

    search_attributes: dict[str, Payload]


class UpsertMemo(Command, frozen=True):
    """Change the memo; a payload of null removes a key."""

    memo: dict[str, Payload]


class AcceptUpdate(Command, frozen=True):
    """The update passed its validator."""

    protocol_instance_id: str


class RejectUpdate(Command, frozen=True):
    """The update did not pass, or (after acceptance) its handler failed."""

    protocol_instance_id: str
    failure: Failure


class CompleteUpdate(Command, frozen=True):
    """The update's handler returned."""

    protocol_instance_id: str
    result: Payload


class AnswerQuery(Command, frozen=True):
    """The answer to a query: a payload, or a failure."""

    query_id: str
    result: Payload | None = None
    failure: Failure | None = None


class CompleteRun(Command, frozen=True):
    """The workflow returned."""

    result: Payload


class FailRun(Command, frozen=True):
    """The workflow failed."""

    failure: Failure


class CancelRun(Command, frozen=True):
    """The workflow ended as cancelled, as it was asked to."""


class ContinueAsNew(Command, frozen=True, kw_only=True):
    """End this run and begin another. An empty type means the same as now."""

    workflow_type: str = ""
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    spec: StartSpec = StartSpec()
    versioning: ContinueAsNewVersioningBehavior = ContinueAsNewVersioningBehavior.UNSPECIFIED
    backoff: float = 0.0
    """How long the new run waits before it begins, in seconds."""


AnyCommand: TypeAlias = (
    StartTimer
    | CancelTimer
    | ScheduleActivity
    | ScheduleLocalActivity
    | RequestCancelActivity
    | RequestCancelLocalActivity
    | StartChildWorkflow
    | CancelChildWorkflow
    | ScheduleNexusOperation
    | CancelNexusOperation
    | SignalExternalWorkflow
    | CancelSignalExternal
    | RequestCancelExternal
    | SetPatchMarker
    | UpsertSearchAttributes
    | UpsertMemo
    | AcceptUpdate
    | RejectUpdate
    | CompleteUpdate
    | AnswerQuery
    | CompleteRun
    | FailRun
    | CancelRun
    | ContinueAsNew
)

COMMANDS: tuple[type[Command], ...] = get_args(AnyCommand)

TERMINAL: tuple[type[Command], ...] = (CompleteRun, FailRun, CancelRun, ContinueAsNew)
TERMINAL_KINDS = frozenset(TERMINAL)
"""The same, to look a command's type up in: `isinstance` asks a struct's metaclass, which takes ten times as long."""

IN_GROUPS: frozenset[type[Command]] = frozenset(
    {
        StartTimer,
        ScheduleActivity,
        ScheduleLocalActivity,
        StartChildWorkflow,
        ScheduleNexusOperation,
        SignalExternalWorkflow,
        RequestCancelExternal,
        SetPatchMarker,
        UpsertSearchAttributes,
        UpsertMemo,
        ContinueAsNew,
    }
)
"""What is of the event groups of its block. What takes another command back is of that one's; others are of none, as in
temporalio.
"""


class TaskFailureCause(IntEnum):
    """Why a workflow task failed (Temporal's numbers)."""

    UNSPECIFIED = 0
    NON_DETERMINISTIC_ERROR = 24
    WORKFLOW_WORKER_UNHANDLED_FAILURE = 14


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The answer to an activation: commands in the order of issue, the behaviour flags that were used, and what the
    workflow says about moving between versions.
    """

    run_id: str
    commands: tuple[Command, ...] = ()
    used_flags: tuple[int, ...] = ()
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED


class TaskFailed(msgspec.Struct, frozen=True):
    """The activation could not be handled; the engine will try the task again."""

    run_id: str
    failure: Failure
    cause: TaskFailureCause = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE


Completion = Succeeded | TaskFailed
