"""Every exception of Hourglass, grouped by who is at fault.

    HourglassError
    ├── UsageError                    you misused the API
    │   ├── DefinitionError           a decorated function or class is invalid
    │   ├── ArgumentError             wrong arguments for a workflow, activity, signal, query or update
    │   ├── NotInWorkflowError        a workflow primitive was called outside a workflow
    │   ├── ReadOnlyError             a durable call inside a query, validator or condition
    │   ├── UnknownTypeError          the worker has no workflow or activity of that name
    │   ├── TargetError               the target or its configuration is invalid
    │   └── DeterminismError          workflow code read a clock, randomness or I/O (call watcher)
    ├── PayloadError                  data that cannot be encoded or decoded
    │   ├── EncodeError
    │   └── DecodeError
    ├── NondeterminismError           your workflow changed and no longer fits its history
    ├── HistoryError                  a history that is malformed
    ├── WorkflowParked                your workflow raised an exception that is a bug, not a result
    ├── WorkflowStuck                 in a test: the workflow waits for an event that will never occur
    ├── ExplorationFailed             in a test: an order of events that breaks a property of your workflow
    ├── TaskCancelledError            you waited for a task that other code of the workflow cancelled
    ├── ChannelEmptyError             `receive_nowait` found no message
    ├── FailureError                  remote work failed; these are serialized
    │   ├── ApplicationError          raised by you, in a workflow or an activity
    │   ├── ActivityError             an activity failed; the reason is its cause
    │   ├── ChildWorkflowError        a child workflow failed; the reason is its cause
    │   ├── NexusOperationError       an operation of another service failed; the reason is its cause
    │   ├── InvalidVersioningOverrideError   no worker has the version requested for a child
    │   ├── CancelledError            it was cancelled
    │   ├── TimedOutError             it timed out (also a `TimeoutError`)
    │   ├── TerminatedError           it was terminated
    │   └── ServerError               the server could not process it
    ├── WorkflowFailedError           `result()`: the run did not complete; the reason is its cause
    │   └── WorkflowContinuedAsNewError
    ├── ActivityFailedError           an activity started by a client did not complete
    ├── QueryFailedError              the workflow's query handler raised
    ├── QueryRejectedError            the query was not sent, because the run's status matches its reject condition
    ├── UpdateFailedError             the workflow rejected an update, or its handler failed
    ├── ServiceError                  the service rejected a request, or cannot be reached
    │   ├── ConnectionFailedError
    │   ├── NamespaceNotFoundError
    │   ├── WorkflowNotFoundError
    │   ├── WorkflowAlreadyStartedError   (also a `FailureError`)
    │   ├── ActivityNotFoundError
    │   ├── ActivityAlreadyStartedError
    │   ├── ScheduleNotFoundError
    │   ├── ScheduleAlreadyExistsError
    │   ├── StorageError              the embedded engine's file cannot be used
    │   └── ServiceTimeoutError       (also a `TimeoutError`)
    └── InternalError                 a bug in Hourglass: please report it

`Cancelled` is separate: it is a `BaseException`, means that *your code* is cancelled, and passes through
`except Exception`.

`summary` describes a failure in one line: the failed step, the step's exception, and the root cause. The function refers to
no class of this hierarchy, because the classes use it. Instead it reads two attributes of the failure: `ending`, the outcome
of the step, and `includes_causes`, whether the message includes the causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum, StrEnum
from typing import Any

__all__ = [
    "ActivityAlreadyStartedError",
    "ActivityError",
    "ActivityFailedError",
    "ActivityNotFoundError",
    "ApplicationError",
    "ApplicationErrorCategory",
    "ArgumentError",
    "Cancelled",
    "CancelledError",
    "ChannelEmptyError",
    "ChildWorkflowError",
    "ConnectionFailedError",
    "DecodeError",
    "DefinitionError",
    "DeterminismError",
    "EncodeError",
    "ExplorationFailed",
    "FailureError",
    "HistoryError",
    "HourglassError",
    "InternalError",
    "InvalidVersioningOverrideError",
    "NamespaceNotFoundError",
    "NexusOperationError",
    "NondeterminismError",
    "NotInWorkflowError",
    "PayloadError",
    "QueryFailedError",
    "QueryRejectedError",
    "ReadOnlyError",
    "RetryState",
    "ScheduleAlreadyExistsError",
    "ScheduleNotFoundError",
    "ServerError",
    "ServiceError",
    "ServiceStatus",
    "ServiceTimeoutError",
    "StorageError",
    "TargetError",
    "TaskCancelledError",
    "TerminatedError",
    "TimedOutError",
    "TimeoutType",
    "UnknownTypeError",
    "UpdateFailedError",
    "UsageError",
    "WorkflowAlreadyStartedError",
    "WorkflowContinuedAsNewError",
    "WorkflowFailedError",
    "WorkflowNotFoundError",
    "WorkflowParked",
    "WorkflowStuck",
    "summary",
]


def summary(error: BaseException) -> str:
    """Describe a failure in one line: `activity charge failed: ValueError: no such card`."""
    message = _first_line(str(error))
    if getattr(error, "includes_causes", False):
        return message
    kind = getattr(error, "type", None)
    name = kind if isinstance(kind, str) and kind else type(error).__name__
    return f"{name}: {message}" if message else name


def one_line(what: str, error: BaseException, message: str) -> str:
    """Describe the outcome of a step (`activity charge`) in one line, from the failure and its causes."""
    cause = error.__cause__
    if not what or cause is None:
        return ": ".join(part for part in (what, message) if part)
    ending = getattr(cause, "ending", "")
    if ending:
        return f"{what} {ending}"
    root = innermost(cause)
    is_complete = root is cause or getattr(cause, "includes_causes", False)
    return f"{what} failed: {summary(cause)}" + ("" if is_complete else f" (because {summary(root)})")


def innermost(error: BaseException) -> BaseException:
    """Return the root cause of an exception, or the exception itself if it has no cause."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class Cancelled(BaseException):
    """The exception that cancels your code. It is raised where a workflow waits, once for each cancel request.

    Clean up in `finally` or `except Cancelled` as in any Python program, also with durable calls, and let the exception
    propagate. A run that raises `Cancelled` after a cancel request ends as cancelled.
    """


