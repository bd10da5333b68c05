"""Workflows that a schedule starts: immediate triggers and search attributes."""

from __future__ import annotations

from dataclasses import replace

from hourglass import workflow
from hourglass.client import Schedule, ScheduleActionStartWorkflow, ScheduleSpec, ScheduleState
from hourglass.converter import Payload, SearchAttributeKey

from .scenario import scenario
from .schedules import NEVER, collect_runs, wait_for_action_counts
from .world import LIMIT, World

REGION = SearchAttributeKey.for_keyword("CustomKeywordField")


@workflow.defn
def returns_region_attribute() -> str:
    return str(workflow.search_attributes().get(REGION.name))


def action_with_region(world: World, region: str) -> ScheduleActionStartWorkflow:
    return ScheduleActionStartWorkflow(
        returns_region_attribute,
        id=f"{world.queue}-w",
        task_queue=world.queue,
        search_attributes=[REGION.value_set(region)],
    )


@scenario("loose")
def schedule_with_trigger_immediately_starts_run_while_paused(world: World) -> None:
    schedule = Schedule(action_with_region(world, "eu"), NEVER, state=ScheduleState(paused=True))
    handle = world.client.create_schedule(f"{world.queue}-s", schedule, trigger_immediately=True)
    wait_for_action_counts(world, handle, 1, 0)
    (run,) = collect_runs(world, handle)
    assert run.result(timeout=LIMIT) == "eu"
    handle.delete()


@scenario("loose")
def schedule_update_changes_search_attributes_of_its_runs(world: World) -> None:
    """The search attributes of the schedule itself stay unchanged."""
    handle = world.client.create_schedule(
        f"{world.queue}-s",
        Schedule(action_with_region(world, "eu"), NEVER),
        search_attributes=[REGION.value_set("the schedule's")],
    )
    assert handle.describe().search_attributes["CustomKeywordField"] == "the schedule's"
    handle.update(lambda seen: replace(seen.schedule, action=action_with_region(world, "us")))
    handle.trigger()
    wait_for_action_counts(world, handle, 1, 0)
    (run,) = collect_runs(world, handle)
    assert run.result(timeout=LIMIT) == "us"
    assert handle.describe().search_attributes["CustomKeywordField"] == "the schedule's"
    handle.delete()


@workflow.defn
def returns_priority_and_headers() -> list[object]:
    info = workflow.info()
    return [info.priority_key, sorted(info.headers), info.headers["tenant"].data.decode()]


@scenario("loose")
def schedule_without_spec_starts_runs_only_when_triggered(world: World) -> None:
    """The runs have the action's priority and headers, also after an update of the schedule."""
    action = ScheduleActionStartWorkflow(
        returns_priority_and_headers,
        id=f"{world.queue}-w",
        task_queue=world.queue,
        priority_key=2,
        headers={"tenant": Payload(b'"acme"')},
    )
    handle = world.client.create_schedule(f"{world.queue}-s", Schedule(action, ScheduleSpec()))
    seen = handle.describe()
    assert seen.info.next_action_times == ()
    assert seen.schedule.action.options["priority_key"] == 2
    handle.update(lambda seen: replace(seen.schedule, state=ScheduleState(note="changed")))
    handle.trigger()
    wait_for_action_counts(world, handle, 1, 0)
    (run,) = collect_runs(world, handle)
    assert run.result(timeout=LIMIT) == [2, ["tenant"], '"acme"']
    assert handle.describe().schedule.action.options["headers"] == {"tenant": Payload(b'"acme"')}
    handle.delete()
