"""Types of arguments and results: by name, by definition, models, enums, optional arguments, methods as activities."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypedDict

import pytest
from pydantic import BaseModel

from hourglass import activity, workflow
from hourglass.errors import ActivityError, DecodeError

from . import activities
from .scenario import returns, scenario
from .world import LIMIT, World


@dataclass
class Box:
    """A dataclass as argument and result."""

    text: str


@activity.defn
def make_box(text: str) -> Box:
    return Box(text)


@workflow.defn
def make_box_workflow(text: str) -> Box:
    return Box(text)


@returns(["a untyped", "b", "c", "d untyped", "e", "f untyped", "g", "h"], order="loose")
@workflow.defn
def calls_by_name_return_plain_data_or_result_type() -> list[str]:
    results: list[Any] = [
        workflow.execute_activity("make_box", "a"),
        workflow.execute_activity("make_box", "b", result_type=Box),
        workflow.start_activity("make_box", "c", result_type=Box).result(),
        workflow.execute_local_activity("make_box", "d"),
        workflow.execute_local_activity("make_box", "e", result_type=Box),
        workflow.execute_child_workflow("make_box_workflow", "f"),
        workflow.execute_child_workflow("make_box_workflow", "g", result_type=Box),
        workflow.start_child_workflow("make_box_workflow", "h", result_type=Box).result(),
    ]
    return [result.text if isinstance(result, Box) else f"{result['text']} untyped" for result in results]


@scenario("loose")
def workflow_result_by_name_is_decoded_as_result_type(world: World) -> None:
    assert world.run("make_box_workflow", "a") == {"text": "a"}
    handle = world.start("make_box_workflow", "b", result_type=Box)
    assert handle.result(timeout=LIMIT) == Box("b")
    assert world.client.get_workflow_handle(handle.id).result(timeout=LIMIT) == {"text": "b"}
    assert world.client.get_workflow_handle(handle.id, workflow=make_box_workflow).result(
        timeout=LIMIT
    ) == Box("b")
    assert world.client.get_workflow_handle(handle.id, result_type=Box).result(timeout=LIMIT) == Box("b")


@workflow.defn
def returns_optional_argument(box: Box | None = Box("default")) -> Box | None:
    assert box is None or isinstance(box, Box)
    return box


@scenario()
def optional_argument_accepts_default_none_and_value(world: World) -> None:
    assert world.run("returns_optional_argument", result_type=Box) == Box("default")
    assert world.run(returns_optional_argument, None) is None
    assert world.run(returns_optional_argument, Box("mine")) == Box("mine")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Colour(enum.StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Entry(TypedDict):
    level: Level


class Model(BaseModel):
    level: Level
    colour: Colour = Colour.RED
    points: list[Point] = []
    inner: Model | None = None


SMALL = Model(level=Level.LOW)
MODEL = Model(level=Level.HIGH, points=[Point(1, 2)], inner=SMALL)


@activity.defn
def echo_model(model: Model) -> Model:
    assert isinstance(model.inner, Model)
    return model


@workflow.defn
class ExchangesModels:
    """Receives and returns models in every kind of message."""

    def __init__(self) -> None:
        self.models: list[Model] = []

    @workflow.run
    def run(self, model: Model) -> Model:
        self.models.append(echo_model(model))
        self.models.append(echo_model.local(model))
        workflow.wait_condition(lambda: len(self.models) > 2)
        return self.models[-1]

    @workflow.signal
    def put(self, model: Model) -> None:
        assert isinstance(model, Model)
        self.models.append(model)

    @workflow.query
    def last(self, level: Level) -> Model:
        assert isinstance(level, Level)
        return self.models[-1]

    @workflow.update
    def swap(self, model: Model) -> list[Model]:
        self.models[-1] = model
        return self.models


@scenario("loose")
def pydantic_models_are_decoded_in_every_kind_of_message(world: World) -> None:
    handle = world.start(ExchangesModels.run, MODEL)
    world.wait_for_event(handle, "MARKER_RECORDED")
    assert handle.execute_update(ExchangesModels.swap, SMALL) == [MODEL, SMALL]
    assert handle.query(ExchangesModels.last, Level.LOW) == SMALL
    handle.signal(ExchangesModels.put, MODEL)
    assert handle.result(timeout=LIMIT) == MODEL


@workflow.defn
def returns_enums_and_typed_tuples(level: Level, colour: Colour, point: Point, entry: Entry) -> list[Any]:
    assert isinstance(level, Level)
    assert isinstance(colour, Colour)
    assert isinstance(point, Point)
    assert isinstance(entry["level"], Level)
    return [level, colour, point, entry]


@scenario()
def enums_named_tuples_and_typed_dicts_keep_their_types(world: World) -> None:
    result = world.run(
        returns_enums_and_typed_tuples, Level.LOW, Colour.RED, Point(1, 2), Entry(level=Level.HIGH)
    )
    assert result == [1, "red", [1, 2], {"level": 2}]


@workflow.defn
class AnnotatesSelf:
    @workflow.run
    def run(self: Self, box: Box) -> str:
        assert isinstance(box, Box)
        return box.text


@scenario()
def annotated_self_is_not_an_argument(world: World) -> None:
    assert world.run(AnnotatesSelf.run, Box("mine")) == "mine"


@dataclass
class Shelf:
    """A dataclass with nested dataclasses."""

    boxes: Sequence[Box]
    by_name: dict[str, Box] = field(default_factory=dict)
    spare: Box | None = None


@activity.defn
def types_of_arguments(shelf: Shelf, extra: str) -> str:
    assert all(isinstance(box, Box) for box in (*shelf.boxes, *shelf.by_name.values()))
    return f"{type(shelf).__name__} {type(shelf.spare).__name__} {type(extra).__name__}"


@returns("Shelf Box str", Shelf([Box("a")], {"b": Box("b")}, Box("c")))
@workflow.defn
def nested_dataclasses_keep_their_types_in_activities(shelf: Shelf) -> str:
    return types_of_arguments(shelf, "more")


class Counter:
    """A class with activity methods: a function with a name of its own, and a coroutine function."""

    def __init__(self, start: int) -> None:
        self.start = start

    @activity.defn(name="counter.add")
    def add(self, more: int) -> int:
        return self.start + more

    @activity.defn
    async def add_later(self, more: int, again: int) -> int:
        return self.start + more + again


@workflow.defn
def calls_activity_methods() -> list[int]:
    """Calls the methods on the class; the worker calls them on its instance."""
    return [Counter.add(1), Counter.add_later(1, 2), workflow.execute_activity("counter.add", 5)]


@scenario()
def activity_methods_run_on_the_instance_of_the_worker(world: World) -> None:
    world.start_worker(activities=[Counter(40)])
    assert world.run(calls_activity_methods) == [41, 43, 45]


@workflow.defn
def requests_wrong_result_type() -> str:
    try:
        workflow.execute_activity("make_box", "a", result_type=int)
    except DecodeError as error:
        return f"not a number: {'Box' not in str(error)}"
    return "understood"


@scenario()
def wrong_result_type_raises_decode_error_without_failing_activity(world: World) -> None:
    assert world.run(requests_wrong_result_type).startswith("not a number")


@activity.defn(retry_policy=activities.ONCE)
def takes_one_argument(word: str) -> str:
    return word


@workflow.defn
def calls_with_invalid_arguments(case: str) -> str:
    wrong: dict[str, list[Any]] = {"few": [], "many": ["a", "b"], "other": [{"a": 1}]}
    try:
        return str(workflow.execute_activity("takes_one_argument", *wrong[case], start_to_close_timeout=5))
    except ActivityError as error:
        return type(error.cause).__name__


@scenario(loud=True)
def activity_with_invalid_arguments_fails_and_can_be_caught(world: World) -> None:
    for how in ("few", "many", "other"):
        assert world.run(calls_with_invalid_arguments, how) == "ApplicationError", how


@scenario()
def client_with_wrong_result_type_gets_decode_error(world: World) -> None:
    """The run itself has completed."""
    handle = world.start("make_box_workflow", "a", result_type=int)
    with pytest.raises(DecodeError):
        handle.result(timeout=LIMIT)
    assert world.client.get_workflow_handle(handle.id).result(timeout=LIMIT) == {"text": "a"}
    world.handles[-1] = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
