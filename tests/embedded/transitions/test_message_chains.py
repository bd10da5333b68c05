"""Messages to a chain of runs: each is carried out once, whichever run receives it and however often it is sent, also
after a restart; undelivered messages move to the next run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.specs import made

from hourglass._contract import workflows as wf
from hourglass._contract.workflows import (
    PollUpdate,
    ResetWorkflow,
    UpdateStage,
    UpdateState,
    UpdateWithStart,
    UpdateWorkflow,
)
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass._history.events import WorkflowExecutionSignaled
from hourglass.client import IdReusePolicy
from hourglass.errors import ServiceError, WorkflowNotFoundError

from ..memory_world import World, app_failure, settle, start_waiting, text

DAY = 86_400.0


def tell(request_id: str, **more: Any) -> wf.SignalWorkflow:
    return wf.SignalWorkflow(workflow_id="w", signal_name="tell", request_id=request_id, **more)


def update(update_id: str = "u", **more: Any) -> UpdateWorkflow:
    return UpdateWorkflow(
        workflow_id="w", update_id=update_id, update_name="do", wait_stage=UpdateStage.COMPLETED, **more
    )


async def start_update(world: World, *args: Any, **more: Any) -> asyncio.Task[UpdateState]:
    """Send an update, which is admitted."""
    return await start_waiting(world.call(update(*args, **more)))


async def next_task(world: World) -> e.Activation:
    """Return the next activation that is not an eviction."""
    while True:
        activation = await world.activation()
        if not isinstance(activation.events[0], e.RunEvicted):
            return activation
        await world.complete(activation.run_id)


async def continue_as_new(world: World, times: int = 1, *first: c.Command) -> None:
    for _ in range(times):
        activation = await next_task(world)
        await world.complete(activation.run_id, *first, c.ContinueAsNew())


async def complete_update(world: World, update_id: str, result: str) -> str:
    """Accept and complete an update, and continue as new in the same task. Return the run id."""
    activation = await next_task(world)
    assert [event.id for event in activation.events if isinstance(event, e.UpdateReceived)] == [update_id]
    await world.complete(
        activation.run_id,
        c.AcceptUpdate(update_id),
        c.CompleteUpdate(update_id, text(result)),
        c.ContinueAsNew(),
    )
    return activation.run_id


def count_events(world: World, kind: str, workflow_id: str = "w") -> int:
    """Count the events of a kind in all stored runs of a workflow."""
    found, run = 0, world.engine.current(workflow_id)
    while run is not None:
        found += sum(type(event.attributes).__name__ == kind for event in run.events)
        run = world.engine.record(run.run.started.continued_run_id)
    return found


# --- updates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("another_owner", [False, True])
async def test_update_id_is_unique_along_a_chain(another_owner: bool) -> None:
    world = await World.new()
    await world.start()
    call = await start_update(world)
    run_id = await complete_update(world, "u", "first")
    assert (await call).result == text("first")
    for _ in range(3):
        await continue_as_new(world)
        if another_owner:
            world = await world.successor()
        again = await world.call(update())
        assert (again.result, again.run_id, again.stage) == (text("first"), run_id, UpdateStage.COMPLETED)
        polled = await world.call(PollUpdate(workflow_id="w", update_id="u"))
        assert polled == again
    assert count_events(world, "WorkflowExecutionUpdateAccepted") == 1


async def test_outcome_of_an_update_is_found_after_its_chain_closed(world: World) -> None:
    """A new chain under the same id does not know it."""
    await world.start()
    call = await start_update(world)
    await complete_update(world, "u", "first")
    await call
    last = await next_task(world)
    await world.complete(last.run_id, c.CompleteRun(text("end")))
    assert (await world.call(update())).result == text("first")
    with pytest.raises(WorkflowNotFoundError):
        await world.call(update("another"))
    await world.start()
    call = await start_update(world)
    await complete_update(world, "u", "second")
    assert (await call).result == text("second")


async def test_rejected_update_can_be_repeated_in_the_next_run(world: World) -> None:
    await world.start()
    call = await start_update(world)
    activation = await next_task(world)
    await world.complete(activation.run_id, c.RejectUpdate("u", app_failure("no")), c.ContinueAsNew())
    assert (await call).failure == app_failure("no")
    call = await start_update(world)
    await complete_update(world, "u", "yes")
    assert (await call).result == text("yes")


async def test_update_id_is_forgotten_with_its_run() -> None:
    world = await World.new(retention=DAY, opened=True)
    await world.start()
    call = await start_update(world)
    await complete_update(world, "u", "first")
    await call
    world.clock.advance(DAY / 2)
    assert (await world.call(update())).result == text("first")
    world.clock.advance(DAY)
    world.engine._upkeep.tick()
    world.engine._upkeep.tick()
    call = await start_update(world)
    await complete_update(world, "u", "second")
    assert (await call).result == text("second")


@pytest.mark.parametrize("delivered", [False, True])
async def test_unaccepted_update_moves_to_the_next_run(world: World, delivered: bool) -> None:
    """The update is admitted before continue-as-new, or was even delivered without an answer."""

    await world.start()
    call = None
    if delivered:
        call = await start_update(world)
    activation = await next_task(world)
    if call is None:
        call = await start_update(world)
    await world.complete(activation.run_id, c.ContinueAsNew())
    await settle()
    await complete_update(world, "u", "done")
    assert (await call).result == text("done")


async def test_updates_over_the_in_flight_limit_move_to_the_next_run() -> None:
    world = await World.new(limits=Limits(updates_in_flight=2))
    await world.start()
    calls = [await start_update(world, f"u{number}") for number in range(9)]
    done: list[str] = []
    while len(done) < 9:
        activation = await next_task(world)
        ids = [event.id for event in activation.events if isinstance(event, e.UpdateReceived)]
        first = [c.AcceptUpdate(ids[0]), c.CompleteUpdate(ids[0], text(ids[0]))] if ids else []
        done += ids[:1]
        await world.complete(activation.run_id, *first, c.ContinueAsNew())
        await settle()
    assert [(await call).result for call in calls] == [text(f"u{number}") for number in range(9)]
    assert count_events(world, "WorkflowExecutionUpdateAccepted") == 9


@pytest.mark.parametrize("reapply", [True, False])
async def test_update_after_a_reset_point_can_be_repeated(world: World, reapply: bool) -> None:
    """A reset with `reapply_updates` sends it again itself."""
    run_id = (await world.start()).run_id
    await next_task(world)
    await world.complete(run_id, c.StartTimer(1, 10**15))
    call = await start_update(world)
    await complete_update(world, "u", "undone")
    await call
    await world.call(
        ResetWorkflow(workflow_id="w", run_id=run_id, event_id=4, request_id="r", reapply_updates=reapply)
    )
    again = await start_update(world)
    await complete_update(world, "u", "valid")
    assert (await again).result == text("valid")
    await continue_as_new(world)
    assert (await world.call(update())).result == text("valid")


async def test_update_before_a_reset_point_keeps_its_outcome(world: World) -> None:
    run_id = (await world.start()).run_id
    await next_task(world)
    await world.complete(run_id, c.StartTimer(1, 10**15))
    call = await start_update(world)
    activation = await next_task(world)
    await world.complete(activation.run_id, c.AcceptUpdate("u"), c.CompleteUpdate("u", text("kept")))
    await call
    await world.call(tell("s"))
    await next_task(world)
    await world.complete(run_id)
    record = world.record()
    reset = ResetWorkflow(workflow_id="w", event_id=record.run.length, request_id="r")
    new = await world.call(reset)
    while True:
        activation = await next_task(world)
        if not activation.is_replaying:
            break
        answers: dict[type[Any], list[c.Command]] = {
            e.UpdateReceived: [c.AcceptUpdate("u"), c.CompleteUpdate("u", text("kept"))],
            e.RunStarted: [c.StartTimer(1, 10**15)],
        }
        await world.complete(new.run_id, *answers[type(activation.events[0])])
    await world.complete(new.run_id, c.ContinueAsNew())
    again = await world.call(update())
    assert (again.result, again.run_id) == (text("kept"), new.run_id)
    assert (await world.call(reset)).run_id == new.run_id


@pytest.mark.parametrize("another_owner", [False, True])
@pytest.mark.parametrize("unfinished", [False, True])
async def test_repeated_update_call_has_the_first_outcome(unfinished: bool, another_owner: bool) -> None:
    """The outcome may be the failure at continue-as-new, and a new chain may have begun; another call with the same
    update id is another update.
    """
    world = await World.new()
    await world.start()
    request = update(request_id="call")
    call = await start_waiting(world.call(request))
    activation = await next_task(world)
    done = [] if unfinished else [c.CompleteUpdate("u", text("first"))]
    await world.complete(activation.run_id, c.AcceptUpdate("u"), *done, c.ContinueAsNew())
    first = await call
    assert (first.failure is None) is not unfinished
    assert await world.call(request) == first
    last = await next_task(world)
    await world.complete(last.run_id, c.CompleteRun(text("end")))
    await world.start()
    if another_owner:
        world = await world.successor()
    assert await world.call(request) == first
    call = await start_update(world, request_id="another call")
    await complete_update(world, "u", "second")
    assert (await call).result == text("second")
    assert await world.call(request) == first


# --- update with start --------------------------------------------------------------------------------------


def start(request_id: str = "start", **more: Any) -> wf.StartWorkflow:
    return made(
        wf.StartWorkflow, workflow_id="w", workflow_type="W", task_queue="q", request_id=request_id, **more
    )


@pytest.mark.parametrize("ended", [False, True])
async def test_repeated_update_with_start_has_the_first_outcome(world: World, ended: bool) -> None:
    """The chain has continued or closed before the repetition."""
    request = UpdateWithStart(
        start=start(id_conflict_policy=wf.IdConflictPolicy.USE_EXISTING), update=update()
    )
    call = asyncio.ensure_future(world.call(request))
    run_id = await complete_update(world, "u", "first")
    first = await call
    assert (first.start, first.update.result) == (wf.Started(run_id), text("first"))
    await continue_as_new(world, 2)
    if ended:
        last = await next_task(world)
        await world.complete(last.run_id, c.CompleteRun(text("end")))
        assert (await world.call(request)).update == first.update
        await world.start()
    assert await world.call(request) == first
    assert count_events(world, "WorkflowExecutionUpdateAccepted") == (0 if ended else 1)


# --- signals, starts, cancels, terminations -----------------------------------------------------------------

Send = Callable[[World], Awaitable[Any]]


@pytest.mark.parametrize("another_owner", [False, True])
@pytest.mark.parametrize("way", ["signal", "signal with start"])
async def test_signal_is_delivered_once_along_a_chain(way: str, another_owner: bool) -> None:
    world = await World.new()
    await world.start()
    message = tell("lost") if way == "signal" else start("lost", signal_name="tell")
    first: Any = await world.call(message)
    for _ in range(3):
        await continue_as_new(world)
        if another_owner:
            world = await world.successor()
        assert await world.call(message) == first
    assert count_events(world, "WorkflowExecutionSignaled") == 1
    await world.call(tell("another"))
    assert count_events(world, "WorkflowExecutionSignaled") == 2


@pytest.mark.parametrize("another_owner", [False, True])
async def test_repeated_signal_with_start_starts_once(another_owner: bool) -> None:
    """The workflow closes before the repetition."""
    world = await World.new()
    answers = [await world.call(start(f"m{number}", signal_name="tell")) for number in range(1)]
    for number in range(1, 4):
        activation = await next_task(world)
        await world.complete(activation.run_id, c.CompleteRun(text("end")))
        answers.append(await world.call(start(f"m{number}", signal_name="tell")))
    if another_owner:
        world = await world.successor()
    assert [await world.call(start(f"m{number}", signal_name="tell")) for number in range(4)] == answers
    assert len({answer.run_id for answer in answers}) == 4
    assert (await world.engine.store.count("")).count == 4


async def test_repeated_start_returns_the_first_run_after_other_runs(world: World) -> None:
    first = await world.call(start("one", id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE))
    await continue_as_new(world, 2)
    activation = await next_task(world)
    await world.complete(activation.run_id, c.CompleteRun(text("end")))
    second = await world.call(start("two"))
    assert first.run_id != second.run_id
    assert await world.call(start("one", id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)) == first
    assert await world.call(start("two")) == second
    with pytest.raises(ServiceError):
        await world.call(start("three"))


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_repeated_cancel_or_terminate_does_not_affect_the_next_run(world: World, how: str) -> None:
    await world.start()
    message: wf.CancelWorkflow | wf.TerminateWorkflow
    if how == "cancel":
        message = wf.CancelWorkflow(workflow_id="w", request_id="r")
        await world.call(message)
        await continue_as_new(world)
    else:
        message = wf.TerminateWorkflow(workflow_id="w", request_id="r")
        await world.call(message)
        await world.start()
    await world.call(message)
    record = world.record()
    assert record.run.is_open
    assert not record.run.cancel_requested


@pytest.mark.parametrize("how", ["retry", "cron", "reset"])
async def test_request_ids_hold_across_retries_cron_runs_and_resets(world: World, how: str) -> None:
    options: dict[str, Any] = {"cron_schedule": "* * * * *"} if how == "cron" else {}
    if how == "retry":
        options["retry_policy"] = RetryRule(initial_interval=1.0)
    await world.start(**options)
    world.clock.advance(60)
    await world.call(tell("s"))
    call = await start_update(world)
    activation = await next_task(world)
    done = [c.AcceptUpdate("u"), c.CompleteUpdate("u", text("r"))]
    if how == "retry":
        await world.complete(activation.run_id, *done, c.FailRun(app_failure("again")))
    elif how == "cron":
        await world.complete(activation.run_id, *done, c.CompleteRun(text("end")))
    else:
        await world.complete(activation.run_id, *done)
        await world.call(tell("more"))
        await next_task(world)
        await world.complete(activation.run_id)
        record = world.record()
        await world.call(ResetWorkflow(workflow_id="w", event_id=record.run.length - 1, request_id="reset"))
    await call
    before = world.kinds()
    latest = world.record()
    assert latest.run.run_id != activation.run_id
    await world.call(tell("s"))
    assert (await world.call(update())).result == text("r")
    assert world.kinds() == before


# --- signals during the task that continues as new ------------------------------------------------------------


async def reject_first_close(world: World, run_id: str) -> None:
    """Continue the run while a signal arrives: as on a server the task is repeated, with the signal."""
    await next_task(world)
    await world.call(tell("begin"))
    await world.complete(run_id, c.ContinueAsNew())
    assert world.kinds()[-3:] == ["WorkflowTaskFailed", "WorkflowExecutionSignaled", "WorkflowTaskScheduled"]


async def test_signals_during_the_last_task_move_to_the_next_run(world: World) -> None:
    run_id = (await world.start()).run_id
    await reject_first_close(world, run_id)
    await next_task(world)
    for number in range(3):
        await world.call(tell(f"s{number}", arguments=(text(str(number)),)))
    await world.complete(run_id, c.ContinueAsNew())
    old = world.record(run_id=run_id)
    assert [type(event.attributes).__name__ for event in old.events[-2:]] == [
        "WorkflowTaskCompleted",
        "WorkflowExecutionContinuedAsNew",
    ]
    assert world.kinds() == [
        "WorkflowExecutionStarted",
        *["WorkflowExecutionSignaled"] * 3,
        "WorkflowTaskScheduled",
    ]
    activation = await next_task(world)
    signals = [event for event in activation.events if isinstance(event, e.SignalReceived)]
    assert [signal.arguments for signal in signals] == [(text(str(number)),) for number in range(3)]
    await world.call(tell("s1"))
    await world.complete(activation.run_id)
    assert world.kinds().count("WorkflowExecutionSignaled") == 3


async def test_query_sees_signals_that_moved_to_the_next_run(world: World) -> None:
    run_id = (await world.start()).run_id
    await reject_first_close(world, run_id)
    await next_task(world)
    await world.call(tell("s"))
    query = await start_waiting(world.call(wf.QueryWorkflow(workflow_id="w", query_name="q")))
    one_run = await start_waiting(
        world.call(wf.QueryWorkflow(workflow_id="w", run_id=run_id, query_name="q"))
    )
    await world.complete(run_id, c.ContinueAsNew())
    asked: list[str] = []
    while not query.done():
        activation = await next_task(world)
        answers = [
            c.AnswerQuery(event.id, text(activation.run_id))
            for event in activation.events
            if isinstance(event, e.QueryReceived)
        ]
        asked += [activation.run_id] * len(answers)
        await world.complete(activation.run_id, *answers)
        await settle()
    following = world.record().run.run_id
    assert asked == [run_id, run_id, following]
    assert (await query).result == (text(following),)
    assert (await one_run).result == (text(run_id),)


@pytest.mark.parametrize("what", ["completion", "cancel request", "timer"])
async def test_events_that_cannot_move_reject_the_close(world: World, what: str) -> None:
    """Signals may move only at continue-as-new, and only without other events."""
    run_id = (await world.start()).run_id
    await next_task(world)
    await world.complete(run_id, c.StartTimer(1, 10**9))
    await world.call(tell("first"))
    await reject_first_close(world, run_id)
    before = world.kinds().count("WorkflowTaskFailed")
    await next_task(world)
    await world.complete(run_id, c.StartTimer(1, 10**9))
    await next_task(world)
    await world.call(tell("s"))
    if what == "cancel request":
        await world.call(wf.CancelWorkflow(workflow_id="w", request_id="c"))
    elif what == "timer":
        world.clock.advance(2)
    await world.complete(run_id, c.CompleteRun(text("end")) if what == "completion" else c.ContinueAsNew())
    record = world.record()
    assert record.run.run_id == run_id
    assert world.kinds().count("WorkflowTaskFailed") == before + 1


async def test_busy_workflow_continues_as_new_without_losing_signals() -> None:
    """Signals arrive during every task of a workflow that continues at every opportunity."""
    world = await World.new(limits=Limits(history_events=60, suggest_events=40))
    await world.start()
    sent_count, received = 0, Counter[bytes]()
    for _ in range(100):
        activation = await next_task(world)
        for _ in range(7):
            await world.call(tell(f"s{sent_count}", arguments=(text(f"s{sent_count}"),)))
            sent_count += 1
        await world.complete(activation.run_id, c.ContinueAsNew())
    await world.complete((await next_task(world)).run_id)
    record = world.engine.current("w")
    while record is not None:
        received.update(
            event.attributes.arguments[0].data
            for event in record.events
            if isinstance(event.attributes, WorkflowExecutionSignaled)
        )
        record = world.engine.record(record.run.started.continued_run_id)
    assert received == Counter(text(f"s{number}").data for number in range(sent_count))
    assert (await world.engine.store.count("ExecutionStatus = 'Terminated'")).count == 0
    assert (await world.engine.store.count("ExecutionStatus = 'ContinuedAsNew'")).count == 50
