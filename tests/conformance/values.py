"""What goes in and comes out of workflows: values of many kinds, and the facts that are the same on every execution."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hourglass import activity, workflow

from .scenario import scenario
from .world import World


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    name: str
    size: Size
    tags: set[str] = field(default_factory=set)


@dataclass
class Order:
    id: UUID
    at: datetime
    items: list[Item]
    notes: dict[str, int | None] = field(default_factory=dict)


ORDER = Order(
    UUID(int=7),
    datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
    [Item("pear", Size.LARGE, {"a", "b"})],
    {"x": None},
)


@activity.defn
def same_order(order: Order) -> Order:
    assert order == ORDER
    return order


@workflow.defn
def typed(order: Order) -> Order:
    assert order == ORDER
    back = same_order(order)
    assert back == order
    assert back is not order
    return back


@scenario()
def dataclasses(world: World) -> None:
    """Dataclasses with enums, sets, times and UUIDs arrive as what they are, through every hop."""
    assert world.run(typed, ORDER) == ORDER


@activity.defn
def echo_bytes(data: bytes) -> bytes:
    return data


@workflow.defn
def big(size: int) -> int:
    return len(echo_bytes(b"x" * size))


@scenario()
def big_payload(world: World) -> None:
    """A megabyte and a half goes to an activity and back."""
    assert world.run(big, 1_500_000) == 1_500_000


@workflow.defn
def returns(what: str) -> Any:
    return {"none": None, "text": "ü€😀", "bytes": b"\x00\xff", "list": [1, 2.5, True, None]}[what]


@scenario()
def plain_results(world: World) -> None:
    """None, texts of all alphabets, bytes and lists."""
    assert world.run(returns, "none") is None
    assert world.run(returns, "text") == "ü€😀"
    assert world.run(returns, "bytes") == b"\x00\xff"
    assert world.run(returns, "list") == [1, 2.5, True, None]


@activity.defn
def tell(id: UUID, number: float, moment: datetime) -> list[str]:
    return [str(id), repr(number), moment.isoformat()]


@workflow.defn
def facts() -> bool:
    id, number, moment = workflow.uuid4(), workflow.random().random(), workflow.now()
    told = tell(id, number, moment)
    workflow.sleep(0.01)
    assert workflow.now() > moment
    assert workflow.uuid4() != id
    return told == [str(id), repr(number), moment.isoformat()]


@scenario("loose")
def facts_as_arguments(world: World) -> None:
    """uuid4, random and now are the same on each execution, so that they can be arguments; two runs differ."""
    one, other = world.start(facts), world.start(facts)
    assert one.result(timeout=60)
    assert other.result(timeout=60)
    inputs = [
        event["activityTaskScheduledEventAttributes"]["input"]["payloads"][0]["data"]
        for handle in (one, other)
        for event in handle.history().events
        if "activityTaskScheduledEventAttributes" in event
    ]
    assert len(set(inputs)) == 2


@dataclass
class Who:
    """What a workflow knows of itself."""

    workflow_id: str
    run_id: str | None
    workflow_type: str
    task_queue: str
    namespace: str
    attempt: int


@workflow.defn(name="known.as")
def who_am_i() -> Who:
    info = workflow.info()
    return Who(
        info.workflow_id, info.run_id, info.workflow_type, info.task_queue, info.namespace, info.attempt
    )


@scenario()
def info(world: World) -> None:
    """A workflow knows its ids, its type's name, its queue and its namespace."""
    handle = world.start(who_am_i)
    assert handle.result(timeout=60) == Who(handle.id, handle.run_id, "known.as", world.queue, "default", 1)


@workflow.defn
def defaults(one: int, two: str = "two", three: timedelta = timedelta(seconds=3)) -> list[Any]:
    return [one, two, three.total_seconds()]


@scenario()
def default_arguments(world: World) -> None:
    """Arguments that are left out take their defaults where the workflow runs."""
    assert world.run(defaults, 1) == [1, "two", 3.0]
    assert world.run(defaults, 1, "zwei", timedelta(minutes=1)) == [1, "zwei", 60.0]


@activity.defn
def mutate(numbers: list[int]) -> list[int]:
    return [*numbers, len(numbers)]


@workflow.defn
def mutates() -> list[list[int]]:
    first = mutate([])
    first.append(99)
    second = mutate([])
    return [first, second]


@scenario()
def results_are_fresh(world: World) -> None:
    """What the workflow does to a result does not reach another (I6)."""
    assert world.run(mutates) == [[0, 99], [0]]


@workflow.defn
def scalars(day: date, amount: Decimal, size: Size) -> list[str]:
    return [day.isoformat(), str(amount), size.name]


@scenario()
def scalar_arguments(world: World) -> None:
    """Dates, decimals and enums as arguments."""
    assert world.run(scalars, date(2026, 1, 2), Decimal("1.10"), Size.SMALL) == [
        "2026-01-02",
        "1.10",
        "SMALL",
    ]
