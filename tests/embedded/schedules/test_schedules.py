"""Schedules on the embedded engine: actions on time, crashes, downtime, repeated requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.embedded.stores import memory_store, open_sqlite
from tests.specs import made

from hourglass import RetryPolicy, Worker, workflow
from hourglass._contract import schedule_specs as ss
from hourglass._contract import schedules as sc
from hourglass._contract import workflows as wf
from hourglass._embedded import VirtualClock
from hourglass._embedded.multiprocess.calls import was_carried_out
from hourglass._embedded.store.store import Store
from hourglass.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    WorkflowStatus,
)
from hourglass.errors import ApplicationError, ScheduleAlreadyExistsError, ScheduleNotFoundError, ServiceError
from hourglass.testing import Environment

from ..memory_world import World, run_async, settle
from ..store.scripted_store import ScriptedStore

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600 * 10**9
HOURLY = ScheduleSpec(intervals=[ScheduleIntervalSpec(timedelta(hours=1))])
NEVER = ScheduleSpec(cron_expressions=["0 0 1 1 * 2099"])


@workflow.defn
def works(minutes: float = 1.0) -> str:
    workflow.sleep(timedelta(minutes=minutes))
    return "done"


@workflow.defn
def fails() -> None:
    raise ApplicationError("no ink")


@workflow.defn
def continues(runs: int) -> int:
    """Sleep half an hour in each run, and continue as new."""
    workflow.sleep(timedelta(minutes=30))
    if runs > 1:
        workflow.continue_as_new(runs - 1)
    return 0


@pytest.fixture
def env() -> Any:
    """An environment at the beginning of a year."""
    with Environment(start=NEW_YEAR) as environment:
        yield environment


def create(
    env: Environment, *action: Any, spec: ScheduleSpec = HOURLY, name: str = "s", **more: Any
) -> ScheduleHandle:
    """Create a schedule of a workflow; keywords are options of its policy, its state or `create_schedule`."""
    policy = SchedulePolicy(**{key: more.pop(key) for key in list(more) if hasattr(SchedulePolicy, key)})
    state = ScheduleState(**{key: more.pop(key) for key in list(more) if hasattr(ScheduleState, key)})
    options = more.pop("options", {})
    start = ScheduleActionStartWorkflow(*action, **options)
    return env.client.create_schedule(name, Schedule(start, spec, policy, state), **more)


def counts(handle: ScheduleHandle) -> tuple[int, int, int, int]:
    """Return how many workflows were started, are running, wait and were skipped."""
    info = handle.describe().info
    return (
        info.num_actions,
        len(info.running_actions),
        info.num_actions_waiting,
        info.num_actions_skipped_overlap,
    )


def hours(handle: ScheduleHandle) -> list[int]:
    """Return the hours of the recent actions."""
    return [action.started_at.hour for action in handle.describe().info.recent_actions if action.started_at]


def statuses(env: Environment, name: str = "s") -> list[WorkflowStatus]:
    """Return the statuses of the workflows of a schedule, oldest first."""
    found = env.client.list_workflows(f"TemporalScheduledById = '{name}'")
    return [run.status for run in sorted(found, key=lambda run: (run.id, run.start_time))]


# --- on virtual time ------------------------------------------------------------------------------------------------


def test_daily_schedule_starts_a_workflow_each_day_of_a_year(env: Environment) -> None:
    handle = create(env, works, spec=ScheduleSpec(cron_expressions=["30 9 * * *"]))
    env.skip(days=365)
    info = handle.describe().info
    assert (info.num_actions, info.running_actions) == (365, ())
    assert info.next_action_times[0] == datetime(2027, 1, 1, 9, 30, tzinfo=UTC)
    assert env.client.count_workflows("TemporalScheduledById = 's' AND ExecutionStatus = 'Completed'") == 365
    (third,) = env.client.list_workflows("WorkflowId = 's-2026-01-03T09:30:00Z'")
    assert third.start_time == datetime(2026, 1, 3, 9, 30, tzinfo=UTC)
    assert third.search_attributes["TemporalScheduledStartTime"] == third.start_time


def test_schedule_follows_daylight_saving_time(env: Environment) -> None:
    spec = ScheduleSpec(cron_expressions=["0 9 28-29 3 *"], time_zone_name="Europe/Berlin")
    handle = create(env, works, spec=spec)
    env.skip(days=100)
    assert hours(handle) == [8, 7]


def test_triggers_during_termination_start_one_workflow(env: Environment) -> None:
    """All triggers during the termination together start one workflow, as on a server."""
    handle = create(env, works, 60.0, spec=NEVER, overlap=ScheduleOverlapPolicy.TERMINATE_OTHER)
    for _ in range(3):
        handle.trigger()
    assert counts(handle) == (2, 1, 0, 0)
    env.skip(seconds=2)
    handle.trigger()
    handle.trigger(overlap=ScheduleOverlapPolicy.TERMINATE_OTHER)
    assert counts(handle) == (3, 1, 0, 0)
    env.skip(hours=4)
    assert [status.name for status in statuses(env)] == ["TERMINATED", "TERMINATED", "COMPLETED"]


def test_schedule_waits_for_retries_and_continued_runs(env: Environment) -> None:
    chain = create(env, continues, 4, spec=NEVER, name="chain", overlap=ScheduleOverlapPolicy.BUFFER_ALL)
    chain.trigger()
    env.skip(minutes=5)
    chain.trigger()
    env.skip(minutes=110)
    assert counts(chain) == (1, 1, 1, 0)
    env.skip(minutes=10)
    assert counts(chain) == (2, 1, 0, 0)
    again = RetryPolicy(initial_interval=3600, backoff_coefficient=1, maximum_attempts=3)
    tried = create(env, fails, spec=NEVER, name="tried", options={"retry_policy": again})
    tried.trigger()
    env.skip(minutes=110)
    assert counts(tried)[:2] == (1, 1)
    env.skip(minutes=15)
    assert counts(tried)[:2] == (1, 0)


def test_schedule_waits_for_a_reset_workflow(env: Environment) -> None:
    handle = create(env, works, 60.0, spec=NEVER)
    handle.trigger()
    env.skip(minutes=30)
    (action,) = handle.describe().info.running_actions
    env.client.get_workflow_handle(action.workflow_id).reset(reason="again")
    assert counts(handle)[:2] == (1, 1)
    env.skip(minutes=50)
    assert counts(handle)[:2] == (1, 1)
    env.skip(minutes=15)
    assert counts(handle)[:2] == (1, 0)


def test_schedule_can_be_paused_and_updated(env: Environment) -> None:
    handle = create(env, works)
    env.skip(hours=2, minutes=1)
    handle.pause("holidays")
    env.skip(days=3)
    seen = handle.describe()
    assert seen.info.num_actions == 2
    assert seen.info.next_action_times[0] == NEW_YEAR + timedelta(days=3, hours=3)
    handle.unpause()
    env.skip(hours=1)
    assert counts(handle)[0] == 3
    daily = ScheduleSpec(cron_expressions=["0 0 * * *"])
    action = ScheduleActionStartWorkflow(continues, 1, task_queue="another")
    handle.update(lambda _: Schedule(action, daily))
    env.skip(days=2)
    assert counts(handle)[0] == 5
    assert env.client.count_workflows("WorkflowType = 'continues' AND ExecutionStatus = 'Completed'") == 2


def test_schedule_skips_an_action_whose_workflow_id_is_in_use(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    env.start_workflow(works, 150.0, id="the-one")
    handle = create(env, works, keep_original_workflow_id=True, options={"id": "the-one"})
    env.skip(hours=4)
    assert hours(handle) == [3, 4]
    assert "could not start workflow 'the-one'" in caplog.text


def test_schedules_are_listed_by_page_and_filter(env: Environment) -> None:
    for number in range(5):
        create(env, works, name=f"s{number}", search_attributes={"Number": number}, paused=number % 2 == 1)
        env.skip(seconds=1)

    def listed(query: str = "", **more: Any) -> list[str]:
        return [schedule.id for schedule in env.client.list_schedules(query, **more)]

    assert listed() == listed(page_size=2) == ["s4", "s3", "s2", "s1", "s0"]
    assert listed("TemporalSchedulePaused = true") == ["s3", "s1"]
    assert listed("Number >= 3 OR ScheduleId = 's0'") == ["s4", "s3", "s0"]
    env.client.get_schedule_handle("s4").delete()
    assert listed("Number >= 3") == ["s3"]
    with pytest.raises(ServiceError, match="Colour"):
        listed("Colour = 'red'")


def test_duplicate_and_unknown_schedule_ids_are_rejected(env: Environment) -> None:
    handle = create(env, works)
    with pytest.raises(ScheduleAlreadyExistsError) as taken:
        create(env, works)
    assert taken.value.schedule_id == "s"
    handle.trigger()
    handle.delete()
    for call in (handle.describe, handle.pause, handle.delete, handle.trigger):
        with pytest.raises(ScheduleNotFoundError):
            call()
    env.skip(hours=3)
    assert statuses(env) == [WorkflowStatus.COMPLETED]
    create(env, works)
    env.skip(hours=1)
    assert counts(env.client.get_schedule_handle("s"))[0] == 1


# --- over a store -----------------------------------------------------------------------------------------------------


ACTION = made(wf.StartWorkflow, workflow_id="report", workflow_type="W", task_queue="q", request_id="")


def hourly(name: str = "s", **policy: Any) -> sc.CreateSchedule:
    schedule = sc.EngineSchedule(
        action=msgspec.structs.replace(ACTION, workflow_id=f"{name}-report"),
        spec=ss.ScheduleSpec(intervals=(ss.ScheduleIntervalSpec(3600.0),)),
        policy=ss.SchedulePolicy(**policy),
    )
    return sc.CreateSchedule(schedule_id=name, schedule=schedule, request_id=f"create-{name}")


def trigger(request_id: str) -> sc.PatchSchedule:
    return sc.PatchSchedule(
        schedule_id="s", request_id=request_id, trigger=ss.ScheduleOverlapPolicy.UNSPECIFIED
    )


async def describe(world: World, name: str = "s") -> ss.ScheduleInfo:
    return (await world.call(sc.DescribeSchedule(schedule_id=name))).info


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Opens stores repeatedly on the same data."""
    memory = memory_store()

    def open_store() -> Store:
        return memory if request.param == "memory" else open_sqlite(tmp_path / "runs.db")

    return open_store


