"""Checks of a worker's commands by Temporal's rules, with Temporal's messages. Pure.

A command is checked against the run as the previous commands have left it. Must not know: how an accepted command is
written. Invariant: if one command is rejected (`CompletionRejected`), the whole completion has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from hourglass._embedded.schedules.times import check_cron
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.run import (
    RequestCancelChild,
    SendCancel,
    SendSignal,
    StartChild,
)
from hourglass._embedded.transitions.size_limits import Limits, blob_size
from hourglass._embedded.transitions.standalone import PREFIX, RESERVED
from hourglass._evaluator import commands as c
from hourglass._history import events as h
from hourglass.converter import Payload
from hourglass.errors import UsageError


class CompletionRejected(Exception):
    """The rejection of a workflow task's completion. The task fails with `cause` (Temporal's number) and is retried,
    unless the run is terminated (`ends_run`).
    """

    def __init__(self, cause: int, reason: str, message: str, *, ends_run: bool = False) -> None:
        super().__init__(message)
        self.cause = cause
        self.reason = reason
        self.ends_run = ends_run


class _Limit(NamedTuple):
    cause: int
    name: str
    what: str


_ACTIVITIES = _Limit(
    h.PENDING_ACTIVITIES_LIMIT_EXCEEDED, "PendingActivitiesLimitExceeded", "pending activities"
)
_CHILDREN = _Limit(
    h.PENDING_CHILDREN_LIMIT_EXCEEDED,
    "PendingChildWorkflowsLimitExceeded",
    "pending child workflow executions",
)
_SIGNALS = _Limit(
    h.PENDING_SIGNALS_LIMIT_EXCEEDED,
    "PendingSignalsLimitExceeded",
    "pending signals to external workflows",
)
_CANCELS = _Limit(
    h.PENDING_CANCELS_LIMIT_EXCEEDED,
    "PendingRequestCancelLimitExceeded",
    "pending requests to cancel external workflows",
)


_VALUES: dict[type[c.Command], str] = {
    c.ScheduleActivity: "arguments",
    c.StartChildWorkflow: "arguments",
    c.SignalExternalWorkflow: "arguments",
    c.ContinueAsNew: "arguments",
    c.CompleteRun: "result",
    c.CompleteUpdate: "result",
    c.UpsertMemo: "memo",
}
"""The field of each command that contains its author's values and may be too large."""


class _CommandNames(NamedTuple):
    cause: int
    reason: str
    names: dict[str, str]


_NAMES: dict[type[c.Command], _CommandNames] = {
    c.ScheduleActivity: _CommandNames(
        h.BAD_SCHEDULE_ACTIVITY,
        "BadScheduleActivityAttributes",
        {
            "activity_id": "activityId exceeds length limit",
            "activity_type": "activityType exceeds length limit",
            "spec.task_queue": "taskQueue length exceeds limit",
        },
    ),
    c.StartChildWorkflow: _CommandNames(
        h.BAD_START_CHILD,
        "BadStartChildExecutionAttributes",
        {
            "workflow_id": "WorkflowId on StartChildWorkflowExecutionCommand exceeds length limit",
            "workflow_type": "WorkflowType on StartChildWorkflowExecutionCommand exceeds length limit",
            "spec.task_queue": "invalid TaskQueue on StartChildWorkflowExecutionCommand: taskQueue length exceeds limit",
        },
    ),
    c.ContinueAsNew: _CommandNames(
        h.BAD_CONTINUE_AS_NEW,
        "BadContinueAsNewAttributes",
        {
            "workflow_type": "WorkflowType on ContinueAsNewWorkflowExecutionCommand exceeds length limit",
            "spec.task_queue": "error validating ContinueAsNewWorkflowExecutionCommand TaskQueue: taskQueue length exceeds limit",
        },
    ),
    c.SignalExternalWorkflow: _CommandNames(
        h.BAD_SIGNAL,
        "BadSignalWorkflowExecutionAttributes",
        {"workflow_id": "WorkflowId on SignalExternalWorkflowExecutionCommand exceeds length limit"},
    ),
    c.RequestCancelExternal: _CommandNames(
        h.BAD_REQUEST_CANCEL_EXTERNAL,
        "BadRequestCancelExternalWorkflowExecutionAttributes",
        {"workflow_id": "WorkflowId on RequestCancelExternalWorkflowExecutionCommand exceeds length limit"},
    ),
}
"""The names that may be too long, with a server's messages. A signal name may have any length, as on a server."""

_named = {name: attrgetter(name) for checked in _NAMES.values() for name in checked.names}


def check_size(command: c.Command, limits: Limits) -> None:
    """Raise `CompletionRejected` for a command whose values are too large. Need not be called if the command's events are
    small.
    """
    name = _VALUES.get(type(command))
    size = blob_size(getattr(command, name)) if name else 0
    if size > limits.blob_bytes:
        raise CompletionRejected(
            h.PAYLOADS_TOO_LARGE,
            "FATAL",
            f"PayloadsTooLarge: the {name} of {type(command).__name__} has {size} bytes; at most {limits.blob_bytes} "
            "are allowed",
        )
    if name:
        limits.warn(size, name, type(command).__name__)


def _check_names(command: c.Command, limits: Limits) -> None:
    checked = _NAMES[type(command)]
    for name, what in checked.names.items():
        if limits.is_too_long(_named[name](command)):
            raise CompletionRejected(
                checked.cause, "FATAL", f"{checked.reason}: {what} of {limits.name_bytes}"
            )


def _check_activity(builder: ChangeBuilder, command: c.ScheduleActivity, limits: Limits) -> None:
    activity_id = command.activity_id
    length = len(activity_id) + len(command.activity_type) + len(command.spec.task_queue)
    if length * 4 > limits.name_bytes:  # no character has more than four bytes
        _check_names(command, limits)
    pending = len(builder.run.activities)
    if pending >= limits.pending:
        _within(limits.pending, pending, _ACTIVITIES)
    if activity_id != str(command.seq):
        _of_its_own_id(builder, command)


