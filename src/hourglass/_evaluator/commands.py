"""The commands of a run: immutable data with imperative names.

`COMMANDS` lists every kind of command. Tests check that each has a translation and an example. Numbered
commands have a `seq`, counted from 1 for each kind (local and remote activities share a counter).
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
    """The group of an event: a group of the author, identified by its id, or the commands of the handler of an
    event or an update. Only histories of temporalio contain the latter.
    """

    id: str = ""
    label: Payload | None = None
    inbound_event_id: int = 0
    inbound_update_id: str = ""


class Command(msgspec.Struct, frozen=True, gc=False, tag=True, kw_only=True, omit_defaults=True):
    """A command of a run. `event_groups` mark related events for readers of the history and have no other
    effect.
    """

    event_groups: tuple[EventGroupMarker, ...] = ()


class NumberedCommand(Command, frozen=True):
    """A command with a number, for its outcome or its cancellation. Not a kind of command itself."""

    seq: int


class ActivityCommand(NumberedCommand, frozen=True):
    """A request to run an activity. Not a kind of command itself."""

    activity_id: str
    activity_type: str
    spec: ActivitySpec = ActivitySpec()
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    summary: Payload | None = None


class StartTimer(NumberedCommand, frozen=True):
    """A request for a timer of this duration."""

    duration_ns: int
    summary: Payload | None = None


class CancelTimer(NumberedCommand, frozen=True):
    """The cancellation of a timer."""


class ScheduleActivity(ActivityCommand, frozen=True):
    """A request to run an activity on any worker."""


class ScheduleLocalActivity(ActivityCommand, frozen=True):
    """A request to run an activity on this worker, within the workflow task."""

    attempt: int = 0
    original_schedule_time_ns: int = 0


class RequestCancelActivity(NumberedCommand, frozen=True):
    """The cancellation of an activity."""


class RequestCancelLocalActivity(NumberedCommand, frozen=True):
    """The cancellation of a local activity."""


class StartChildWorkflow(NumberedCommand, frozen=True, kw_only=True):
    """A request to start a child workflow. An empty namespace means the run's own."""

    workflow_id: str
    workflow_type: str
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    namespace: str = ""
    spec: StartSpec = StartSpec()
    child: ChildWorkflowSpec = ChildWorkflowSpec()


class CancelChildWorkflow(NumberedCommand, frozen=True):
    """The cancellation of a child workflow."""

    reason: str = ""


class ScheduleNexusOperation(NumberedCommand, frozen=True, kw_only=True):
    """A call of a Nexus operation behind an endpoint. `headers` are strings, and are sent unencrypted."""

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


class CancelNexusOperation(NumberedCommand, frozen=True):
    """The cancellation of a Nexus operation."""


class SignalExternalWorkflow(NumberedCommand, frozen=True, kw_only=True):
    """A signal to another workflow. With `is_child`, `workflow_id` names a child of this run."""

    workflow_id: str
    signal_name: str
    run_id: str = ""
    namespace: str = ""
    is_child: bool = False
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}


class CancelSignalExternal(NumberedCommand, frozen=True):
    """The cancellation of a signal that has not been sent yet."""


class RequestCancelExternal(NumberedCommand, frozen=True, kw_only=True):
    """A request to cancel another workflow."""

    workflow_id: str
    run_id: str = ""
    namespace: str = ""
    reason: str = ""


class SetPatchMarker(Command, frozen=True):
    """The record that this run follows the new code path of a patch."""

    patch_id: str
    deprecated: bool = False


class UpsertSearchAttributes(Command, frozen=True):
    """A change of search attributes."""

    search_attributes: dict[str, Payload]


class UpsertMemo(Command, frozen=True):
    """A change of the memo; a null payload removes a key."""

    memo: dict[str, Payload]


class AcceptUpdate(Command, frozen=True):
    """The acceptance of an update, after its validation."""

    protocol_instance_id: str


class RejectUpdate(Command, frozen=True):
    """The rejection of an update, or (after its acceptance) the failure of its handler."""

    protocol_instance_id: str
    failure: Failure


class CompleteUpdate(Command, frozen=True):
    """The result of an update's handler."""

    protocol_instance_id: str
    result: Payload


class AnswerQuery(Command, frozen=True):
    """The answer to a query: a payload or a failure."""

    query_id: str
    result: Payload | None = None
    failure: Failure | None = None


class CompleteRun(Command, frozen=True):
    """The completion of the workflow with a result."""

    result: Payload


class FailRun(Command, frozen=True):
    """The failure of the workflow."""

    failure: Failure


class CancelRun(Command, frozen=True):
    """The end of the workflow as cancelled, after a cancellation request."""


class ContinueAsNew(Command, frozen=True, kw_only=True):
    """The end of this run and the start of the next run of the workflow. An empty type means the current type."""

    workflow_type: str = ""
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    spec: StartSpec = StartSpec()
    versioning: ContinueAsNewVersioningBehavior = ContinueAsNewVersioningBehavior.UNSPECIFIED
    backoff: float = 0.0
    """The delay before the first task of the new run, in seconds."""


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
"""The terminal commands as a set of types. Looking up a type in a set is ten times as fast as `isinstance`,
which calls the metaclass of a struct.
"""

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
"""The commands that belong to the event groups of the block that issues them. The cancellation of a command
belongs to that command's groups. As in temporalio, other commands have no groups.
"""


class TaskFailureCause(IntEnum):
    """The cause of a failed workflow task (Temporal's numbers)."""

    UNSPECIFIED = 0
    NON_DETERMINISTIC_ERROR = 24
    WORKFLOW_WORKER_UNHANDLED_FAILURE = 14


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The successful completion of an activation: the commands in the order of issue, the behaviour flags that
    were used, and the workflow's versioning behavior.
    """

    run_id: str
    commands: tuple[Command, ...] = ()
    used_flags: tuple[int, ...] = ()
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED


class TaskFailed(msgspec.Struct, frozen=True):
    """The failure of an activation; the engine will retry the task."""

    run_id: str
    failure: Failure
    cause: TaskFailureCause = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE


Completion = Succeeded | TaskFailed
