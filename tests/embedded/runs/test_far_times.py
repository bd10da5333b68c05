"""Dates beyond April 2262, which SQLite's 64-bit nanoseconds cannot hold, from every source: other runs continue, and
the file can be reopened.
"""

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
from hourglass._embedded import VirtualClock
from hourglass._embedded.clock import LATEST_NS, later, storable, to_ns
from hourglass._embedded.multiprocess import wire
from hourglass._evaluator import commands as c
from hourglass._evaluator.retries import backoff
from hourglass._evaluator.specs import RetryRule
from hourglass.errors import ServiceError

from ..memory_world import World, activity, app_failure, text

LONGEST = 292 * 365 * 86400.0  # what the public API lets pass
TODAY = 1_800_000_000 * SECOND
YEAR_9999 = datetime(9999, 12, 31, tzinfo=UTC)
YEAR_1 = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime.fromtimestamp(LATEST_NS // SECOND, UTC)
DONE = c.CompleteRun(text("done"))

Scenario = Callable[[World], Awaitable[object]]


async def open_world(path: Path, **more: Any) -> World:
    store = open_sqlite(path)
    return await World.new(store=store, clock=VirtualClock(TODAY), opened=True, **more)


def completes_with(*commands: c.Command) -> Scenario:
    """Start a workflow whose first task is completed with these commands."""

    async def scenario(world: World) -> None:
        started = await world.start("far")
        await world.activation()
        await world.complete(started.run_id, *commands)

    return scenario


def starts(**options: Any) -> Scenario:
    """Start a workflow with these options."""

    async def scenario(world: World) -> None:
        await world.start("far", **options)

    return scenario


def far_activity(**options: Any) -> c.ScheduleActivity:
    return activity(**{"start_to_close_timeout": LONGEST, **options})


def child(**options: Any) -> c.StartChildWorkflow:
    return made(c.StartChildWorkflow, seq=1, workflow_id="child", workflow_type="W", **options)


def fails_activity(commands: c.Command, **failure: Any) -> Scenario:
    """Fail an activity whose next attempt is far in the future."""

    async def scenario(world: World) -> None:
        await completes_with(commands)(world)
        task = await world.activity()
        await world.fail_attempt(task, app_failure("no", **failure))

    return scenario


def fails_run(**options: Any) -> Scenario:
    """Fail a workflow whose next attempt is far in the future."""

    async def scenario(world: World) -> None:
        started = await world.start("far", **options)
        await world.activation()
        await world.complete(started.run_id, c.FailRun(app_failure("no")))

    return scenario


def schedule(**spec: Any) -> sc.EngineSchedule:
    action = made(
        wf.StartWorkflow, workflow_id="by-schedule", workflow_type="W", task_queue="other", request_id=""
    )
    intervals = spec.pop("intervals", (ss.ScheduleIntervalSpec(3600.0),))
    return sc.EngineSchedule(action=action, spec=ss.ScheduleSpec(intervals=intervals, **spec))


def creates_schedule(*requests: s.Request[Any], **spec: Any) -> Scenario:
    """Create a schedule, and send further requests."""

    async def scenario(world: World) -> None:
        await world.call(sc.CreateSchedule(schedule_id="s", schedule=schedule(**spec), request_id="1"))
        for request in requests:
            await world.call(request)
        await world.call(sc.DescribeSchedule(schedule_id="s"))
        await world.call(sc.ListSchedules())

    return scenario


def backfills(start_at: datetime, end_at: datetime) -> sc.PatchSchedule:
    backfill = ss.ScheduleBackfill(start_at=start_at, end_at=end_at, overlap=ss.ScheduleOverlapPolicy.SKIP)
    return sc.PatchSchedule(schedule_id="s", request_id="2", backfill=(backfill,))


RARE = RetryRule(initial_interval=LONGEST, maximum_interval=LONGEST)
ALWAYS = RetryRule(initial_interval=LONGEST, backoff_coefficient=1e300)

SCENARIOS: dict[str, Scenario] = {
    "timer": completes_with(c.StartTimer(1, int(LONGEST) * SECOND)),
    "schedule_to_close": completes_with(far_activity(schedule_to_close_timeout=LONGEST)),
    "schedule_to_start": completes_with(
        far_activity(schedule_to_start_timeout=LONGEST, task_queue="unserved")
    ),
    "start_to_close": completes_with(far_activity()),
    "heartbeat": completes_with(far_activity(heartbeat_timeout=LONGEST)),
    "retry": fails_activity(far_activity(retry_policy=RARE)),
    "retry_coefficient": fails_activity(far_activity(retry_policy=ALWAYS)),
    "next_retry_delay": fails_activity(far_activity(), next_retry_delay=LONGEST),
    "child_execution": completes_with(child(execution_timeout=LONGEST)),
    "child_run": completes_with(child(run_timeout=LONGEST)),
    "child_retry": completes_with(child(retry_policy=RARE)),
    "child_cron": completes_with(child(cron_schedule="@every 2500000h")),
    "continue": completes_with(made(c.ContinueAsNew, run_timeout=LONGEST)),
    "execution_timeout": starts(execution_timeout=LONGEST),
    "run_timeout": starts(run_timeout=LONGEST),
    "all_timeouts": starts(execution_timeout=LONGEST, run_timeout=LONGEST, start_delay=LONGEST),
    "start_delay": starts(start_delay=LONGEST),
    "cron": starts(cron_schedule="@every 2500000h"),
    "run_retry": fails_run(retry_policy=RARE),
    "run_retry_with_timeout": fails_run(retry_policy=RARE, run_timeout=LONGEST),
    "schedule_end": creates_schedule(end_at=YEAR_9999),
    "schedule_start": creates_schedule(start_at=YEAR_9999),
    "schedule_interval": creates_schedule(intervals=(ss.ScheduleIntervalSpec(LONGEST, LONGEST / 2),)),
    "schedule_jitter": creates_schedule(intervals=(ss.ScheduleIntervalSpec(LONGEST / 2),), jitter=LONGEST),
    "schedule_update": creates_schedule(
        sc.UpdateSchedule(
            schedule_id="s", request_id="2", schedule=schedule(end_at=YEAR_9999, jitter=LONGEST)
        )
    ),
    "backfill_late": creates_schedule(backfills(LATEST - timedelta(seconds=10), YEAR_9999)),
    "backfill_early": creates_schedule(backfills(YEAR_1, YEAR_1 + timedelta(seconds=1))),
    "schedule_catchup": creates_schedule(
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


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_far_date_does_not_affect_other_runs(tmp_path: Path, scenario: str) -> None:
    """The far date is set, then other workflows complete, also after a restart."""
    for epoch in ("first", "second"):
        world = await open_world(tmp_path / "a.db")
        if epoch == "first":
            await SCENARIOS[scenario](world)
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
def test_sum_of_time_and_duration_fits_in_64_bits(ns: int, seconds: float) -> None:
    assert ns <= later(ns, to_ns(seconds)) <= LATEST_NS < 2**63


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf"), 10**30, -(10**30)])
def test_any_float_is_converted_to_a_bounded_duration(seconds: float) -> None:
    assert abs(to_ns(seconds)) <= LATEST_NS


@given(ns=st.integers(-(10**40), 10**40))
def test_times_from_callers_are_clamped_to_64_bits(ns: int) -> None:
    assert abs(storable(ns)) <= LATEST_NS
    assert storable(ns) == ns or abs(ns) > LATEST_NS


@given(first=st.floats(0.001, LONGEST), coefficient=st.floats(1.0, 1e308), attempt=st.integers(1, 10**9))
def test_retry_backoff_never_overflows(first: float, coefficient: float, attempt: int) -> None:
    rule = RetryRule(initial_interval=first, backoff_coefficient=coefficient, maximum_interval=LONGEST)
    assert 0 < backoff(rule, attempt) <= LONGEST


def test_far_dates_round_trip_between_processes() -> None:
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


async def test_numbers_above_64_bits_are_rejected(tmp_path: Path) -> None:
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
    assert [summary.schedule_id for summary in (await world.call(sc.ListSchedules())).schedules] == []
    await world.start("other")
    assert (await world.activation()).run_id
