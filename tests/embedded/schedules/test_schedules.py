"""Schedules on the embedded engine: they act on time, survive crashes and hours without an engine, and repeat nothing."""

from __future__ import annotations

import asyncio
import sqlite3
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
    """Takes its time."""
    workflow.sleep(timedelta(minutes=minutes))
    return "done"


@workflow.defn
def fails() -> None:
    """Fails at every attempt."""
    raise ApplicationError("no ink")


@workflow.defn
def goes_on(runs: int) -> int:
    """Half an hour for each run, and continues as new."""
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
    """A schedule of a workflow with arguments; options of a policy and a state by name."""
    policy = SchedulePolicy(**{key: more.pop(key) for key in list(more) if hasattr(SchedulePolicy, key)})
    state = ScheduleState(**{key: more.pop(key) for key in list(more) if hasattr(ScheduleState, key)})
    options = more.pop("options", {})
    start = ScheduleActionStartWorkflow(*action, **options)
    return env.client.create_schedule(name, Schedule(start, spec, policy, state), **more)


def counts(handle: ScheduleHandle) -> tuple[int, int, int, int]:
    """How many were started, run, wait and were skipped."""
    info = handle.describe().info
    return (
        info.num_actions,
        len(info.running_actions),
        info.num_actions_waiting,
        info.num_actions_skipped_overlap,
    )


def hours(handle: ScheduleHandle) -> list[int]:
    """At which hours the schedule acted last."""
    return [each.started_at.hour for each in handle.describe().info.recent_actions if each.started_at]


def statuses(env: Environment, name: str = "s") -> list[WorkflowStatus]:
    """How the workflows of a schedule stand, the first one first."""
    found = env.client.list_workflows(f"TemporalScheduledById = '{name}'")
    return [each.status for each in sorted(found, key=lambda each: (each.id, each.start_time))]


# --- on virtual time ------------------------------------------------------------------------------------------------


def test_daily_schedule_over_a_year(env: Environment) -> None:
    """A daily schedule starts a workflow on each day of a year, at its hour, marked as its own."""
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
    """A schedule keeps to the clocks of its time zone when they are changed."""
    spec = ScheduleSpec(cron_expressions=["0 9 28-29 3 *"], time_zone_name="Europe/Berlin")
    handle = create(env, works, spec=spec)
    env.skip(days=100)
    assert hours(handle) == [8, 7]


@pytest.mark.parametrize(
    ("policy", "while_running", "in_the_end", "ends"),
    [
        ("SKIP", (1, 1, 0, 2), (1, 0, 0, 2), ["COMPLETED"]),
        ("BUFFER_ONE", (1, 1, 1, 1), (2, 0, 0, 1), ["COMPLETED"] * 2),
        ("BUFFER_ALL", (1, 1, 2, 0), (3, 0, 0, 0), ["COMPLETED"] * 3),
        ("CANCEL_OTHER", (3, 1, 0, 0), (3, 0, 0, 0), ["CANCELED", "CANCELED", "COMPLETED"]),
        ("TERMINATE_OTHER", (3, 1, 0, 0), (3, 0, 0, 0), ["TERMINATED", "TERMINATED", "COMPLETED"]),
        ("ALLOW_ALL", (3, 0, 0, 0), (3, 0, 0, 0), ["COMPLETED"] * 3),
    ],
)
def test_overlap_policies_of_triggers(
    env: Environment,
    policy: str,
    while_running: tuple[int, ...],
    in_the_end: tuple[int, ...],
    ends: list[str],
) -> None:
    """What is triggered while a workflow runs does as its policy says, at once and when the first has ended."""
    handle = create(env, works, 60.0, spec=NEVER, overlap=getattr(ScheduleOverlapPolicy, policy))
    for _ in range(3):
        handle.trigger()
        env.skip(seconds=2)
    assert counts(handle) == while_running
    env.skip(hours=4)
    assert counts(handle) == in_the_end
    assert [status.name for status in statuses(env)] == ends


def test_triggers_during_termination_start_one_workflow(env: Environment) -> None:
    """As on a server: the first starts one, all that come while it is terminated start one together, and a later one another."""
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


def test_times_during_a_running_workflow_are_skipped(env: Environment) -> None:
    """A workflow that takes longer than an interval lets times pass, and the next one starts on time."""
    handle = create(env, works, 150.0)
    env.skip(hours=7)
    assert hours(handle) == [1, 4, 7]
    assert counts(handle) == (3, 1, 0, 4)


def test_schedule_waits_for_the_end_of_a_chain(env: Environment) -> None:
    """A workflow that continues as new has not ended; nor has one that is tried again, or was reset."""
    chain = create(env, goes_on, 4, spec=NEVER, name="chain", overlap=ScheduleOverlapPolicy.BUFFER_ALL)
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
    """A workflow that is reset while its schedule waits for it is waited for still."""
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


