"""What befalls workers and runs, on each engine: bugs that park, eviction, restarts, many at once, ids, lists."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.aio import workflow as aio_workflow
from hourglass.client import Client, IdConflictPolicy, IdReusePolicy, WorkflowStatus
from hourglass.converter import SearchAttributeKey
from hourglass.errors import UsageError, WorkflowAlreadyStartedError, WorkflowNotFoundError
from hourglass.replay import Replayer
from hourglass.testing import DevServer
from hourglass.worker import Worker

from . import acts
from .world import World, kinds

pytestmark = pytest.mark.server


@workflow.defn
def steps(number: int) -> int:
    for _ in range(3):
        number = acts.double(number)
    return number


@workflow.defn
def single(number: int) -> int:
    return acts.double(number)


@workflow.defn
def pauses() -> list[str]:
    log = [acts.note("before")]
    log.append(acts.passes("between"))
    log.append(acts.note("after"))
    return log


@workflow.defn
def buggy() -> str:
    acts.note("before the bug")
    if not acts.place.mended:
        raise ValueError("secret payload of the user's")
    return acts.note("mended")


@workflow.defn
def idle() -> str:
    return str(workflow.Channel("go", str).receive())


@pytest.fixture(params=["memory", "file", "server"])
def world(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> Iterator[World]:
    """A world on each engine, without a worker yet."""
    acts.fresh_place()
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'runs.db'}", "server": quick_server.target}
    with Client.connect(targets[request.param]) as client:
        world = World(request.param, client, [sys.modules[__name__], acts], activities=[acts.SHOP])
        yield world
        acts.fresh_place()
        world.stop_worker()


def replay_all(world: World) -> None:
    """Every history of the world fits the code."""
    with Replayer(modules=[sys.modules[__name__]]) as replayer:
        for history in world.histories():
            assert replayer.replay(history).ok


def test_bug_parks_the_run_until_it_is_fixed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The run stays open, statistics and log name it, and a new worker with mended code continues it."""
    worker = world.start_worker()
    handle = world.start(buggy, task_timeout=1)
    world.until_true(lambda: worker.statistics().parked, "parked run")
    (reason,) = worker.statistics().parked.values()
    assert handle.run_id in worker.statistics().parked
    assert reason.startswith("ValueError at")
    assert __file__ in reason
    assert "secret payload" not in reason
    world.until(handle, "WORKFLOW_TASK_FAILED")
    assert "is parked: ValueError at" in caplog.text
    assert handle.describe().status == WorkflowStatus.RUNNING
    world.stop_worker()
    acts.place.mended = True
    world.start_worker()
    assert handle.result(timeout=60) == "mended"
    assert acts.place.calls == ["before the bug", "mended"]
    assert kinds(handle.history())[-1] == "WORKFLOW_EXECUTION_COMPLETED"
    replay_all(world)


@activity.defn(retry_policy=acts.ONCE)
def packs(item: str) -> str:
    """Is not known to the first worker."""
    return f"{item} packed"


@workflow.defn
def packs_locally(item: str) -> str:
    """Even what must not be tried twice is not lost."""
    return packs.local(item)


@workflow.defn
async def packs_locally_async(item: str) -> str:
    """The same, awaited."""
    return await aio_workflow.execute_local_activity(packs, item, start_to_close_timeout=timedelta(seconds=5))


@pytest.mark.parametrize("code", [packs_locally, packs_locally_async])
def test_unknown_local_activity_fails_the_task(
    world: World, caplog: pytest.LogCaptureFixture, code: Any
) -> None:
    """As with temporalio: the run is parked at the call, the log says so once, and a worker that knows the activity goes on."""
    worker = Worker(world.client, world.queue, workflows=[code], activities=[acts.double])
    with worker:
        handle = world.start(code, "lamp", task_timeout=1)
        world.until(handle, "WORKFLOW_TASK_FAILED")
        assert "activity type 'packs' is not registered" in caplog.text
        assert "is parked: UsageError at" in caplog.text
        assert "its task is retried" in caplog.text.lower()
        assert "for good" not in caplog.text
        assert handle.describe().status == WorkflowStatus.RUNNING
    world.start_worker()
    assert handle.result(timeout=60) == "lamp packed"
    replay_all(world)