def _check_child(builder: ChangeBuilder, command: c.StartChildWorkflow, limits: Limits) -> None:
    _check_names(command, limits)
    _within(limits.pending, len(builder.run.children), _CHILDREN)
    _of_no_activity(command)
    _of_a_cron_schedule(command)


def _check_signal(builder: ChangeBuilder, command: c.SignalExternalWorkflow, limits: Limits) -> None:
    _check_names(command, limits)
    _within(limits.pending, builder.count_effects(SendSignal), _SIGNALS)


def _check_cancel(builder: ChangeBuilder, command: c.RequestCancelExternal, limits: Limits) -> None:
    _check_names(command, limits)
    _check_cancel_child(builder, command, limits)


def _check_cancel_child(
    builder: ChangeBuilder, command: c.RequestCancelExternal | RequestCancelChild, limits: Limits
) -> None:
    _within(limits.pending, builder.count_effects(SendCancel), _CANCELS)
    _not_just_started(builder, command)


def _check_continue(builder: ChangeBuilder, command: c.ContinueAsNew, limits: Limits) -> None:
    _check_names(command, limits)


CHECKS: dict[type[c.Command], Callable[[ChangeBuilder, Any, Limits], None]] = {
    c.ScheduleActivity: _check_activity,
    c.StartChildWorkflow: _check_child,
    c.SignalExternalWorkflow: _check_signal,
    c.RequestCancelExternal: _check_cancel,
    RequestCancelChild: _check_cancel_child,
    c.ContinueAsNew: _check_continue,
}
"""The checks of the commands that can be rejected. Each check raises `CompletionRejected`."""


def _of_no_activity(command: c.StartChildWorkflow) -> None:
    if command.workflow_id.startswith(PREFIX):
        raise CompletionRejected(h.BAD_START_CHILD, "FATAL", f"BadStartChildExecutionAttributes: {RESERVED}")


def _of_a_cron_schedule(command: c.StartChildWorkflow) -> None:
    if not command.spec.cron_schedule:
        return
    try:
        check_cron(command.spec.cron_schedule)
    except UsageError as error:
        raise CompletionRejected(
            h.BAD_START_CHILD,
            "FATAL",
            f"BadStartChildExecutionAttributes: invalid CronSchedule on StartChildWorkflowExecutionCommand: {error}",
        ) from error


def _of_its_own_id(builder: ChangeBuilder, command: c.ScheduleActivity) -> None:
    """Reject an activity id that is already pending. If the author did not choose an id, it is the command's number,
    which is always unique.
    """
    if any(
        activity.scheduled.activity_id == command.activity_id for activity in builder.run.activities.values()
    ):
        raise CompletionRejected(
            h.SCHEDULE_ACTIVITY_DUPLICATE_ID,
            "FATAL",
            f"ScheduleActivityDuplicateId: an activity with the id {command.activity_id!r} is already pending",
        )


def _within(limit: int, pending: int, which: _Limit) -> None:
    if pending >= limit:
        raise CompletionRejected(
            which.cause,
            "FATAL",
            f"{which.name}: the number of {which.what}, {pending}, "
            f"has reached the per-workflow limit of {limit}",
        )


def _not_just_started(builder: ChangeBuilder, command: c.RequestCancelExternal | RequestCancelChild) -> None:
    """Reject the cancellation of a child that is started by the same workflow task."""
    for child in builder.run.children.values() if builder.count_effects(StartChild) else ():
        if not child.run_id and child.initiated.workflow_id == command.workflow_id:
            raise CompletionRejected(
                h.BAD_REQUEST_CANCEL_EXTERNAL,
                "FATAL",
                "BadRequestCancelExternalWorkflowExecutionAttributes: Start and RequestCancel for child workflow "
                f"is not allowed in same workflow task. WorkflowId={command.workflow_id} "
                f"RunId={command.run_id} Namespace={command.namespace}",
            )


SETS_ATTRIBUTES: dict[type[c.Command], tuple[int, str, str]] = {
    c.UpsertSearchAttributes: (h.BAD_SEARCH_ATTRIBUTES, "BadSearchAttributes", ""),
    c.StartChildWorkflow: (
        h.BAD_START_CHILD,
        "BadStartChildExecutionAttributes",
        "invalid SearchAttributes on StartChildWorkflowCommand: ",
    ),
    c.ContinueAsNew: (
        h.BAD_CONTINUE_AS_NEW,
        "BadContinueAsNewAttributes",
        "invalid SearchAttributes on ContinueAsNewWorkflowExecutionCommand: ",
    ),
}
"""The commands that set search attributes, each with the cause and the messages of its rejection."""


def search_attributes_of(command: c.Command) -> Mapping[str, Payload]:
    """Return the search attributes that a command sets."""
    match command:
        case c.UpsertSearchAttributes(changes):
            return changes
        case c.StartChildWorkflow() | c.ContinueAsNew():
            return command.spec.search_attributes
        case _:
            return {}


def invalid_attributes(command: c.Command, flaw: str, *, too_large: bool) -> CompletionRejected:
    """Return the rejection of a command with invalid search attributes. As on a server, the run is terminated if the
    attributes are too large.
    """
    cause, reason, where = SETS_ATTRIBUTES[type(command)]
    if too_large:
        return CompletionRejected(cause, "FATAL", f"{reason}: {flaw}", ends_run=True)
    return CompletionRejected(h.BAD_SEARCH_ATTRIBUTES, "FATAL", f"BadSearchAttributes: {where}{flaw}")
