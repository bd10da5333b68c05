"""A schedule as the embedded engine keeps it, and what it does as time passes: pure transitions from record to
record, with what to start and to end on the way.

Must not know: clocks, stores, workflows. The engine keeps a `ScheduleRecord` for each schedule and drives it:

- `advance` when its time (`Step.wake_ns`) has come, after every request, and after every `closed`. The engine starts
  `Step.starts` (as `start_request` says), calls `started` for each that did, asks `Step.cancel` to cancel and ends
  `Step.terminate`; all in the transaction that keeps the new record.
- `closed` when a workflow that the record lists as running has closed, its retries and continuations included.
- `create`, `patch` and `update` for requests; the record's `describe` and `summarize` answer.

Times are nanoseconds since the epoch. Overlap and catch-up are decided as Temporal's scheduler decides them: the
overlap policy says which of the starts that wait go now, which wait on, and which are skipped; a start that must wait
keeps the policy that it came with, or gets the schedule's own at the moment it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec

from hourglass._contract.schedules import (
    Backfill,
    CreateSchedule,
    EngineSchedule,
    EngineScheduleInfo,
    EngineScheduleSpec,
    OverlapPolicy,
    PatchSchedule,
    ScheduleAction,
    ScheduleDetails,
    ScheduleSummary,
    UpdateSchedule,
)
from hourglass._contract.spec_checks import canonical
from hourglass._contract.workflows import StartWorkflow, WorkflowStatus
from hourglass._embedded.clock import storable
from hourglass._embedded.schedules.times import NANOS, ScheduledTime, Timetable, check_limits
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Failure, Payload, SearchAttributeKey, encode_search_attributes

# --- overlap policies ---------------------------------------------------------------------------------------

MOST_WAITING = 1000
"""So many starts may wait; what comes on top is dropped, and counted."""

Running: TypeAlias = tuple[str, str]
"""A workflow that a schedule started and waits for: its id and first run id."""


class Due(msgspec.Struct, frozen=True, array_like=True):
    """A start that is due: the time it stands for, the same with jitter, and what was asked for by hand with it."""

    nominal_ns: int
    due_ns: int
    overlap: OverlapPolicy = OverlapPolicy.UNSPECIFIED
    manual: bool = False


class Sorted(NamedTuple):
    """What to do: start some together, start one alone, let others wait, end what runs."""

    together: tuple[Due, ...] = ()
    alone: Due | None = None
    waiting: tuple[Due, ...] = ()
    skipped: int = 0
    cancel: bool = False
    terminate: bool = False


def sort_out(waiting: Sequence[Due], running: bool, default: OverlapPolicy) -> Sorted:
    """Decide about each start in its turn, by its own policy or the schedule's."""
    found = Sorted()
    for due in waiting:
        policy = due.overlap or default or OverlapPolicy.SKIP
        if policy is OverlapPolicy.ALLOW_ALL:
            found = found._replace(together=(*found.together, due))
        elif not running and found.alone is None:
            found = found._replace(alone=due)
        else:
            found = _overlapping(found, due, policy, running)
    if found.cancel or found.terminate:
        # They would be ended at once: a policy that ends what runs means these too.
        found = found._replace(together=())
    return found


def _overlapping(found: Sorted, due: Due, policy: OverlapPolicy, running: bool) -> Sorted:
    waits = found._replace(waiting=(*found.waiting, due))
    match policy:
        case OverlapPolicy.BUFFER_ONE if not found.waiting:
            return waits
        case OverlapPolicy.BUFFER_ALL:
            return waits
        case OverlapPolicy.CANCEL_OTHER | OverlapPolicy.TERMINATE_OTHER if not running:
            return found._replace(alone=due)  # the other one was only about to start
        case OverlapPolicy.CANCEL_OTHER:
            return waits._replace(cancel=True)
        case OverlapPolicy.TERMINATE_OTHER:
            return waits._replace(terminate=True)
        case _:
            return found._replace(skipped=found.skipped + 1)


# --- the record, and what clients are shown of it -----------------------------------------------------------

YEAR = 365 * 86400.0
SHORTEST_CATCHUP = 10.0
RECENT, UPCOMING = 10, 10
REMEMBERED = 32
"""So many requests are remembered: one that is sent again because its answer was lost is not carried out twice."""