FAILED = (
    "category=WorkflowTaskFailed",
    "cause=WorkflowTaskFailedCauseWorkflowWorkerUnhandledFailure",
)
REPORTED = "TemporalReportedProblems"


def reported(world: World, filter: str = f"{REPORTED} IS NOT NULL") -> dict[str, tuple[str, ...]]:
    """The problems of the world's runs that such a filter finds, by their run ids."""
    query = f"TaskQueue = '{world.queue}' AND ({filter})"
    return {each.run_id: each.reported_problems for each in world.client.list_workflows(query)}


def test_lists_report_a_run_whose_task_keeps_failing(world: World) -> None:
    """After its second failure lists and its description say so, filters find it, and its status is running; when its code is
    mended nothing of that is left.
    """
    world.start_worker()
    well = world.start(idle)
    handle = world.start(buggy, task_timeout=1)
    world.until_true(lambda: reported(world), "report")
    assert reported(world) == {handle.run_id: FAILED}
    assert handle.describe().reported_problems == FAILED
    assert handle.describe().search_attributes[REPORTED] == list(FAILED)
    assert handle.describe().status == WorkflowStatus.RUNNING
    assert handle.describe().parked
    for found in (
        f"{REPORTED} IN ('category=WorkflowTaskFailed', 'category=WorkflowTaskTimedOut')",
        f'{REPORTED} = "{FAILED[1]}"',
        f"{REPORTED} = 'CATEGORY=workflowtaskfailed' AND ExecutionStatus = 'Running'",
    ):
        assert reported(world, found) == {handle.run_id: FAILED}
    assert not reported(world, f"{REPORTED} = 'category=WorkflowTaskTimedOut'")
    assert reported(world, f"{REPORTED} IS NULL") == {well.run_id: ()}
    world.stop_worker()
    assert reported(world) == {handle.run_id: FAILED}
    acts.place.mended = True
    world.start_worker()
    assert handle.result(timeout=60) == "mended"
    assert handle.describe().reported_problems == ()
    world.until_true(lambda: not reported(world), "list without it")
    assert REPORTED not in str(handle.history().events)
    well.terminate()


def test_terminated_parked_run_keeps_its_problem(world: World) -> None:
    """Lists go on saying what was wrong with it; the run that takes its place by a reset begins without."""
    world.start_worker()
    handle = world.start(buggy, task_timeout=1)
    world.until_true(lambda: handle.describe().reported_problems, "report")
    world.stop_worker()
    again = handle.reset(event_id=4)
    old = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
    assert (old.describe().status, old.describe().reported_problems) == (WorkflowStatus.TERMINATED, FAILED)
    assert again.describe().reported_problems == ()
    world.until_true(lambda: reported(world) == {handle.run_id: FAILED}, "list with the old one alone")
    again.terminate()


@workflow.defn
def continues_when_mended(round: int) -> str:
    if round == 0:
        if not acts.place.mended:
            raise ValueError("not yet")
        workflow.continue_as_new(1)
    return str(workflow.search_attributes())


def test_continued_run_starts_without_reported_problems(world: World) -> None:
    """Search attributes are passed on by continue-as-new, this one is not."""
    world.start_worker()
    handle = world.start(continues_when_mended, 0, task_timeout=1)
    world.until_true(lambda: handle.describe().reported_problems, "report")
    acts.place.mended = True
    world.start_worker()
    assert REPORTED not in handle.result(timeout=60)
    world.until_true(lambda: not reported(world), "list without either")


def test_reported_problems_cannot_be_set_by_clients(world: World) -> None:
    """It is taken, and gone with the first task that is completed: engines alone know what is wrong."""
    mine = SearchAttributeKey.for_keyword_list(REPORTED)
    handle = world.start(idle, search_attributes=[mine.value_set(["mine"])])
    assert handle.describe().reported_problems == ("mine",)
    world.start_worker()
    world.until_true(lambda: not handle.describe().reported_problems, "description without it")
    handle.terminate()


