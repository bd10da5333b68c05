"""What lists say of runs whose workflow task keeps failing: from when on and until when, in which words, at what cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.embedded.stores import memory_store, open_sqlite

from hourglass._contract.workflows import (
    REPORTED_PROBLEMS,
    ListWorkflows,
    PauseWorkflow,
    ResetWorkflow,
    SignalWorkflow,
    TerminateWorkflow,
    UnpauseWorkflow,
)
from hourglass._embedded import VirtualClock
from hourglass._embedded.store.sqlite.records import encode_state
from hourglass._embedded.store.store import Store
from hourglass._embedded.transitions import problems, tasks, transitions
from hourglass._embedded.transitions.run import Run, Trouble
from hourglass._evaluator import commands as c
from hourglass._evaluator.commands import TaskFailureCause
from hourglass._evaluator.events import RunEvicted
from hourglass._evaluator.specs import RetryRule, StartSpec
from hourglass._history import events as h
from hourglass._history.tables import TASK_FAILURE_CAUSES
from hourglass.converter import Failure, Payload

from ..memory_world import World, text
from ..store.store_conformance import Life, activity

BUG = int(TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE)
OTHER_CODE = int(TaskFailureCause.NON_DETERMINISTIC_ERROR)
FAILED = ["category=WorkflowTaskFailed", "cause=WorkflowTaskFailedCauseWorkflowWorkerUnhandledFailure"]
CHANGED = ["category=WorkflowTaskFailed", "cause=WorkflowTaskFailedCauseNonDeterministicError"]
LATE = ["category=WorkflowTaskTimedOut", "cause=WorkflowTaskTimedOutCauseStartToClose"]


def told(run: Run) -> Any:
    payload = run.search_attributes.get(REPORTED_PROBLEMS)
    return None if payload is None else msgspec.json.decode(payload.data)


def fail(life: Life, cause: int = BUG, *, signalled: bool = False) -> Any:
    """A worker takes the task, and fails."""
    life.take_task()
    if signalled:
        life.signal()
    life.go(lambda run, now: tasks.fail_task(run, cause, None, "me", now))
    return told(life.run)


def lose(life: Life) -> Any:
    """A worker takes the task, and its process ends."""
    life.take_task()
    life.go(transitions.lose_task)
    return told(life.run)


# --- when, and in which words ---------------------------------------------------------------------------------------


def test_problem_is_reported_from_the_second_failure() -> None:
    """Not the first, which is tried again at once; and what is told goes with the first task that is completed."""
    life = Life("r")
    assert fail(life) is None
    assert fail(life) == FAILED
    assert fail(life) == FAILED
    life.take_task()
    assert told(life.run) == FAILED
    life.answer(activity(1))
    assert told(life.run) is None
    assert life.run.trouble is None


def test_success_resets_the_failure_count() -> None:
    """Two failures with a completed task between them are not in a row."""
    life = Life("r")
    for _ in range(3):
        assert fail(life) is None
        life.take_task()
        life.answer(activity(len(life.run.activities) + 1))
        life.signal()


def test_failures_count_across_first_attempts() -> None:
    """What comes during a task makes its next attempt a first one; the run's trouble is the same."""
    life = Life("r")
    fail(life, signalled=True)
    assert life.run.task is not None
    assert life.run.task.attempt == 1
    assert fail(life, signalled=True) == FAILED
    life.take_task()
    life.answer(activity(1))  # by the steps that most runs take
    assert told(life.run) is None


def test_problem_shows_the_last_recorded_failure() -> None:
    """Attempts after the first leave no trace there, and change nothing here."""
    life = Life("r")
    fail(life)
    assert fail(life, OTHER_CODE) == FAILED
    assert fail(life, OTHER_CODE, signalled=True) == FAILED
    assert fail(life, OTHER_CODE) == CHANGED


def test_task_timeouts_are_reported_as_problems() -> None:
    """Whether the worker hangs or is gone; mixed with failures the first counts."""
    life = Life("r")
    assert lose(life) is None
    assert lose(life) == LATE
    assert fail(life) == LATE
    life = Life("r")
    fail(life)
    assert lose(life) == FAILED


def test_every_failure_cause_has_a_name() -> None:
    """As a server writes it; one that is not known has the name of none."""
    for number, name in TASK_FAILURE_CAUSES.items():
        category, cause = problems.values(number)
        assert category == "category=WorkflowTaskFailed"
        assert cause.removeprefix("cause=WorkflowTaskFailedCause").lower() == name.replace("_", "").lower()
    assert problems.values(4)[1] == "cause=WorkflowTaskFailedCauseBadStartTimerAttributes"
    assert problems.values(9999)[1] == "cause=WorkflowTaskFailedCauseUnspecified"


@given(st.lists(st.sampled_from(["fail", "lose", "signalled", "done"]), max_size=12))
def test_problem_is_reported_after_two_consecutive_failures(what: list[str]) -> None:
    """Whatever happens, in whatever order: told from the second failure since the last success on."""
    life, row = Life("r"), 0
    for each in what:
        if each == "done":
            life.take_task()
            life.answer()
            life.signal()
            row = 0
        else:
            lose(life) if each == "lose" else fail(life, signalled=each == "signalled")
            row += 1
        assert (told(life.run) is not None) == (row >= problems.REPORTED_AFTER)


