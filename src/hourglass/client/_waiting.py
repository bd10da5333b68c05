"""Waiting for a run to close, through outages and along its chain, and returning its result.

A wait does not change any state, so it is repeated while the service is temporarily unreachable. `WaitNotice` logs the
reason for a long wait.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hourglass._contract.service import Request
from hourglass._contract.workflows import (
    Outcome,
    RunCanceled,
    RunCompleted,
    RunContinued,
    RunFailed,
    RunTerminated,
    RunTimedOut,
    StillOpen,
    WaitForClose,
)
from hourglass.client._session import ClientSession
from hourglass.client._wait_notices import WaitNotice
from hourglass.converter import Converter, Payload
from hourglass.errors import (
    CancelledError,
    HourglassError,
    InternalError,
    ServiceError,
    TerminatedError,
    TimedOutError,
    TimeoutType,
    WorkflowContinuedAsNewError,
    WorkflowFailedError,
    summary,
)

logger = logging.getLogger("hourglass")

A = TypeVar("A")

TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})
"""The status codes of a service that is unreachable or overloaded."""
_LONGEST_OUTAGE = 60.0
FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


CONTINUES = "; it continues, and you can wait for its result again"


def wait_for_close(
    session: ClientSession, workflow_id: str, run_id: str, *, follow: bool, timeout: float | None
) -> Coroutine[Any, Any, Outcome]:
    """Wait until a run closes, or, with `follow`, until the last run of its chain closes."""
    if timeout is None:
        return _watch(session, workflow_id, run_id, follow)
    return _watch_within(timeout, session, workflow_id, run_id, follow)


async def _watch_within(
    timeout: float, session: ClientSession, workflow_id: str, run_id: str, follow: bool
) -> Outcome:
    async with in_time(session, timeout, f"workflow {workflow_id!r} did not close within", CONTINUES):
        return await _watch(session, workflow_id, run_id, follow)


async def _watch(session: ClientSession, workflow_id: str, run_id: str, follow: bool) -> Outcome:
    with WaitNotice(session, workflow_id, run_id) as notice:
        while True:
            request = WaitForClose(workflow_id=workflow_id, run_id=run_id)
            outcome = await call_through_outage(session, request)
            if isinstance(outcome, StillOpen):
                await notice.check()
                continue
            successor = successor_of(outcome)
            if not successor:
                return outcome
            if not follow:
                # If cron or a retry starts another run, a server reports this run as continued as new, whatever its result
                # was. The embedded engine has more information, but reports the same.
                return RunContinued(successor)
            run_id = notice.run_id = successor


def successor_of(outcome: Outcome) -> str:
    """Return the id of the run that follows a run with this outcome; empty if there is none."""
    match outcome:
        case RunCompleted() | RunFailed() | RunTimedOut() | RunContinued():
            return outcome.new_run_id
        case _:
            return ""


@asynccontextmanager
async def in_time(
    session: ClientSession, limit: float | None, late: str, more: str = ""
) -> AsyncIterator[None]:
    """Apply a timeout to the block. When it expires, raise a `TimeoutError` that contains `late`, the timeout, and `more`. A
    request with its own timeout raises its own error.
    """
    try:
        async with session.within(limit):
            yield
    except TimeoutError as error:
        if isinstance(error, HourglassError) or limit is None:
            raise
        raise TimeoutError(f"{late} {limit:g} s{more}") from None


async def call_through_outage(session: ClientSession, request: Request[A]) -> A:
    """Send a request that does not change any state. Repeat the request while the service cannot be reached, for at most the
    longest outage.
    """
    try:
        return await session.call(request)
    except ServiceError as error:
        if error.status not in TRANSIENT:
            raise
        logger.warning(
            "waiting for workflow %s continues although the service does not answer: %s",
            getattr(request, "workflow_id", ""),
            error,
        )
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), FIRST_PAUSE
    while True:
        await sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        try:
            return await session.call(request)
        except ServiceError as again:
            if again.status not in TRANSIENT or loop.time() - began > _LONGEST_OUTAGE:
                raise


def result_of(workflow_id: str, return_type: Any, converter: Converter, outcome: Outcome) -> Any:
    """Return a workflow's result. Raise an error if the workflow did not complete."""
    name = f"workflow {workflow_id!r}"
    match outcome:
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
                f"{name} continued as the new run {new_run_id}", new_run_id=new_run_id
            )
        case other:
            raise InternalError(f"{name} closed with an unknown outcome: {type(other).__name__}")


def first(payloads: Sequence[Payload], type: Any, converter: Converter) -> Any:
    """Return the first payload, decoded; None if there is no payload, as other SDKs send none for None."""
    return converter.decode(payloads[0], type) if payloads else None


def _all(payloads: Sequence[Payload], converter: Converter) -> list[Any]:
    return [converter.decode(payload) for payload in payloads]