RECENT_LISTED, UPCOMING_LISTED = 5, 5


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a schedule. `seen_ns` is up to when its times are dealt with; `schedule.spec` is
    canonical.

    The result of the last workflow that completed, and the failure if one has failed since, are given to the next.
    `terminated_ns` is when the overlap policy last terminated a workflow.
    """

    schedule_id: str
    schedule: EngineSchedule
    seen_ns: int
    create_time_ns: int
    update_time_ns: int = 0
    token: int = 1
    waiting: tuple[Due, ...] = ()
    backfills: tuple[Backfill, ...] = ()
    running: tuple[Running, ...] = ()
    recent: tuple[ScheduleAction, ...] = ()
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


def remembering(record: ScheduleRecord, request_id: str) -> ScheduleRecord:
    """A record that knows that this request was carried out."""
    if not request_id:
        return record
    return msgspec.structs.replace(record, requests=(*record.requests, request_id)[-REMEMBERED:])


def token_of(record: ScheduleRecord) -> bytes:
    """What an update of this version of the schedule must name."""
    return record.token.to_bytes(8)


def describe(record: ScheduleRecord) -> ScheduleDetails:
    """A schedule in detail."""
    return ScheduleDetails(
        schedule_id=record.schedule_id,
        schedule=record.schedule,
        info=EngineScheduleInfo(
            action_count=record.action_count,
            missed_catchup=record.missed_catchup,
            skipped_overlap=record.skipped_overlap,
            buffer_dropped=record.dropped,
            buffer_size=len(record.waiting),
            running=record.running,
            recent_actions=record.recent,
            next_times_ns=_upcoming(record, UPCOMING),
            create_time_ns=record.create_time_ns,
            update_time_ns=record.update_time_ns,
        ),
        memo=record.memo,
        search_attributes=record.search_attributes,
        conflict_token=token_of(record),
    )


def summarize(record: ScheduleRecord) -> ScheduleSummary:
    """A schedule as a list shows it."""
    return ScheduleSummary(
        schedule_id=record.schedule_id,
        workflow_type=record.schedule.action.workflow_type,
        paused=record.schedule.state.paused,
        note=record.schedule.state.note,
        spec=record.schedule.spec,
        recent_actions=record.recent[-RECENT_LISTED:],
        next_times_ns=_upcoming(record, UPCOMING_LISTED),
        memo=record.memo,
        search_attributes=record.search_attributes,
    )


@lru_cache(maxsize=1000)
def timetable(spec: EngineScheduleSpec, schedule_id: str) -> Timetable:
    """The times of a schedule, compiled once."""
    return Timetable(spec, schedule_id)


def _upcoming(record: ScheduleRecord, count: int) -> tuple[int, ...]:
    table = timetable(record.schedule.spec, record.schedule_id)
    return tuple(moment.due_ns for moment in islice(table.moments(record.seen_ns), count))


def look_ahead(spec: EngineScheduleSpec, schedule_id: str, after_ns: int) -> None:
    """Compile a spec and search its next times, which its timetable remembers. May be called in any thread."""
    for _ in islice(_batch(timetable(spec, schedule_id), after_ns), LOOKED_AHEAD):
        pass


def settled(schedule: EngineSchedule) -> EngineSchedule:
    """A schedule with its defaults written out, as servers show it. Raises `UsageError` for a spec that makes no
    sense, or that is too large.
    """
    check_limits(schedule.spec)
    policy = schedule.policy
    window = max(policy.catchup_window, SHORTEST_CATCHUP) if policy.catchup_window else YEAR
    overlap = policy.overlap or OverlapPolicy.SKIP
    return msgspec.structs.replace(
        schedule,
        spec=canonical(storable_spec(schedule.spec)),
        policy=msgspec.structs.replace(policy, overlap=overlap, catchup_window=window),
    )


def storable_spec(spec: EngineScheduleSpec) -> EngineScheduleSpec:
    """A spec whose first and last times can be stored: what lies beyond the latest time never comes."""
    return msgspec.structs.replace(
        spec, start_at_ns=storable(spec.start_at_ns), end_at_ns=storable(spec.end_at_ns)
    )


def storable_backfill(backfill: Backfill) -> Backfill:
    """The same for a backfill."""
    return msgspec.structs.replace(
        backfill, start_ns=storable(backfill.start_ns), end_ns=storable(backfill.end_ns)
    )


# --- transitions --------------------------------------------------------------------------------------------

BATCH = 500  # moments that one step looks at: a year of seconds must not stop the engine
LOOKED_AHEAD = 32  # moments that are searched ahead: fewer than a timetable remembers
BACKFILL_BATCH = 50  # starts that one step takes from backfills

GATHERING_NS = 100_000_000
"""How long a server takes to put a workflow in the place of one that it terminates; all triggers meanwhile are for that one."""

_MILLI = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STARTED_BY = SearchAttributeKey.for_keyword("TemporalScheduledById")
_STARTED_FOR = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")


class Start(NamedTuple):
    """A workflow to start now. Only those that do not overlap by policy are waited for."""

    due: Due
    workflow_id: str
    waited_for: bool


class ScheduleStep(NamedTuple):
    """What came of looking at a schedule, and when to look again if nothing happens before (None: never)."""

    record: ScheduleRecord
    starts: tuple[Start, ...] = ()
    cancel: tuple[Running, ...] = ()
    terminate: tuple[Running, ...] = ()
    wake_ns: int | None = None


# --- time ----------------------------------------------------------------------------------------------------


def advance(record: ScheduleRecord, now_ns: int) -> ScheduleStep:
    """Let time pass up to now: what is due is started, waits, or is skipped."""
    now_ns = max(now_ns, record.seen_ns)  # a clock that went back must not repeat anything
    record, wake_ns = _come_due(record, now_ns)
    record = _fill_back(record)
    record, starts, cancel, terminate = _act(record)
    if terminate:
        record = msgspec.structs.replace(record, terminated_ns=now_ns)
    return ScheduleStep(record, starts, cancel, terminate, _earlier(wake_ns, _backfill_wake(record, now_ns)))


def _come_due(record: ScheduleRecord, now_ns: int) -> tuple[ScheduleRecord, int | None]:
    table = timetable(record.schedule.spec, record.schedule_id)
    if not may_act(record):
        return msgspec.structs.replace(record, seen_ns=now_ns), None
    oldest = now_ns - int(_catchup(record) * NANOS)
    missed, waiting, seen_ns = 0, list(record.waiting), record.seen_ns
    wake_ns: int | None = now_ns  # if the batch is too small: go on at once
    for moment in _batch(table, record.seen_ns):
        if moment is None or moment.due_ns > now_ns:
            wake_ns = None if moment is None else moment.due_ns
            # A time that has come but whose jitter has not passed must be found again.
            seen_ns = now_ns if moment is None else min(now_ns, moment.nominal_ns - 1)
            break
        seen_ns = moment.due_ns
        if moment.due_ns <= record.update_time_ns:
            continue
        if moment.due_ns < oldest:
            missed += 1
        else:
            waiting.append(Due(moment.nominal_ns, moment.due_ns))
    changed = _keep_waiting(record, waiting)
    return msgspec.structs.replace(
        changed, seen_ns=seen_ns, missed_catchup=record.missed_catchup + missed
    ), wake_ns


def _batch(table: Timetable, after_ns: int) -> Iterator[ScheduledTime | None]:
    """Some moments, and None after the last one that there will ever be."""
    count, most = 0, _batch_size(table)
    for moment in islice(table.moments(after_ns), most):
        count += 1
        yield moment
    if count < most:
        yield None


def _batch_size(table: Timetable) -> int:
    """Return how many moments a step may look at: fewer where each takes longer to find."""
    return max(10, BATCH // (1 + table.size // 10))


def _fill_back(record: ScheduleRecord) -> ScheduleRecord:
    """Queue what backfills ask for, some at a time and while there is room: half of it is for what comes due."""
    table = timetable(record.schedule.spec, record.schedule_id)
    waiting, backfills = list(record.waiting), list(record.backfills)
    room = min(BACKFILL_BATCH, _batch_size(table), MOST_WAITING // 2 - len(waiting))
    while backfills and room > 0:
        backfill = backfills.pop(0)
        for moment in table.moments(backfill.start_ns - _MILLI):
            if moment.due_ns > backfill.end_ns:
                break
            if room == 0:
                backfills.insert(0, msgspec.structs.replace(backfill, start_ns=moment.nominal_ns))
                break
            room -= 1
            waiting.append(Due(moment.nominal_ns, moment.due_ns, backfill.overlap, manual=True))
    return msgspec.structs.replace(record, waiting=tuple(waiting), backfills=tuple(backfills))


def _act(
    record: ScheduleRecord,
) -> tuple[ScheduleRecord, tuple[Start, ...], tuple[Running, ...], tuple[Running, ...]]:
    """Decide about all that waits. What may not act any more (paused, no actions left) is dropped on the way."""
    starts: list[Start] = []
    running = record.running
    while True:
        sorted_out = sort_out(record.waiting, bool(running), record.schedule.policy.overlap)
        record = msgspec.structs.replace(
            record,
            waiting=sorted_out.waiting,
            skipped_overlap=record.skipped_overlap + sorted_out.skipped,
        )
        alone = () if sorted_out.alone is None else (sorted_out.alone,)
        refused = False
        for due in (*sorted_out.together, *alone):
            if not due.manual and not may_act(record):
                refused = True
                continue
            record = record if due.manual else _count_down(record)
            starts.append(Start(due, _workflow_id(record.schedule, due), due is sorted_out.alone))
        if not refused or any(start.waited_for for start in starts):
            break
    cancel = running if sorted_out.cancel and not sorted_out.terminate else ()
    return record, tuple(starts), cancel, running if sorted_out.terminate else ()


def _backfill_wake(record: ScheduleRecord, now_ns: int) -> int | None:
    """Now, where a backfill can go on; one whose starts wait goes on when a workflow closes."""
    return now_ns if record.backfills and not record.waiting else None


def _earlier(first: int | None, second: int | None) -> int | None:
    return min((each for each in (first, second) if each is not None), default=None)


# --- workflows -----------------------------------------------------------------------------------------------


def identity(record: ScheduleRecord) -> str:
    """The identity under which a schedule starts and ends its workflows."""
    return f"hourglass-scheduler-{record.schedule_id}"


def start_request(record: ScheduleRecord, start: Start, request_id: str) -> StartWorkflow:
    """The request that starts a workflow of this schedule."""
    nominal = _EPOCH + timedelta(seconds=start.due.nominal_ns // NANOS)
    marks = encode_search_attributes(
        [_STARTED_BY.value_set(record.schedule_id), _STARTED_FOR.value_set(nominal)]
    )
    action = record.schedule.action
    marked = {**action.spec.search_attributes, **marks}
    return msgspec.structs.replace(
        action,
        workflow_id=start.workflow_id,
        request_id=request_id,
        identity=identity(record),
        spec=msgspec.structs.replace(action.spec, search_attributes=marked),
    )


def started(record: ScheduleRecord, start: Start, run_id: str, now_ns: int) -> ScheduleRecord:
    """A workflow of the schedule was started."""
    action = ScheduleAction(
        schedule_time_ns=start.due.due_ns,
        actual_time_ns=now_ns,
        workflow_id=start.workflow_id,
        run_id=run_id,
    )
    running = ((start.workflow_id, run_id),) if start.waited_for else ()
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
    """A workflow of the schedule has closed, for good, with its result or failure if there is one."""
    running = tuple(each for each in record.running if each[0] != workflow_id)
    if len(running) == len(record.running):
        return record
    record = msgspec.structs.replace(record, running=running)
    if result:
        record = msgspec.structs.replace(record, last_result=result, last_failure=None)
    elif failure is not None:
        record = msgspec.structs.replace(record, last_failure=failure)
    message = "" if failure is None else failure.message
    why = {
        WorkflowStatus.FAILED: f"paused due to workflow failure: {workflow_id}: {message}",
        WorkflowStatus.TIMED_OUT: f"paused due to workflow timeout: {workflow_id}",
    }.get(status)
    if why is None or not record.schedule.policy.pause_on_failure or record.schedule.state.paused:
        return record
    return _with_state(record, paused=True, note=why)


# --- requests ------------------------------------------------------------------------------------------------


def create(request: CreateSchedule, now_ns: int) -> ScheduleRecord:
    """A new schedule. Raises `UsageError` where its spec makes no sense."""
    record = ScheduleRecord(
        schedule_id=request.schedule_id,
        schedule=settled(request.schedule),
        seen_ns=now_ns,
        create_time_ns=now_ns,
        backfills=tuple(map(storable_backfill, request.backfill)),
        memo=request.memo,
        search_attributes=request.search_attributes,
    )
    return _triggered(record, OverlapPolicy.UNSPECIFIED, now_ns) if request.trigger_immediately else record


def patch(record: ScheduleRecord, request: PatchSchedule, now_ns: int) -> ScheduleRecord:
    """Trigger, backfill, pause, unpause; after what has come due before."""
    record, _ = _come_due(record, max(now_ns, record.seen_ns))
    if request.trigger is not None:
        record = _triggered(record, request.trigger, now_ns)
    if request.backfill:
        added = map(storable_backfill, request.backfill)
        record = msgspec.structs.replace(record, backfills=(*record.backfills, *added))
    if request.pause:
        record = _with_state(record, paused=True, note=request.pause)
    if request.unpause:
        record = _with_state(record, paused=False, note=request.unpause)
    return record


def update(record: ScheduleRecord, request: UpdateSchedule, now_ns: int) -> ScheduleRecord:
    """Another schedule in its place, after what has come due before.

    One that is based on an older version is dropped, as servers do; clients look whether it came to be.
    """
    if request.conflict_token and request.conflict_token != token_of(record):
        return record
    record, _ = _come_due(record, max(now_ns, record.seen_ns))
    schedule = settled(request.schedule)
    # A time whose jitter has not passed yet counts still; one that has passed before this moment does not.
    seen_ns = now_ns - int(schedule.spec.jitter * NANOS)
    return msgspec.structs.replace(
        record, schedule=schedule, seen_ns=seen_ns, update_time_ns=now_ns, token=record.token + 1
    )


# --- parts ---------------------------------------------------------------------------------------------------


def _catchup(record: ScheduleRecord) -> float:
    return record.schedule.policy.catchup_window


def may_act(record: ScheduleRecord) -> bool:
    """Whether a schedule starts anything by itself: it is not paused, and has actions left."""
    state = record.schedule.state
    return not state.paused and (not state.limited_actions or state.remaining_actions > 0)


def _count_down(record: ScheduleRecord) -> ScheduleRecord:
    state = record.schedule.state
    if not state.limited_actions:
        return record
    return _with_state(record, remaining_actions=state.remaining_actions - 1)


def _with_state(record: ScheduleRecord, **changes: object) -> ScheduleRecord:
    state = msgspec.structs.replace(record.schedule.state, **changes)
    schedule = msgspec.structs.replace(record.schedule, state=state)
    return msgspec.structs.replace(record, schedule=schedule, token=record.token + 1)


def _triggered(record: ScheduleRecord, overlap: OverlapPolicy, now_ns: int) -> ScheduleRecord:
    terminates = (overlap or record.schedule.policy.overlap) is OverlapPolicy.TERMINATE_OTHER
    if terminates and 0 <= now_ns - record.terminated_ns < GATHERING_NS:
        return record  # the workflow that has just taken another's place is started for this trigger, too
    return _keep_waiting(record, [*record.waiting, Due(now_ns, now_ns, overlap, manual=True)])


def _keep_waiting(record: ScheduleRecord, waiting: list[Due]) -> ScheduleRecord:
    over = max(0, len(waiting) - MOST_WAITING)
    return msgspec.structs.replace(
        record, waiting=tuple(waiting[:MOST_WAITING]), dropped=record.dropped + over
    )


def _workflow_id(schedule: EngineSchedule, due: Due) -> str:
    if schedule.policy.keep_original_workflow_id:
        return schedule.action.workflow_id
    nominal = _EPOCH + timedelta(seconds=due.nominal_ns // NANOS)
    return f"{schedule.action.workflow_id}-{nominal:%Y-%m-%dT%H:%M:%SZ}"