class HourglassError(Exception):
    """The base class of all Hourglass errors."""

    @property
    def cause(self) -> BaseException | None:
        """The reason for this failure, if there is one: the exception of an activity, child, run or handler."""
        return self.__cause__

    @property
    def root_cause(self) -> BaseException:
        """The innermost cause, for example the exception that an activity raised. Without a cause, the error itself."""
        return innermost(self)


class UsageError(HourglassError):
    """You misused the API. The message says what was expected and what to do."""


class DefinitionError(UsageError):
    """A decorated function or class is invalid."""


class ArgumentError(UsageError, TypeError):
    """Wrong arguments for a workflow, activity, signal, query or update."""


class NotInWorkflowError(UsageError):
    """A workflow primitive was called outside a workflow."""


class ReadOnlyError(UsageError):
    """A durable call inside a query handler, a validator or a condition."""


class UnknownTypeError(UsageError):
    """There is no workflow or activity of that name."""


class TargetError(UsageError, ValueError):
    """The target, or the configuration that it comes from, is invalid."""


class DeterminismError(UsageError):
    """Workflow code read a clock, random numbers or other data from outside the run. The message names file and line."""


class PayloadError(HourglassError):
    """A value cannot be encoded, or a payload cannot be decoded."""


class EncodeError(PayloadError):
    """A value cannot be encoded as a payload."""


class DecodeError(PayloadError):
    """A payload cannot be decoded as the requested type."""


class NondeterminismError(HourglassError):
    """Workflow code no longer issues the commands that its history records."""

    def __init__(
        self,
        message: str,
        *,
        expected: str = "",
        produced: str = "",
        file: str = "",
        line: int = 0,
    ) -> None:
        super().__init__(message)
        self.expected = expected
        self.produced = produced
        self.file = file
        self.line = line


class HistoryError(HourglassError, ValueError):
    """A history is malformed: it can neither be replayed nor shown."""


class WorkflowParked(HourglassError):
    """Workflow code raised an exception that is a bug, not a result. The exception is the `cause`."""


class WorkflowStuck(HourglassError):
    """In a test: a workflow waits for an event that will never occur. The message names the event and the line."""


class ExplorationFailed(HourglassError, AssertionError):
    """In a test: an order of events breaks a property of a workflow. The message describes the order.

    Pass `token` as `story=` to repeat exactly this order. `story` contains the lines of the description, and `broken` is the
    kind of property.
    """

    def __init__(self, message: str, *, token: str = "", story: Sequence[str] = (), broken: str = "") -> None:
        super().__init__(message)
        self.token = token
        self.story = tuple(story)
        self.broken = broken


class TaskCancelledError(HourglassError):
    """You waited for a task that other code of the workflow cancelled. Your own code is not cancelled."""


class ChannelEmptyError(HourglassError):
    """`receive_nowait` found no message."""


