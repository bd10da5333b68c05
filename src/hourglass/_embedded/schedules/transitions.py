"""A schedule of the embedded engine as data, and pure transitions from record to record, with the workflows to start
and to end.

Must not know: clocks, stores, workflows. The engine keeps a `ScheduleRecord` for each schedule. It calls:

- `advance` when the schedule is due (`ScheduleAdvance.wake_ns`), after every request, and after every `closed`. The engine
  then starts the workflows in `starts` (with `start_request`) and calls `started` for each success. It requests the
  cancellation of those in `cancel` and terminates those in `terminate`. All this happens in the transaction that stores
  the new record.
- `closed` when a workflow that the record lists as running has closed, including its retries and continuations.
- `create`, `patch` and `update` for requests, `describe` and `summarize` for queries.

Times are nanoseconds since the epoch. Overlap and catch-up are decided as in Temporal's scheduler: the overlap policy
determines for each buffered start whether it is executed now, stays buffered, or is skipped. A buffered start has the
policy of its request. Without one, the schedule's policy at the time of the decision applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec

from hourglass._contract.schedule_specs import (
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleBackfill,
    ScheduleInfo,
    ScheduleOverlapPolicy,
    ScheduleSpec,
    nanoseconds_of,
    time_from,
)
from hourglass._contract.schedules import (
    CreateSchedule,
    EngineSchedule,
    PatchSchedule,
    ScheduleDetails,
    ScheduleSummary,
    UpdateSchedule,
)
from hourglass._contract.spec_checks import canonical
from hourglass._contract.workflows import StartWorkflow, WorkflowStatus
from hourglass._embedded.schedules.times import ScheduledTime, Timetable, check_limits
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Failure, Payload, SearchAttributeKey, encode_search_attributes

MAX_BUFFERED = 1000
"""The maximum number of buffered starts. Further starts are dropped and counted."""

Running: TypeAlias = tuple[str, str]
"""A workflow of a schedule that has not closed, as its workflow id and first run id."""


class BufferedStart(msgspec.Struct, frozen=True, array_like=True):
    """A buffered start: its nominal time, the same time with jitter, its overlap policy, and whether a request caused it."""

    nominal_ns: int
    due_ns: int
    overlap: ScheduleOverlapPolicy = ScheduleOverlapPolicy.UNSPECIFIED
    manual: bool = False


class OverlapDecision(NamedTuple):
    """The decision about the buffered starts: those to start together, the one to start alone, those that stay buffered,
    the number skipped, and whether to end the running workflows.
    """

    together: tuple[BufferedStart, ...] = ()
    alone: BufferedStart | None = None
    waiting: tuple[BufferedStart, ...] = ()
    skipped: int = 0
    cancel: bool = False
    terminate: bool = False


def decide_overlap(
    waiting: Sequence[BufferedStart], running: bool, default: ScheduleOverlapPolicy
) -> OverlapDecision:
    """Decide about each buffered start in order, by the start's own overlap policy or the schedule's."""
    decision = OverlapDecision()
    for start in waiting:
        policy = start.overlap or default or ScheduleOverlapPolicy.SKIP
        if policy is ScheduleOverlapPolicy.ALLOW_ALL:
            decision = decision._replace(together=(*decision.together, start))
        elif not running and decision.alone is None:
            decision = decision._replace(alone=start)
        else:
            decision = _overlapping(decision, start, policy, running)
    if decision.cancel or decision.terminate:
        # A policy that ends running workflows would immediately end these starts, too.
        decision = decision._replace(together=())
    return decision


def _overlapping(
    decision: OverlapDecision, start: BufferedStart, policy: ScheduleOverlapPolicy, running: bool
) -> OverlapDecision:
    buffered = decision._replace(waiting=(*decision.waiting, start))
    match policy:
        case ScheduleOverlapPolicy.BUFFER_ONE if not decision.waiting:
            return buffered
        case ScheduleOverlapPolicy.BUFFER_ALL:
            return buffered
        case ScheduleOverlapPolicy.CANCEL_OTHER | ScheduleOverlapPolicy.TERMINATE_OTHER if not running:
            return decision._replace(alone=start)  # replaces an earlier start, not a running workflow
        case ScheduleOverlapPolicy.CANCEL_OTHER:
            return buffered._replace(cancel=True)
        case ScheduleOverlapPolicy.TERMINATE_OTHER:
            return buffered._replace(terminate=True)
        case _:
            return decision._replace(skipped=decision.skipped + 1)


YEAR = timedelta(days=365)
SHORTEST_CATCHUP = timedelta(seconds=10)
RECENT, UPCOMING = 10, 10
REQUEST_IDS = 32
"""The number of recent request ids to remember. A request that is repeated because its answer was lost is then not
carried out twice.
"""

RECENT_LISTED, UPCOMING_LISTED = 5, 5


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The complete state of a schedule. Its times up to `seen_ns` have been processed. `schedule.spec` is canonical.

    The result of the last completed workflow, and the failure of a later one, are passed to the next workflow.
    `terminated_ns` is the last time at which the overlap policy terminated a workflow.
    """

    schedule_id: str
    schedule: EngineSchedule
    seen_ns: int
    create_time_ns: int
    update_time_ns: int = 0
    token: int = 1
    waiting: tuple[BufferedStart, ...] = ()
    backfills: tuple[ScheduleBackfill, ...] = ()
    running: tuple[Running, ...] = ()
    recent: tuple[ScheduleActionResult, ...] = ()
    action_count: int = 0
    missed_catchup: int = 0
    skipped_overlap: int = 0
    dropped: int = 0
    last_result: Payloads = ()
    last_failure: Failure | None = None
    requests: tuple[str, ...] = ()
    terminated_ns: int = 0
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


