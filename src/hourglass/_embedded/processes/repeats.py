"""Whether a request that was sent again, because its answer was lost, had been carried out the first time.

Most requests have an id that the engine remembers. These do not, and a second one is refused because the first
succeeded: what there is now tells. Must not know: how a request finds its engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from hourglass._contract import service as s
from hourglass._contract.schedules import DeleteSchedule
from hourglass._embedded.engine.run import Token
from hourglass.errors import HourglassError

Call: TypeAlias = Callable[[s.Request[Any]], Awaitable[Any]]

_ENDS = {
    f"EVENT_TYPE_ACTIVITY_TASK_{end.upper()}": f"activityTask{end.capitalize()}EventAttributes"
    for end in ("completed", "failed", "canceled")
}


async def was_carried_out(request: s.Request[Any], call: Call) -> bool:
    """Whether what was asked for is so, and can be taken for this request's doing."""
    try:
        match request:
            case DeleteSchedule():
                return True  # it was there when it was asked for first, or is as good as deleted
            case s.CompleteActivity(token=token) if token:
                return await _has_ended(Token.decode(token), call)
    except (HourglassError, ValueError):
        pass  # then the refusal stands
    return False


async def _has_ended(token: Token, call: Call) -> bool:
    """Whether this very attempt is on record with an end: only whoever has the token can have given it."""
    attempts: dict[int, int] = {}
    async for event in _events(token.run_id, call):
        kind = event.get("eventType", "")
        if kind == "EVENT_TYPE_ACTIVITY_TASK_STARTED":
            started = event["activityTaskStartedEventAttributes"]
            attempts[int(started["scheduledEventId"])] = started.get("attempt", 1)
        elif kind in _ENDS and int(event[_ENDS[kind]]["scheduledEventId"]) == token.scheduled_event_id:
            return attempts.get(token.scheduled_event_id) == token.attempt
    return False


async def _events(run_id: str, call: Call) -> AsyncIterator[dict[str, Any]]:
    found: s.Page = await call(s.ListWorkflows(query=f"RunId = '{run_id}'"))
    for summary in found.workflows:
        token = b""
        while True:
            asked = s.GetHistory(workflow_id=summary.workflow_id, run_id=run_id, next_page_token=token)
            page: s.HistoryPage = await call(asked)
            for event in page.events:
                yield msgspec.json.decode(event)
            token = page.next_page_token
            if not token:
                break