@pytest.mark.parametrize("cached", [0, 1])
def test_runs_survive_eviction(world: World, cached: int) -> None:
    """Thirty runs and room for none or one in the cache: all complete, and all histories replay."""
    world.start_worker(max_cached_workflows=cached)
    handles = [world.start(steps, number) for number in range(30)]
    assert [handle.result(timeout=60) for handle in handles] == [number * 8 for number in range(30)]
    replay_all(world)


def test_client_of_a_running_worker_is_replaced(world: World) -> None:
    """A worker that works is given another client of the same engine: what runs goes on, what comes next goes over the new one,
    the old one may be closed; where the new one is of another engine, all stays as it was.
    """
    worker = world.start_worker()
    with Client.connect("local:") as elsewhere, pytest.raises(UsageError, match="another"):
        worker.client = elsewhere
    if world.engine == "memory":
        return
    with (
        Client.connect(world.client.target) as old,
        Client.connect(world.client.target, identity="new") as new,
    ):
        world.stop_worker()
        moved = Worker(old, world.queue, modules=[sys.modules[__name__], acts], activities=[acts.SHOP])
        beside = Worker(old, f"{world.queue}-beside", workflows=[single], activities=[acts.double])
        with moved, beside:
            running = world.start(pauses)
            assert acts.gate("between").wait(60)
            gone = Client.connect(world.client.target)
            gone.close()
            with pytest.raises(UsageError, match="closed"):
                moved.client = gone
            assert moved.client is old
            moved.client = new
            assert moved.client is new
            assert moved.config()["client"] is new
            assert world.start(steps, 1).result(timeout=60) == 8
            pollers = new.describe_task_queue(world.queue).workflow_pollers
            assert "new" in {each.identity for each in pollers}
            beside.client = new
            old.close()
            assert new.execute_workflow(single, 2, task_queue=f"{world.queue}-beside") == 4
            acts.gate("go").set()
            assert running.result(timeout=60) == ["before", "between", "after"]
    replay_all(world)


@pytest.mark.parametrize("verify", ["always", "off"])
def test_worker_is_replaced_during_a_run(world: World, verify: str) -> None:
    """A new worker goes on where the old one stopped: nothing is run again, nothing is lost."""
    world.start_worker(verify=verify, graceful_shutdown_timeout=60)
    handle = world.start(pauses)
    acts.arrived("between")
    acts.gate("go").set()
    world.stop_worker()
    world.start_worker(verify=verify)
    assert handle.result(timeout=60) == ["before", "between", "after"]
    assert acts.place.calls == ["before", "after"]
    replay_all(world)


def test_idle_run_survives_workers(world: World) -> None:
    """A run that waits for a signal is carried on by a worker that never saw it."""
    world.start_worker()
    handle = world.start(idle)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    world.stop_worker()
    handle.signal("go", "sent while nobody worked")
    world.start_worker()
    assert handle.result(timeout=60) == "sent while nobody worked"
    replay_all(world)


def test_two_hundred_concurrent_runs(world: World) -> None:
    """Two hundred runs started together all complete."""
    world.start_worker(verify="off")
    handles = [world.start(single, number) for number in range(200)]
    assert [handle.result(timeout=60) for handle in handles] == [number * 2 for number in range(200)]


def test_run_started_without_a_worker_waits(world: World) -> None:
    """A run waits until somebody works."""
    handle = world.start(steps, 1)
    assert kinds(handle.history()) == ["WORKFLOW_EXECUTION_STARTED", "WORKFLOW_TASK_SCHEDULED"]
    world.start_worker()
    assert handle.result(timeout=60) == 8


