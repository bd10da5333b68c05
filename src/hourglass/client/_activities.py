"""Operations on activities that complete asynchronously. Both clients run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hourglass._contract.activities import CompleteActivity, HeartbeatActivity, HeartbeatAnswer, ResetActivity
from hourglass.client import _standalone
from hourglass.client._calls import (
    AsyncActivityInput,
    CompleteAsyncActivityInput,
    FailAsyncActivityInput,
    HeartbeatAsyncActivityInput,
    ReportCancellationAsyncActivityInput,
)
from hourglass.client._session import ClientOperation, ClientSession, asking, nothing, through
from hourglass.errors import UsageError


@dataclass(frozen=True)
class ActivityReference:
    """The activity of a handle: its task token, or its workflow's ids and its own id."""

    token: bytes = field(default=b"", repr=False)
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""

    def address(self) -> dict[str, Any]:
        """Return the fields that every request contains."""
        return {
            "token": self.token,
            "workflow_id": self.workflow_id,
            "run_id": self.run_id,
            "activity_id": self.activity_id,
        }


def _address(session: ClientSession, call: AsyncActivityInput) -> dict[str, Any]:
    """Return the request fields for the activity of a call, after interceptors, and the client identity."""
    meant = ActivityReference(call.token, call.workflow_id, call.run_id, call.activity_id)
    return {**meant.address(), "identity": session.identity}


def refer_activity(
    token: bytes | None, workflow_id: str | None, run_id: str | None, activity_id: str | None
) -> ActivityReference:
    """Return a reference to an activity for a handle, without sending a request."""
    if token:
        if not isinstance(token, bytes):
            raise UsageError(f"an activity's token must be bytes, not {type(token).__name__}")
        if workflow_id or run_id or activity_id:
            raise UsageError("pass the activity's token, or workflow_id and activity_id, not both")
        return ActivityReference(token)
    if not activity_id:
        raise UsageError("identify the activity by its token, or by workflow_id and activity_id")
    return ActivityReference(b"", workflow_id or "", run_id or "", activity_id)


def complete(session: ClientSession, reference: ActivityReference, result: Any) -> ClientOperation[None]:
    """Complete the activity with a result."""

    def build(call: CompleteAsyncActivityInput) -> ClientOperation[None]:
        request = CompleteActivity(**_address(session, call), result=session.converter.encode(*call.args))
        return asking(request, nothing)

    return through(session, CompleteAsyncActivityInput(**reference.address(), args=[result], _proceed=build))


def fail(
    session: ClientSession, reference: ActivityReference, error: BaseException, details: Sequence[Any] = ()
) -> ClientOperation[None]:
    """Fail the activity. The next attempt receives these details in place of its last heartbeat's details."""

    def build(call: FailAsyncActivityInput) -> ClientOperation[None]:
        if not isinstance(call.error, BaseException):
            raise UsageError(
                f"the error of an activity must be an exception, not {type(call.error).__name__}"
            )
        request = CompleteActivity(
            **_address(session, call),
            failure=session.converter.to_failure(call.error),
            last_heartbeat_details=tuple(session.converter.encode_all(call.args)),
        )
        return asking(request, nothing)

    call = FailAsyncActivityInput(**reference.address(), error=error, args=list(details), _proceed=build)
    return through(session, call)


def report_cancelled(
    session: ClientSession, reference: ActivityReference, details: Sequence[Any]
) -> ClientOperation[None]:
    """Report that the activity was cancelled."""

    def build(call: ReportCancellationAsyncActivityInput) -> ClientOperation[None]:
        request = CompleteActivity(
            **_address(session, call),
            cancelled=True,
            cancelled_details=tuple(session.converter.encode_all(call.args)),
        )
        return asking(request, nothing)

    call = ReportCancellationAsyncActivityInput(**reference.address(), args=list(details), _proceed=build)
    return through(session, call)


def reset(
    session: ClientSession, reference: ActivityReference, reset_heartbeat: bool
) -> ClientOperation[None]:
    """Restart an activity from its first attempt."""
    if reference.token:
        raise UsageError("an activity cannot be reset by its token: pass workflow_id and activity_id")
    request = ResetActivity(
        workflow_id=reference.workflow_id,
        run_id=reference.run_id,
        activity_id=reference.activity_id,
        reset_heartbeat=reset_heartbeat,
        identity=session.identity,
    )
    return asking(request, nothing)


def _by_ids(reference: ActivityReference, what: str) -> _standalone.StandaloneReference:
    if reference.token:
        raise UsageError(f"an activity cannot be {what} by its token: pass workflow_id and activity_id")
    return _standalone.StandaloneReference(reference.activity_id, reference.run_id)


def act(
    session: ClientSession,
    kind: Callable[..., Any],
    reference: ActivityReference,
    reason: str,
) -> ClientOperation[None]:
    """Pause or resume an activity of a workflow."""
    alone = _by_ids(reference, "paused and unpaused")
    return _standalone.act(session, kind, alone, reason, reference.workflow_id)


def update_options(
    session: ClientSession, reference: ActivityReference, changes: Mapping[str, Any]
) -> ClientOperation[_standalone.ActivityExecutionOptions]:
    """Change the options of an activity of a workflow."""
    alone = _by_ids(reference, "changed")
    return _standalone.update_options(session, alone, changes, reference.workflow_id)


def restore_options(
    session: ClientSession, reference: ActivityReference
) -> ClientOperation[_standalone.ActivityExecutionOptions]:
    """Restore the original options of an activity of a workflow."""
    return _standalone.restore_options(session, _by_ids(reference, "changed"), reference.workflow_id)


def heartbeat(
    session: ClientSession, reference: ActivityReference, details: Sequence[Any]
) -> ClientOperation[bool]:
    """Send a heartbeat. The operation returns whether cancellation of the activity was requested."""

    def parse(answer: HeartbeatAnswer) -> bool:
        return answer.cancel_requested

    def build(call: HeartbeatAsyncActivityInput) -> ClientOperation[bool]:
        details = tuple(session.converter.encode_all(call.args))
        return asking(HeartbeatActivity(**_address(session, call), details=details), parse)

    call = HeartbeatAsyncActivityInput(**reference.address(), args=list(details), _proceed=build)
    return through(session, call)
