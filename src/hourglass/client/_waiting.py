"""Waiting for a run to close, on the control loop: along its successors, through outages, and not in silence.

A wait changes nothing, so it is repeated where the service cannot be reached for a while. A run that is
parked never closes by itself: whoever waits for it is told once, in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from typing import Any

import msgspec

from hourglass._contract.service import (
    DescribeWorkflow,
    GetHistory,
    Outcome,
    RunCompleted,
    RunContinued,
    RunFailed,
    RunTimedOut,
    StillOpen,
    WaitForClose,
)
from hourglass.client._session import Session
from hourglass.errors import HourglassError, ServiceError

logger = logging.getLogger("hourglass")

_TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})
_LONGEST_OUTAGE = 60.0
_LONGEST_PAUSE = 5.0
# Above this a history is not fetched for the sake of a log line.
_LONGEST_HISTORY = 2000


class Closed(msgspec.Struct, frozen=True):
    """How a run closed, and which run of the chain it was."""

    run_id: str
    outcome: Outcome


def wait_for_close(
    session: Session, workflow_id: str, run_id: str, *, follow: bool, timeout: float | None
) -> Coroutine[Any, Any, Closed]:
    """Wait until a run, or with `follow` the last of its successors, closes."""
    if timeout is None:
        return _watch(session, workflow_id, run_id, follow)
    return _watch_within(timeout, session, workflow_id, run_id, follow)


async def _watch_within(
    timeout: float, session: Session, workflow_id: str, run_id: str, follow: bool
) -> Closed:
    try:
        async with session.within(timeout):
            return await _watch(session, workflow_id, run_id, follow)
    except TimeoutError as error:
        if isinstance(error, ServiceError):
            raise
        raise TimeoutError(
            f"workflow {workflow_id!r} has not closed within {timeout:g} s; it goes on, "
            "and its result can be asked for again"
        ) from None


async def _watch(session: Session, workflow_id: str, run_id: str, follow: bool) -> Closed:
    told = False
    while True:
        request = WaitForClose(workflow_id=workflow_id, run_id=run_id)
        try:
            outcome = await session.call(request)
        except ServiceError as error:
            outcome = await _ask_through_outage(session, request, error)
        if isinstance(outcome, StillOpen):
            told = told or await _tell_if_parked(session, workflow_id, outcome.run_id or run_id)
            continue
        successor = _successor(outcome)
        if not successor:
            return Closed(run_id, outcome)
        if not follow:
            # A server tells of any run that another follows (the next of a cron schedule, a retry) as of one that was
            # continued as new, whatever it returned; an engine that knows better tells the same.
            return Closed(run_id, RunContinued(successor))
        run_id = successor


def _successor(outcome: Outcome) -> str:
    match outcome:
        case RunCompleted() | RunFailed() | RunTimedOut() | RunContinued():
            return outcome.new_run_id
        case _:
            return ""


async def _ask_through_outage(session: Session, request: WaitForClose, error: ServiceError) -> Outcome:
    """While the service cannot be reached ask again, for as long as an outage may last."""
    if error.status not in _TRANSIENT:
        raise error
    logger.warning(
        "waiting for workflow %s goes on although the service does not answer: %s", request.workflow_id, error
    )
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), 0.2
    while True:
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        try:
            return await session.call(request)
        except ServiceError as again:
            if again.status not in _TRANSIENT or loop.time() - began > _LONGEST_OUTAGE:
                raise


async def _tell_if_parked(session: Session, workflow_id: str, run_id: str) -> bool:
    """Log that the run is parked, if it is. A wait must not fail because it could not find out."""
    try:
        description = await session.call(DescribeWorkflow(workflow_id=workflow_id, run_id=run_id))
        if description.task_attempt <= 1:
            return False
        reason = ""
        if description.summary.history_length <= _LONGEST_HISTORY:
            reason = await _last_task_failure(session, workflow_id, run_id)
    except HourglassError:
        return False
    logger.warning(
        "workflow %s (run %s) is parked: its task has failed and is tried again (attempt %d) "
        "until the code is mended; %s",
        workflow_id,
        description.summary.run_id,
        description.task_attempt,
        f"the last failure was: {reason}" if reason else "the worker's log says why",
    )
    return True


async def _last_task_failure(session: Session, workflow_id: str, run_id: str) -> str:
    reason, token = "", b""
    while True:
        page = await session.call(GetHistory(workflow_id=workflow_id, run_id=run_id, next_page_token=token))
        for event in page.events:
            reason = _task_failure(event) or reason
        token = page.next_page_token
        if not token:
            return reason


def _task_failure(event: bytes) -> str:
    if b"workflowTaskFailedEventAttributes" not in event:
        return ""
    failure = json.loads(event)["workflowTaskFailedEventAttributes"].get("failure", {})
    return str(failure.get("message", ""))
