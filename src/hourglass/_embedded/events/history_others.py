"""The events by which a history tells of other runs: children, signals to and cancels of other workflows.

The same invariants hold as in `history`, which names all kinds. A namespace is written out, since
histories are read elsewhere; an empty run id means the latest run of a workflow.
"""

from __future__ import annotations

from enum import IntEnum

from hourglass._embedded.events.history_base import Attributes, Fields
from hourglass._engine.commands import IdReusePolicy, ParentClosePolicy
from hourglass._engine.events import Payloads, RetryRule
from hourglass.converter import Failure, Payload
from hourglass.errors import RetryState


class StartChildFailedCause(IntEnum):
    """Why a child could not be started (Temporal's numbers)."""

    WORKFLOW_ALREADY_EXISTS = 1
    NAMESPACE_NOT_FOUND = 2


class ExternalFailedCause(IntEnum):
    """Why a signal or a request to cancel did not arrive (Temporal's numbers, the same for both)."""

    EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND = 1
    NAMESPACE_NOT_FOUND = 2
    SIGNAL_COUNT_LIMIT_EXCEEDED = 3


# --- children -----------------------------------------------------------------------------------------------


class StartChildWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run asked for a child. The timeouts are as the engine understood them."""

    namespace: str
    workflow_id: str
    workflow_type: str
    task_queue: str
    task_completed_event_id: int
    arguments: Payloads = ()
    execution_timeout: float = 0.0
    run_timeout: float = 0.0
    task_timeout: float = 10.0
    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE
    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE
    retry_policy: RetryRule | None = None
    cron_schedule: str = ""
    headers: Fields = {}
    memo: Fields = {}
    search_attributes: Fields = {}
    summary: Payload | None = None
    details: Payload | None = None
    priority_key: int = 0
    inherit_build_id: bool = False


class StartChildWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """There will be no such child."""

    namespace: str
    workflow_id: str
    workflow_type: str
    cause: StartChildFailedCause
    initiated_event_id: int


class ChildWorkflowExecutionStarted(Attributes, frozen=True, kw_only=True):
    """The child has begun; `run_id` is its first run."""

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    initiated_event_id: int
    headers: Fields = {}


class ChildEnd(Attributes, frozen=True, kw_only=True):
    """What all ends of a child say; `run_id` is its last run. No kind of its own."""

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    initiated_event_id: int
    started_event_id: int


class ChildWorkflowExecutionCompleted(ChildEnd, frozen=True, kw_only=True):
    """The child returned."""

    result: Payload | None = None


class ChildWorkflowExecutionFailed(ChildEnd, frozen=True, kw_only=True):
    """The child failed."""

    failure: Failure
    retry_state: RetryState


class ChildWorkflowExecutionCanceled(ChildEnd, frozen=True, kw_only=True):
    """The child ended as cancelled."""

    details: Payloads = ()


class ChildWorkflowExecutionTimedOut(ChildEnd, frozen=True, kw_only=True):
    """The child took too long."""

    retry_state: RetryState


class ChildWorkflowExecutionTerminated(ChildEnd, frozen=True, kw_only=True):
    """The child was ended without being asked."""


# --- others -------------------------------------------------------------------------------------------------


class SignalExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run sends a signal; with `child_only` to a child of its own or to nobody."""

    namespace: str
    workflow_id: str
    signal_name: str
    task_completed_event_id: int
    run_id: str = ""
    arguments: Payloads = ()
    headers: Fields = {}
    child_only: bool = False


class SignalExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """The signal did not arrive."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionSignaled(Attributes, frozen=True, kw_only=True):
    """The signal arrived."""

    namespace: str
    workflow_id: str
    initiated_event_id: int
    run_id: str = ""


class RequestCancelExternalWorkflowExecutionInitiated(Attributes, frozen=True, kw_only=True):
    """The run asks another to cancel; with `child_only` a child of its own or nobody."""

    namespace: str
    workflow_id: str
    task_completed_event_id: int
    run_id: str = ""
    reason: str = ""
    child_only: bool = False


class RequestCancelExternalWorkflowExecutionFailed(Attributes, frozen=True, kw_only=True):
    """The request did not arrive."""

    namespace: str
    workflow_id: str
    cause: ExternalFailedCause
    initiated_event_id: int
    run_id: str = ""


class ExternalWorkflowExecutionCancelRequested(Attributes, frozen=True, kw_only=True):
    """The request arrived, or was no longer needed: the other has closed."""

    namespace: str
    workflow_id: str
    initiated_event_id: int
    run_id: str = ""


OTHER_KINDS: tuple[type[Attributes], ...] = (
    StartChildWorkflowExecutionInitiated,
    StartChildWorkflowExecutionFailed,
    ChildWorkflowExecutionStarted,
    ChildWorkflowExecutionCompleted,
    ChildWorkflowExecutionFailed,
    ChildWorkflowExecutionCanceled,
    ChildWorkflowExecutionTimedOut,
    ChildWorkflowExecutionTerminated,
    SignalExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionFailed,
    ExternalWorkflowExecutionSignaled,
    RequestCancelExternalWorkflowExecutionInitiated,
    RequestCancelExternalWorkflowExecutionFailed,
    ExternalWorkflowExecutionCancelRequested,
)
