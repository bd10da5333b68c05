"""Search attribute for runs with failing workflow tasks or activities: when it is set, its values, persistence."""

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
from hourglass._evaluator.specs import RetryRule
from hourglass._history import events as h
from hourglass._history.tables import TASK_FAILURE_CAUSES
from hourglass.converter import Failure

from ..memory_world import World, text
from ..store.store_conformance import Life, activity

BUG = int(TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE)
OTHER_CODE = int(TaskFailureCause.NON_DETERMINISTIC_ERROR)
FAILED = ["category=WorkflowTaskFailed", "cause=WorkflowTaskFailedCauseWorkflowWorkerUnhandledFailure"]
CHANGED = ["category=WorkflowTaskFailed", "cause=WorkflowTaskFailedCauseNonDeterministicError"]
LATE = ["category=WorkflowTaskTimedOut", "cause=WorkflowTaskTimedOutCauseStartToClose"]


def reported_problems(run: Run) -> Any:
    payload = run.search_attributes.get(REPORTED_PROBLEMS)
    return None if payload is None else msgspec.json.decode(payload.data)


def fail(life: Life, cause: int = BUG, *, signalled: bool = False) -> Any:
    """Fail a workflow task. Return the reported problems."""
    life.take_task()
    if signalled:
        life.signal()
    life.go(lambda run, now: tasks.fail_task(run, cause, None, "me", now))
    return reported_problems(life.run)


def lose(life: Life) -> Any:
    """Lose the worker of a workflow task. Return the reported problems."""
    life.take_task()
    life.go(transitions.lose_task)
    return reported_problems(life.run)


# --- when, and in which words ---------------------------------------------------------------------------------------


def test_problem_is_reported_from_the_second_task_failure() -> None:
    """The next completed task removes it."""
    life = Life("r")
    assert fail(life) is None
    assert fail(life) == FAILED
    assert fail(life) == FAILED
    life.take_task()
    assert reported_problems(life.run) == FAILED
    life.answer(activity(1))
    assert reported_problems(life.run) is None
    assert life.run.trouble is None


def test_completed_task_resets_the_failure_count() -> None:
    life = Life("r")
    for _ in range(3):
        assert fail(life) is None
        life.take_task()
        life.answer(activity(len(life.run.activities) + 1))
        life.signal()


def test_failures_are_counted_across_events_between_attempts() -> None:
    """Events during a failing task make its next attempt a first one."""
    life = Life("r")
    fail(life, signalled=True)
    assert life.run.task is not None
    assert life.run.task.attempt == 1
    assert fail(life, signalled=True) == FAILED
    life.take_task()
    life.answer(activity(1))  # by the steps that most runs take
    assert reported_problems(life.run) is None


def test_reported_problem_is_the_last_recorded_failure() -> None:
    """Repeated attempts write no events, and so do not change it."""
    life = Life("r")
    fail(life)
    assert fail(life, OTHER_CODE) == FAILED
    assert fail(life, OTHER_CODE, signalled=True) == FAILED
    assert fail(life, OTHER_CODE) == CHANGED


def test_task_timeouts_are_reported_as_problems() -> None:
    life = Life("r")
    assert lose(life) is None
    assert lose(life) == LATE
    assert fail(life) == LATE
    life = Life("r")
    fail(life)
    assert lose(life) == FAILED


def test_every_failure_cause_has_the_name_of_the_server() -> None:
    for number, name in TASK_FAILURE_CAUSES.items():
        category, cause = problems.values(number)
        assert category == "category=WorkflowTaskFailed"
        assert cause.removeprefix("cause=WorkflowTaskFailedCause").lower() == name.replace("_", "").lower()
    assert problems.values(4)[1] == "cause=WorkflowTaskFailedCauseBadStartTimerAttributes"
    assert problems.values(9999)[1] == "cause=WorkflowTaskFailedCauseUnspecified"


@given(st.lists(st.sampled_from(["fail", "lose", "signalled", "done"]), max_size=12))
def test_problem_is_reported_after_two_consecutive_failures(outcomes: list[str]) -> None:
    life, failures = Life("r"), 0
    for outcome in outcomes:
        if outcome == "done":
            life.take_task()
            life.answer()
            life.signal()
            failures = 0
        else:
            lose(life) if outcome == "lose" else fail(life, signalled=outcome == "signalled")
            failures += 1
        assert (reported_problems(life.run) is not None) == (failures >= problems.REPORTED_AFTER)


def test_healthy_run_stores_nothing_about_problems() -> None:
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


async def runs_with_problems(world: World, query: str = f"{REPORTED_PROBLEMS} IS NOT NULL") -> list[str]:
    return [summary.run_id for summary in (await world.call(ListWorkflows(query=query))).workflows]


async def signal(world: World, workflow_id: str = "w") -> None:
    await world.call(SignalWorkflow(workflow_id=workflow_id, signal_name="s", request_id=""))


async def fail_tasks(world: World, run_id: str, times: int = 2) -> None:
    for _ in range(times):
        await complete_task(world, run_id, None)


async def complete_task(world: World, run_id: str, commands: tuple[c.Command, ...] | None = ()) -> None:
    """Complete the run's next task after its replay, or fail it (None)."""
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
    """Opens the same store repeatedly."""
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


