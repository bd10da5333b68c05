"""Values at the limits: alphabets, depth, size and number; and values that exceed the limits."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import WorkflowStatus
from hourglass.errors import ActivityError, ServiceError

from . import activities
from .scenario import returns, scenario
from .world import World, event_counts, event_types


@activity.defn
def echo(value: Any) -> Any:
    return value


@workflow.defn
def echoes_through_activity(value: Any) -> Any:
    return echo(value)


def check_round_trip(world: World, value: Any) -> None:
    assert world.run(echoes_through_activity, value) == value


@scenario()
def unicode_strings_survive_round_trip_as_values_and_keys(world: World) -> None:
    check_round_trip(world, {"ключ": "價值", "🔑": "\u0000\u001f\u2028\U0010ffff", "": "e\u0301 é"})


@scenario()
def large_and_small_numbers_survive_round_trip(world: World) -> None:
    check_round_trip(world, [2**70, -(2**63), 5e-324, 1.7976931348623157e308, 0.1 + 0.2])


@scenario()
def lists_nested_a_hundred_deep_survive_round_trip(world: World) -> None:
    value: Any = "bottom"
    for _ in range(100):
        value = [value]
    check_round_trip(world, value)


@scenario()
def dict_with_ten_thousand_entries_survives_round_trip(world: World) -> None:
    check_round_trip(world, {f"key {number}": number for number in range(10_000)})


@scenario()
def empty_values_survive_round_trip(world: World) -> None:
    nothings: list[Any] = [None, "", [], {}, 0, False]
    for value in nothings:
        check_round_trip(world, value)


@returns(
    [
        1,
        "b",
        [2],
        {"d": 3},
        None,
        True,
    ],
    1,
    "b",
    [2],
    {"d": 3},
    None,
    True,
)
@workflow.defn
def six_arguments_of_different_types_are_decoded(
    a: int, b: str, c: list[int], d: dict[str, int], e: float | None, f: bool
) -> list[Any]:
    return [a, b, c, d, e, f]


@workflow.defn
def starts_activities_concurrently(count: int) -> int:
    return sum(workflow.gather(*[activities.double.start(number) for number in range(count)]))


@scenario("loose")
def hundred_activities_of_one_task_complete(world: World) -> None:
    handle = world.start(starts_activities_concurrently, 100)
    assert handle.result(timeout=60) == 9900
    assert event_counts(handle.history())["ACTIVITY_TASK_COMPLETED"] == 100


@workflow.defn
def starts_timers_concurrently(count: int) -> int:
    tasks = [workflow.spawn(workflow.sleep, 0.01 + number / 1000) for number in range(count)]
    workflow.gather(*tasks)
    return len(tasks)


@scenario("loose")
def fifty_concurrent_timers_fire(world: World) -> None:
    handle = world.start(starts_timers_concurrently, 50)
    assert handle.result(timeout=60) == 50
    assert event_counts(handle.history())["TIMER_FIRED"] == 50


@workflow.defn
def receives_three_words() -> int:
    inbox = workflow.Channel("mail", str)
    return sum(len(inbox.receive()) for _ in range(3))


@scenario("loose")
def signals_of_half_a_megabyte_are_delivered(world: World) -> None:
    handle = world.start(receives_three_words)
    for _ in range(3):
        handle.signal("mail", "x" * 500_000)
    assert handle.result(timeout=60) == 1_500_000


@scenario()
def start_with_argument_above_two_megabytes_is_rejected(world: World) -> None:
    with pytest.raises(ServiceError):
        world.client.start_workflow(
            echoes_through_activity, "x" * 2_200_000, id=f"{world.queue}-big", task_queue=world.queue
        )
    with pytest.raises(ServiceError):
        world.client.get_workflow_handle(f"{world.queue}-big").describe()


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def returns_long_text(size: int) -> str:
    return "x" * size


@returns("ApplicationError", 2_200_000, loud=True)
@workflow.defn
def activity_result_above_two_megabytes_fails_activity(size: int) -> str:
    try:
        returns_long_text(size)
    except ActivityError as error:
        return type(error.cause).__name__
    return "never"


@scenario(loud=True)
def run_of_unknown_workflow_type_stays_open_with_failed_task(world: World) -> None:
    handle = world.start("nobody-has-this")
    world.wait_for_event(handle, "WORKFLOW_TASK_FAILED")
    assert handle.describe().status == WorkflowStatus.RUNNING
    handle.terminate("nobody came")
    world.failure(handle)
    world.handles.remove(handle)  # no registered code can replay it
    assert event_types(handle.history())[-1] == "WORKFLOW_EXECUTION_TERMINATED"


@workflow.defn
def takes_int(number: int) -> int:
    return number


@scenario(loud=True)
def workflow_argument_of_wrong_type_fails_task_and_keeps_run_open(world: World) -> None:
    handle = world.start("takes_int", {"not": "a number"})
    world.wait_for_event(handle, "WORKFLOW_TASK_FAILED")
    assert handle.describe().status == WorkflowStatus.RUNNING
    handle.terminate("mistyped")
    world.failure(handle)
    world.handles.remove(handle)  # its code never started
    assert event_types(handle.history())[-1] == "WORKFLOW_EXECUTION_TERMINATED"
