"""Messages to a workflow that goes on from run to run: each is carried out once, whichever run it reaches and however often
it is sent, in this epoch and in the next; and what no run has taken yet follows to the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.embedded.stores import memory_store
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
from hourglass._embedded.store.store import Store
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass._history.events import WorkflowExecutionSignaled
from hourglass.client import IdReusePolicy
from hourglass.errors import ServiceError, WorkflowNotFoundError

from ..memory_world import World, app_failure, run_async, settle, text

DAY = 86_400.0


def tell(request_id: str, **more: Any) -> wf.SignalWorkflow:
    return wf.SignalWorkflow(workflow_id="w", signal_name="tell", request_id=request_id, **more)


def update(update_id: str = "u", **more: Any) -> UpdateWorkflow:
    return UpdateWorkflow(
        workflow_id="w", update_id=update_id, update_name="do", wait_stage=UpdateStage.COMPLETED, **more
    )


async def ask(world: World, *args: Any, **more: Any) -> asyncio.Task[UpdateState]:
    """Somebody asks for an update, which is admitted."""
    asked = asyncio.ensure_future(world.call(update(*args, **more)))
    await settle()
    return asked


async def work(world: World) -> e.Activation:
    """The next activation that is no eviction."""
    while True:
        activation = await world.activation()
        if not isinstance(activation.events[0], e.RunEvicted):
            return activation
        await world.complete(activation.run_id)


async def go_on(world: World, times: int = 1, *first: c.Command) -> None:
    """The run is continued as new."""
    for _ in range(times):
        activation = await work(world)
        await world.complete(activation.run_id, *first, c.ContinueAsNew())


async def carry_out(world: World, update_id: str, result: str) -> str:
    """The worker accepts and completes an update, and continues as new in the same task; gives the run."""
    activation = await work(world)
    assert [each.id for each in activation.events if isinstance(each, e.UpdateReceived)] == [update_id]
    await world.complete(
        activation.run_id,
        c.AcceptUpdate(update_id),
        c.CompleteUpdate(update_id, text(result)),
        c.ContinueAsNew(),
    )
    return activation.run_id


def events_of(world: World, kind: str, workflow_id: str = "w") -> int:
    """How often a kind of event stands in all runs of a workflow that the store knows."""
    found, run = 0, world.engine.current(workflow_id)
    while run is not None:
        found += sum(type(event.attributes).__name__ == kind for event in run.events)
        run = world.engine.record(run.run.started.continued_run_id)
    return found


async def next_epoch(world: World, store: Store, **more: Any) -> World:
    """Another engine over what the first one left, as after its death."""
    return await World.new(store=store, clock=world.clock, opened=True, **more)


# --- updates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("another_owner", [False, True])
async def test_update_id_is_unique_along_a_chain(another_owner: bool) -> None:
    """The same id in three runs of a chain, and later: one acceptance, and the first outcome for everybody."""
    store = memory_store()
    world = await World.new(store=store)
    await world.start()
    asked = await ask(world)
    run_id = await carry_out(world, "u", "first")
    assert (await asked).result == text("first")
    for _ in range(3):
        await go_on(world)
        if another_owner:
            world = await next_epoch(world, store)
        again = await world.call(update())
        assert (again.result, again.run_id, again.stage) == (text("first"), run_id, UpdateStage.COMPLETED)
        polled = await world.call(PollUpdate(workflow_id="w", update_id="u"))
        assert polled == again
    assert events_of(world, "WorkflowExecutionUpdateAccepted") == 1
    await world.close()


async def test_update_id_of_a_closed_chain_is_found() -> None:
    """Its outcome is found while the closed runs are kept; a chain that begins anew under the id knows nothing of it."""
    world = await World.new()
    await world.start()
    asked = await ask(world)
    await carry_out(world, "u", "first")
    await asked
    last = await work(world)
    await world.complete(last.run_id, c.CompleteRun(text("end")))
    assert (await world.call(update())).result == text("first")
    with pytest.raises(WorkflowNotFoundError):
        await world.call(update("another"))
    await world.start()
    asked = await ask(world)
    await carry_out(world, "u", "second")
    assert (await asked).result == text("second")
    await world.close()


async def test_unfinished_update_fails_at_continue_as_new() -> None:
    """A run that goes on before an accepted update is done has failed it; its id is free, as on a server."""
    world = await World.new()
    await world.start()
    asked = await ask(world)
    activation = await work(world)
    await world.complete(activation.run_id, c.AcceptUpdate("u"), c.ContinueAsNew())
    failure = (await asked).failure
    assert failure is not None
    asked = await ask(world)
    await carry_out(world, "u", "done")
    assert (await asked).result == text("done")
    assert (await world.call(update())).result == text("done")
    await world.close()


async def test_rejected_update_may_be_repeated() -> None:
    """A refusal is no acceptance: the next run may accept the same id."""
    world = await World.new()
    await world.start()
    asked = await ask(world)
    activation = await work(world)
    await world.complete(activation.run_id, c.RejectUpdate("u", app_failure("no")), c.ContinueAsNew())
    assert (await asked).failure == app_failure("no")
    asked = await ask(world)
    await carry_out(world, "u", "yes")
    assert (await asked).result == text("yes")
    await world.close()


async def test_update_ids_are_kept_with_their_runs() -> None:
    """When the run that accepted it is forgotten, so is the id."""
    world = await World.new(retention=DAY, opened=True)
    await world.start()
    asked = await ask(world)
    await carry_out(world, "u", "first")
    await asked
    world.clock.advance(DAY / 2)
    assert (await world.call(update())).result == text("first")
    world.clock.advance(DAY)
    world.engine._upkeep.tick()
    world.engine._upkeep.tick()
    asked = await ask(world)
    await carry_out(world, "u", "second")
    assert (await asked).result == text("second")
    await world.close()


@pytest.mark.parametrize("given", [False, True])
def test_unaccepted_update_moves_to_the_next_run(given: bool) -> None:
    """It was admitted when the run went on, or was even given to the worker, which said nothing of it: the next run gets it."""

    async def body() -> None:
        world = await World.new()
        await world.start()
        asked = None
        if given:
            asked = await ask(world)
        activation = await work(world)
        if asked is None:
            asked = await ask(world)
        await world.complete(activation.run_id, c.ContinueAsNew())
        await settle()
        await carry_out(world, "u", "done")
        assert (await asked).result == text("done")
        await world.close()

    run_async(body)


async def test_waiting_updates_move_to_the_next_run() -> None:
    """More updates than may be in flight, to a workflow that goes on after each: all are carried out, once."""
    world = await World.new(limits=Limits(updates_in_flight=2))
    await world.start()
    asked = [await ask(world, f"u{number}") for number in range(9)]
    done: list[str] = []
    while len(done) < 9:
        activation = await work(world)
        ids = [each.id for each in activation.events if isinstance(each, e.UpdateReceived)]
        first = [c.AcceptUpdate(ids[0]), c.CompleteUpdate(ids[0], text(ids[0]))] if ids else []
        done += ids[:1]
        await world.complete(activation.run_id, *first, c.ContinueAsNew())
        await settle()
    assert [(await each).result for each in asked] == [text(f"u{number}") for number in range(9)]
    assert events_of(world, "WorkflowExecutionUpdateAccepted") == 9
    await world.close()


async def test_update_of_a_closing_run_is_aborted() -> None:
    """Where nothing follows, whoever waits hears that the workflow has closed."""
    world = await World.new()
    await world.start()
    asked = await ask(world)
    activation = await work(world)
    await world.complete(activation.run_id, c.CompleteRun(text("end")))
    with pytest.raises(WorkflowNotFoundError):
        await asked
    await world.close()


@pytest.mark.parametrize("reapply", [True, False])
async def test_update_undone_by_a_reset(reapply: bool) -> None:
    """It is asked for again by the reset, and has the outcome of that; or it never was, and may be asked for again."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await work(world)
    await world.complete(run_id, c.StartTimer(1, 10**15))
    asked = await ask(world)
    await carry_out(world, "u", "undone")
    await asked
    await world.call(
        ResetWorkflow(workflow_id="w", run_id=run_id, event_id=4, request_id="r", reapply_updates=reapply)
    )
    again = await ask(world)
    await carry_out(world, "u", "valid")
    assert (await again).result == text("valid")
    await go_on(world)
    assert (await world.call(update())).result == text("valid")
    await world.close()