def test_healthy_run_reports_no_problem() -> None:
    """Neither in what is stored of it, nor a search attribute; after a failure it has nothing of it again."""
    life = Life("r")
    life.take_task()
    life.answer(activity(1))
    healthy = encode_state(life.run)
    assert b"trouble" not in healthy
    assert life.run.search_attributes == {}
    life.signal()
    fail(life)
    assert b"trouble" in encode_state(life.run)
    life.take_task()
    life.answer()
    assert b"trouble" not in encode_state(life.run)


# --- on the engine --------------------------------------------------------------------------------------------------


async def found(world: World, query: str = f"{REPORTED_PROBLEMS} IS NOT NULL") -> list[str]:
    return [each.run_id for each in (await world.call(ListWorkflows(query=query))).workflows]


async def signal(world: World, workflow_id: str = "w") -> None:
    await world.call(SignalWorkflow(workflow_id=workflow_id, signal_name="s", request_id=""))


async def failing(world: World, run_id: str, times: int = 2) -> None:
    """The run's task fails so often."""
    for _ in range(times):
        await answered(world, run_id, None)


async def answered(world: World, run_id: str, commands: tuple[c.Command, ...] | None = ()) -> None:
    """The run's next task is answered, or fails (None). What it has done before asked for nothing."""
    world.clock.advance(tasks.LONGEST_WAIT)  # it may wait for that long
    activation = await world.activation()
    while activation.is_replaying or isinstance(activation.events[0], RunEvicted):
        await world.complete(activation.run_id)
        activation = await world.activation()
    assert activation.run_id == run_id
    if commands is None:
        await world.fail(run_id)
    else:
        await world.complete(run_id, *commands)