def test_workflow_id_conflict_policies(world: World) -> None:
    """A second run of a running id is refused, or is the first one, or ends it; a closed id may be used again or not."""
    world.start_worker()
    first = world.start(idle, id=f"{world.queue}-x")
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        world.start(idle, id=first.id)
    assert (caught.value.workflow_id, caught.value.run_id) == (first.id, first.run_id)
    same = world.start(idle, id=first.id, id_conflict_policy=IdConflictPolicy.USE_EXISTING)
    assert same.run_id == first.run_id
    other = world.start(idle, id=first.id, id_conflict_policy=IdConflictPolicy.TERMINATE_EXISTING)
    assert other.run_id != first.run_id
    assert type(world.failure(first)).__name__ == "TerminatedError"
    other.signal("go", "done")
    assert other.result(timeout=60) == "done"
    with pytest.raises(WorkflowAlreadyStartedError):
        world.start(idle, id=first.id, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    again = world.start(idle, id=first.id)
    assert again.run_id not in (first.run_id, other.run_id)
    again.terminate("over")


def test_repeated_start_request_starts_one_run(world: World) -> None:
    """A start that is repeated with its request id is one run."""
    options: dict[str, Any] = {"id": f"{world.queue}-r", "request_id": "the-same"}
    assert world.start(idle, **options).run_id == world.start(idle, **options).run_id


def test_describe_list_and_count(world: World) -> None:
    """What the client tells of runs: status, type, times, memo, what is pending; filters find them."""
    world.start_worker()
    done = world.start(steps, 1, memo={"note": [1, 2]})
    done.result(timeout=60)
    waiting = world.start(pauses)
    acts.arrived("between")
    told = done.describe()
    assert (told.status, told.workflow_type, told.task_queue) == (
        WorkflowStatus.COMPLETED,
        "steps",
        world.queue,
    )
    assert told.memo == {"note": [1, 2]}
    assert told.close_time is not None
    assert told.start_time is not None
    assert told.start_time <= told.close_time
    assert told.history_length == len(done.history())
    (pending,) = waiting.describe().pending_activities
    assert (pending.activity_type, pending.attempt, pending.state) == ("passes", 1, "STARTED")
    mine = f"TaskQueue = '{world.queue}'"
    query = f"{mine} AND WorkflowType = 'steps'"
    world.until_true(lambda: world.client.count_workflows(mine) == 2, "two runs in the list")
    world.until_true(
        lambda: world.client.count_workflows(f"{mine} AND ExecutionStatus = 'Completed'") == 1, ""
    )
    assert [each.id for each in world.client.list_workflows(query)] == [done.id]
    assert world.client.count_workflows(f"{mine} AND ExecutionStatus = 'Running'") == 1
    acts.gate("go").set()
    waiting.result(timeout=60)


def test_unknown_workflow_is_reported(world: World) -> None:
    """Whatever is asked of a workflow that is not there, the answer says so and names it."""
    handle = world.client.get_workflow_handle("never-was")
    for call in (
        handle.describe,
        lambda: handle.result(timeout=10),
        lambda: handle.signal("x"),
        handle.cancel,
        handle.terminate,
        lambda: handle.query("x"),
        handle.history,
    ):
        with pytest.raises(WorkflowNotFoundError, match="never-was"):
            call()


def test_closed_run_rejects_messages(world: World) -> None:
    """A closed run refuses signals and termination; cancelling it is not an error on either engine."""
    world.start_worker()
    handle = world.start(steps, 1)
    handle.result(timeout=60)
    with pytest.raises(WorkflowNotFoundError):
        handle.signal("x")
    with pytest.raises(WorkflowNotFoundError):
        handle.terminate()


def test_list_pages_are_stable(world: World) -> None:
    """Runs that close and start while somebody reads a list page by page make nothing appear twice or be missed."""
    world.start_worker()
    handles = [world.start(idle) for _ in range(7)]
    mine = f"TaskQueue = '{world.queue}'"
    world.until_true(lambda: world.client.count_workflows(mine) == 7, "seven runs in the list")
    listed = iter(world.client.list_workflows(f"{mine} AND ExecutionStatus = 'Running'", page_size=2))
    seen = [next(listed).id, next(listed).id]
    for handle in handles:
        if handle.id in seen:
            handle.terminate("in the middle")
    world.start(idle)
    closed = f"{mine} AND ExecutionStatus = 'Terminated'"
    world.until_true(lambda: world.client.count_workflows(closed) == 2, "two closed runs in the list")
    seen += [each.id for each in listed]
    assert len(seen) == len(set(seen))
    assert {handle.id for handle in handles} <= set(seen)
