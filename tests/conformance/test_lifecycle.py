"""Workers and runs on each engine: parked runs, eviction, restarts, concurrency, ids and lists."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.aio import workflow as aio_workflow
from hourglass.client import Client, WorkflowStatus
from hourglass.converter import SearchAttributeKey
from hourglass.errors import UsageError, WorkflowNotFoundError
from hourglass.replay import Replayer
from hourglass.testing import DevServer
from hourglass.worker import Worker

from . import activities
from .world import World, event_types

pytestmark = pytest.mark.server


@workflow.defn
def doubles_three_times(number: int) -> int:
    for _ in range(3):
        number = activities.double(number)
    return number


@workflow.defn
def doubles_once(number: int) -> int:
    return activities.double(number)


@workflow.defn
def waits_between_records() -> list[str]:
    log = [activities.record_call("before")]
    log.append(activities.opens_gate_and_waits_for_go("between"))
    log.append(activities.record_call("after"))
    return log


@workflow.defn
def fails_until_mended() -> str:
    activities.record_call("before the bug")
    if not activities.state.mended:
        raise ValueError("secret payload of the user's")
    return activities.record_call("mended")


@workflow.defn
def waits_for_go() -> str:
    return str(workflow.Channel("go", str).receive())


@pytest.fixture(params=["memory", "file", "server"])
def world(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> Iterator[World]:
    """A world on each engine, without a worker."""
    activities.reset_shared_state()
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'runs.db'}", "server": quick_server.target}
    with Client.connect(targets[request.param]) as client:
        world = World(
            request.param, client, [sys.modules[__name__], activities], activities=[activities.SHOP]
        )
        yield world
        activities.reset_shared_state()
        world.stop_worker()


def replay_all(world: World) -> None:
    """Assert that every history of the world replays."""
    with Replayer(modules=[sys.modules[__name__]]) as replayer:
        for history in world.histories():
            assert replayer.replay(history).ok


def test_bug_in_workflow_code_parks_the_run_until_it_is_fixed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    worker = world.start_worker()
    handle = world.start(fails_until_mended, task_timeout=1)
    world.wait_until(lambda: worker.statistics().parked, "parked run")
    (reason,) = worker.statistics().parked.values()
    assert handle.run_id in worker.statistics().parked
    assert reason.startswith("ValueError at")
    assert __file__ in reason
    assert "secret payload" not in reason
    world.wait_for_event(handle, "WORKFLOW_TASK_FAILED")
    assert "is parked: ValueError at" in caplog.text
    assert handle.describe().status == WorkflowStatus.RUNNING
    world.stop_worker()
    activities.state.mended = True
    world.start_worker()
    assert handle.result(timeout=60) == "mended"
    assert activities.state.calls == ["before the bug", "mended"]
    assert event_types(handle.history())[-1] == "WORKFLOW_EXECUTION_COMPLETED"
    replay_all(world)


@activity.defn(retry_policy=activities.ONCE)
def pack(item: str) -> str:
    """Not registered with the first worker."""
    return f"{item} packed"


@workflow.defn
def packs_locally(item: str) -> str:
    """Its retry policy allows one attempt, which must not be lost."""
    return pack.local(item)


@workflow.defn
async def packs_locally_async(item: str) -> str:
    """Like `packs_locally`, as a coroutine."""
    return await aio_workflow.execute_local_activity(pack, item, start_to_close_timeout=timedelta(seconds=5))


@pytest.mark.parametrize("code", [packs_locally, packs_locally_async])
def test_unknown_local_activity_fails_the_task_until_a_worker_knows_it(
    world: World, caplog: pytest.LogCaptureFixture, code: Any
) -> None:
    worker = Worker(world.client, world.queue, workflows=[code], activities=[activities.double])
    with worker:
        handle = world.start(code, "lamp", task_timeout=1)
        # On a busy machine the first task may time out, and a server records no failure of the next ones.
        world.wait_until(lambda: "is parked: UsageError at" in caplog.text, "message")
        ended = {"WORKFLOW_TASK_FAILED", "WORKFLOW_TASK_TIMED_OUT"}
        world.wait_until(lambda: ended.intersection(event_types(handle.history())), "end of the task")
        assert "activity type 'pack' is not registered" in caplog.text
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


def reported_problems(world: World, filter: str = f"{REPORTED} IS NOT NULL") -> dict[str, tuple[str, ...]]:
    """Return the reported problems of the runs that the filter finds, by run id."""
    query = f"TaskQueue = '{world.queue}' AND ({filter})"
    return {run.run_id: run.reported_problems for run in world.client.list_workflows(query)}


def test_repeatedly_failing_task_is_reported_in_lists_until_it_succeeds(world: World) -> None:
    world.start_worker()
    healthy = world.start(waits_for_go)
    handle = world.start(fails_until_mended, task_timeout=1)
    world.wait_until(lambda: reported_problems(world), "report")
    assert reported_problems(world) == {handle.run_id: FAILED}
    assert handle.describe().reported_problems == FAILED
    assert handle.describe().search_attributes[REPORTED] == list(FAILED)
    assert handle.describe().status == WorkflowStatus.RUNNING
    assert handle.describe().parked
    for filter in (
        f"{REPORTED} IN ('category=WorkflowTaskFailed', 'category=WorkflowTaskTimedOut')",
        f'{REPORTED} = "{FAILED[1]}"',
        f"{REPORTED} = 'CATEGORY=workflowtaskfailed' AND ExecutionStatus = 'Running'",
    ):
        assert reported_problems(world, filter) == {handle.run_id: FAILED}
    assert not reported_problems(world, f"{REPORTED} = 'category=WorkflowTaskTimedOut'")
    assert reported_problems(world, f"{REPORTED} IS NULL") == {healthy.run_id: ()}
    world.stop_worker()
    assert reported_problems(world) == {handle.run_id: FAILED}
    activities.state.mended = True
    world.start_worker()
    assert handle.result(timeout=60) == "mended"
    assert handle.describe().reported_problems == ()
    world.wait_until(lambda: not reported_problems(world), "list without it")
    assert REPORTED not in str(handle.history().events)
    healthy.terminate()


def test_terminated_parked_run_keeps_its_reported_problem(world: World) -> None:
    """The run that replaces it by a reset has none."""
    world.start_worker()
    handle = world.start(fails_until_mended, task_timeout=1)
    world.wait_until(lambda: handle.describe().reported_problems, "report")
    world.stop_worker()
    again = handle.reset(event_id=4)
    old = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
    assert (old.describe().status, old.describe().reported_problems) == (WorkflowStatus.TERMINATED, FAILED)
    assert again.describe().reported_problems == ()
    world.wait_until(
        lambda: reported_problems(world) == {handle.run_id: FAILED}, "list with the old one alone"
    )
    again.terminate()


@workflow.defn
def continues_when_mended(round: int) -> str:
    if round == 0:
        if not activities.state.mended:
            raise ValueError("not yet")
        workflow.continue_as_new(1)
    return str(workflow.search_attributes())


def test_continue_as_new_drops_reported_problems(world: World) -> None:
    """Other search attributes are passed on."""
    world.start_worker()
    handle = world.start(continues_when_mended, 0, task_timeout=1)
    world.wait_until(lambda: handle.describe().reported_problems, "report")
    activities.state.mended = True
    world.start_worker()
    assert REPORTED not in handle.result(timeout=60)
    world.wait_until(lambda: not reported_problems(world), "list without either")


def test_reported_problems_set_by_client_are_removed_by_first_completed_task(world: World) -> None:
    mine = SearchAttributeKey.for_keyword_list(REPORTED)
    handle = world.start(waits_for_go, search_attributes=[mine.value_set(["mine"])])
    assert handle.describe().reported_problems == ("mine",)
    world.start_worker()
    world.wait_until(lambda: not handle.describe().reported_problems, "description without it")
    handle.terminate()


@pytest.mark.parametrize("cached", [0, 1])
def test_runs_complete_despite_cache_eviction(world: World, cached: int) -> None:
    world.start_worker(max_cached_workflows=cached)
    handles = [world.start(doubles_three_times, number) for number in range(30)]
    assert [handle.result(timeout=60) for handle in handles] == [number * 8 for number in range(30)]
    replay_all(world)


def test_client_of_a_running_worker_can_be_replaced(world: World) -> None:
    """Running work continues and the old client may be closed. A client of another engine is rejected."""
    worker = world.start_worker()
    with Client.connect("local:") as other_engine, pytest.raises(UsageError, match="another"):
        worker.client = other_engine
    if world.engine == "memory":
        return
    with (
        Client.connect(world.client.target) as old,
        Client.connect(world.client.target, identity="new") as new,
    ):
        world.stop_worker()
        first_worker = Worker(
            old, world.queue, modules=[sys.modules[__name__], activities], activities=[activities.SHOP]
        )
        second_worker = Worker(
            old, f"{world.queue}-beside", workflows=[doubles_once], activities=[activities.double]
        )
        with first_worker, second_worker:
            running = world.start(waits_between_records)
            assert activities.gate("between").wait(60)
            closed_client = Client.connect(world.client.target)
            closed_client.close()
            with pytest.raises(UsageError, match="closed"):
                first_worker.client = closed_client
            assert first_worker.client is old
            first_worker.client = new
            assert first_worker.client is new
            assert first_worker.config()["client"] is new
            assert world.start(doubles_three_times, 1).result(timeout=60) == 8
            pollers = new.describe_task_queue(world.queue).workflow_pollers
            assert "new" in {poller.identity for poller in pollers}
            second_worker.client = new
            old.close()
            assert new.execute_workflow(doubles_once, 2, task_queue=f"{world.queue}-beside") == 4
            activities.gate("go").set()
            assert running.result(timeout=60) == ["before", "between", "after"]
    replay_all(world)


@pytest.mark.parametrize("verify", ["always", "off"])
def test_new_worker_continues_a_run_without_repeating_activities(world: World, verify: str) -> None:
    world.start_worker(verify=verify, graceful_shutdown_timeout=60)
    handle = world.start(waits_between_records)
    activities.wait_for_gate("between")
    activities.gate("go").set()
    world.stop_worker()
    world.start_worker(verify=verify)
    assert handle.result(timeout=60) == ["before", "between", "after"]
    assert activities.state.calls == ["before", "after"]
    replay_all(world)


def test_waiting_run_is_continued_by_a_new_worker(world: World) -> None:
    world.start_worker()
    handle = world.start_waiting(waits_for_go)
    world.stop_worker()
    handle.signal("go", "sent while nobody worked")
    world.start_worker()
    assert handle.result(timeout=60) == "sent while nobody worked"
    replay_all(world)


def test_two_hundred_concurrent_runs_complete(world: World) -> None:
    world.start_worker(verify="off")
    handles = [world.start(doubles_once, number) for number in range(200)]
    assert [handle.result(timeout=60) for handle in handles] == [number * 2 for number in range(200)]


def test_repeated_start_request_id_starts_one_run(world: World) -> None:
    options: dict[str, Any] = {"id": f"{world.queue}-r", "request_id": "the-same"}
    assert world.start(waits_for_go, **options).run_id == world.start(waits_for_go, **options).run_id


def test_calls_on_unknown_workflow_raise_not_found_with_its_id(world: World) -> None:
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


def test_list_pages_neither_repeat_nor_skip_runs_that_change_meanwhile(world: World) -> None:
    world.start_worker()
    handles = [world.start(waits_for_go) for _ in range(7)]
    mine = f"TaskQueue = '{world.queue}'"
    world.wait_until(lambda: world.client.count_workflows(mine) == 7, "seven runs in the list")
    listed = iter(world.client.list_workflows(f"{mine} AND ExecutionStatus = 'Running'", page_size=2))
    seen = [next(listed).id, next(listed).id]
    for handle in handles:
        if handle.id in seen:
            handle.terminate("in the middle")
    world.start(waits_for_go)
    closed = f"{mine} AND ExecutionStatus = 'Terminated'"
    world.wait_until(lambda: world.client.count_workflows(closed) == 2, "two closed runs in the list")
    seen += [run.id for run in listed]
    assert len(seen) == len(set(seen))
    assert {handle.id for handle in handles} <= set(seen)