@pytest.fixture(params=["memory", "file"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the store anew each time; what it had it has."""
    kept, opened = memory_store(), list[Store]()

    def open_() -> Store:
        if request.param == "memory":
            return kept
        while opened:
            opened.pop().close()
        opened.append(open_sqlite(tmp_path / "runs.db"))
        return opened[-1]

    yield open_
    while opened:
        opened.pop().close()


async def test_problems_can_be_filtered(stores: Callable[[], Store]) -> None:
    """By both values, in any case, beside search attributes of one's own; after the next success by none, and those are there."""
    world = await World.new(store=stores())
    plain = (await world.start("plain")).run_id
    own = (await world.start("own", search_attributes={"Mine": text("x")})).run_id
    for run_id in (plain, own):
        await answered(world, run_id)
    for name, run_id in (("plain", plain), ("own", own)):
        await signal(world, name)
        await failing(world, run_id)
        assert await found(world) == [run_id]
        for value in FAILED:
            assert await found(world, f"{REPORTED_PROBLEMS} = '{value.upper()}'") == [run_id]
            assert await found(world, f"{REPORTED_PROBLEMS} IN ('{value}', 'another')") == [run_id]
        assert await found(world, f"{REPORTED_PROBLEMS} = '{LATE[0]}'") == []
        await answered(world, run_id)
        assert await found(world) == await found(world, f"{REPORTED_PROBLEMS} = '{FAILED[0]}'") == []
    assert await found(world, "Mine = 'x'") == [own]
    assert len(await found(world, f"{REPORTED_PROBLEMS} IS NULL")) == 2
    await world.close()


async def test_problem_survives_a_restart(stores: Callable[[], Store]) -> None:
    """Another engine over the same store tells of it; so does the count, one failure short of being told."""
    clock = VirtualClock()
    world = await World.new(store=stores(), clock=clock)
    run_id = (await world.start()).run_id
    await failing(world, run_id, 1)
    await world.close()
    world = await World.new(store=stores(), clock=clock, opened=True)
    assert await found(world) == []
    await failing(world, run_id, 1)
    await world.close()
    world = await World.new(store=stores(), clock=clock, opened=True)
    assert await found(world) == [run_id]
    await answered(world, run_id)
    await world.close()
    world = await World.new(store=stores(), clock=clock, opened=True)
    assert await found(world) == []
    await world.close()


async def test_terminated_run_keeps_its_problem(stores: Callable[[], Store]) -> None:
    """One that was terminated tells in the lists why; one that ends by itself has done so by a task that succeeded."""
    world = await World.new(store=stores())
    for name in ("terminated", "completed"):
        run_id = (await world.start(name)).run_id
        await failing(world, run_id)
        if name == "terminated":
            await world.call(TerminateWorkflow(workflow_id=name, reason="enough"))
        else:
            await answered(world, run_id, (c.CompleteRun(text("done")),))
    (kept,) = (await world.call(ListWorkflows(query=f"{REPORTED_PROBLEMS} IS NOT NULL"))).workflows
    assert kept.workflow_id == "terminated"
    assert msgspec.json.decode(kept.search_attributes[REPORTED_PROBLEMS].data) == FAILED
    await world.close()


async def test_next_run_starts_without_a_problem() -> None:
    """By continue-as-new nothing of it is passed on; a reset counts as a failure, so that the next is told, as on a server."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await answered(world, run_id)
    await signal(world)
    await failing(world, run_id)
    again = await world.call(ResetWorkflow(workflow_id="w", event_id=4, request_id="", reason="why"))
    assert await found(world) == [run_id]
    record = world.engine.current("w")
    assert record is not None
    assert record.run.trouble == Trouble(1, h.RESET_WORKFLOW)
    await failing(world, again.run_id, 1)
    assert set(await found(world)) == {run_id, again.run_id}
    await answered(world, again.run_id, (c.ContinueAsNew(workflow_type="W"),))
    assert await found(world) == [run_id]
    record = world.engine.current("w")
    assert record is not None
    assert record.run.started.spec.search_attributes == {}
    await world.close()


async def test_paused_run_keeps_its_problem() -> None:
    """Until it goes on, and succeeds."""
    world = await World.new()
    run_id = (await world.start()).run_id
    await failing(world, run_id)
    await world.call(PauseWorkflow(workflow_id="w", request_id="1"))
    assert await found(world) == [run_id]
    await world.call(UnpauseWorkflow(workflow_id="w", request_id="2"))
    await answered(world, run_id)
    assert await found(world) == []
    await world.close()


async def test_problem_set_by_a_client_lasts_until_the_next_task() -> None:
    """A server takes the name from clients and workflows, too, and takes the value away with the next task."""
    world = await World.new()
    mine = {REPORTED_PROBLEMS: Payload(b'["mine"]', "json/plain", {"type": b"KeywordList"})}
    run_id = (await world.start(spec=StartSpec(task_queue="q", search_attributes=mine))).run_id
    assert await found(world) == [run_id]
    await answered(world, run_id, (c.UpsertSearchAttributes(mine),))
    assert await found(world) == [run_id]
    await signal(world)
    await answered(world, run_id)
    assert await found(world) == []
    await world.close()


# --- activities that keep failing -------------------------------------------------------------------------------------

DECLINED = ["category=ActivityTaskFailed"]


def fail_attempt(life: Life, event_id: int) -> Any:
    """A worker takes an attempt of an activity, and it fails."""
    life.start_attempt(event_id)
    life.go(
        lambda run, now: transitions.fail_activity(
            run, run.activities[event_id], Failure("declined"), "me", now
        )
    )
    return told(life.run)


def end_attempt(life: Life, event_id: int) -> Any:
    """A worker takes an attempt of an activity, and it returns."""
    life.start_attempt(event_id)
    life.go(
        lambda run, now: transitions.complete_activity(run, run.activities[event_id], None, "me", None, now)
    )
    return told(life.run)


def with_activities(count: int) -> tuple[Life, list[int]]:
    """A run with pending activities that are retried without end, and the ids of their events."""
    life = Life("r")
    life.take_task()
    commands = [
        msgspec.structs.replace(
            each, spec=msgspec.structs.replace(each.spec, retry_policy=RetryRule(initial_interval=0.001))
        )
        for each in map(activity, range(1, count + 1))
    ]
    life.answer(*commands)
    return life, list(life.run.activities)


def test_activity_is_reported_from_its_second_failure_until_it_ends() -> None:
    """Not the first failure; and nothing is reported once the activity has returned."""
    life, (event_id,) = with_activities(1)
    assert fail_attempt(life, event_id) is None
    assert fail_attempt(life, event_id) == DECLINED
    assert fail_attempt(life, event_id) == DECLINED
    assert end_attempt(life, event_id) is None


def test_run_is_reported_while_any_activity_keeps_failing() -> None:
    """One of two that fail returns: the other is still reported; a workflow task in between changes nothing."""
    life, (first, second) = with_activities(2)
    for event_id in (first, second, first, second):
        fail_attempt(life, event_id)
    assert end_attempt(life, first) == DECLINED
    life.take_task()
    life.answer()
    assert told(life.run) == DECLINED
    assert end_attempt(life, second) is None


def test_parked_run_with_failing_activity_reports_both() -> None:
    """The task's problem goes with the next task that is completed, the activity's with the activity."""
    life, (event_id,) = with_activities(1)
    fail_attempt(life, event_id)
    fail_attempt(life, event_id)
    life.signal()
    fail(life)
    assert fail(life) == FAILED + DECLINED
    life.take_task()
    life.answer()
    assert told(life.run) == DECLINED
    assert end_attempt(life, event_id) is None


def test_closed_run_and_its_successor_report_no_failing_activity() -> None:
    """A terminated run is not listed as failing; a run that continues as new does not pass it on."""
    life, (event_id,) = with_activities(1)
    fail_attempt(life, event_id)
    fail_attempt(life, event_id)
    life.signal()
    life.take_task()
    life.answer(c.ContinueAsNew(workflow_type="W"))
    assert told(life.run) is None
    assert life.step.follower is not None
    assert life.step.follower.spec.search_attributes == {}
    life, (event_id,) = with_activities(1)
    fail_attempt(life, event_id)
    assert fail_attempt(life, event_id) == DECLINED
    life.terminate()
    assert told(life.run) is None
