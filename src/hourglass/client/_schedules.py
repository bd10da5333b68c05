"""Operations on schedules. Nothing here waits.

A server accepts an update with a stale conflict token, drops the update, and reports success. An update therefore reads the
schedule afterwards and compares it with the one that was sent. If they differ, the update is repeated from the new
description.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec

from hourglass._contract.ids import new_id
from hourglass._contract.schedule_specs import ScheduleBackfill, ScheduleOverlapPolicy
from hourglass._contract.schedules import (
    CreateSchedule,
    DeleteSchedule,
    DescribeSchedule,
    EngineSchedule,
    ListSchedules,
    PatchSchedule,
    ScheduleDetails,
    SchedulePage,
    UpdateSchedule,
)
from hourglass._contract.spec_checks import canonical
from hourglass._evaluator.options import (
    named_values,
)
from hourglass.client import _schedule_data as data
from hourglass.client import _schedule_forms as forms
from hourglass.client._calls import (
    BackfillScheduleInput,
    CreateScheduleInput,
    DeleteScheduleInput,
    DescribeScheduleInput,
    ListSchedulesInput,
    PauseScheduleInput,
    ScheduleInput,
    TriggerScheduleInput,
    UnpauseScheduleInput,
    UpdateScheduleInput,
)
from hourglass.client._session import ClientOperation, ClientSession, asking, listing, nothing, through
from hourglass.converter import Converter, Payload, SearchAttributes, encode_search_attributes
from hourglass.errors import ServiceError, UsageError

PAUSED, UNPAUSED = "Paused by Hourglass", "Unpaused by Hourglass"
"""The default notes, because a server ignores a request with an empty note."""

_TRIES = 5

Change: TypeAlias = Callable[[data.ScheduleDescription], data.Schedule | None]
"""The function of an update: receives a schedule's description and returns the new schedule, or None to leave the schedule
unchanged.
"""


@dataclass(frozen=True)
class ListedSchedules:
    """A page of a list of schedules. `next_page_token` is empty on the last page."""

    items: tuple[data.ScheduleListDescription, ...]
    next_page_token: bytes


def refer_schedule(schedule_id: str) -> str:
    """Return the id of a schedule after checking it, without sending a request."""
    if not isinstance(schedule_id, str) or not schedule_id.strip():
        raise UsageError("a schedule's id must be a non-empty str")
    return schedule_id


def create(
    session: ClientSession,
    schedule_id: str,
    schedule: data.Schedule,
    *,
    trigger_immediately: bool,
    backfill: Sequence[ScheduleBackfill],
    memo: Mapping[str, Any] | None,
    search_attributes: SearchAttributes | None,
) -> ClientOperation[str]:
    """Create a schedule and return its id."""

    def build(call: CreateScheduleInput) -> ClientOperation[str]:
        converter = _converter_of(session, call.schedule, call.id)
        form = forms.schedule_form(call.schedule, refer_schedule(call.id), converter, session.identity)
        session.register_workflow(call.schedule.action.workflow)
        forms.reject_empty(form.spec)
        if form.state.limited_actions and not form.state.remaining_actions:
            raise UsageError(
                "a schedule with limited_actions needs remaining_actions, the number of actions left"
            )
        notes = named_values(call.memo or {}, "memo")
        request = CreateSchedule(
            schedule_id=call.id,
            schedule=form,
            request_id=new_id(),
            identity=session.identity,
            trigger_immediately=call.trigger_immediately,
            backfill=forms.backfill_form(call.backfill),
            memo={name: session.converter.encode(value) for name, value in notes.items()},
            search_attributes=encode_search_attributes(call.search_attributes or {}),
        )
        return asking(request, lambda _answer: call.id)

    call = CreateScheduleInput(
        id=schedule_id,
        schedule=schedule,
        trigger_immediately=trigger_immediately,
        backfill=backfill,
        memo=memo,
        search_attributes=search_attributes,
        _proceed=build,
    )
    return through(session, call)


def _converter_of(session: ClientSession, schedule: Any, schedule_id: str) -> Converter:
    """Return the converter for the action of a schedule. Its values belong to the workflow id without the appended time."""
    options = getattr(getattr(schedule, "action", None), "options", None)
    named = options.get("id", schedule_id) if isinstance(options, Mapping) else schedule_id
    return session.of_workflow(named).converter


def _described(session: ClientSession, seen: ScheduleDetails) -> data.ScheduleDescription:
    return forms.description_from(seen, session.of_workflow(seen.schedule.action.workflow_id).converter)


def list_page(
    session: ClientSession, query: str, page_size: int, token: bytes
) -> ClientOperation[ListedSchedules]:
    """Return one page of the matching schedules."""

    def parse(page: SchedulePage) -> ListedSchedules:
        items = tuple(forms.listed_from(summary, session.converter) for summary in page.schedules)
        return ListedSchedules(items, page.next_page_token)

    return listing(session, ListSchedulesInput, ListSchedules, parse, query, page_size, token)


def describe(session: ClientSession, schedule_id: str) -> ClientOperation[data.ScheduleDescription]:
    """Return the description of a schedule."""

    def build(call: DescribeScheduleInput) -> ClientOperation[data.ScheduleDescription]:
        request = DescribeSchedule(schedule_id=call.id)
        return asking(request, lambda answer: _described(session, answer))

    return through(session, DescribeScheduleInput(id=schedule_id, _proceed=build))


_PATCHES: dict[type[ScheduleInput], Callable[[Any], dict[str, Any]]] = {
    PauseScheduleInput: lambda call: {"pause": call.note or PAUSED},
    UnpauseScheduleInput: lambda call: {"unpause": call.note or UNPAUSED},
    TriggerScheduleInput: lambda call: {
        "trigger": ScheduleOverlapPolicy(0 if call.overlap is None else call.overlap)
    },
    BackfillScheduleInput: lambda call: {"backfill": _times_to_fill(call.backfill)},
}


def patch(
    session: ClientSession, kind: Callable[..., Any], schedule_id: str, **arguments: Any
) -> ClientOperation[None]:
    """Pause or resume a schedule, or run its action now or for past times, according to the class of the call."""

    def build(call: ScheduleInput) -> ClientOperation[None]:
        request = PatchSchedule(
            schedule_id=call.id, request_id=new_id(), identity=session.identity, **_PATCHES[type(call)](call)
        )
        return asking(request, nothing)

    return through(session, kind(id=schedule_id, **arguments, _proceed=build))


def _times_to_fill(backfill: Sequence[ScheduleBackfill]) -> tuple[ScheduleBackfill, ...]:
    if not backfill:
        raise UsageError("backfill needs at least one ScheduleBackfill")
    return forms.backfill_form(backfill)


def delete(session: ClientSession, schedule_id: str) -> ClientOperation[None]:
    """Delete a schedule."""

    def build(call: DeleteScheduleInput) -> ClientOperation[None]:
        return asking(DeleteSchedule(schedule_id=call.id, identity=session.identity), nothing)

    return through(session, DeleteScheduleInput(id=schedule_id, _proceed=build))


def update(session: ClientSession, schedule_id: str, change: Change) -> ClientOperation[None]:
    """Change a schedule: describe it, call `change`, send the result, and check whether the update took effect."""

    def build(call: UpdateScheduleInput) -> ClientOperation[None]:
        describe = DescribeSchedule(schedule_id=call.id)
        return asking(describe, lambda seen: _send_change(session, call, describe, seen, _TRIES))

    return through(session, UpdateScheduleInput(id=schedule_id, change=change, _proceed=build))


def _send_change(
    session: ClientSession,
    call: UpdateScheduleInput,
    describe: DescribeSchedule,
    before: ScheduleDetails,
    tries: int,
) -> ClientOperation[None] | None:
    """Call the function of an update. Return the operation that sends its result and checks whether it took effect, or None
    if the schedule remains unchanged.
    """
    if not tries:
        raise ServiceError(
            f"schedule {call.id!r} was not updated: other clients changed it during each of {_TRIES} attempts",
            status="ABORTED",
        )
    changed = call.change(_described(session, before))
    if changed is None:
        return None
    converter = _converter_of(session, changed, call.id)
    form = forms.schedule_form(changed, call.id, converter, session.identity)
    session.register_workflow(changed.action.workflow)
    request = UpdateSchedule(
        schedule_id=call.id,
        schedule=form,
        request_id=new_id(),
        conflict_token=before.conflict_token,
        identity=session.identity,
    )

    async def ask(session: ClientSession) -> ScheduleDetails:
        await session.call(request)
        return await session.call(describe)

    def check(after: ScheduleDetails) -> ClientOperation[None] | None:
        # A server reports success even for an update that it dropped. Only a new token and equal content prove that the
        # update took effect.
        if after.conflict_token != before.conflict_token and is_same_schedule(form, after.schedule):
            return None
        return _send_change(session, call, describe, after, tries - 1)

    return ClientOperation(ask, check)


def is_same_schedule(sent: EngineSchedule, stored: EngineSchedule) -> bool:
    """Whether a schedule that a service returned is equal to the one that was sent."""
    try:
        return _plain(sent) == _plain(stored)
    except UsageError:  # a schedule that we would reject is not the one that was sent
        return False


def _plain(schedule: EngineSchedule) -> EngineSchedule:
    """Return a schedule without the fields that a service adds or omits."""
    action, policy = schedule.action, schedule.policy
    attributes = {name: Payload(payload.data) for name, payload in action.spec.search_attributes.items()}
    return msgspec.structs.replace(
        schedule,
        spec=canonical(schedule.spec),
        action=msgspec.structs.replace(
            action,
            request_id="",
            identity="",
            spec=msgspec.structs.replace(action.spec, search_attributes=attributes),
            rpc_timeout=None,
        ),
        policy=replace(
            policy,
            overlap=policy.overlap or ScheduleOverlapPolicy.SKIP,
            catchup_window=max(policy.catchup_window, _SHORTEST_CATCHUP) if policy.catchup_window else _YEAR,
        ),
    )


_SHORTEST_CATCHUP, _YEAR = timedelta(seconds=10), timedelta(days=365)