async def test_update_kept_by_a_reset() -> None:
    """An update before the point of a reset is the new run's too, when the old run is forgotten and after it went on."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await work(world)
    await world.complete(run_id, c.StartTimer(1, 10**15))
    asked = await ask(world)
    activation = await work(world)
    await world.complete(activation.run_id, c.AcceptUpdate("u"), c.CompleteUpdate("u", text("kept")))
    await asked
    await world.call(tell("s"))
    await work(world)
    await world.complete(run_id)
    record = world.engine.current("w")
    assert record is not None
    reset = ResetWorkflow(workflow_id="w", event_id=record.run.length, request_id="r")
    new = await world.call(reset)
    while True:
        activation = await work(world)
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
    await world.close()


@pytest.mark.parametrize("another_owner", [False, True])
@pytest.mark.parametrize("left", [False, True])
async def test_repeated_update_call_has_the_first_outcome(left: bool, another_owner: bool) -> None:
    """The same call again has its first outcome, also that its run left it undone, and also where another workflow has the
    id by now; another call for the same update id is another update there.
    """
    store = memory_store()
    world = await World.new(store=store)
    await world.start()
    call = update(request_id="call")
    asked = asyncio.ensure_future(world.call(call))
    await settle()
    activation = await work(world)
    done = [] if left else [c.CompleteUpdate("u", text("first"))]
    await world.complete(activation.run_id, c.AcceptUpdate("u"), *done, c.ContinueAsNew())
    first = await asked
    assert (first.failure is None) is not left
    assert await world.call(call) == first
    last = await work(world)
    await world.complete(last.run_id, c.CompleteRun(text("end")))
    await world.start()
    if another_owner:
        world = await next_epoch(world, store)
    assert await world.call(call) == first
    asked = await ask(world, request_id="another call")
    await carry_out(world, "u", "second")
    assert (await asked).result == text("second")
    assert await world.call(call) == first
    await world.close()


# --- update with start --------------------------------------------------------------------------------------


def start(request_id: str = "start", **more: Any) -> wf.StartWorkflow:
    return made(
        wf.StartWorkflow, workflow_id="w", workflow_type="W", task_queue="q", request_id=request_id, **more
    )


@pytest.mark.parametrize("ended", [False, True])
async def test_repeated_update_with_start(ended: bool) -> None:
    """The same call again finds its update, when the chain that it began has gone on, has ended, or another runs under the id."""
    world = await World.new()
    call = UpdateWithStart(start=start(id_conflict_policy=wf.IdConflictPolicy.USE_EXISTING), update=update())
    asked = asyncio.ensure_future(world.call(call))
    run_id = await carry_out(world, "u", "first")
    first = await asked
    assert (first.start, first.update.result) == (wf.Started(run_id), text("first"))
    await go_on(world, 2)
    if ended:
        last = await work(world)
        await world.complete(last.run_id, c.CompleteRun(text("end")))
        assert (await world.call(call)).update == first.update
        await world.start()
    assert await world.call(call) == first
    assert events_of(world, "WorkflowExecutionUpdateAccepted") == (0 if ended else 1)
    await world.close()


# --- signals, starts, cancels, terminations -----------------------------------------------------------------

Send = Callable[[World], Awaitable[Any]]


@pytest.mark.parametrize("another_owner", [False, True])
@pytest.mark.parametrize("way", ["signal", "signal with start"])
async def test_signal_is_delivered_once_along_a_chain(way: str, another_owner: bool) -> None:
    """Sent again three runs later, it is not given to that run."""
    store = memory_store()
    world = await World.new(store=store)
    await world.start()
    message = tell("lost") if way == "signal" else start("lost", signal_name="tell")
    first: Any = await world.call(message)
    for _ in range(3):
        await go_on(world)
        if another_owner:
            world = await next_epoch(world, store)
        assert await world.call(message) == first
    assert events_of(world, "WorkflowExecutionSignaled") == 1
    await world.call(tell("another"))
    assert events_of(world, "WorkflowExecutionSignaled") == 2
    await world.close()


@pytest.mark.parametrize("another_owner", [False, True])
async def test_repeated_signal_with_start_starts_once(another_owner: bool) -> None:
    """A message that begins a workflow which ends after it: sent again, it begins no second one, whatever ran since."""
    store = memory_store()
    world = await World.new(store=store)
    told = [await world.call(start(f"m{number}", signal_name="tell")) for number in range(1)]
    for number in range(1, 4):
        activation = await work(world)
        await world.complete(activation.run_id, c.CompleteRun(text("end")))
        told.append(await world.call(start(f"m{number}", signal_name="tell")))
    if another_owner:
        world = await next_epoch(world, store)
    assert [await world.call(start(f"m{number}", signal_name="tell")) for number in range(4)] == told
    assert len({each.run_id for each in told}) == 4
    assert (await world.engine.store.count("")).count == 4
    await world.close()


async def test_repeated_start_after_other_runs() -> None:
    """The start of a workflow that has ended, and whose id another one uses now, is answered as it was the first time."""
    world = await World.new()
    first = await world.call(start("one", id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE))
    await go_on(world, 2)
    activation = await work(world)
    await world.complete(activation.run_id, c.CompleteRun(text("end")))
    second = await world.call(start("two"))
    assert first.run_id != second.run_id
    assert await world.call(start("one", id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)) == first
    assert await world.call(start("two")) == second
    with pytest.raises(ServiceError):
        await world.call(start("three"))
    await world.close()


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_repeated_cancel_or_terminate_does_not_reach_the_next_run(how: str) -> None:
    """A cancel or a termination whose answer was lost does not reach the next run, nor the workflow that has the id now."""
    world = await World.new()
    await world.start()
    message: wf.CancelWorkflow | wf.TerminateWorkflow
    if how == "cancel":
        message = wf.CancelWorkflow(workflow_id="w", request_id="r")
        await world.call(message)
        await go_on(world)
    else:
        message = wf.TerminateWorkflow(workflow_id="w", request_id="r")
        await world.call(message)
        await world.start()
    await world.call(message)
    record = world.engine.current("w")
    assert record is not None
    assert record.run.is_open
    assert not record.run.cancel_requested
    await world.close()


@pytest.mark.parametrize("how", ["retry", "cron", "reset"])
async def test_request_ids_hold_across_all_kinds_of_next_runs(how: str) -> None:
    """The next attempt, the next run of a cron schedule and the run that a reset begins know what was carried out."""
    world = await World.new()
    options: dict[str, Any] = {"cron_schedule": "* * * * *"} if how == "cron" else {}
    if how == "retry":
        options["retry_policy"] = RetryRule(initial_interval=1.0)
    await world.start(**options)
    world.clock.advance(60)
    await world.call(tell("s"))
    asked = await ask(world)
    activation = await work(world)
    done = [c.AcceptUpdate("u"), c.CompleteUpdate("u", text("r"))]
    if how == "retry":
        await world.complete(activation.run_id, *done, c.FailRun(app_failure("again")))
    elif how == "cron":
        await world.complete(activation.run_id, *done, c.CompleteRun(text("end")))
    else:
        await world.complete(activation.run_id, *done)
        await world.call(tell("more"))
        await work(world)
        await world.complete(activation.run_id)
        record = world.engine.current("w")
        assert record is not None
        await world.call(ResetWorkflow(workflow_id="w", event_id=record.run.length - 1, request_id="reset"))
    await asked
    before = world.kinds()
    latest = world.engine.current("w")
    assert latest is not None
    assert latest.run.run_id != activation.run_id
    await world.call(tell("s"))
    assert (await world.call(update())).result == text("r")
    assert world.kinds() == before
    await world.close()


# --- signals during the task that continues as new ------------------------------------------------------------


async def refused_once(world: World, run_id: str) -> None:
    """The run wants to continue while a signal comes: as on a server the task is done again, with the signal."""
    await work(world)
    await world.call(tell("begin"))
    await world.complete(run_id, c.ContinueAsNew())
    assert world.kinds()[-3:] == ["WorkflowTaskFailed", "WorkflowExecutionSignaled", "WorkflowTaskScheduled"]


async def test_signals_during_the_last_task_move_to_the_next_run() -> None:
    """A run that continues as new while signals come is refused once; more signals begin the next run, in their order."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await refused_once(world, run_id)
    await work(world)
    for number in range(3):
        await world.call(tell(f"s{number}", arguments=(text(str(number)),)))
    await world.complete(run_id, c.ContinueAsNew())
    old = world.engine.record(run_id)
    assert old is not None
    assert [type(event.attributes).__name__ for event in old.events[-2:]] == [
        "WorkflowTaskCompleted",
        "WorkflowExecutionContinuedAsNew",
    ]
    assert world.kinds() == [
        "WorkflowExecutionStarted",
        *["WorkflowExecutionSignaled"] * 3,
        "WorkflowTaskScheduled",
    ]
    activation = await work(world)
    signals = [each for each in activation.events if isinstance(each, e.SignalReceived)]
    assert [each.arguments for each in signals] == [(text(str(number)),) for number in range(3)]
    await world.call(tell("s1"))
    await world.complete(activation.run_id)
    assert world.kinds().count("WorkflowExecutionSignaled") == 3
    await world.close()