def with_request(record: ScheduleRecord, request_id: str) -> ScheduleRecord:
    """Return the record with this request marked as carried out."""
    if not request_id:
        return record
    return msgspec.structs.replace(record, requests=(*record.requests, request_id)[-REQUEST_IDS:])


def token_of(record: ScheduleRecord) -> bytes:
    """Return the conflict token of this version of the schedule, which updates refer to."""
    return record.token.to_bytes(8)


def describe(record: ScheduleRecord) -> ScheduleDetails:
    """Return the details of a schedule."""
    return ScheduleDetails(
        schedule_id=record.schedule_id,
        schedule=record.schedule,
        info=ScheduleInfo(
            num_actions=record.action_count,
            num_actions_missed_catchup_window=record.missed_catchup,
            num_actions_skipped_overlap=record.skipped_overlap,
            num_actions_dropped=record.dropped,
            num_actions_waiting=len(record.waiting),
            running_actions=tuple(ScheduleActionExecutionStartWorkflow(*ids) for ids in record.running),
            recent_actions=record.recent,
            next_action_times=_upcoming(record, UPCOMING),
            created_at=time_from(record.create_time_ns),
            last_updated_at=time_from(record.update_time_ns),
        ),
        memo=record.memo,
        search_attributes=record.search_attributes,
        conflict_token=token_of(record),
    )


def summarize(record: ScheduleRecord) -> ScheduleSummary:
    """Return the list entry of a schedule."""
    return ScheduleSummary(
        schedule_id=record.schedule_id,
        workflow_type=record.schedule.action.workflow_type,
        paused=record.schedule.state.paused,
        note=record.schedule.state.note,
        spec=record.schedule.spec,
        recent_actions=record.recent[-RECENT_LISTED:],
        next_action_times=_upcoming(record, UPCOMING_LISTED),
        memo=record.memo,
        search_attributes=record.search_attributes,
    )


@lru_cache(maxsize=1000)
def timetable(spec: ScheduleSpec, schedule_id: str) -> Timetable:
    """Return the timetable of a schedule. Recently used timetables are cached."""
    return Timetable(spec, schedule_id)


def _upcoming(record: ScheduleRecord, count: int) -> tuple[datetime, ...]:
    table = timetable(record.schedule.spec, record.schedule_id)
    return tuple(_time(moment.due_ns) for moment in islice(table.moments(record.seen_ns), count))


def look_ahead(spec: ScheduleSpec, schedule_id: str, after_ns: int) -> None:
    """Compile a spec and cache its next times. May be called in any thread."""
    for _ in islice(_batch(timetable(spec, schedule_id), after_ns), SEARCHED_AHEAD):
        pass


def with_defaults(schedule: EngineSchedule) -> EngineSchedule:
    """Return a schedule with its defaults filled in, as servers show it.

    Raise `UsageError` for an invalid or too large spec.
    """
    check_limits(schedule.spec)
    policy = schedule.policy
    window = max(policy.catchup_window, SHORTEST_CATCHUP) if policy.catchup_window else YEAR
    overlap = policy.overlap or ScheduleOverlapPolicy.SKIP
    return msgspec.structs.replace(
        schedule,
        spec=canonical(schedule.spec),
        policy=replace(policy, overlap=overlap, catchup_window=window),
    )


