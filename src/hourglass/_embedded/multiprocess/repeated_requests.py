"""The check whether a request was carried out, if its answer was lost and its repetition is rejected.

This is needed only for requests without an id that the engine remembers: the repetition is rejected because the first
request succeeded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from hourglass._contract import activities as ac
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.schedules import DeleteSchedule
from hourglass._embedded.runs.run import AttemptToken
from hourglass._history import events as h
from hourglass._history.codec import read_event
from hourglass.errors import HourglassError

Call: TypeAlias = Callable[[s.Request[Any]], Awaitable[Any]]


async def was_carried_out(request: s.Request[Any], call: Call) -> bool:
    """Whether the state that the request should create exists already, so that the request must have been carried out
    before.
    """
    try:
        match request:
            case DeleteSchedule():
                return True  # the schedule no longer exists, as requested
            case ac.CompleteActivity(token=token) if token:
                return await _has_ended(AttemptToken.decode(token), call)
    except (HourglassError, ValueError):
        pass  # the rejection is final
    return False


async def _has_ended(token: AttemptToken, call: Call) -> bool:
    """Whether the history records the completion of this attempt. Only a caller with the attempt's token can have
    caused it.
    """
    attempts: dict[int, int] = {}
    async for event in _events(token.run_id, call):
        match event.attributes:
            case h.ActivityTaskStarted(scheduled_event_id=scheduled, attempt=attempt):
                attempts[scheduled] = attempt
            case (
                h.ActivityTaskCompleted(scheduled_event_id=scheduled)
                | h.ActivityTaskFailed(scheduled_event_id=scheduled)
                | h.ActivityTaskCanceled(scheduled_event_id=scheduled)
            ) if scheduled == token.scheduled_event_id:
                return attempts.get(scheduled) == token.attempt
            case _:
                pass
    return False


async def _events(run_id: str, call: Call) -> AsyncIterator[h.HistoryEvent]:
    listed: wf.Page = await call(wf.ListWorkflows(query=f"RunId = '{run_id}'"))
    for summary in listed.workflows:
        token = b""
        while True:
            request = wf.GetHistory(workflow_id=summary.workflow_id, run_id=run_id, next_page_token=token)
            page: wf.HistoryPage = await call(request)
            for event in page.events:
                yield read_event(msgspec.json.decode(event))
            token = page.next_page_token
            if not token:
                break
