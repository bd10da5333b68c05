"""Children, and signals and cancellations between runs: exactly once, in one change, also across crashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.embedded.stores import Blind, Noted, memory_store, open_sqlite
from tests.specs import made

from hourglass._contract.workflows import DescribeWorkflow, ListWorkflows, RunCompleted, TerminateWorkflow
from hourglass._embedded import VirtualClock
from hourglass._embedded.store.store import Store
from hourglass._embedded.transitions.run import Run
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass._history import events as o

from ..families import Family, check_agreement
from ..memory_world import World, app_failure, run_async, settle, text


def child(seq: int = 1, name: str = "c", **more: Any) -> c.StartChildWorkflow:
    return made(c.StartChildWorkflow, seq=seq, workflow_id=name, workflow_type="C", **more)


def of_kind(seen: Sequence[e.Event], kind: type[e.Event]) -> Any:
    return [event for event in seen if isinstance(event, kind)]


def stored_runs(store: Store) -> dict[str, tuple[Run, tuple[h.HistoryEvent, ...]]]:
    return {run_id: (store._runs[run_id], tuple(store._events[run_id])) for run_id in store._runs}


# --- generated families -----------------------------------------------------------------------------------------------


@settings(max_examples=cases(30, 600), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), cache=st.sampled_from([0, 1, 1000]))
def test_parents_and_children_agree_and_replay(seed: int, cache: int) -> None:
    """The histories of related runs agree after every change."""

    async def body() -> None:
        store = Noted()
        world = await World.new(store=store, max_cached_workflows=cache)
        family = Family(world, seed)
        await world.start()
        await family.live(25)
        assert family.evictions <= {
            "LANG_FAIL",
            "LANG_REQUESTED",
            "CACHE_FULL",
            "UNHANDLED_COMMAND",
            "TASK_NOT_FOUND",
            "WORKFLOW_EXECUTION_ENDING",
            "FATAL",
        }
        disk = memory_store()
        for change in store.changes:
            disk.append(change)
            check_agreement(stored_runs(disk))

    run_async(body)


@settings(max_examples=cases(20, 300), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_parents_and_children_agree_after_a_crash_at_any_change(seed: int, data: st.DataObject) -> None:
    async def body() -> None:
        store, clock = Noted(), VirtualClock()
        world = await World.new(store=store, clock=clock)
        family = Family(world, seed)
        await world.start()
        await family.live(12)
        count = data.draw(st.integers(1, len(store.changes)))
        disk = memory_store()
        for change in store.changes[:count]:
            disk.append(change)
        await world.close()
        again = await World.new(store=disk, clock=clock, opened=True)
        successor = Family(again, seed, family.known)
        for record in list(again.engine.runs.records()):
            successor.known[record.run.run_id] = family.known.get(record.run.run_id, [])
        await successor.live(12)
        check_agreement(stored_runs(disk))

    run_async(body)


# --- one change -------------------------------------------------------------------------------------------------------


async def test_child_and_parent_change_together() -> None:
    """A child's start, its end, and the end of its parent are each one change of the store."""
    store = Noted()
    world = await World.new(store=store)
    parent = await world.begin()
    before = len(store.changes)
    await world.complete(parent, child())
    started = store.changes[before:]
    assert {each.run.run_id for each in (started[0], *started[0].also)} >= {parent}
    assert len({each.run.run_id for each in (started[0], *started[0].also)}) == 2
    child_run = (await world.activation()).run_id
    if child_run == parent:
        child_run = (await world.activation()).run_id
    before = len(store.changes)
    await world.complete(child_run, c.CompleteRun(text("done")))
    ended = store.changes[before]
    assert {each.run.run_id for each in (ended, *ended.also)} == {parent, child_run}


def family_script(journal: list[e.Event], new: Sequence[e.Event]) -> list[c.Command]:
    """A parent that waits for its child, and a child that waits for a signal of its parent."""
    seen = [*journal, *new]
    (start,) = of_kind(seen, e.RunStarted)
    if start.workflow_type == "C":
        return [c.CompleteRun(text("heard"))] if of_kind(new, e.SignalReceived) else []
    if of_kind(new, e.RunStarted):
        return [child()]
    if of_kind(new, e.ChildStarted):
        return [c.SignalExternalWorkflow(seq=1, workflow_id="c", signal_name="s", is_child=True)]
    for completed in of_kind(new, e.ChildCompleted):
        return [c.CompleteRun(completed.result)]
    return []


async def test_parent_and_child_complete_after_a_crash_at_any_change() -> None:
    async def run_to_completion(store: Store, clock: VirtualClock, opened: bool) -> None:
        world = await World.new(store=store, clock=clock, opened=opened)
        if not opened:
            await world.start()
        while not isinstance(await world.outcome(), RunCompleted):
            await world.step(family_script)
        assert await world.outcome() == RunCompleted((text("heard"),))
        assert await world.outcome("c") == RunCompleted((text("heard"),))
        check_agreement(stored_runs(store))
        await world.close()

    complete, clock = Noted(), VirtualClock()
    await run_to_completion(complete, clock, opened=False)
    assert len(complete.changes) > 8
    for count in range(1, len(complete.changes)):
        disk = memory_store()
        for change in complete.changes[:count]:
            disk.append(change)
        await run_to_completion(disk, clock, opened=True)


