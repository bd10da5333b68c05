"""Operations on schedules, written once for both faces, and schedules into what travels and back. Nothing here waits.

The forms (what travels) are pure: checked, encoded, decoded.

A server takes an update whose conflict token is stale, drops it and reports success. So an update looks afterwards
whether the schedule has become what was sent, and begins again from what it is now where it has not.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from hourglass._contract import schedules as sc
from hourglass._contract.ids import new_id
from hourglass._contract.schedules import (
    FIELDS,
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
    is_empty,
)
from hourglass._contract.workflows import StartWorkflow
from hourglass._engine.options import (
    INT32,
    INT64,
    Duration,
    RetryPolicy,
    check_text,
    choice,
    named_values,
    seconds,
    several,
    whole_number,
)
from hourglass._engine.specs import RetryRule
from hourglass.client import _schedule_data as data
from hourglass.client._interception import (
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
from hourglass.client._options import start_request
from hourglass.client._session import ClientOperation, ClientSession, Steps, asking, nothing, through
from hourglass.client._values import attributes_from, memo_from, time_from
from hourglass.converter import Converter, Payload, SearchAttributes, encode_search_attributes
from hourglass.errors import ServiceError, UsageError
from hourglass.workflow._references import given_workflow

# --- forms: what travels --------------------------------------------------------------------------


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN = tuple(data.ScheduleStartOptions.__annotations__)


# --- out ----------------------------------------------------------------------------------------------------


def schedule_form(
    schedule: data.Schedule, schedule_id: str, converter: Converter, identity: str
) -> sc.EngineSchedule:
    """A schedule as it travels. Raises `UsageError` and `ArgumentError` where it makes no sense."""
    if not isinstance(schedule, data.Schedule):
        raise UsageError(f"a schedule is a Schedule(action=…, spec=…), not a {type(schedule).__name__}")
    action, foreign = _action_form(schedule.action, schedule_id, converter, identity)
    spec = spec_form(schedule.spec)
    canonical(spec)  # so that nothing is sent that makes no sense
    policy, state = schedule.policy, schedule.state
    if not isinstance(policy, data.SchedulePolicy):
        raise UsageError(f"policy is a SchedulePolicy, not a {type(policy).__name__}")
    if not isinstance(state, data.ScheduleState):
        raise UsageError(f"state is a ScheduleState, not a {type(state).__name__}")
    whole_number(state.remaining_actions, "remaining_actions", -INT64, INT64)
    if state.remaining_actions < 0 or (state.remaining_actions and not state.limited_actions):
        raise UsageError("remaining_actions counts actions from 0 on, and only with limited_actions=True")
    return sc.EngineSchedule(
        action=action,
        spec=spec,
        policy=sc.EngineSchedulePolicy(
            overlap=choice(sc.OverlapPolicy, policy.overlap, "overlap"),
            catchup_window=_seconds(policy.catchup_window, "catchup_window"),
            pause_on_failure=policy.pause_on_failure,
            keep_original_workflow_id=policy.keep_original_workflow_id,
        ),
        state=sc.EngineScheduleState(
            note=state.note,
            paused=state.paused,
            limited_actions=state.limited_actions,
            remaining_actions=state.remaining_actions,
        ),
        foreign=foreign,
    )


def refuse_empty(spec: sc.EngineScheduleSpec) -> None:
    """Refuse a new spec that bounds or skips times, and names none. Those that exist may: other SDKs let them pass.

    One that says nothing at all is meant: that schedule acts when it is triggered.
    """
    if is_empty(spec) and (spec.skip or spec.start_at_ns or spec.end_at_ns or spec.jitter):
        raise UsageError(
            "the schedule names no time: its ScheduleSpec needs calendars, intervals or cron_expressions, or nothing at all "
            "where it is only triggered"
        )
    for calendar in (*spec.calendars, *spec.skip):
        for field in FIELDS:
            if field.name != "year" and not getattr(calendar, field.name):
                raise UsageError(f"{field.name} of a calendar is empty: it would never match")


def spec_form(spec: data.ScheduleSpec) -> sc.EngineScheduleSpec:
    """When a schedule acts, as it travels."""
    if not isinstance(spec, data.ScheduleSpec):
        raise UsageError(f"spec is a ScheduleSpec, not a {type(spec).__name__}")
    if isinstance(spec.cron_expressions, str):
        raise UsageError("cron_expressions is a list of texts, not one text: put it in brackets")
    return sc.EngineScheduleSpec(
        calendars=tuple(_calendar_form(each) for each in several(spec.calendars, "calendars")),
        intervals=tuple(_interval_form(each) for each in several(spec.intervals, "intervals")),
        cron_expressions=tuple(
            check_text(each, "a cron expression")
            for each in several(spec.cron_expressions, "cron_expressions")
        ),
        skip=tuple(_calendar_form(each) for each in several(spec.skip, "skip")),
        start_at_ns=_nanos(spec.start_at, "start_at"),
        end_at_ns=_nanos(spec.end_at, "end_at"),
        jitter=_seconds(spec.jitter, "jitter"),
        time_zone=spec.time_zone_name or "",
        time_zone_data=spec._time_zone_data,
    )


def backfill_form(backfill: data.ScheduleBackfill) -> sc.Backfill:
    """A backfill as it travels."""
    if not isinstance(backfill, data.ScheduleBackfill):
        raise UsageError(f"a backfill is a ScheduleBackfill, not a {type(backfill).__name__}")
    return sc.Backfill(
        start_ns=_nanos(backfill.start_at, "start_at"),
        end_ns=_nanos(backfill.end_at, "end_at"),
        overlap=choice(sc.OverlapPolicy, backfill.overlap or sc.OverlapPolicy.UNSPECIFIED, "overlap"),
    )


def _interval_form(interval: data.ScheduleIntervalSpec) -> sc.IntervalSpec:
    if not isinstance(interval, data.ScheduleIntervalSpec):
        raise UsageError(f"an interval is a ScheduleIntervalSpec, not a {type(interval).__name__}")
    return sc.IntervalSpec(seconds(interval.every, "every"), seconds(interval.offset, "offset"))


def _calendar_form(calendar: data.ScheduleCalendarSpec) -> sc.CalendarSpec:
    if not isinstance(calendar, data.ScheduleCalendarSpec):
        raise UsageError(f"a calendar is a ScheduleCalendarSpec, not a {type(calendar).__name__}")
    ranges = {field.name: _ranges(getattr(calendar, field.name), field.name) for field in FIELDS}
    return sc.CalendarSpec(**ranges, comment=check_text(calendar.comment, "the comment of a calendar"))


def _ranges(numbers: data.Numbers, name: str) -> tuple[sc.Range, ...]:
    given = [numbers] if isinstance(numbers, (int, data.ScheduleRange)) else numbers
    ranges = []
    for each in given if isinstance(given, Iterable) else [given]:
        if isinstance(each, data.ScheduleRange):
            ranges.append(sc.Range(each.start, each.end, each.step))
        elif isinstance(each, int):
            ranges.append(sc.Range(each))
        else:
            raise UsageError(
                f"{name} of a calendar takes numbers and ScheduleRange, not a {type(each).__name__}"
            )
    return tuple(ranges)


def _action_form(
    action: data.ScheduleActionStartWorkflow, schedule_id: str, converter: Converter, identity: str
) -> tuple[StartWorkflow, bytes]:
    if not isinstance(action, data.ScheduleActionStartWorkflow):
        raise UsageError(f"action is a ScheduleActionStartWorkflow, not a {type(action).__name__}")
    if action._known is not None:
        return action._known
    for name in action.options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_KNOWN)}"
            raise UsageError(f"a schedule's action has no option {name!r} ({hint})")
    options = {"id": schedule_id, **action.options}
    headers = _headers(options.pop("headers", {}))
    request = start_request(given_workflow(action.workflow), action.args, options, converter, identity)
    return msgspec.structs.replace(request, headers=headers), b""


def _headers(given: object) -> dict[str, Payload]:
    headers = named_values(given, "headers")
    for name, each in headers.items():
        if not isinstance(each, Payload):
            raise UsageError(f"headers are payloads by name: that of {name!r} is a {type(each).__name__}")
    return dict(headers)


def _seconds(duration: Duration | None, what: str) -> float:
    return 0.0 if duration is None else seconds(duration, what)


def _nanos(time: datetime | None, what: str) -> int:
    if time is None:
        return 0
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError(f"{what} is a datetime with a time zone, such as datetime(2026, 1, 1, tzinfo=UTC)")
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


# --- in -----------------------------------------------------------------------------------------------------


def description_from(answer: sc.ScheduleDetails, converter: Converter) -> data.ScheduleDescription:
    """A schedule in detail."""
    return data.ScheduleDescription(
        id=answer.schedule_id,
        schedule=_schedule_from(answer.schedule, converter),
        info=_info_from(answer.info),
        memo=memo_from(answer.memo, converter),
        search_attributes=attributes_from(answer.search_attributes),
    )


def listed_from(summary: sc.ScheduleSummary, converter: Converter) -> data.ScheduleListDescription:
    """A schedule of a list."""
    return data.ScheduleListDescription(
        id=summary.schedule_id,
        workflow_type=summary.workflow_type,
        spec=spec_from(summary.spec),
        paused=summary.paused,
        note=summary.note,
        recent_actions=tuple(_result_from(action) for action in summary.recent_actions),
        next_action_times=_times_from(summary.next_times_ns),
        memo=memo_from(summary.memo, converter),
        search_attributes=attributes_from(summary.search_attributes),
    )


def spec_from(spec: sc.EngineScheduleSpec) -> data.ScheduleSpec:
    """When a schedule acts."""
    return data.ScheduleSpec(
        calendars=tuple(_calendar_from(each) for each in spec.calendars),
        intervals=tuple(
            data.ScheduleIntervalSpec(timedelta(seconds=each.every), timedelta(seconds=each.offset))
            for each in spec.intervals
        ),
        cron_expressions=spec.cron_expressions,
        skip=tuple(_calendar_from(each) for each in spec.skip),
        start_at=time_from(spec.start_at_ns),
        end_at=time_from(spec.end_at_ns),
        jitter=_duration(spec.jitter),
        time_zone_name=spec.time_zone or None,
        _time_zone_data=spec.time_zone_data,
    )


def _schedule_from(schedule: sc.EngineSchedule, converter: Converter) -> data.Schedule:
    policy, state = schedule.policy, schedule.state
    return data.Schedule(
        action=_action_from(schedule.action, schedule.foreign, converter),
        spec=spec_from(schedule.spec),
        policy=data.SchedulePolicy(
            overlap=policy.overlap,
            catchup_window=_duration(policy.catchup_window),
            pause_on_failure=policy.pause_on_failure,
            keep_original_workflow_id=policy.keep_original_workflow_id,
        ),
        state=data.ScheduleState(
            note=state.note,
            paused=state.paused,
            limited_actions=state.limited_actions,
            remaining_actions=state.remaining_actions,
        ),
    )


def _action_from(
    action: StartWorkflow, foreign: bytes, converter: Converter
) -> data.ScheduleActionStartWorkflow:
    options: dict[str, Any] = {"id": action.workflow_id, "task_queue": action.spec.task_queue}
    for name in ("execution_timeout", "run_timeout", "task_timeout"):
        if limit := getattr(action.spec, name):
            options[name] = timedelta(seconds=limit)
    if action.spec.retry_policy is not None and (policy := _policy_from(action.spec.retry_policy)):
        options["retry_policy"] = policy
    if action.spec.priority_key:
        options["priority_key"] = action.spec.priority_key
    if action.headers:
        options["headers"] = dict(action.headers)
    if action.spec.memo:
        options["memo"] = memo_from(action.spec.memo, converter)
    if action.spec.search_attributes:
        options["search_attributes"] = attributes_from(action.spec.search_attributes)
    args = memo_from({str(at): each for at, each in enumerate(action.arguments)}, converter)
    return data.ScheduleActionStartWorkflow._from_service(action, foreign, tuple(args.values()), options)


def _policy_from(rule: RetryRule) -> RetryPolicy | None:
    try:
        return RetryPolicy(
            initial_interval=rule.initial_interval or 1.0,
            backoff_coefficient=rule.backoff_coefficient or 2.0,
            maximum_interval=rule.maximum_interval or None,
            maximum_attempts=rule.maximum_attempts,
            non_retryable_error_types=rule.non_retryable_error_types,
        )
    except UsageError:  # others' policies need not keep our rules; the action itself keeps it as it is
        return None


def _calendar_from(calendar: sc.CalendarSpec) -> data.ScheduleCalendarSpec:
    ranges: Mapping[str, Any] = {
        field.name: tuple(
            data.ScheduleRange(each.start, each.end, each.step) for each in getattr(calendar, field.name)
        )
        for field in FIELDS
    }
    return data.ScheduleCalendarSpec(**ranges, comment=calendar.comment)


def _info_from(info: sc.EngineScheduleInfo) -> data.ScheduleInfo:
    return data.ScheduleInfo(
        num_actions=info.action_count,
        num_actions_missed_catchup_window=info.missed_catchup,
        num_actions_skipped_overlap=info.skipped_overlap,
        num_actions_dropped=info.buffer_dropped,
        num_actions_waiting=info.buffer_size,
        running_actions=tuple(data.ScheduleActionExecutionStartWorkflow(*each) for each in info.running),
        recent_actions=tuple(_result_from(action) for action in info.recent_actions),
        next_action_times=_times_from(info.next_times_ns),
        created_at=time_from(info.create_time_ns),
        last_updated_at=time_from(info.update_time_ns),
    )


def _result_from(action: sc.ScheduleAction) -> data.ScheduleActionResult:
    return data.ScheduleActionResult(
        scheduled_at=time_from(action.schedule_time_ns),
        started_at=time_from(action.actual_time_ns),
        action=data.ScheduleActionExecutionStartWorkflow(action.workflow_id, action.run_id),
    )


def _times_from(times: Sequence[int]) -> tuple[datetime, ...]:
    return tuple(time for time in map(time_from, times) if time is not None)


def _duration(value: float) -> timedelta | None:
    return timedelta(seconds=value) if value else None


# --- operations -----------------------------------------------------------------------------------


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
        raise UsageError("a schedule's id must be a text that is not empty")
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
        form = schedule_form(call.schedule, refer_schedule(call.id), converter, session.identity)
        session.meet(call.schedule.action.workflow)
        refuse_empty(form.spec)
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
            backfill=tuple(backfill_form(each) for each in several(call.backfill, "backfill")),
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
    return description_from(seen, session.of_workflow(seen.schedule.action.workflow_id).converter)


def list_page(
    session: ClientSession, query: str, page_size: int, token: bytes
) -> ClientOperation[ListedSchedules]:
    """One page of the schedules that match."""

    def parse(page: SchedulePage) -> ListedSchedules:
        items = tuple(listed_from(summary, session.converter) for summary in page.schedules)
        return ListedSchedules(items, page.next_page_token)

    def build(call: ListSchedulesInput) -> ClientOperation[ListedSchedules]:
        size = whole_number(call.page_size, "page_size", 1, INT32)
        request = ListSchedules(query=call.query, page_size=size, next_page_token=call.next_page_token)
        return asking(request, parse)

    call = ListSchedulesInput(query=query, page_size=page_size, next_page_token=token, _proceed=build)
    return through(session, call)


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
        backfill=tuple(backfill_form(each) for each in backfill),
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
        form = schedule_form(wanted, schedule_id, converter, session.identity)
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
        if seen.conflict_token != before.conflict_token and _same(form, seen.schedule):
            return
    raise ServiceError(
        f"schedule {schedule_id!r} was changed by others each of the {_TRIES} times that the update was tried",
        status="ABORTED",
    )


def _same(sent: EngineSchedule, found: EngineSchedule) -> bool:
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
