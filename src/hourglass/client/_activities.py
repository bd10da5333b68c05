"""Operations on activities that complete asynchronously. Both clients run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hourglass._contract.activities import CompleteActivity, HeartbeatActivity, HeartbeatAnswer, ResetActivity
from hourglass.client._calls import (
    AsyncActivityInput,
    CompleteAsyncActivityInput,
    FailAsyncActivityInput,
    HeartbeatAsyncActivityInput,
    ReportCancellationAsyncActivityInput,
)
from hourglass.client._session import ClientOperation, ClientSession, asking, nothing, through
from hourglass.client._standalone import ActivityReference
from hourglass.errors import UsageError


def _address(activity: ActivityReference | AsyncActivityInput) -> dict[str, Any]:
    """Return the fields that identify the activity of a handle, or of a call after interceptors."""
    return {name: getattr(activity, name) for name in ("token", "workflow_id", "run_id", "activity_id")}


def refer_activity(
    token: bytes | None, workflow_id: str | None, run_id: str | None, activity_id: str | None
) -> ActivityReference:
    """Return a reference to an activity for a handle, without sending a request."""
    if token:
        if not isinstance(token, bytes):
            raise UsageError(f"an activity's token must be bytes, not {type(token).__name__}")
        if workflow_id or run_id or activity_id:
            raise UsageError("pass the activity's token, or workflow_id and activity_id, not both")
        return ActivityReference(token=token)
    if not activity_id:
        raise UsageError("identify the activity by its token, or by workflow_id and activity_id")
    return ActivityReference(activity_id, run_id or "", workflow_id=workflow_id or "")


def complete(session: ClientSession, reference: ActivityReference, result: Any) -> ClientOperation[None]:
    """Complete the activity with a result."""

    def build(call: CompleteAsyncActivityInput) -> ClientOperation[None]:
        request = CompleteActivity(
            **_address(call), identity=session.identity, result=session.converter.encode(*call.args)
        )
        return asking(request, nothing)

    return through(session, CompleteAsyncActivityInput(**_address(reference), args=[result], _proceed=build))


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
            **_address(call),
            identity=session.identity,
            failure=session.converter.to_failure(call.error),
            last_heartbeat_details=tuple(session.converter.encode_all(call.args)),
        )
        return asking(request, nothing)

    call = FailAsyncActivityInput(**_address(reference), error=error, args=list(details), _proceed=build)
    return through(session, call)


def report_cancelled(
    session: ClientSession, reference: ActivityReference, details: Sequence[Any]
) -> ClientOperation[None]:
    """Report that the activity was cancelled."""

    def build(call: ReportCancellationAsyncActivityInput) -> ClientOperation[None]:
        request = CompleteActivity(
            **_address(call),
            identity=session.identity,
            cancelled=True,
            cancelled_details=tuple(session.converter.encode_all(call.args)),
        )
        return asking(request, nothing)

    call = ReportCancellationAsyncActivityInput(**_address(reference), args=list(details), _proceed=build)
    return through(session, call)


def reset(
    session: ClientSession, reference: ActivityReference, reset_heartbeat: bool
) -> ClientOperation[None]:
    """Restart an activity from its first attempt."""
    reference.addressed_by_ids("reset")
    request = ResetActivity(
        workflow_id=reference.workflow_id,
        run_id=reference.run_id,
        activity_id=reference.activity_id,
        reset_heartbeat=reset_heartbeat,
        identity=session.identity,
    )
    return asking(request, nothing)


def heartbeat(
    session: ClientSession, reference: ActivityReference, details: Sequence[Any]
) -> ClientOperation[bool]:
    """Send a heartbeat. The operation returns whether cancellation of the activity was requested."""

    def parse(answer: HeartbeatAnswer) -> bool:
        return answer.cancel_requested

    def build(call: HeartbeatAsyncActivityInput) -> ClientOperation[bool]:
        details = tuple(session.converter.encode_all(call.args))
        return asking(HeartbeatActivity(**_address(call), identity=session.identity, details=details), parse)

    call = HeartbeatAsyncActivityInput(**_address(reference), args=list(details), _proceed=build)
    return through(session, call)
