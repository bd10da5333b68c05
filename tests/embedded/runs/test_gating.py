"""Items with an effect leave the engine only after the changes they depend on are durable; a failed store ends the
engine.

Activations have no effect but their completion: they are delivered ahead of commits, up to a limit.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.polled import PolledEngine
from tests.specs import made

from effort import cases
from hourglass._contract import activities as ac
from hourglass._contract import schedule_specs as ss
from hourglass._contract import schedules as sc
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.handle import (
    ActivityCancel,
    ActivityDeferred,
    ActivityTask,
    HandleBroken,
    HandleConfig,
)
from hourglass._contract.ids import new_id
from hourglass._contract.workflows import PollUpdate, ResetWorkflow, UpdateWorkflow
from hourglass._embedded.activations.cache import AHEAD
from hourglass._embedded.api.answering import PendingAnswer
from hourglass._embedded.api.connection import EngineConnection
from hourglass._embedded.api.requests import HANDLERS
from hourglass._embedded.store.store import Store
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass.client import IdReusePolicy
from hourglass.errors import (
    HourglassError,
    QueryFailedError,
    ServiceError,
    ServiceTimeoutError,
    StorageError,
    UsageError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)
from hourglass.workflow import ActivityCancellationType

from ..memory_world import World, activity, run_async, settle, start_waiting, text
from ..store.scripted_store import ScriptedStore


@pytest.fixture
def store() -> ScriptedStore:
    """The store of `world`, which commits on request."""
    return ScriptedStore()


async def start_durably(world: World, store: ScriptedStore) -> str:
    """Start a run and receive its first activation, both durable. Return its id."""
    start = await start_waiting(world.start())
    activation = await start_waiting(world.activation())
    store.commit()
    await activation
    return str((await start).run_id)


async def test_answers_to_clients_wait_for_the_commit(world: World, store: ScriptedStore) -> None:
    start = await start_waiting(world.start())
    assert not start.done()
    store.commit()
    run_id = (await start).run_id
    calls = [
        await start_waiting(world.signal("s", "r")),
        await start_waiting(world.call(wf.DescribeWorkflow(workflow_id="w"))),
        await start_waiting(world.call(wf.ListWorkflows())),
        await start_waiting(world.call(wf.CountWorkflows())),
        await start_waiting(world.call(wf.GetHistory(workflow_id="w", run_id=run_id))),
    ]
    assert [call.done() for call in calls] == [False] * 5
    store.commit()
    _, description, page, number, history = await asyncio.gather(*calls)
    assert description.summary.history_length == len(history.events) == 3
    assert [summary.run_id for summary in page.workflows] == [run_id]
    assert number == wf.Count(1)


async def test_each_step_takes_one_commit(world: World, store: ScriptedStore) -> None:
    """The result of an attempt and the next activity become durable together, before the next attempt."""
    start = await start_waiting(world.start())
    task = await start_waiting(world.activation())
    run_id = (await task).run_id
    assert not start.done()
    store.commit()
    assert (await start).run_id == run_id
    attempt = await start_waiting(world.handle.poll_activity())
    before = store.commits
    for seq in range(1, 6):
        await world.complete(run_id, activity(seq))
        await settle()
        assert not attempt.done()
        assert store.commit() == (1 if seq == 1 else 2)  # changes: the answer, and the result that it answers
        item = await attempt
        attempt = await start_waiting(world.handle.poll_activity())
        task = await start_waiting(world.activation())
        await world.succeed(item, text("r"))
        assert (await task).events == (e.ActivityCompleted(seq, text("r")),)
    assert store.commits - before == 5
    attempt.cancel()


async def test_attempts_of_many_runs_share_a_commit(world: World, store: ScriptedStore) -> None:
    starts = [await start_waiting(world.start(f"w{number}")) for number in range(20)]
    ids = [(await world.activation()).run_id for _ in starts]
    for run_id in ids:
        await world.complete(run_id, activity())
    poll = await start_waiting(world.handle.poll_activity())
    assert not poll.done()
    store.commit()
    assert [(await start).run_id for start in starts] == ids
    first = await poll
    assert [first.run_id, *(item.run_id for item in world.handle.take_activities())] == ids


async def test_number_of_activations_ahead_of_the_store_is_limited(
    world: World, store: ScriptedStore
) -> None:
    start = await start_waiting(world.start())
    run_id, seq = (await world.activation()).run_id, 0
    while len(store.queue) < AHEAD:
        seq += 1
        await world.complete(run_id, c.StartTimer(seq, 10**9))
        world.clock.advance(2)
        poll = await start_waiting(world.activation())
        if not poll.done():
            break
    assert AHEAD <= len(store.queue) < AHEAD + 5
    store.commit()
    await start
    assert (await poll).events == (e.TimerFired(seq),)


async def test_local_activity_waits_for_its_cause_to_be_durable(world: World, store: ScriptedStore) -> None:
    start = await start_waiting(world.start())
    run_id = (await world.activation()).run_id
    poll = await start_waiting(world.handle.poll_activity())
    local = made(
        c.ScheduleLocalActivity, seq=1, activity_id="1", activity_type="a", start_to_close_timeout=60.0
    )
    await world.complete(run_id, local)
    await settle()
    assert not poll.done()
    store.commit()
    await start
    assert (await poll).is_local


async def test_cancelled_poll_loses_no_activity(world: World, store: ScriptedStore) -> None:
    starts = [await start_waiting(world.start(name)) for name in ("a", "b")]
    ids = [(await world.activation()).run_id for _ in starts]
    store.commit()
    assert [(await start).run_id for start in starts] == ids
    for run_id in ids:
        await world.complete(run_id, activity())
    for _ in range(3):
        poll = await start_waiting(world.handle.poll_activity())
        assert not poll.done()
        poll.cancel()
        await settle()
    store.commit()
    items = [await world.activity() for _ in ids]
    assert [item.run_id for item in items] == ids
    assert world.engine.attempts.take(world.handle.poller) is None


async def test_attempt_of_a_terminated_run_is_not_delivered(world: World, store: ScriptedStore) -> None:
    """The run is terminated while its attempt waits for the commit."""
    run_id = await start_durably(world, store)
    await world.complete(run_id, activity(), c.StartTimer(1, 10**9))
    poll = await start_waiting(world.handle.poll_activity())
    ended = await start_waiting(world.call(wf.TerminateWorkflow(workflow_id="w")))
    store.commit()
    await ended
    await settle()
    assert not poll.done()
    assert world.has_out  # its eviction waits for a poll
    poll.cancel()


async def test_cancellation_is_delivered_after_its_attempt(world: World, store: ScriptedStore) -> None:
    run_id = await start_durably(world, store)
    waits = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    await world.complete(run_id, activity(cancellation_type=waits))
    poll = await start_waiting(world.handle.poll_activity())
    signalled = await start_waiting(world.signal())
    await world.activation()
    store.commit()
    await signalled
    await world.complete(run_id, c.RequestCancelActivity(1))
    item = await poll
    assert isinstance(item, ActivityTask)
    poll = await start_waiting(world.handle.poll_activity())
    assert not poll.done()
    store.commit()
    assert await poll == ActivityCancel(item.token, "CANCELLED")


async def test_handle_shutdown_returns_undelivered_attempts(world: World, store: ScriptedStore) -> None:
    """Another handle receives the same attempt."""
    run_id = await start_durably(world, store)
    await world.complete(run_id, activity())
    poll = await start_waiting(world.handle.poll_activity())
    assert store.appended[-1].run.activities[5].started_ns
    world.handle.initiate_shutdown()
    other = PolledEngine(await world.connection.open_handle(HandleConfig(task_queue="q", identity="other")))
    second = await start_waiting(other.poll_activity())
    store.commit()
    item = await second
    assert (item.attempt, item.run_id) == (1, run_id)
    poll.cancel()


async def test_start_can_be_repeated_after_a_timeout(world: World, store: ScriptedStore) -> None:
    with pytest.raises(ServiceTimeoutError):
        await world.start(request_id="r", rpc_timeout=0.0)
    again = await start_waiting(world.start(request_id="r"))
    store.commit()
    assert (await world.engine.store.count("")).count == 1
    assert (await again).run_id == store.disk.current("w")


async def test_store_failure_ends_the_engine(world: World, store: ScriptedStore) -> None:
    """Polls break, calls fail, queries end, and nothing more is appended."""
    start = await start_waiting(world.start())
    store.commit()
    await start
    close = await start_waiting(world.call(wf.WaitForClose(workflow_id="w")))
    query = await start_waiting(world.call(wf.QueryWorkflow(workflow_id="w", query_name="q")))
    run_id = (await world.activation()).run_id
    await world.complete(run_id, activity())
    polls = [await start_waiting(world.handle.poll_activity())]
    signal = await start_waiting(world.signal())
    store.die("no such disk")
    await settle()
    for poll in polls:
        with pytest.raises(HandleBroken, match="no such disk"):
            await poll
    for call in (close, query, signal):
        with pytest.raises(StorageError, match="no such disk"):
            await call
    assert isinstance(world.engine.failed, StorageError)
    with pytest.raises(StorageError):
        await world.start("other")
    with pytest.raises(HandleBroken):
        await world.handle.poll_activation()
    with pytest.raises(HandleBroken):
        await world.handle.complete_activity(ActivityDeferred(b'["r",5,1]'))
    appended = len(store.appended)
    world.clock.advance(86_400)
    await world.close()
    assert len(store.appended) == appended


async def test_store_failure_is_detected_by_the_tick() -> None:
    store = ScriptedStore()
    world = await World.new(store=store, opened=True)
    run_id = await start_durably(world, store)
    await world.complete(run_id)
    store.die()
    world.engine._upkeep.tick()
    await settle()
    assert world.engine.failed is not None


async def test_closing_a_connection_closes_only_its_own_handles() -> None:
    world = await World.new()
    other = EngineConnection(world.engine)
    assert (other.target, other.namespace) == ("local:", "default")
    for _ in range(3):
        handle = PolledEngine(await other.open_handle(HandleConfig(task_queue="q2")))
        await handle.finalize()
    assert not other._handles
    await other.open_handle(HandleConfig(task_queue="q2"))
    await other.close()
    await world.start()
    assert isinstance((await world.activation()).events[0], e.RunStarted)


async def test_nearly_full_store_rejects_new_runs(world: World, store: ScriptedStore) -> None:
    """Repeated starts and signals are accepted."""
    first = await start_waiting(world.start(request_id="r"))
    store.commit()
    store.refusal = "8 MB are left"
    with pytest.raises(StorageError, match="8 MB are left"):
        await world.start("other")
    with pytest.raises(StorageError, match="8 MB are left"):
        await world.start(id_conflict_policy=wf.IdConflictPolicy.TERMINATE_EXISTING)
    assert (await world.start(request_id="r")).run_id == (await first).run_id
    signal = await start_waiting(world.signal())
    store.commit()
    assert await signal == s.Nothing()


async def closed_run(world: World, store: ScriptedStore) -> asyncio.Task[Any]:
    """Terminate a durable run; the termination is not durable yet."""
    await _start_durably(world, store)
    return await start_waiting(world.call(wf.TerminateWorkflow(workflow_id="w")))


async def _start_durably(world: World, store: ScriptedStore) -> str:
    start = await start_waiting(world.start())
    store.commit()
    return str((await start).run_id)


async def started_run(world: World, store: ScriptedStore) -> asyncio.Task[Any]:
    """Start a run; the start is not durable yet."""
    return await start_waiting(world.start(request_id="first"))


async def created_schedule(world: World, store: ScriptedStore) -> asyncio.Task[Any]:
    """Create a schedule, which is not durable yet."""
    return await start_waiting(world.call(_schedule("first")))


def _schedule(request_id: str) -> sc.CreateSchedule:
    action = made(wf.StartWorkflow, workflow_id="x", workflow_type="W", task_queue="q", request_id="")
    return sc.CreateSchedule(
        schedule_id="s",
        schedule=sc.EngineSchedule(action=action, spec=ss.ScheduleSpec()),
        request_id=request_id,
    )


def _start(**more: Any) -> wf.StartWorkflow:
    options = {"workflow_id": "w", "workflow_type": "W", "task_queue": "q", "request_id": "r", **more}
    return made(wf.StartWorkflow, **options)


_update = UpdateWorkflow(workflow_id="w", update_id="u", update_name="do")

REJECTED = {
    "already started": (started_run, _start()),
    "already started, with a signal": (
        started_run,
        _start(signal_name="s", id_conflict_policy=wf.IdConflictPolicy.FAIL),
    ),
    "may not be used again": (closed_run, _start(id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)),
    "a signal to what has closed": (
        closed_run,
        wf.SignalWorkflow(workflow_id="w", signal_name="s", request_id="r"),
    ),
    "a termination of what has closed": (closed_run, wf.TerminateWorkflow(workflow_id="w")),
    "an update of what has closed": (closed_run, _update),
    "an update that is not there": (started_run, PollUpdate(workflow_id="w", update_id="unknown")),
    "another first run": (
        started_run,
        wf.CancelWorkflow(workflow_id="w", request_id="r", first_execution_run_id="x"),
    ),
    "no such activity": (closed_run, ac.CompleteActivity(workflow_id="w", activity_id="a")),
    "no such point": (started_run, ResetWorkflow(workflow_id="w", event_id=99, request_id="r")),
    "a schedule that is there": (created_schedule, _schedule("second")),
}


@pytest.mark.parametrize("name", REJECTED)
async def test_rejection_waits_for_the_commit_it_depends_on(
    world: World, store: ScriptedStore, name: str
) -> None:
    prepare, request = REJECTED[name]

    world.handle.initiate_shutdown()  # no worker serves the queue
    waiting = await prepare(world, store)
    rejected_call = await start_waiting(world.call(request))
    assert not rejected_call.done()
    store.commit()
    with pytest.raises(HourglassError):
        await rejected_call
    await waiting


async def test_every_answer_of_a_handler_waits_for_its_commit(
    world: World, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[PendingAnswer[str] | HourglassError] = [
        PendingAnswer("description", 1),
        ServiceError("it is not so", status="NOT_FOUND"),
        QueryFailedError("no"),
        UsageError("never"),
    ]

    async def handler(engine: object, request: object) -> PendingAnswer[str]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, HourglassError):
            raise outcome
        return outcome

    start = await start_waiting(world.start())
    monkeypatch.setitem(HANDLERS, wf.DescribeWorkflow, handler)
    expected = list(outcomes)
    calls = [await start_waiting(world.call(wf.DescribeWorkflow(workflow_id="w"))) for _ in expected]
    assert not any(call.done() for call in calls)
    store.commit()
    await start
    assert await asyncio.gather(*calls, return_exceptions=True) == ["description", *expected[1:]]


async def test_rejection_does_not_wait_for_unrelated_commits(world: World, store: ScriptedStore) -> None:
    await _start_durably(world, store)
    other = await start_waiting(world.start("other"))
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.start(request_id="again")
    with pytest.raises(WorkflowNotFoundError):
        await world.call(wf.DescribeWorkflow(workflow_id="unknown"))
    assert not other.done()
    store.commit()
    await other


async def test_rejection_based_on_a_lost_change_fails_with_the_store_error(
    world: World, store: ScriptedStore
) -> None:
    start = await start_waiting(world.start(request_id="first"))
    rejected_call = await start_waiting(world.start(request_id="second"))
    store.die()
    outcomes = await asyncio.gather(start, rejected_call, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageError, StorageError]
    assert store.disk.current("w") == ""


async def test_cancellation_by_heartbeat_waits_until_the_run_end_is_durable(
    world: World, store: ScriptedStore
) -> None:
    await _start_durably(world, store)
    activation = await world.activation()
    await world.complete(activation.run_id, activity(heartbeat_timeout=60.0))
    attempt = await start_waiting(world.activity())
    store.commit()
    item = await attempt
    end = await start_waiting(world.call(wf.TerminateWorkflow(workflow_id="w")))
    world.handle.heartbeat(item.token, ())
    poll = await start_waiting(world.handle.poll_activity())
    assert not poll.done()
    store.commit()
    await end
    assert isinstance(await poll, ActivityCancel)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["start", "signal", "cancel", "end", "describe"]), st.integers(0, 2)),
        st.tuples(st.just("commit"), st.integers(1, 3)),
    ),
    max_size=30,
)


@given(_STEPS)
@settings(max_examples=cases(60, 2000))
def test_answers_to_clients_hold_after_a_crash(steps: list[tuple[str, int]]) -> None:
    async def body() -> None:
        store = ScriptedStore()
        world = await World.new(store=store)
        requests = {
            "start": lambda name: _start(workflow_id=name, request_id=new_id()),
            "signal": lambda name: wf.SignalWorkflow(workflow_id=name, signal_name="s", request_id=new_id()),
            "cancel": lambda name: wf.CancelWorkflow(workflow_id=name, request_id=new_id()),
            "end": lambda name: wf.TerminateWorkflow(workflow_id=name, request_id=new_id()),
            "describe": lambda name: wf.DescribeWorkflow(workflow_id=name),
        }
        calls: list[tuple[s.Request[Any], asyncio.Task[Any]]] = []
        for what, number in steps:
            if what == "commit":
                store.commit(number)
            else:
                request = requests[what](f"w{number}")
                calls.append((request, asyncio.create_task(world.call(request))))
            await settle()
        for request, call in calls:
            if call.done():
                await _check_answer(store.disk, request, call)
            else:
                call.cancel()
        await asyncio.gather(*(call for _, call in calls), return_exceptions=True)
        store.die()

    run_async(body)


async def _check_answer(disk: Store, request: Any, call: asyncio.Task[Any]) -> None:
    """Check that the answer to a client agrees with the disk."""
    error = call.exception()
    answer = None if error is not None else call.result()
    closed = f"WorkflowId = '{request.workflow_id}' AND ExecutionStatus = 'Terminated'"
    match answer, error:
        case _, WorkflowAlreadyStartedError(run_id=run_id):
            assert disk.load(run_id) is not None
        case _, WorkflowNotFoundError() if "already completed" in str(error):
            assert (await disk.count(closed)).count > 0
        case wf.Started(run_id=run_id), None:
            assert disk.load(run_id) is not None
        case wf.Description() as description, None:
            found = disk.load(description.summary.run_id)
            assert found is not None
            assert found.run.length >= description.summary.history_length
        case s.Nothing(), None if not isinstance(request, wf.CancelWorkflow):
            assert disk.find_request(request.workflow_id, request.request_id)
        case _:
            assert error is None or isinstance(error, WorkflowNotFoundError)
