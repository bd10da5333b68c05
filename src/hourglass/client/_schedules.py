"""Operations on schedules, written once for both faces. Nothing here waits.

A server takes an update whose conflict token is stale, drops it and reports success. So an update looks afterwards
whether the schedule has become what was sent, and begins again from what it is now where it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from hourglass._contract.schedules import (
    CreateSchedule,
    DeleteSchedule,
    DescribeSchedule,
    EngineSchedule,
    ListSchedules,
    OverlapPolicy,
    PatchSchedule,
    ScheduleDetails,
    SchedulePage,
    UpdateSchedule,
    canonical,
)
from hourglass._contract.service import new_id
from hourglass._evaluator.options import (
    named_values,
    several,
)
from hourglass.client import _schedule_data as data
from hourglass.client._calls import (
    BackfillScheduleInput,
    CreateScheduleInput,
    DeleteScheduleInput,
    DescribeScheduleInput,
    ListSchedulesInput,
    PauseScheduleInput,
    TriggerScheduleInput,
    UnpauseScheduleInput,
    UpdateScheduleInput,
)
from hourglass.client._session import ClientOperation, ClientSession, Steps, asking, listing, nothing, through
from hourglass.converter import Converter, Payload, SearchAttributes, encode_search_attributes
from hourglass.errors import ServiceError, UsageError

PAUSED, UNPAUSED = "Paused by Hourglass", "Unpaused by Hourglass"
"""What is noted where nothing is said: a server takes an empty note for no request at all."""

_TRIES = 5

Change: TypeAlias = Callable[[data.ScheduleDescription], data.Schedule | None]
"""What the author of an update gives: from how a schedule is to how it shall be, or None to leave it."""


@dataclass(frozen=True)
class ListedSchedules:
    """A page of a list, and where to go on (empty at the end)."""

    items: tuple[data.ScheduleListDescription, ...]
    next_page_token: bytes


def refer_schedule(schedule_id: str) -> str:
    """The id of a schedule, checked. Sends no request."""
    if not isinstance(schedule_id, str) or not schedule_id.strip():
        raise UsageError("a schedule's id must be a non-empty str")
    return schedule_id


def create(
    session: ClientSession,
    schedule_id: str,
    schedule: data.Schedule,
    *,
    trigger_immediately: bool,
    backfill: Sequence[data.ScheduleBackfill],
    memo: Mapping[str, Any] | None,
    search_attributes: SearchAttributes | None,
) -> ClientOperation[str]:
    """Create a schedule; gives its id."""

    def build(call: CreateScheduleInput) -> ClientOperation[str]:
        converter = _converter_of(session, call.schedule, call.id)
        form = data.schedule_form(call.schedule, refer_schedule(call.id), converter, session.identity)
        session.meet(call.schedule.action.workflow)
        data.refuse_empty(form.spec)
        if form.state.limited_actions and not form.state.remaining_actions:
            raise UsageError(
                "a schedule with limited_actions needs remaining_actions, how many are left to it"
            )
        notes = named_values(call.memo or {}, "memo")
        request = CreateSchedule(
            schedule_id=call.id,
            schedule=form,
            request_id=new_id(),
            identity=session.identity,
            trigger_immediately=call.trigger_immediately,
            backfill=tuple(data.backfill_form(each) for each in several(call.backfill, "backfill")),
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
    """The converter for what a schedule starts: its values are those of the workflow's id, before the time is added."""
    options = getattr(getattr(schedule, "action", None), "options", None)
    named = options.get("id", schedule_id) if isinstance(options, Mapping) else schedule_id
    return session.of_workflow(named).converter


def _described(session: ClientSession, seen: ScheduleDetails) -> data.ScheduleDescription:
    return data.description_from(seen, session.of_workflow(seen.schedule.action.workflow_id).converter)


def list_page(
    session: ClientSession, query: str, page_size: int, token: bytes
) -> ClientOperation[ListedSchedules]:
    """One page of the schedules that match."""

    def parse(page: SchedulePage) -> ListedSchedules:
        items = tuple(data.listed_from(summary, session.converter) for summary in page.schedules)
        return ListedSchedules(items, page.next_page_token)

    return listing(session, ListSchedulesInput, ListSchedules, parse, query, page_size, token)


def describe(session: ClientSession, schedule_id: str) -> ClientOperation[data.ScheduleDescription]:
    """Look at a schedule."""

    def build(call: DescribeScheduleInput) -> ClientOperation[data.ScheduleDescription]:
        request = DescribeSchedule(schedule_id=call.id)
        return asking(request, lambda answer: _described(session, answer))

    return through(session, DescribeScheduleInput(id=schedule_id, _proceed=build))


