"""Operations on schedules, written once for both faces. Nothing here waits.

A server takes an update whose conflict token is stale, drops it and reports success. So an update looks afterwards whether
the schedule has become what was sent, and begins again from what it is now where it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.schedules import (
    CreateSchedule,
    DeleteSchedule,
    DescribeSchedule,
    ListSchedules,
    OverlapPolicy,
    PatchSchedule,
    Schedule,
    ScheduleDescription,
    SchedulePage,
    UpdateSchedule,
    canonical,
)
from hourglass._engine.options import INT32, Duration, named_values, optional_seconds, several, whole_number
from hourglass.client import _schedule_data as data
from hourglass.client._schedule_forms import (
    backfill_form,
    description_from,
    listed_from,
    refuse_empty,
    schedule_form,
)
from hourglass.client._session import Operation, Session, asking, nothing
from hourglass.converter import Payload, SearchAttributes, encode_search_attributes
from hourglass.errors import ServiceError, UsageError

PAUSED, UNPAUSED = "Paused by Hourglass", "Unpaused by Hourglass"
"""What is noted where nothing is said: a server takes an empty note for no request at all."""

_TRIES = 5

Change: TypeAlias = Callable[[data.ScheduleDescription], data.Schedule | None]
"""What the author of an update gives: from how a schedule is to how it shall be, or None to leave it."""

Steps: TypeAlias = Generator[Operation[Any], Any, None]
"""Operations, one after the other; each result is sent back in before the next is asked for."""


@dataclass(frozen=True)
class ListedSchedules:
    """A page of a list, and where to go on (empty at the end)."""

    items: tuple[data.ScheduleListDescription, ...]
    next_page_token: bytes


def refer_schedule(schedule_id: str) -> str:
    """The id of a schedule, checked. Asks nobody."""
    if not isinstance(schedule_id, str) or not schedule_id.strip():
        raise UsageError("a schedule's id must be a text that is not empty")
    return schedule_id


def create(
    session: Session,
    schedule_id: str,
    schedule: data.Schedule,
    *,
    trigger_immediately: bool,
    backfill: Sequence[data.ScheduleBackfill],
    memo: Mapping[str, Any] | None,
    search_attributes: SearchAttributes | None,
    rpc_timeout: Duration | None,
) -> Operation[str]:
    """Create a schedule; gives its id."""
    form = schedule_form(schedule, refer_schedule(schedule_id), session.converter, session.identity)
    session.meet(schedule.action.workflow)
    refuse_empty(form.spec)
    if form.state.limited_actions and not form.state.remaining_actions:
        raise UsageError("a schedule with limited_actions needs remaining_actions, how many are left to it")
    request = CreateSchedule(
        schedule_id=schedule_id,
        schedule=form,
        request_id=new_id(),
        identity=session.identity,
        trigger_immediately=trigger_immediately,
        backfill=tuple(backfill_form(each) for each in several(backfill, "backfill")),
        memo={
            name: session.converter.encode(value) for name, value in named_values(memo or {}, "memo").items()
        },
        search_attributes=encode_search_attributes(search_attributes or {}),
        rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
    )
    return asking(request, lambda _answer: schedule_id)


def list_page(session: Session, query: str, page_size: int, token: bytes) -> Operation[ListedSchedules]:
    """One page of the schedules that match."""

    def parse(page: SchedulePage) -> ListedSchedules:
        items = tuple(listed_from(summary, session.converter) for summary in page.schedules)
        return ListedSchedules(items, page.next_page_token)

    size = whole_number(page_size, "page_size", 1, INT32)
    return asking(ListSchedules(query=query, page_size=size, next_page_token=token), parse)


def describe(
    session: Session, schedule_id: str, rpc_timeout: Duration | None
) -> Operation[data.ScheduleDescription]:
    """Look at a schedule."""
    request = DescribeSchedule(
        schedule_id=schedule_id, rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout")
    )
    return asking(request, lambda answer: description_from(answer, session.converter))


def patch(
    session: Session,
    schedule_id: str,
    rpc_timeout: Duration | None,
    *,
    pause: str | None = None,
    unpause: str | None = None,
    trigger: OverlapPolicy | None = None,
    backfill: Sequence[data.ScheduleBackfill] = (),
) -> Operation[None]:
    """Pause, unpause, trigger or backfill."""
    request = PatchSchedule(
        schedule_id=schedule_id,
        request_id=new_id(),
        identity=session.identity,
        pause=pause,
        unpause=unpause,
        trigger=trigger,
        backfill=tuple(backfill_form(each) for each in backfill),
        rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
    )
    return asking(request, nothing)


def trigger(
    session: Session, schedule_id: str, overlap: OverlapPolicy | None, rpc_timeout: Duration | None
) -> Operation[None]:
    """Act now."""
    policy = OverlapPolicy(OverlapPolicy.UNSPECIFIED if overlap is None else overlap)
    return patch(session, schedule_id, rpc_timeout, trigger=policy)


def backfill(
    session: Session,
    schedule_id: str,
    backfills: Sequence[data.ScheduleBackfill],
    rpc_timeout: Duration | None,
) -> Operation[None]:
    """Act for times of the past."""
    if not backfills:
        raise UsageError("backfill needs at least one ScheduleBackfill")
    return patch(session, schedule_id, rpc_timeout, backfill=backfills)


def delete(session: Session, schedule_id: str, rpc_timeout: Duration | None) -> Operation[None]:
    """Delete a schedule."""
    request = DeleteSchedule(
        schedule_id=schedule_id,
        identity=session.identity,
        rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout"),
    )
    return asking(request, nothing)


# --- updating -----------------------------------------------------------------------------------------------


def update(session: Session, schedule_id: str, change: Change, rpc_timeout: Duration | None) -> Steps:
    """Change a schedule: look, ask the author, send, and look whether it came to be."""
    limit = optional_seconds(rpc_timeout, "rpc_timeout")
    look: Operation[ScheduleDescription] = asking(
        DescribeSchedule(schedule_id=schedule_id, rpc_timeout=limit), lambda answer: answer
    )
    seen: ScheduleDescription = yield look
    for _ in range(_TRIES):
        wanted = change(description_from(seen, session.converter))
        if wanted is None:
            return
        form = schedule_form(wanted, schedule_id, session.converter, session.identity)
        session.meet(wanted.action.workflow)
        yield asking(
            UpdateSchedule(
                schedule_id=schedule_id,
                schedule=form,
                request_id=new_id(),
                conflict_token=seen.conflict_token,
                identity=session.identity,
                rpc_timeout=limit,
            ),
            nothing,
        )
        before, seen = seen, (yield look)
        if seen.conflict_token != before.conflict_token and _same(form, seen.schedule):
            return
    raise ServiceError(
        f"schedule {schedule_id!r} was changed by others each of the {_TRIES} times that the update was tried",
        status="ABORTED",
    )


def _same(sent: Schedule, found: Schedule) -> bool:
    try:
        return _plain(sent) == _plain(found)
    except UsageError:  # what we would refuse is not what was sent
        return False


def _plain(schedule: Schedule) -> Schedule:
    """A schedule without what a service adds to it or leaves out."""
    action, policy = schedule.action, schedule.policy
    attributes = {name: Payload(each.data) for name, each in action.search_attributes.items()}
    return msgspec.structs.replace(
        schedule,
        spec=canonical(schedule.spec),
        action=msgspec.structs.replace(
            action, request_id="", identity="", search_attributes=attributes, rpc_timeout=None
        ),
        policy=msgspec.structs.replace(
            policy,
            overlap=policy.overlap or OverlapPolicy.SKIP,
            catchup_window=max(policy.catchup_window, 10.0) if policy.catchup_window else 365 * 86400.0,
        ),
    )