class TimeoutType(IntEnum):
    """The kind of timeout of an activity or workflow (Temporal's numbers)."""

    UNSPECIFIED = 0
    START_TO_CLOSE = 1
    SCHEDULE_TO_START = 2
    SCHEDULE_TO_CLOSE = 3
    HEARTBEAT = 4


class RetryState(IntEnum):
    """The reason why a failure was not retried (Temporal's numbers)."""

    UNSPECIFIED = 0
    IN_PROGRESS = 1
    NON_RETRYABLE_FAILURE = 2
    TIMEOUT = 3
    MAXIMUM_ATTEMPTS_REACHED = 4
    RETRY_POLICY_NOT_SET = 5
    INTERNAL_SERVER_ERROR = 6
    CANCEL_REQUESTED = 7


class ApplicationErrorCategory(IntEnum):
    """The category of an `ApplicationError` (Temporal's numbers)."""

    UNSPECIFIED = 0
    BENIGN = 1
    """An expected error, for example a poll that has no result yet. It is retried and recorded like any other error, but not
    logged.
    """


class FailureError(HourglassError):
    """Remote work failed. `cause` is the reason, `remote_traceback` the full stack where it was raised.

    When the error is printed, a note shows that stack without the frames of Hourglass.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remote_traceback = ""


class ApplicationError(FailureError):
    """The error that you raise to fail a workflow, or an attempt of an activity.

    Retry policies and programs in other languages compare `type`, by default the name of the class. Pass
    `category=ApplicationErrorCategory.BENIGN` for an expected error, which is then not logged.
    """

    def __init__(
        self,
        message: str = "",
        *details: Any,
        type: str | None = None,
        non_retryable: bool = False,
        next_retry_delay: timedelta | float | None = None,
        category: ApplicationErrorCategory = ApplicationErrorCategory.UNSPECIFIED,
    ) -> None:
        super().__init__(message)
        self.details: Sequence[Any] = details
        self.type = type if type is not None else self.__class__.__name__
        self.non_retryable = non_retryable
        self.next_retry_delay = next_retry_delay
        self.category = category


class ActivityError(FailureError):
    """An activity failed. `cause` is the reason; `str` describes both in one line."""

    includes_causes = True

    def __init__(
        self,
        message: str = "",
        *,
        activity_type: str = "",
        activity_id: str = "",
        identity: str = "",
        scheduled_event_id: int = 0,
        started_event_id: int = 0,
        retry_state: RetryState = RetryState.UNSPECIFIED,
    ) -> None:
        super().__init__(message)
        self.activity_type = activity_type
        self.activity_id = activity_id
        self.identity = identity
        self.scheduled_event_id = scheduled_event_id
        self.started_event_id = started_event_id
        self.retry_state = retry_state

    def __str__(self) -> str:
        return one_line(f"activity {self.activity_type}" if self.activity_type else "", self, self.message)


class NexusOperationError(FailureError):
    """An operation of a Nexus service failed; `cause` is the reason."""

    def __init__(
        self,
        message: str = "",
        *,
        endpoint: str = "",
        service: str = "",
        operation: str = "",
        operation_token: str = "",
    ) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.service = service
        self.operation = operation
        self.operation_token = operation_token


class ChildWorkflowError(FailureError):
    """A child workflow failed. `cause` is the reason; `str` describes both in one line."""

    includes_causes = True

    def __init__(
        self,
        message: str = "",
        *,
        namespace: str = "",
        workflow_id: str = "",
        run_id: str = "",
        workflow_type: str = "",
        initiated_event_id: int = 0,
        started_event_id: int = 0,
        retry_state: RetryState = RetryState.UNSPECIFIED,
    ) -> None:
        super().__init__(message)
        self.namespace = namespace
        self.workflow_id = workflow_id
        self.run_id = run_id
        self.workflow_type = workflow_type
        self.initiated_event_id = initiated_event_id
        self.started_event_id = started_event_id
        self.retry_state = retry_state

    def __str__(self) -> str:
        named = f" ({self.workflow_id})" if self.workflow_id else ""
        what = f"child workflow {self.workflow_type}{named}" if self.workflow_type else ""
        return one_line(what, self, self.message)


class CancelledError(FailureError):
    """Remote work was cancelled. (`Cancelled`, without Error, means that your own code is cancelled.)"""

    ending = "was cancelled"

    def __init__(self, message: str = "Cancelled", *details: Any) -> None:
        super().__init__(message)
        self.details: Sequence[Any] = details


class TimedOutError(FailureError, TimeoutError):
    """Remote work timed out."""

    def __init__(
        self,
        message: str = "",
        *,
        type: TimeoutType = TimeoutType.UNSPECIFIED,
        last_heartbeat_details: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self.type = type
        self.last_heartbeat_details = last_heartbeat_details

    @property
    def ending(self) -> str:
        """The outcome of the remote work, in words."""
        return (
            f"timed out ({TimeoutType(self.type).name.replace('_', ' ').lower()})"
            if self.type
            else "timed out"
        )


class TerminatedError(FailureError):
    """A workflow was terminated."""

    ending = "was terminated"

    def __init__(self, message: str = "", *details: Any) -> None:
        super().__init__(message)
        self.details: Sequence[Any] = details


class InvalidVersioningOverrideError(FailureError):
    """A child could not be started, because no worker of its task queue has the version named by `versioning_override`."""


class ServerError(FailureError):
    """The server could not process remote work."""

    def __init__(self, message: str = "", *, non_retryable: bool = False) -> None:
        super().__init__(message)
        self.non_retryable = non_retryable


class WorkflowFailedError(HourglassError):
    """The run did not complete. `cause` is the reason: an `ApplicationError`, `CancelledError`, `TimedOutError` …"""


class ActivityFailedError(HourglassError):
    """An activity started by a client did not complete. `cause` is the reason, as in `WorkflowFailedError`."""


class WorkflowContinuedAsNewError(WorkflowFailedError):
    """The run continued as new, and its result was requested without following later runs."""

    def __init__(self, message: str, *, new_run_id: str) -> None:
        super().__init__(message)
        self.new_run_id = new_run_id


class QueryFailedError(HourglassError):
    """The workflow's query handler raised an exception, or the query is unknown."""


