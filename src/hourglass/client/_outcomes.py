"""How a workflow ended, as its caller sees it: a value, or an error that says why there is none.

Must not know: how it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hourglass._contract.service import (
    RunCanceled,
    RunCompleted,
    RunContinued,
    RunFailed,
    RunTerminated,
    RunTimedOut,
)
from hourglass.client._waiting import Closed
from hourglass.converter import Converter, Payload
from hourglass.errors import (
    CancelledError,
    InternalError,
    TerminatedError,
    TimedOutError,
    TimeoutType,
    WorkflowContinuedAsNewError,
    WorkflowFailedError,
    summary,
)


def result_of(workflow_id: str, return_type: Any, converter: Converter, closed: Closed) -> Any:
    """What a workflow returned; raises for every other end."""
    name = f"workflow {workflow_id!r}"
    match closed.outcome:
        case RunCompleted(result=payloads):
            return first(payloads, return_type, converter)
        case RunFailed(failure=failure):
            cause = converter.from_failure(failure)
            raise WorkflowFailedError(f"{name} failed: {summary(cause)}") from cause
        case RunCanceled(details=details):
            cause = CancelledError("Workflow cancelled", *_all(details, converter))
            raise WorkflowFailedError(f"{name} was cancelled") from cause
        case RunTerminated(reason=reason, details=details):
            cause = TerminatedError(reason or "Workflow terminated", *_all(details, converter))
            raise WorkflowFailedError(f"{name} was terminated{f': {reason}' if reason else ''}") from cause
        case RunTimedOut():
            cause = TimedOutError("Workflow timed out", type=TimeoutType.START_TO_CLOSE)
            raise WorkflowFailedError(f"{name} timed out") from cause
        case RunContinued(new_run_id=new_run_id):
            raise WorkflowContinuedAsNewError(
                f"{name} continued as a new run, {new_run_id}", new_run_id=new_run_id
            )
        case other:
            raise InternalError(f"{name} closed in an unknown way: {type(other).__name__}")


def first(payloads: Sequence[Payload], type: Any, converter: Converter) -> Any:
    """The answer among payloads: other SDKs send none at all for nothing."""
    return converter.decode(payloads[0], type) if payloads else None


def _all(payloads: Sequence[Payload], converter: Converter) -> list[Any]:
    return [converter.decode(payload) for payload in payloads]
