"""Values at the edges: alphabets, depth, size, many at once; and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import WorkflowStatus
from hourglass.errors import ActivityError, ServiceError

from . import acts
from .scenario import scenario
from .world import World, counts, kinds


@activity.defn
def same(value: Any) -> Any:
    return value


@workflow.defn
def through(value: Any) -> Any:
    return same(value)


def goes_through(world: World, value: Any) -> None:
    assert world.run(through, value) == value


@scenario()
def alphabets(world: World) -> None:
    """Texts of many alphabets, control characters and the last code point, as values and as keys."""
    goes_through(world, {"ключ": "價值", "🔑": "\u0000\u001f\u2028\U0010ffff", "": "e\u0301 é"})


@scenario()
def numbers(world: World) -> None:
    """Numbers beyond 64 bits, the smallest float, negative zero."""
    goes_through(world, [2**70, -(2**63), 5e-324, 1.7976931348623157e308, 0.1 + 0.2])


@scenario()
def depth(world: World) -> None:
    """A list in a list, a hundred deep."""
    value: Any = "bottom"
    for _ in range(100):
        value = [value]
    goes_through(world, value)


@scenario()
def width(world: World) -> None:
    """A table of ten thousand entries."""
    goes_through(world, {f"key {number}": number for number in range(10_000)})


@scenario()
def emptiness(world: World) -> None:
    """Nothing, in all its forms."""
    nothings: list[Any] = [None, "", [], {}, 0, False]
    for value in nothings:
        goes_through(world, value)


@workflow.defn
def takes_six(a: int, b: str, c: list[int], d: dict[str, int], e: float | None, f: bool) -> list[Any]:
    return [a, b, c, d, e, f]


@scenario()
def six_arguments(world: World) -> None:
    """Many arguments, each of its own type."""
    assert world.run(takes_six, 1, "b", [2], {"d": 3}, None, True) == [1, "b", [2], {"d": 3}, None, True]


@workflow.defn
def fans_out(count: int) -> int:
    return sum(workflow.gather(*[acts.double.start(number) for number in range(count)]))


@scenario("loose")
def a_hundred_at_once(world: World) -> None:
    """A hundred activities asked for in one task."""
    handle = world.start(fans_out, 100)
    assert handle.result(timeout=60) == 9900
    assert counts(handle.history())["ACTIVITY_TASK_COMPLETED"] == 100


@workflow.defn
def many_timers(count: int) -> int:
    tasks = [workflow.spawn(workflow.sleep, 0.01 + number / 1000) for number in range(count)]
    workflow.gather(*tasks)
    return len(tasks)


@scenario("loose")
def fifty_timers(world: World) -> None:
    """Fifty timers side by side all fire."""
    handle = world.start(many_timers, 50)
    assert handle.result(timeout=60) == 50
    assert counts(handle.history())["TIMER_FIRED"] == 50


@workflow.defn
def heavy_mail() -> int:
    inbox = workflow.Channel("mail", str)
    return sum(len(inbox.receive()) for _ in range(3))


@scenario("loose")
def heavy_signals(world: World) -> None:
    """Signals of half a megabyte each."""
    handle = world.start(heavy_mail)
    for _ in range(3):
        handle.signal("mail", "x" * 500_000)
    assert handle.result(timeout=60) == 1_500_000


@scenario()
def an_argument_that_is_too_big(world: World) -> None:
    """More than two megabytes are refused at the start, and nothing is started."""
    with pytest.raises(ServiceError):
        world.client.start_workflow(through, "x" * 2_200_000, id=f"{world.queue}-big", task_queue=world.queue)
    with pytest.raises(ServiceError):
        world.client.get_workflow_handle(f"{world.queue}-big").describe()


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def too_much(size: int) -> str:
    return "x" * size


@workflow.defn
def asks_for_too_much(size: int) -> str:
    try:
        too_much(size)
    except ActivityError as error:
        return type(error.cause).__name__
    return "never"


@scenario(loud=True)
def a_result_that_is_too_big(world: World) -> None:
    """An activity's result of more than two megabytes fails the activity, which the workflow can catch."""
    assert world.run(asks_for_too_much, 2_200_000) == "ApplicationError"


@scenario()
def a_workflow_by_its_name(world: World) -> None:
    """A workflow is started by its type's name alone; its result has no type then."""
    handle = world.start("through", {"a": [1, None]})
    assert handle.result(timeout=60) == {"a": [1, None]}


@scenario(loud=True)
def a_type_that_nobody_has(world: World) -> None:
    """A run of an unknown type stays open, its task failing, until somebody ends it."""
    handle = world.start("nobody-has-this")
    world.until(handle, "WORKFLOW_TASK_FAILED")
    assert handle.describe().status == WorkflowStatus.RUNNING
    handle.terminate("nobody came")
    world.failure(handle)
    world.handles.remove(handle)  # there is no code to replay it on
    assert kinds(handle.history())[-1] == "WORKFLOW_EXECUTION_TERMINATED"


@workflow.defn
def picky(number: int) -> int:
    return number


@scenario(loud=True)
def an_argument_of_another_type(world: World) -> None:
    """An argument that is not what the workflow takes fails the task, and the run stays open."""
    handle = world.start("picky", {"not": "a number"})
    world.until(handle, "WORKFLOW_TASK_FAILED")
    assert handle.describe().status == WorkflowStatus.RUNNING
    handle.terminate("mistyped")
    world.failure(handle)
    world.handles.remove(handle)  # its code never began
    assert kinds(handle.history())[-1] == "WORKFLOW_EXECUTION_TERMINATED"