BATCH = 500  # maximum number of times per step: a spec that matches every second of a year must not block the engine
SEARCHED_AHEAD = 32  # number of times to search ahead; must be lower than the number that a timetable caches
BACKFILL_BATCH = 50  # maximum number of starts per step from backfills

TERMINATE_NS = 100_000_000
"""The time that a server needs to replace a workflow that it terminates. All triggers during this time start the same
workflow.
"""

_MILLI = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_STARTED_BY = SearchAttributeKey.for_keyword("TemporalScheduledById")
_STARTED_FOR = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")


class Start(NamedTuple):
    """A workflow to start now. The schedule awaits the workflow's end unless the policy allows overlap."""

    due: BufferedStart
    workflow_id: str
    is_awaited: bool


class ScheduleAdvance(NamedTuple):
    """The result of processing a schedule, and the time at which to process it again if nothing happens before (None:
    never).
    """

    record: ScheduleRecord
    starts: tuple[Start, ...] = ()
    cancel: tuple[Running, ...] = ()
    terminate: tuple[Running, ...] = ()
    wake_ns: int | None = None


def advance(record: ScheduleRecord, now_ns: int) -> ScheduleAdvance:
    """Process the time up to `now_ns`: buffer, start or skip the due actions."""
    now_ns = max(now_ns, record.seen_ns)  # a clock that was set back must not repeat actions
    record, wake_ns = _buffer_due(record, now_ns)
    record = _buffer_backfills(record)
    record, starts, cancel, terminate = _decide(record)
    if terminate:
        record = msgspec.structs.replace(record, terminated_ns=now_ns)
    return ScheduleAdvance(
        record, starts, cancel, terminate, _earlier(wake_ns, _backfill_wake(record, now_ns))
    )


def _buffer_due(record: ScheduleRecord, now_ns: int) -> tuple[ScheduleRecord, int | None]:
    table = timetable(record.schedule.spec, record.schedule_id)
    if not may_act(record):
        return msgspec.structs.replace(record, seen_ns=now_ns), None
    oldest = now_ns - _nanoseconds(record.schedule.policy.catchup_window or YEAR)
    missed, waiting, seen_ns = 0, list(record.waiting), record.seen_ns
    wake_ns: int | None = now_ns  # if the batch ends too early, continue immediately
    for moment in _batch(table, record.seen_ns):
        if moment is None or moment.due_ns > now_ns:
            wake_ns = None if moment is None else moment.due_ns
            # A nominal time that has passed must be found again if its jitter has not passed.
            seen_ns = now_ns if moment is None else min(now_ns, moment.nominal_ns - 1)
            break
        seen_ns = moment.due_ns
        if moment.due_ns <= record.update_time_ns:
            continue
        if moment.due_ns < oldest:
            missed += 1
        else:
            waiting.append(BufferedStart(moment.nominal_ns, moment.due_ns))
    changed = _with_buffer(record, waiting)
    return msgspec.structs.replace(
        changed, seen_ns=seen_ns, missed_catchup=record.missed_catchup + missed
    ), wake_ns


def _batch(table: Timetable, after_ns: int) -> Iterator[ScheduledTime | None]:
    """Yield the next times, up to a limit. Yield None if the schedule has no further times."""
    count, limit = 0, _batch_size(table)
    for moment in islice(table.moments(after_ns), limit):
        count += 1
        yield moment
    if count < limit:
        yield None