async def test_runs_can_be_filtered_by_their_problems(stores: Callable[[], Store]) -> None:
    world = await World.new(store=stores())
    plain = (await world.start("plain")).run_id
    own = (await world.start("own", search_attributes={"Mine": text("x")})).run_id
    for run_id in (plain, own):
        await complete_task(world, run_id)
    for name, run_id in (("plain", plain), ("own", own)):
        await signal(world, name)
        await fail_tasks(world, run_id)
        assert await runs_with_problems(world) == [run_id]
        for value in FAILED:
            assert await runs_with_problems(world, f"{REPORTED_PROBLEMS} = '{value.upper()}'") == [run_id]
            assert await runs_with_problems(world, f"{REPORTED_PROBLEMS} IN ('{value}', 'another')") == [
                run_id
            ]
        assert await runs_with_problems(world, f"{REPORTED_PROBLEMS} = '{LATE[0]}'") == []
        await complete_task(world, run_id)
        assert (
            await runs_with_problems(world)
            == await runs_with_problems(world, f"{REPORTED_PROBLEMS} = '{FAILED[0]}'")
            == []
        )
    assert await runs_with_problems(world, "Mine = 'x'") == [own]
    assert len(await runs_with_problems(world, f"{REPORTED_PROBLEMS} IS NULL")) == 2


async def test_problem_and_failure_count_survive_a_restart(stores: Callable[[], Store]) -> None:
    clock = VirtualClock()
    world = await World.new(store=stores(), clock=clock)
    run_id = (await world.start()).run_id
    await fail_tasks(world, run_id, 1)
    await world.close()
    world = await World.new(store=stores(), clock=clock, opened=True)
    assert await runs_with_problems(world) == []
    await fail_tasks(world, run_id, 1)
    await world.close()
    world = await World.new(store=stores(), clock=clock, opened=True)
    assert await runs_with_problems(world) == [run_id]
    await complete_task(world, run_id)
    await world.close()
    world = await World.new(store=stores(), clock=clock, opened=True)
    assert await runs_with_problems(world) == []


async def test_problem_is_not_inherited_by_the_next_run(world: World) -> None:
    """A reset counts as the first failure, as on a server."""
    run_id = (await world.start()).run_id
    await complete_task(world, run_id)
    await signal(world)
    await fail_tasks(world, run_id)
    again = await world.call(ResetWorkflow(workflow_id="w", event_id=4, request_id="", reason="why"))
    assert await runs_with_problems(world) == [run_id]
    record = world.record()
    assert record.run.trouble == Trouble(1, h.RESET_WORKFLOW)
    await fail_tasks(world, again.run_id, 1)
    assert set(await runs_with_problems(world)) == {run_id, again.run_id}
    await complete_task(world, again.run_id, (c.ContinueAsNew(workflow_type="W"),))
    assert await runs_with_problems(world) == [run_id]
    record = world.record()
    assert record.run.started.spec.search_attributes == {}


async def test_paused_run_keeps_its_problem_until_a_task_completes(world: World) -> None:
    run_id = (await world.start()).run_id
    await fail_tasks(world, run_id)
    await world.call(PauseWorkflow(workflow_id="w", request_id="1"))
    assert await runs_with_problems(world) == [run_id]
    await world.call(UnpauseWorkflow(workflow_id="w", request_id="2"))
    await complete_task(world, run_id)
    assert await runs_with_problems(world) == []


# --- activities that keep failing -------------------------------------------------------------------------------------

DECLINED = ["category=ActivityTaskFailed"]


def fail_attempt(life: Life, event_id: int) -> Any:
    """Fail an attempt of an activity. Return the reported problems."""
    life.start_attempt(event_id)
    life.go(
        lambda run, now: transitions.fail_activity(
            run, run.activities[event_id], Failure("declined"), "me", now
        )
    )
    return reported_problems(life.run)


def complete_attempt(life: Life, event_id: int) -> Any:
    """Complete an attempt of an activity. Return the reported problems."""
    life.start_attempt(event_id)
    life.go(
        lambda run, now: transitions.complete_activity(run, run.activities[event_id], None, "me", None, now)
    )
    return reported_problems(life.run)


def with_activities(count: int) -> tuple[Life, list[int]]:
    """Return a run with pending activities that are retried without a limit, and their event ids."""
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


def test_activity_problem_is_reported_from_its_second_failure_until_it_ends() -> None:
    life, (event_id,) = with_activities(1)
    assert fail_attempt(life, event_id) is None
    assert fail_attempt(life, event_id) == DECLINED
    assert fail_attempt(life, event_id) == DECLINED
    assert complete_attempt(life, event_id) is None


def test_activity_problem_is_reported_while_any_activity_keeps_failing() -> None:
    life, (first, second) = with_activities(2)
    for event_id in (first, second, first, second):
        fail_attempt(life, event_id)
    assert complete_attempt(life, first) == DECLINED
    life.take_task()
    life.answer()
    assert reported_problems(life.run) == DECLINED
    assert complete_attempt(life, second) is None


def test_run_reports_problems_of_its_task_and_its_activity() -> None:
    life, (event_id,) = with_activities(1)
    fail_attempt(life, event_id)
    fail_attempt(life, event_id)
    life.signal()
    fail(life)
    assert fail(life) == FAILED + DECLINED
    life.take_task()
    life.answer()
    assert reported_problems(life.run) == DECLINED
    assert complete_attempt(life, event_id) is None


def test_closed_run_and_its_successor_report_no_activity_problem() -> None:
    life, (event_id,) = with_activities(1)
    fail_attempt(life, event_id)
    fail_attempt(life, event_id)
    life.signal()
    life.take_task()
    life.answer(c.ContinueAsNew(workflow_type="W"))
    assert reported_problems(life.run) is None
    assert life.step.follower is not None
    assert life.step.follower.spec.search_attributes == {}
    life, (event_id,) = with_activities(1)
    fail_attempt(life, event_id)
    assert fail_attempt(life, event_id) == DECLINED
    life.terminate()
    assert reported_problems(life.run) is None