@pytest.mark.parametrize("what", ["completion", "cancel request", "timer"])
async def test_events_that_cannot_move_reject_the_close(what: str) -> None:
    """A completion, and a continuation while more than signals has come, are refused: the run sees what has come."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await work(world)
    await world.complete(run_id, c.StartTimer(1, 10**9))
    await world.call(tell("first"))
    await refused_once(world, run_id)
    before = world.kinds().count("WorkflowTaskFailed")
    await work(world)
    await world.complete(run_id, c.StartTimer(1, 10**9))
    await work(world)
    await world.call(tell("s"))
    if what == "cancel request":
        await world.call(wf.CancelWorkflow(workflow_id="w", request_id="c"))
    elif what == "timer":
        world.clock.advance(2)
    await world.complete(run_id, c.CompleteRun(text("end")) if what == "completion" else c.ContinueAsNew())
    record = world.engine.current("w")
    assert record is not None
    assert record.run.run_id == run_id
    assert world.kinds().count("WorkflowTaskFailed") == before + 1
    await world.close()


async def test_busy_entity_always_continues_as_new() -> None:
    """Signals during every task of a workflow that continues at every chance: no run grows, and every signal arrives once."""
    world = await World.new(limits=Limits(history_events=60, suggest_events=40))
    await world.start()
    sent, heard = 0, Counter[bytes]()
    for _ in range(100):
        activation = await work(world)
        for _ in range(7):
            await world.call(tell(f"s{sent}", arguments=(text(f"s{sent}"),)))
            sent += 1
        await world.complete(activation.run_id, c.ContinueAsNew())
    await world.complete((await work(world)).run_id)
    record = world.engine.current("w")
    while record is not None:
        heard.update(
            event.attributes.arguments[0].data
            for event in record.events
            if isinstance(event.attributes, WorkflowExecutionSignaled)
        )
        record = world.engine.record(record.run.started.continued_run_id)
    assert heard == Counter(text(f"s{number}").data for number in range(sent))
    assert (await world.engine.store.count("ExecutionStatus = 'Terminated'")).count == 0
    assert (await world.engine.store.count("ExecutionStatus = 'ContinuedAsNew'")).count == 50
    await world.close()