@pytest.mark.parametrize(
    ("window", "started", "missed"), [(0.0, 6, 0), (2.5 * 3600, 4, 2)], ids=["a year", "hours"]
)
async def test_missed_times_are_caught_up_when_the_file_is_opened(
    place: Any, window: float, started: int, missed: int
) -> None:
    clock = VirtualClock(HOUR * 1000 + 1)
    world = await World.new(store=place(), clock=clock, opened=True)
    await world.call(hourly(catchup_window=window, overlap=ss.ScheduleOverlapPolicy.ALLOW_ALL))
    clock.advance(3600)
    await settle()
    assert (await describe(world)).num_actions == 1
    await world.close()
    clock.advance(5 * 3600 + 1)
    world = await World.new(store=place(), clock=clock, opened=True)
    clock.advance(0)
    info = await describe(world)
    assert (info.num_actions, info.num_actions_missed_catchup_window) == (started, missed)
    assert all(action.started_at == ss.time_from(clock.now_ns()) for action in info.recent_actions[1:])
    await world.close()


async def test_workflow_closed_without_an_owner_is_noticed_by_its_schedule(place: Any) -> None:
    clock = VirtualClock(HOUR * 1000)
    world = await World.new(store=place(), clock=clock, opened=True)
    await world.call(hourly(overlap=ss.ScheduleOverlapPolicy.BUFFER_ONE))
    await world.call(trigger("t1"))
    clock.advance(2)
    await world.call(trigger("t2"))
    (running,) = (await describe(world)).running_actions
    await world.close()
    alone = await World.new(store=place(), clock=clock)
    await alone.call(wf.TerminateWorkflow(workflow_id=running.workflow_id))
    info = await describe(alone)
    assert (info.num_actions, info.num_actions_waiting, len(info.running_actions)) == (2, 0, 1)
    await alone.close()