def test_pause_on_failure(env: Environment) -> None:
    """With pause_on_failure a workflow that failed is the last one, and the schedule says why."""
    handle = create(env, fails, pause_on_failure=True)
    env.skip(hours=5)
    state = handle.describe().schedule.state
    assert counts(handle) == (1, 0, 0, 0)
    assert state.paused
    assert "s-2026-01-01T01:00:00Z: no ink" in state.note
    handle.unpause("mended")
    env.skip(hours=1)
    assert counts(handle)[0] == 2


def test_limited_actions(env: Environment) -> None:
    """A schedule with so many actions left stops after them; what is asked for by hand does not count."""
    handle = create(env, works, limited_actions=True, remaining_actions=2, trigger_immediately=True)
    env.skip(hours=10)
    assert counts(handle)[0] == 3
    assert handle.describe().schedule.state.remaining_actions == 0


def test_pause_and_update(env: Environment) -> None:
    """A schedule that is paused rests and names its next times; an update changes what it starts and when."""
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
    action = ScheduleActionStartWorkflow(goes_on, 1, task_queue="another")
    handle.update(lambda _: Schedule(action, daily))
    env.skip(days=2)
    assert counts(handle)[0] == 5
    assert env.client.count_workflows("WorkflowType = 'goes_on' AND ExecutionStatus = 'Completed'") == 2


def test_backfills(env: Environment) -> None:
    """A backfill starts a workflow for each time of its stretch, one after the other where its policy says so."""
    handle = create(env, works)
    stretch = ScheduleBackfill(
        start_at=NEW_YEAR - timedelta(days=5),
        end_at=NEW_YEAR - timedelta(days=1),
        overlap=ScheduleOverlapPolicy.BUFFER_ALL,
    )
    handle.pause("only what was")
    handle.backfill(stretch)
    env.skip(hours=3)
    assert counts(handle) == (97, 0, 0, 0)
    assert statuses(env) == [WorkflowStatus.COMPLETED] * 97


def test_start_with_a_used_id_is_dropped(env: Environment, caplog: pytest.LogCaptureFixture) -> None:
    """Where somebody else's workflow has the id, the time passes; the schedule goes on with the next."""
    env.start_workflow(works, 150.0, id="the-one")
    handle = create(env, works, keep_original_workflow_id=True, options={"id": "the-one"})
    env.skip(hours=4)
    assert hours(handle) == [3, 4]
    assert "could not start workflow 'the-one'" in caplog.text


def test_schedules_are_listed(env: Environment) -> None:
    """Schedules are listed, the newest first and page by page, by filters over their own attributes and their state."""
    for number in range(5):
        create(env, works, name=f"s{number}", search_attributes={"Number": number}, paused=number % 2 == 1)
        env.skip(seconds=1)

    def listed(query: str = "", **more: Any) -> list[str]:
        return [each.id for each in env.client.list_schedules(query, **more)]

    assert listed() == listed(page_size=2) == ["s4", "s3", "s2", "s1", "s0"]
    assert listed("TemporalSchedulePaused = true") == ["s3", "s1"]
    assert listed("Number >= 3 OR ScheduleId = 's0'") == ["s4", "s3", "s0"]
    env.client.get_schedule_handle("s4").delete()
    assert listed("Number >= 3") == ["s3"]
    with pytest.raises(ServiceError, match="Colour"):
        listed("Colour = 'red'")


def test_duplicate_and_unknown_schedule_ids_are_rejected(env: Environment) -> None:
    """A second schedule of an id is refused, one that is not there is missed, and a deleted one acts no more."""
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
    """The request for a schedule of every hour."""
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


