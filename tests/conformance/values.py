"""Arguments and results of many types, and values that are deterministic."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hourglass import activity, workflow

from .scenario import returns, scenario
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


@returns(ORDER, ORDER)
@workflow.defn
def dataclasses_with_enums_sets_and_uuids_survive_every_hop(order: Order) -> Order:
    assert order == ORDER
    back = same_order(order)
    assert back == order
    assert back is not order
    return back


@activity.defn
def echo_bytes(data: bytes) -> bytes:
    return data


@returns(1_500_000, 1_500_000)
@workflow.defn
def payload_of_one_and_a_half_megabytes_survives_round_trip(size: int) -> int:
    return len(echo_bytes(b"x" * size))


@workflow.defn
def returns_value(what: str) -> Any:
    return {"none": None, "text": "ü€😀", "bytes": b"\x00\xff", "list": [1, 2.5, True, None]}[what]


@scenario()
def plain_results_are_decoded(world: World) -> None:
    assert world.run(returns_value, "none") is None
    assert world.run(returns_value, "text") == "ü€😀"
    assert world.run(returns_value, "bytes") == b"\x00\xff"
    assert world.run(returns_value, "list") == [1, 2.5, True, None]


@dataclass
class RunIds:
    workflow_id: str
    run_id: str | None
    workflow_type: str
    task_queue: str
    namespace: str
    attempt: int


@workflow.defn(name="known.as")
def returns_its_ids() -> RunIds:
    info = workflow.info()
    return RunIds(
        info.workflow_id,
        info.run_id,
        info.workflow_type,
        info.task_queue,
        info.namespace,
        info.attempt,
    )


@scenario()
def workflow_info_has_ids_type_queue_and_namespace(world: World) -> None:
    handle = world.start(returns_its_ids)
    assert handle.result(timeout=60) == RunIds(
        handle.id, handle.run_id, "known.as", world.queue, "default", 1
    )


@workflow.defn
def has_default_arguments(one: int, two: str = "two", three: timedelta = timedelta(seconds=3)) -> list[Any]:
    return [one, two, three.total_seconds()]


@scenario()
def omitted_arguments_take_defaults(world: World) -> None:
    assert world.run(has_default_arguments, 1) == [1, "two", 3.0]
    assert world.run(has_default_arguments, 1, "zwei", timedelta(minutes=1)) == [1, "zwei", 60.0]


@activity.defn
def append_length(numbers: list[int]) -> list[int]:
    return [*numbers, len(numbers)]


@workflow.defn
def changes_result() -> list[list[int]]:
    first = append_length([])
    first.append(99)
    second = append_length([])
    return [first, second]


@scenario()
def change_of_a_result_does_not_affect_later_results(world: World) -> None:
    """Invariant I6."""
    assert world.run(changes_result) == [[0, 99], [0]]


@returns(
    [
        "2026-01-02",
        "1.10",
        "SMALL",
    ],
    date(2026, 1, 2),
    Decimal("1.10"),
    Size.SMALL,
)
@workflow.defn
def dates_decimals_and_enums_are_decoded(day: date, amount: Decimal, size: Size) -> list[str]:
    return [day.isoformat(), str(amount), size.name]