class QueryRejectedError(HourglassError):
    """The query was not sent to the workflow, because the run's status matches the reject condition. `status` is the run's
    status.
    """

    def __init__(self, message: str, *, status: IntEnum) -> None:
        super().__init__(message)
        self.status = status


class UpdateFailedError(HourglassError):
    """The workflow rejected an update, or the update's handler failed. `cause` is the reason."""


class ServiceStatus(StrEnum):
    """The names of gRPC status codes: the values of `ServiceError.status`. Each value is equal to its name."""

    OK = "OK"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    UNAUTHENTICATED = "UNAUTHENTICATED"


class ServiceError(HourglassError):
    """The service rejected a request, or cannot be reached. `status` is the gRPC status name, for example `UNAVAILABLE`."""

    status: ServiceStatus

    def __init__(self, message: str, *, status: str = ServiceStatus.UNKNOWN) -> None:
        super().__init__(message)
        self.message = message
        self.status = ServiceStatus.__members__.get(status, ServiceStatus.UNKNOWN)


class ConnectionFailedError(ServiceError):
    """The server cannot be reached."""


class NamespaceNotFoundError(ServiceError):
    """The server does not have this namespace."""


class WorkflowNotFoundError(ServiceError):
    """The workflow does not exist, or has closed."""


class WorkflowAlreadyStartedError(ServiceError, FailureError):
    """A workflow with this id is already running, or has closed and the id reuse policy forbids another run.

    Raised in a workflow, the error means that a child's id is in use. It is then a normal failure: a workflow that lets it
    propagate fails.
    """

    def __init__(self, message: str, *, workflow_id: str, workflow_type: str = "", run_id: str = "") -> None:
        super().__init__(message, status="ALREADY_EXISTS")
        self.workflow_id = workflow_id
        self.workflow_type = workflow_type
        self.run_id = run_id


class ActivityNotFoundError(ServiceError):
    """The activity does not exist, or has ended."""


class ActivityAlreadyStartedError(ServiceError):
    """An activity with this id, started by a client, is already running, or has closed and the id reuse policy forbids
    another.
    """

    def __init__(self, message: str, *, activity_id: str, activity_type: str = "", run_id: str = "") -> None:
        super().__init__(message, status="ALREADY_EXISTS")
        self.activity_id = activity_id
        self.activity_type = activity_type
        self.run_id = run_id


class ScheduleNotFoundError(ServiceError):
    """The schedule does not exist."""


class ScheduleAlreadyExistsError(ServiceError):
    """A schedule with this id already exists."""

    def __init__(self, message: str, *, schedule_id: str) -> None:
        super().__init__(message, status="ALREADY_EXISTS")
        self.schedule_id = schedule_id


class StorageError(ServiceError):
    """The embedded engine's file cannot be used: it is corrupt, was written by a newer version, is not a database, or the
    disk is full.
    """


class ServiceTimeoutError(ServiceError, TimeoutError):
    """The service did not answer in time."""


class InternalError(HourglassError):
    """Hourglass has a bug. Please report it with this message."""