def _batch_size(table: Timetable) -> int:
    """Return the number of times that a step may process. It is lower if each time takes longer to find."""
    return max(10, BATCH // (1 + table.size // 10))


def _buffer_backfills(record: ScheduleRecord) -> ScheduleRecord:
    """Buffer the starts of backfills, one batch per step and only while the buffer is less than half full. The other
    half is reserved for due times.
    """
    table = timetable(record.schedule.spec, record.schedule_id)
    waiting, backfills = list(record.waiting), list(record.backfills)
    room = min(BACKFILL_BATCH, _batch_size(table), MAX_BUFFERED // 2 - len(waiting))
    while backfills and room > 0:
        backfill = backfills.pop(0)
        end_ns = nanoseconds_of(backfill.end_at)
        overlap = backfill.overlap or ScheduleOverlapPolicy.UNSPECIFIED
        for moment in table.moments(nanoseconds_of(backfill.start_at) - _MILLI):
            if moment.due_ns > end_ns:
                break
            if room == 0:
                backfills.insert(0, replace(backfill, start_at=_time(moment.nominal_ns)))
                break
            room -= 1
            waiting.append(BufferedStart(moment.nominal_ns, moment.due_ns, overlap, manual=True))
    return msgspec.structs.replace(record, waiting=tuple(waiting), backfills=tuple(backfills))


def _decide(
    record: ScheduleRecord,
) -> tuple[ScheduleRecord, tuple[Start, ...], tuple[Running, ...], tuple[Running, ...]]:
    """Decide about all buffered starts. Drop starts that the schedule's state forbids: it is paused or has no actions
    left.
    """
    starts: list[Start] = []
    running = record.running
    while True:
        decision = decide_overlap(record.waiting, bool(running), record.schedule.policy.overlap)
        record = msgspec.structs.replace(
            record,
            waiting=decision.waiting,
            skipped_overlap=record.skipped_overlap + decision.skipped,
        )
        alone = () if decision.alone is None else (decision.alone,)
        is_any_forbidden = False
        for buffered in (*decision.together, *alone):
            if not buffered.manual and not may_act(record):
                is_any_forbidden = True
                continue
            record = record if buffered.manual else _use_action(record)
            starts.append(
                Start(buffered, _workflow_id(record.schedule, buffered), buffered is decision.alone)
            )
        if not is_any_forbidden or any(start.is_awaited for start in starts):
            break
    cancel = running if decision.cancel and not decision.terminate else ()
    return record, tuple(starts), cancel, running if decision.terminate else ()


def _backfill_wake(record: ScheduleRecord, now_ns: int) -> int | None:
    """Return `now_ns` if a backfill can continue immediately. A backfill with buffered starts continues when a workflow
    closes.
    """
    return now_ns if record.backfills and not record.waiting else None


def _earlier(first: int | None, second: int | None) -> int | None:
    return min((time for time in (first, second) if time is not None), default=None)


def identity(record: ScheduleRecord) -> str:
    """Return the identity that a schedule reports in the histories of its workflows."""
    return f"hourglass-scheduler-{record.schedule_id}"


def start_request(record: ScheduleRecord, start: Start, request_id: str) -> StartWorkflow:
    """Return the request that starts a workflow of a schedule."""
    nominal = _time(start.due.nominal_ns)
    schedule_attributes = encode_search_attributes(
        [_STARTED_BY.value_set(record.schedule_id), _STARTED_FOR.value_set(nominal)]
    )
    action = record.schedule.action
    search_attributes = {**action.spec.search_attributes, **schedule_attributes}
    return msgspec.structs.replace(
        action,
        workflow_id=start.workflow_id,
        request_id=request_id,
        identity=identity(record),
        spec=msgspec.structs.replace(action.spec, search_attributes=search_attributes),
    )


def started(record: ScheduleRecord, start: Start, run_id: str, now_ns: int) -> ScheduleRecord:
    """Record that the schedule has started a workflow."""
    action = ScheduleActionResult(
        scheduled_at=_time(start.due.due_ns),
        started_at=_time(now_ns),
        action=ScheduleActionExecutionStartWorkflow(start.workflow_id, run_id),
    )
    running = ((start.workflow_id, run_id),) if start.is_awaited else ()
    return msgspec.structs.replace(
        record,
        action_count=record.action_count + 1,
        recent=(*record.recent, action)[-RECENT:],
        running=(*record.running, *running),
    )


def closed(
    record: ScheduleRecord,
    workflow_id: str,
    status: WorkflowStatus,
    result: Payloads = (),
    failure: Failure | None = None,
) -> ScheduleRecord:
    """Record that a workflow of the schedule has closed and does not continue in another run, with its result or failure."""
    running = tuple(workflow for workflow in record.running if workflow[0] != workflow_id)
    if len(running) == len(record.running):
        return record
    record = msgspec.structs.replace(record, running=running)
    if result:
        record = msgspec.structs.replace(record, last_result=result, last_failure=None)
    elif failure is not None:
        record = msgspec.structs.replace(record, last_failure=failure)
    message = "" if failure is None else failure.message
    pause_note = {
        WorkflowStatus.FAILED: f"paused due to workflow failure: {workflow_id}: {message}",
        WorkflowStatus.TIMED_OUT: f"paused due to workflow timeout: {workflow_id}",
    }.get(status)
    if pause_note is None or not record.schedule.policy.pause_on_failure or record.schedule.state.paused:
        return record
    return _with_state(record, paused=True, note=pause_note)


def create(request: CreateSchedule, now_ns: int) -> ScheduleRecord:
    """Create a schedule. Raise `UsageError` for an invalid spec."""
    record = ScheduleRecord(
        schedule_id=request.schedule_id,
        schedule=with_defaults(request.schedule),
        seen_ns=now_ns,
        create_time_ns=now_ns,
        backfills=request.backfill,
        memo=request.memo,
        search_attributes=request.search_attributes,
    )
    return (
        _with_trigger(record, ScheduleOverlapPolicy.UNSPECIFIED, now_ns)
        if request.trigger_immediately
        else record
    )


def patch(record: ScheduleRecord, request: PatchSchedule, now_ns: int) -> ScheduleRecord:
    """Process the due times, then apply a request to trigger, backfill, pause or unpause the schedule."""
    record, _ = _buffer_due(record, max(now_ns, record.seen_ns))
    if request.trigger is not None:
        record = _with_trigger(record, request.trigger, now_ns)
    if request.backfill:
        record = msgspec.structs.replace(record, backfills=(*record.backfills, *request.backfill))
    if request.pause:
        record = _with_state(record, paused=True, note=request.pause)
    if request.unpause:
        record = _with_state(record, paused=False, note=request.unpause)
    return record


def update(record: ScheduleRecord, request: UpdateSchedule, now_ns: int) -> ScheduleRecord:
    """Process the due times, then replace the schedule.

    As on servers, an update that is based on an older version is ignored. Clients check whether their update was
    applied.
    """
    if request.conflict_token and request.conflict_token != token_of(record):
        return record
    record, _ = _buffer_due(record, max(now_ns, record.seen_ns))
    schedule = with_defaults(request.schedule)
    # A time still counts if its jitter has not passed.
    seen_ns = now_ns - _nanoseconds(schedule.spec.jitter or timedelta())
    return msgspec.structs.replace(
        record, schedule=schedule, seen_ns=seen_ns, update_time_ns=now_ns, token=record.token + 1
    )


def may_act(record: ScheduleRecord) -> bool:
    """Whether a schedule starts workflows automatically: it is not paused and has actions left."""
    state = record.schedule.state
    return not state.paused and (not state.limited_actions or state.remaining_actions > 0)


def _use_action(record: ScheduleRecord) -> ScheduleRecord:
    state = record.schedule.state
    if not state.limited_actions:
        return record
    return _with_state(record, remaining_actions=state.remaining_actions - 1)


def _with_state(record: ScheduleRecord, **changes: object) -> ScheduleRecord:
    state = replace(record.schedule.state, **changes)  # type: ignore[arg-type]
    schedule = msgspec.structs.replace(record.schedule, state=state)
    return msgspec.structs.replace(record, schedule=schedule, token=record.token + 1)


def _with_trigger(record: ScheduleRecord, overlap: ScheduleOverlapPolicy, now_ns: int) -> ScheduleRecord:
    terminates = (overlap or record.schedule.policy.overlap) is ScheduleOverlapPolicy.TERMINATE_OTHER
    if terminates and 0 <= now_ns - record.terminated_ns < TERMINATE_NS:
        return record  # the replacement that is starting now also serves this trigger
    return _with_buffer(record, [*record.waiting, BufferedStart(now_ns, now_ns, overlap, manual=True)])


def _with_buffer(record: ScheduleRecord, waiting: list[BufferedStart]) -> ScheduleRecord:
    overflow = max(0, len(waiting) - MAX_BUFFERED)
    return msgspec.structs.replace(
        record, waiting=tuple(waiting[:MAX_BUFFERED]), dropped=record.dropped + overflow
    )


def _workflow_id(schedule: EngineSchedule, start: BufferedStart) -> str:
    if schedule.policy.keep_original_workflow_id:
        return schedule.action.workflow_id
    nominal = _time(start.nominal_ns)
    return f"{schedule.action.workflow_id}-{nominal:%Y-%m-%dT%H:%M:%SZ}"


def _time(nanoseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def _nanoseconds(duration: timedelta) -> int:
    return duration // _MICROSECOND * 1000