def _patch(
    session: ClientSession,
    schedule_id: str,
    *,
    pause: str | None = None,
    unpause: str | None = None,
    trigger: OverlapPolicy | None = None,
    backfill: Sequence[data.ScheduleBackfill] = (),
) -> ClientOperation[None]:
    """One request for four calls."""
    request = PatchSchedule(
        schedule_id=schedule_id,
        request_id=new_id(),
        identity=session.identity,
        pause=pause,
        unpause=unpause,
        trigger=trigger,
        backfill=tuple(data.backfill_form(each) for each in backfill),
    )
    return asking(request, nothing)


def pause(session: ClientSession, schedule_id: str, note: str) -> ClientOperation[None]:
    """Let it rest."""

    def build(call: PauseScheduleInput) -> ClientOperation[None]:
        return _patch(session, call.id, pause=call.note or PAUSED)

    return through(session, PauseScheduleInput(id=schedule_id, note=note, _proceed=build))


def unpause(session: ClientSession, schedule_id: str, note: str) -> ClientOperation[None]:
    """Let it act again."""

    def build(call: UnpauseScheduleInput) -> ClientOperation[None]:
        return _patch(session, call.id, unpause=call.note or UNPAUSED)

    return through(session, UnpauseScheduleInput(id=schedule_id, note=note, _proceed=build))


def trigger(session: ClientSession, schedule_id: str, overlap: OverlapPolicy | None) -> ClientOperation[None]:
    """Act now."""

    def build(call: TriggerScheduleInput) -> ClientOperation[None]:
        policy = OverlapPolicy(OverlapPolicy.UNSPECIFIED if call.overlap is None else call.overlap)
        return _patch(session, call.id, trigger=policy)

    return through(session, TriggerScheduleInput(id=schedule_id, overlap=overlap, _proceed=build))


def backfill(
    session: ClientSession,
    schedule_id: str,
    backfills: Sequence[data.ScheduleBackfill],
) -> ClientOperation[None]:
    """Act for times of the past."""

    def build(call: BackfillScheduleInput) -> ClientOperation[None]:
        if not call.backfill:
            raise UsageError("backfill needs at least one ScheduleBackfill")
        return _patch(session, call.id, backfill=call.backfill)

    return through(session, BackfillScheduleInput(id=schedule_id, backfill=backfills, _proceed=build))


def delete(session: ClientSession, schedule_id: str) -> ClientOperation[None]:
    """Delete a schedule."""

    def build(call: DeleteScheduleInput) -> ClientOperation[None]:
        request = DeleteSchedule(
            schedule_id=call.id,
            identity=session.identity,
        )
        return asking(request, nothing)

    return through(session, DeleteScheduleInput(id=schedule_id, _proceed=build))


# --- updating -----------------------------------------------------------------------------------------------


def update(session: ClientSession, schedule_id: str, change: Change) -> UpdateScheduleInput:
    """Change a schedule: several operations, for `run_steps`."""
    return UpdateScheduleInput(
        id=schedule_id,
        change=change,
        _proceed=lambda call: _updating(session, call.id, call.change),
    )


def _updating(session: ClientSession, schedule_id: str, change: Change) -> Steps:
    """Look, ask the author, send, and look whether it came to be."""
    look: ClientOperation[ScheduleDetails] = asking(
        DescribeSchedule(schedule_id=schedule_id), lambda answer: answer
    )
    seen: ScheduleDetails = yield look
    for _ in range(_TRIES):
        wanted = change(_described(session, seen))
        if wanted is None:
            return
        converter = _converter_of(session, wanted, schedule_id)
        form = data.schedule_form(wanted, schedule_id, converter, session.identity)
        session.meet(wanted.action.workflow)
        yield asking(
            UpdateSchedule(
                schedule_id=schedule_id,
                schedule=form,
                request_id=new_id(),
                conflict_token=seen.conflict_token,
                identity=session.identity,
            ),
            nothing,
        )
        # A server reports success for an update that it dropped: only a new token and equal content prove it.
        before, seen = seen, (yield look)
        if seen.conflict_token != before.conflict_token and is_same_schedule(form, seen.schedule):
            return
    raise ServiceError(
        f"schedule {schedule_id!r} was changed by others each of the {_TRIES} times that the update was tried",
        status="ABORTED",
    )


def is_same_schedule(sent: EngineSchedule, found: EngineSchedule) -> bool:
    """Whether a schedule that a service returns is the one that was sent."""
    try:
        return _plain(sent) == _plain(found)
    except UsageError:  # what we would refuse is not what was sent
        return False


def _plain(schedule: EngineSchedule) -> EngineSchedule:
    """A schedule without what a service adds to it or leaves out."""
    action, policy = schedule.action, schedule.policy
    attributes = {name: Payload(each.data) for name, each in action.spec.search_attributes.items()}
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
        policy=msgspec.structs.replace(
            policy,
            overlap=policy.overlap or OverlapPolicy.SKIP,
            catchup_window=max(policy.catchup_window, 10.0) if policy.catchup_window else 365 * 86400.0,
        ),
    )