def test_schedules_survive_a_crash_at_any_commit() -> None:
    """Schedules and runs agree after every prefix of durable changes, and repeated requests count once."""

    async def run_scenario(store: ScriptedStore) -> None:
        world = await World.new(store=store, clock=VirtualClock(HOUR * 1000))
        world.engine.schedules.begin()
        call = world.call(hourly(overlap=ss.ScheduleOverlapPolicy.BUFFER_ALL))
        await _request(call)
        for number in range(3):
            await _request(world.call(trigger(f"t{number}")))
            world.clock.advance(2)
        world.clock.advance(3600)
        for _ in range(4):
            current = [record for record in world.engine.runs.records() if record.run.is_open]
            end = wf.TerminateWorkflow(workflow_id=current[0].run.started.workflow_id)
            await _request(world.call(end))
            world.clock.advance(60)
        world.engine.fail(store.failure or ServiceError("over"))  # type: ignore[arg-type]

    async def body() -> None:
        whole = ScriptedStore()
        await run_scenario(whole)
        changes = whole.appended
        assert len(changes) > 8
        for count in range(1, len(changes) + 1):
            disk = memory_store()
            for change in changes[:count]:
                disk.append(change)
            await check(disk)

    async def check(disk: Store) -> None:
        world = await World.new(store=disk, clock=VirtualClock(HOUR * 1000))
        record = disk.schedule("s")
        assert record is not None
        runs = (await world.call(wf.ListWorkflows(query="TemporalScheduledById = 's'"))).workflows
        assert len(runs) == record.action_count
        unfinished = {(run.workflow_id, run.run_id) for run in runs if run.close_time_ns == 0}
        assert unfinished == set(record.running)
        for number in range(3):  # clients repeat requests without an answer
            await world.call(trigger(f"t{number}"))
            world.clock.advance(2)
        again = disk.schedule("s")
        assert again is not None
        manual = [request for request in again.requests if request.startswith("t")]
        assert sorted(manual) == ["t0", "t1", "t2"]

    run_async(body)


