"""What a schedule starts: at once when it is made, and with search attributes that may change."""

from __future__ import annotations

from dataclasses import replace

from hourglass import workflow
from hourglass.client import Schedule, ScheduleActionStartWorkflow, ScheduleSpec, ScheduleState
from hourglass.converter import Payload, SearchAttributeKey

from .scenario import scenario
from .schedules import NEVER, adopt, until
from .world import World

LIMIT = 30
REGION = SearchAttributeKey.for_keyword("CustomKeywordField")


@workflow.defn
def tells_its_region() -> str:
    """What it is found by."""
    return str(workflow.search_attributes().get(REGION.name))


def started(world: World, region: str) -> ScheduleActionStartWorkflow:
    """An action whose workflows are found by a region."""
    return ScheduleActionStartWorkflow(
        tells_its_region,
        id=f"{world.queue}-w",
        task_queue=world.queue,
        search_attributes=[REGION.value_set(region)],
    )


@scenario("loose")
def a_schedule_that_acts_when_it_is_made(world: World) -> None:
    """With `trigger_immediately` a schedule acts once at once, though it is paused."""
    schedule = Schedule(started(world, "eu"), NEVER, state=ScheduleState(paused=True))
    handle = world.client.create_schedule(f"{world.queue}-s", schedule, trigger_immediately=True)
    until(world, handle, 1, 0)
    (run,) = adopt(world, handle)
    assert run.result(timeout=LIMIT) == "eu"
    handle.delete()


@scenario("loose")
def a_schedule_whose_attributes_change(world: World) -> None:
    """Search attributes of a schedule's workflows can be changed; those of the schedule are its own."""
    handle = world.client.create_schedule(
        f"{world.queue}-s",
        Schedule(started(world, "eu"), NEVER),
        search_attributes=[REGION.value_set("the schedule's")],
    )
    assert handle.describe().search_attributes["CustomKeywordField"] == "the schedule's"
    handle.update(lambda seen: replace(seen.schedule, action=started(world, "us")))
    handle.trigger()
    until(world, handle, 1, 0)
    (run,) = adopt(world, handle)
    assert run.result(timeout=LIMIT) == "us"
    assert handle.describe().search_attributes["CustomKeywordField"] == "the schedule's"
    handle.delete()


@workflow.defn
def tells_what_came_along() -> list[object]:
    """Its priority, and what its headers hold."""
    info = workflow.info()
    return [info.priority_key, sorted(info.headers), info.headers["tenant"].data.decode()]


@scenario("loose")
def a_schedule_without_times(world: World) -> None:
    """One that names no time acts when it is triggered, and only then; its workflows have the action's priority and headers,
    also after a change.
    """
    action = ScheduleActionStartWorkflow(
        tells_what_came_along,
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
    until(world, handle, 1, 0)
    (run,) = adopt(world, handle)
    assert run.result(timeout=LIMIT) == [2, ["tenant"], '"acme"']
    assert handle.describe().schedule.action.options["headers"] == {"tenant": Payload(b'"acme"')}
    handle.delete()
