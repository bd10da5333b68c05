"""Dates that SQLite's 64-bit nanoseconds cannot hold, beyond April 2262, at every door: nothing stops, and the file opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.embedded.memory_world import SECOND
from tests.embedded.stores import open_sqlite
from tests.specs import made

from hourglass._contract import schedule_specs as ss
from hourglass._contract import schedules as sc
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import AttemptFailed
from hourglass._embedded import VirtualClock
from hourglass._embedded.clock import LATEST_NS, later, storable, to_ns
from hourglass._embedded.multiprocess import wire
from hourglass._evaluator import commands as c
from hourglass._evaluator.retries import backoff
from hourglass._evaluator.specs import RetryRule
from hourglass.errors import ServiceError

from ..memory_world import World, app_failure, text

LONGEST = 292 * 365 * 86400.0  # what the public API lets pass
TODAY = 1_800_000_000 * SECOND
YEAR_9999 = datetime(9999, 12, 31, tzinfo=UTC)
YEAR_1 = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime.fromtimestamp(LATEST_NS // SECOND, UTC)
DONE = c.CompleteRun(text("done"))

Door = Callable[[World], Awaitable[object]]


async def open_world(path: Path, **more: Any) -> World:
    store = open_sqlite(path)
    return await World.new(store=store, clock=VirtualClock(TODAY), opened=True, **more)


def asks(*commands: c.Command) -> Door:
    """A workflow asks for this in its first task."""

    async def door(world: World) -> None:
        started = await world.start("far")
        await world.activation()
        await world.complete(started.run_id, *commands)

    return door


def starts(**options: Any) -> Door:
    """A workflow is started with these options."""

    async def door(world: World) -> None:
        await world.start("far", **options)

    return door


def activity(**options: Any) -> c.ScheduleActivity:
    return made(
        c.ScheduleActivity,
        seq=1,
        activity_id="1",
        activity_type="a",
        **{"start_to_close_timeout": LONGEST, **options},
    )


def child(**options: Any) -> c.StartChildWorkflow:
    return made(c.StartChildWorkflow, seq=1, workflow_id="child", workflow_type="W", **options)


def fails(commands: c.Command, **failure: Any) -> Door:
    """An activity fails, and its next attempt is far away."""

    async def door(world: World) -> None:
        await asks(commands)(world)
        task = await world.activity()
        await world.handle.complete_activity(AttemptFailed(task.token, app_failure("no", **failure)))

    return door


def run_fails(**options: Any) -> Door:
    """A workflow fails, and its next attempt is far away."""

    async def door(world: World) -> None:
        started = await world.start("far", **options)
        await world.activation()
        await world.complete(started.run_id, c.FailRun(app_failure("no")))

    return door


def schedule(**spec: Any) -> sc.EngineSchedule:
    action = made(
        wf.StartWorkflow, workflow_id="by-schedule", workflow_type="W", task_queue="other", request_id=""
    )
    intervals = spec.pop("intervals", (ss.ScheduleIntervalSpec(3600.0),))
    return sc.EngineSchedule(action=action, spec=ss.ScheduleSpec(intervals=intervals, **spec))


def schedules(*requests: s.Request[Any], **spec: Any) -> Door:
    """A schedule is created, and further requests made."""

    async def door(world: World) -> None:
        await world.call(sc.CreateSchedule(schedule_id="s", schedule=schedule(**spec), request_id="1"))
        for request in requests:
            await world.call(request)
        await world.call(sc.DescribeSchedule(schedule_id="s"))
        await world.call(sc.ListSchedules())

    return door


def backfills(start_at: datetime, end_at: datetime) -> sc.PatchSchedule:
    backfill = ss.ScheduleBackfill(start_at=start_at, end_at=end_at, overlap=ss.ScheduleOverlapPolicy.SKIP)
    return sc.PatchSchedule(schedule_id="s", request_id="2", backfill=(backfill,))


RARE = RetryRule(initial_interval=LONGEST, maximum_interval=LONGEST)
ALWAYS = RetryRule(initial_interval=LONGEST, backoff_coefficient=1e300)

DOORS: dict[str, Door] = {
    "timer": asks(c.StartTimer(1, int(LONGEST) * SECOND)),
    "schedule_to_close": asks(activity(schedule_to_close_timeout=LONGEST)),
    "schedule_to_start": asks(activity(schedule_to_start_timeout=LONGEST, task_queue="nobody's")),
    "start_to_close": asks(activity()),
    "heartbeat": asks(activity(heartbeat_timeout=LONGEST)),
    "retry": fails(activity(retry_policy=RARE)),
    "retry_coefficient": fails(activity(retry_policy=ALWAYS)),
    "next_retry_delay": fails(activity(), next_retry_delay=LONGEST),
    "child_execution": asks(child(execution_timeout=LONGEST)),
    "child_run": asks(child(run_timeout=LONGEST)),
    "child_retry": asks(child(retry_policy=RARE)),
    "child_cron": asks(child(cron_schedule="@every 2500000h")),
    "continue": asks(made(c.ContinueAsNew, run_timeout=LONGEST)),
    "execution_timeout": starts(execution_timeout=LONGEST),
    "run_timeout": starts(run_timeout=LONGEST),
    "all_timeouts": starts(execution_timeout=LONGEST, run_timeout=LONGEST, start_delay=LONGEST),
    "start_delay": starts(start_delay=LONGEST),
    "cron": starts(cron_schedule="@every 2500000h"),
    "run_retry": run_fails(retry_policy=RARE),
    "run_retry_with_timeout": run_fails(retry_policy=RARE, run_timeout=LONGEST),
    "schedule_end": schedules(end_at=YEAR_9999),
    "schedule_start": schedules(start_at=YEAR_9999),
    "schedule_interval": schedules(intervals=(ss.ScheduleIntervalSpec(LONGEST, LONGEST / 2),)),
    "schedule_jitter": schedules(intervals=(ss.ScheduleIntervalSpec(LONGEST / 2),), jitter=LONGEST),
    "schedule_update": schedules(
        sc.UpdateSchedule(
            schedule_id="s", request_id="2", schedule=schedule(end_at=YEAR_9999, jitter=LONGEST)
        )
    ),
    "backfill_late": schedules(backfills(LATEST - timedelta(seconds=10), YEAR_9999)),
    "backfill_early": schedules(backfills(YEAR_1, YEAR_1 + timedelta(seconds=1))),
    "schedule_catchup": schedules(
        sc.UpdateSchedule(
            schedule_id="s",
            request_id="2",
            schedule=sc.EngineSchedule(
                action=schedule().action,
                spec=schedule().spec,
                policy=ss.SchedulePolicy(catchup_window=LONGEST),
            ),
        )
    ),
}


@pytest.mark.parametrize("door", DOORS)
async def test_far_date_affects_no_other_run(tmp_path: Path, door: str) -> None:
    """The caller who names it is answered, other workflows end, and so they do when the file is opened anew."""
    for epoch in ("first", "second"):
        world = await open_world(tmp_path / "a.db")
        if epoch == "first":
            await DOORS[door](world)
        started = await world.start(f"bystander of {epoch}")
        while True:
            activation = await world.activation()
            if activation.run_id == started.run_id:
                break
            await world.fail(activation.run_id)
        await world.complete(started.run_id, DONE)
        assert isinstance(await world.outcome(f"bystander of {epoch}"), wf.RunCompleted)
        assert not world.engine.runs.parked
        assert world.engine.failed is None
        await world.close()


@given(
    ns=st.integers(0, LATEST_NS),
    seconds=st.floats(0, 1e300) | st.just(float("inf")) | st.integers(0, 10**400).map(lambda n: n % 10**30),
)
def test_added_times_are_bounded(ns: int, seconds: float) -> None:
    """Whatever is added to a time, SQLite can hold it; and it is never earlier."""
    assert ns <= later(ns, to_ns(seconds)) <= LATEST_NS < 2**63


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf"), 10**30, -(10**30)])
def test_any_duration_can_be_added(seconds: float) -> None:
    """Whatever a duration is, it can be added to a time."""
    assert abs(to_ns(seconds)) <= LATEST_NS


@given(ns=st.integers(-(10**40), 10**40))
def test_times_from_callers_are_clamped(ns: int) -> None:
    """A time that was given is itself, or the nearest that can be stored."""
    assert abs(storable(ns)) <= LATEST_NS
    assert storable(ns) == ns or abs(ns) > LATEST_NS


@given(first=st.floats(0.001, LONGEST), coefficient=st.floats(1.0, 1e308), attempt=st.integers(1, 10**9))
def test_backoff_never_overflows(first: float, coefficient: float, attempt: int) -> None:
    """However steep a policy is, the longest interval is not passed."""
    rule = RetryRule(initial_interval=first, backoff_coefficient=coefficient, maximum_interval=LONGEST)
    assert 0 < backoff(rule, attempt) <= LONGEST


def test_far_dates_round_trip_between_processes() -> None:
    """A schedule that ends in 9999 can be asked of the owner of a file; a number that fits nowhere is refused in words."""
    create = sc.CreateSchedule(
        schedule_id="s",
        schedule=schedule(end_at=YEAR_9999),
        request_id="1",
        backfill=(ss.ScheduleBackfill(start_at=YEAR_1, end_at=YEAR_9999),),
    )
    message = wire.decode_to_owner(wire.encode_request(1, "k", create))
    assert isinstance(message, wire.RequestMessage)
    request = wire.decode_request(message)
    assert isinstance(request, sc.CreateSchedule)
    assert request == create
    with pytest.raises(ServiceError, match="does not fit into 64 bits"):
        wire.encode_request(1, "k", wf.ListWorkflows(page_size=10**30))


async def test_oversized_numbers_are_rejected(tmp_path: Path) -> None:
    """A number above 64 bits fails the request that has it, and nothing else."""
    world = await open_world(tmp_path / "a.db")
    with pytest.raises(ServiceError, match="does not fit into 64 bits"):
        await world.start("w", retry_policy=RetryRule(maximum_attempts=10**30))
    assert (
        await world.call(wf.ListWorkflows(page_size=10**30))
    ).workflows == ()  # a page has a limit of its own
    action = msgspec.structs.replace(schedule().action, start_delay=10**30)
    huge = msgspec.structs.replace(schedule(), action=action)
    with pytest.raises(ServiceError, match="cannot be written"):
        await world.call(sc.CreateSchedule(schedule_id="huge", schedule=huge, request_id="1"))
    assert [each.schedule_id for each in (await world.call(sc.ListSchedules())).schedules] == []
    await world.start("other")
    assert (await world.activation()).run_id
    await world.close()