async def _request(call: Any) -> None:
    """Send a request and queue its changes; nothing is durable."""
    task = asyncio.ensure_future(call)
    await settle()
    task.cancel()
    await asyncio.wait({task})


async def test_repeated_schedule_request_counts_once(place: Any) -> None:
    clock = VirtualClock(HOUR * 1000)
    world = await World.new(store=place(), clock=clock, opened=True)
    for _ in range(2):
        await world.call(hourly(overlap=ss.ScheduleOverlapPolicy.ALLOW_ALL))
        await world.call(trigger("t1"))
        clock.advance(2)
    await world.close()
    world = await World.new(store=place(), clock=clock, opened=True)
    await world.call(hourly())
    await world.call(trigger("t1"))
    assert (await describe(world)).num_actions == 1
    with pytest.raises(ScheduleAlreadyExistsError):
        await world.call(msgspec.structs.replace(hourly(), request_id="another"))
    await world.call(sc.DeleteSchedule(schedule_id="s"))
    assert await was_carried_out(sc.DeleteSchedule(schedule_id="s"), world.call)
    await world.close()


async def test_schedule_waits_while_the_store_is_full() -> None:
    store = ScriptedStore()
    world = await World.new(store=store, clock=VirtualClock(HOUR * 1000 + 1))
    world.engine.schedules.begin()
    await _request(world.call(hourly(overlap=ss.ScheduleOverlapPolicy.ALLOW_ALL)))
    store.refusal = "the disk is full"
    world.clock.advance(2 * 3600)
    assert not list(world.engine.runs.records())
    store.refusal = ""
    world.clock.advance(6)
    store.commit()
    assert [taken.action.workflow_id[-9:] for taken in (await describe(world)).recent_actions] == [
        "17:00:00Z",
        "18:00:00Z",
    ]


# --- in a file, on real time --------------------------------------------------------------------------------------------


@workflow.defn
def quick(kind: str) -> str:
    return f"the {kind} report"


def test_schedules_work_without_and_with_an_owner(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'runs.db'}"
    with Client.connect(target) as client:
        schedule = Schedule(ScheduleActionStartWorkflow(quick, "daily", task_queue="q"), NEVER)
        handle = client.create_schedule("s", schedule, trigger_immediately=True)
        assert [schedule.id for schedule in client.list_schedules()] == ["s"]
        (running,) = handle.describe().info.running_actions
        with Worker(client, "q", workflows=[quick]):
            run = client.get_workflow_handle(running.workflow_id, workflow=quick)
            assert run.result(timeout=30) == "the daily report"
            assert handle.describe().info.running_actions == ()
            handle.backfill(
                ScheduleBackfill(
                    start_at=datetime(2098, 12, 1, tzinfo=UTC), end_at=datetime(2099, 2, 1, tzinfo=UTC)
                )
            )
            run = client.get_workflow_handle("s-2099-01-01T00:00:00Z", workflow=quick)
            assert run.result(timeout=30) == "the daily report"
        handle.delete()


PROGRAM = """
import sys
from datetime import UTC, datetime
from hourglass.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec

with Client.connect(sys.argv[1]) as client:
    action = ScheduleActionStartWorkflow("quick", "foreign", task_queue="q")
    schedule = Schedule(action, ScheduleSpec(cron_expressions=["0 0 1 1 * 2099"]))
    handle = client.create_schedule("theirs", schedule, trigger_immediately=True)
    handle.pause("enough")
    print(handle.describe().info.recent_actions[0].action.workflow_id, [each.id for each in client.list_schedules()])
"""


def test_schedule_requests_are_sent_to_the_owner(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'runs.db'}"
    with Client.connect(target) as client, Worker(client, "q", workflows=[quick]):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, target], capture_output=True, text=True, timeout=60, check=True
        )
        workflow_id, listed = done.stdout.split(" ", 1)
        assert listed.strip() == "['theirs']"
        run = client.get_workflow_handle(workflow_id, workflow=quick)
        assert run.result(timeout=30) == "the foreign report"
        assert client.get_schedule_handle("theirs").describe().schedule.state.note == "enough"