async def look(world: World, name: str = "s") -> ss.ScheduleInfo:
    return (await world.call(sc.DescribeSchedule(schedule_id=name))).info


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Opens a store again and again over the same place."""
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
    """What came due while nobody had the file is started when it is opened, as far back as the window allows."""
    clock = VirtualClock(HOUR * 1000 + 1)
    world = await World.new(store=place(), clock=clock, opened=True)
    await world.call(hourly(catchup_window=window, overlap=ss.ScheduleOverlapPolicy.ALLOW_ALL))
    clock.advance(3600)
    await settle()
    assert (await look(world)).num_actions == 1
    await world.close()
    clock.advance(5 * 3600 + 1)
    world = await World.new(store=place(), clock=clock, opened=True)
    clock.advance(0)
    info = await look(world)
    assert (info.num_actions, info.num_actions_missed_catchup_window) == (started, missed)
    assert all(each.started_at == ss.time_from(clock.now_ns()) for each in info.recent_actions[1:])
    await world.close()


async def test_workflow_end_without_an_engine_is_seen_by_its_schedule(place: Any) -> None:
    """A workflow that is ended by a client that opens the file for a moment tells its schedule all the same."""
    clock = VirtualClock(HOUR * 1000)
    world = await World.new(store=place(), clock=clock, opened=True)
    await world.call(hourly(overlap=ss.ScheduleOverlapPolicy.BUFFER_ONE))
    await world.call(trigger("t1"))
    clock.advance(2)
    await world.call(trigger("t2"))
    (running,) = (await look(world)).running_actions
    await world.close()
    alone = await World.new(store=place(), clock=clock)
    await alone.call(wf.TerminateWorkflow(workflow_id=running.workflow_id))
    info = await look(alone)
    assert (info.num_actions, info.num_actions_waiting, len(info.running_actions)) == (2, 0, 1)
    await alone.close()


def test_schedules_survive_a_crash_at_any_commit() -> None:
    """Whatever was durable when the engine died, schedules and runs agree, and it ends as if nothing had happened."""

    async def life(store: ScriptedStore) -> None:
        world = await World.new(store=store, clock=VirtualClock(HOUR * 1000))
        world.engine.schedules.begin()
        call = world.call(hourly(overlap=ss.ScheduleOverlapPolicy.BUFFER_ALL))
        await _impatient(call)
        for number in range(3):
            await _impatient(world.call(trigger(f"t{number}")))
            world.clock.advance(2)
        world.clock.advance(3600)
        for _ in range(4):
            current = [each for each in world.engine.runs.records() if each.run.is_open]
            end = wf.TerminateWorkflow(workflow_id=current[0].run.started.workflow_id)
            await _impatient(world.call(end))
            world.clock.advance(60)
        world.engine.die(store.failure or ServiceError("over"))  # type: ignore[arg-type]

    async def body() -> None:
        whole = ScriptedStore()
        await life(whole)
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
        unfinished = {(each.workflow_id, each.run_id) for each in runs if each.close_time_ns == 0}
        assert unfinished == set(record.running)
        for number in range(3):  # whoever has no answer asks again
            await world.call(trigger(f"t{number}"))
            world.clock.advance(2)
        again = disk.schedule("s")
        assert again is not None
        manual = [each for each in again.requests if each.startswith("t")]
        assert sorted(manual) == ["t0", "t1", "t2"]

    run_async(body)


async def _impatient(call: Any) -> None:
    """Have a request carried out, and its changes queued; nothing is durable."""
    task = asyncio.ensure_future(call)
    await settle()
    task.cancel()
    await asyncio.wait({task})


async def test_repeated_schedule_request_counts_once(place: Any) -> None:
    """The same request again is the same request, even after the file was opened anew."""
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
    assert (await look(world)).num_actions == 1
    with pytest.raises(ScheduleAlreadyExistsError):
        await world.call(msgspec.structs.replace(hourly(), request_id="another"))
    await world.call(sc.DeleteSchedule(schedule_id="s"))
    assert await was_carried_out(sc.DeleteSchedule(schedule_id="s"), world.call)
    await world.close()


async def test_schedule_waits_while_the_store_is_full() -> None:
    """While the store wants no new runs a schedule waits, and loses nothing."""
    store = ScriptedStore()
    world = await World.new(store=store, clock=VirtualClock(HOUR * 1000 + 1))
    world.engine.schedules.begin()
    await _impatient(world.call(hourly(overlap=ss.ScheduleOverlapPolicy.ALLOW_ALL)))
    store.refusal = "the disk is full"
    world.clock.advance(2 * 3600)
    assert not list(world.engine.runs.records())
    store.refusal = ""
    world.clock.advance(6)
    store.commit()
    assert [taken.action.workflow_id[-9:] for taken in (await look(world)).recent_actions] == [
        "17:00:00Z",
        "18:00:00Z",
    ]


def test_unreadable_schedule_does_not_affect_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged schedule is reported; the others act, and the file stays open."""
    path = tmp_path / "runs.db"

    async def body() -> None:
        clock = VirtualClock(HOUR * 1000 + 1)
        world = await World.new(store=open_sqlite(path), clock=clock, opened=True)
        await world.call(hourly("good"))
        await world.call(hourly("bad"))
        await world.close()
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE schedules SET data = x'81' WHERE schedule_id = 'bad'")
        connection.close()
        world = await World.new(store=open_sqlite(path), clock=clock, opened=True)
        clock.advance(3600)
        assert (await look(world, "good")).num_actions == 1
        assert not world.engine.is_over
        listed = await world.call(sc.ListSchedules())
        assert [each.schedule_id for each in listed.schedules] == ["good"]
        await world.close()

    run_async(body)
    assert "schedule 'bad' cannot start workflows" in caplog.text


# --- in a file, on real time --------------------------------------------------------------------------------------------


@workflow.defn
def quick(kind: str) -> str:
    return f"the {kind} report"


def test_schedules_without_and_with_an_owner(tmp_path: Path) -> None:
    """A client makes, triggers and lists schedules while nobody owns the file; a worker then runs what they started."""
    target = f"local:{tmp_path / 'runs.db'}"
    with Client.connect(target) as client:
        schedule = Schedule(ScheduleActionStartWorkflow(quick, "daily", task_queue="q"), NEVER)
        handle = client.create_schedule("s", schedule, trigger_immediately=True)
        assert [each.id for each in client.list_schedules()] == ["s"]
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
    """Requests about schedules, and their answers, travel to the process that owns the file and back."""
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