async def test_pending_child_is_restored_from_a_file(tmp_path: Path) -> None:
    clock = VirtualClock()
    world = await World.new(store=open_sqlite(tmp_path / "runs.db"), clock=clock)
    await world.start(memo={"note": text("n")})
    parent = (await world.activation()).run_id
    await world.complete(parent, child())
    record = world.record()
    pending = record.run.children
    assert [(each.initiated.workflow_id, each.started_event_id) for each in pending.values()] == [("c", 6)]
    await world.engine.durable(world.engine.writes.newest)
    await world.close()
    world = await World.new(store=open_sqlite(tmp_path / "runs.db"), clock=clock, opened=True)
    record = world.record(run_id=parent)
    assert record.run.children == pending
    (described,) = (await world.call(DescribeWorkflow(workflow_id="w"))).pending_children
    assert (described.workflow_id, described.workflow_type) == ("c", "C")
    summaries = (await world.call(ListWorkflows(query="ParentWorkflowId = 'w'"))).workflows
    assert [(summary.workflow_id, summary.root_workflow_id) for summary in summaries] == [("c", "w")]
    while not isinstance(await world.outcome(), RunCompleted):
        await world.step(family_script)


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (child, "PENDING_CHILD_WORKFLOWS_LIMIT_EXCEEDED"),
        (
            lambda seq: c.SignalExternalWorkflow(seq=seq, workflow_id="x", signal_name="s"),
            "PENDING_SIGNALS_LIMIT_EXCEEDED",
        ),
        (
            lambda seq: c.RequestCancelExternal(seq=seq, workflow_id="x"),
            "PENDING_REQUEST_CANCEL_LIMIT_EXCEEDED",
        ),
    ],
)
async def test_too_many_pending_requests_fail_the_task(command: Any, name: str) -> None:
    """The limit itself is allowed."""
    world = await World.new(limits=Limits(pending=2))
    run_id = await world.begin()
    many = [command(seq) if command is not child else child(seq, f"c{seq}") for seq in (1, 2, 3)]
    await world.complete(run_id, *many)
    assert world.kinds()[-1] == "WorkflowTaskFailed"
    assert name.encode() in (await world.history())[-1]
    assert world.engine.current("c1") is None
    await world.eviction()
    await world.activation()
    await world.complete(run_id, *many[:2])
    assert world.kinds().count("WorkflowTaskFailed") == 1
    assert world.kinds().count("WorkflowTaskCompleted") == 1


async def test_cancelling_a_child_in_its_starting_task_fails_the_task(world: World) -> None:
    await world.start_run(child(), c.RequestCancelExternal(seq=1, workflow_id="c"))
    assert b"is not allowed in same workflow task" in (await world.history())[-1]


async def test_requests_to_another_namespace_fail(world: World) -> None:
    await world.start_run(
        child(namespace="other"),
        c.SignalExternalWorkflow(seq=1, workflow_id="x", signal_name="s", namespace="other"),
        c.RequestCancelExternal(seq=1, workflow_id="x", namespace="other"),
    )
    seen = (await world.activation()).events
    assert of_kind(seen, e.ChildStartFailed) == [e.ChildStartFailed(1, "c", "C", already_exists=False)]
    (signal,), (cancel,) = of_kind(seen, e.ExternalSignalResolved), of_kind(seen, e.ExternalCancelResolved)
    assert signal.failure.info.type == cancel.failure.info.type == "NamespaceNotFound"


async def test_termination_ends_all_descendants_in_one_change() -> None:
    def script(journal: list[e.Event], new: Sequence[e.Event]) -> list[c.Command]:
        for start in of_kind(new, e.RunStarted):
            depth = int(start.workflow_id[1:])
            return [child(1, f"g{depth + 1}")] if depth < 300 else []
        return []

    store = Noted()
    world = await World.new(store=store)
    await world.start("g0")
    while world.engine.current("g300") is None:
        await world.step(script)
    await settle()
    before = len(store.changes)
    await world.call(TerminateWorkflow(workflow_id="g0", reason="enough"))
    change = store.changes[before]
    assert len({each.run.run_id for each in (change, *change.also)}) == 301
    last = world.record("g300")
    assert last.run.final == h.WorkflowExecutionTerminated(
        reason="by parent close policy", identity="history-service"
    )


async def test_unreadable_run_does_not_affect_its_parent(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Blind(), VirtualClock()
    world = await World.new(store=store, clock=clock)
    await world.start("damaged")
    damaged = world.record("damaged")
    await world.close()
    store.unreadable = damaged.run.run_id
    world = await World.new(store=store, clock=clock)
    await world.start_run(
        child(name="damaged"), c.SignalExternalWorkflow(seq=1, workflow_id="damaged", signal_name="s")
    )
    seen = (await world.activation()).events
    assert of_kind(seen, e.ChildStartFailed)
    (signal,) = of_kind(seen, e.ExternalSignalResolved)
    assert signal.failure.info.type == "ExternalWorkflowExecutionNotFound"
    assert "cannot be read" in caplog.text


async def test_child_failure_is_reported_once_to_its_parent() -> None:
    world = await World.new(max_cached_workflows=0)
    parent = (await world.start()).run_id
    failures: list[e.Event] = []

    def script(journal: list[e.Event], new: Sequence[e.Event]) -> list[c.Command]:
        (start,) = of_kind([*journal, *new], e.RunStarted)
        if start.workflow_type == "C":
            return [c.FailRun(app_failure("sad"))]
        failures.extend(of_kind(new, e.ChildFailed))
        return [child()] if of_kind(new, e.RunStarted) else []

    while not failures:
        await world.step(script)
    (first,) = set(failures)
    assert isinstance(first, e.ChildFailed)
    info: Any = first.failure.info
    assert (first.failure.message, info.workflow_id, info.namespace) == (
        "Child Workflow execution failed",
        "c",
        "default",
    )
    assert (info.initiated_event_id, info.started_event_id) == (5, 6)
    assert first.failure.cause == app_failure("sad")
    record = world.record(run_id=parent)
    assert sum(isinstance(event.attributes, o.ChildEnd) for event in record.events) == 1
