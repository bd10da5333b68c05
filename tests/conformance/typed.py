"""Types at every seam: by name with a type, by definition, models, enums, optional arguments, methods as activities."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypedDict

import pytest
from pydantic import BaseModel

from hourglass import activity, workflow
from hourglass.errors import ActivityError, DecodeError

from . import acts
from .scenario import scenario
from .world import World

LIMIT = 30


@dataclass
class Box:
    """Something with a type."""

    text: str


@activity.defn
def boxes(text: str) -> Box:
    """A box."""
    return Box(text)


@workflow.defn
def boxed(text: str) -> Box:
    """A box, from a workflow."""
    return Box(text)


@workflow.defn
def asks_by_name() -> list[str]:
    """Activities, local ones and children by name, with a type and without."""
    found: list[Any] = [
        workflow.execute_activity("boxes", "a"),
        workflow.execute_activity("boxes", "b", result_type=Box),
        workflow.start_activity("boxes", "c", result_type=Box).result(),
        workflow.execute_local_activity("boxes", "d"),
        workflow.execute_local_activity("boxes", "e", result_type=Box),
        workflow.execute_child_workflow("boxed", "f"),
        workflow.execute_child_workflow("boxed", "g", result_type=Box),
        workflow.start_child_workflow("boxed", "h", result_type=Box).result(),
    ]
    return [each.text if isinstance(each, Box) else f"{each['text']} untyped" for each in found]


@scenario("loose")
def results_by_name(world: World) -> None:
    """What is called by its name gives plain data, or the type that is asked for."""
    assert world.run(asks_by_name) == ["a untyped", "b", "c", "d untyped", "e", "f untyped", "g", "h"]


@scenario("loose")
def a_workflow_by_its_name_with_a_type(world: World) -> None:
    """So do workflows for clients, at their start and through a handle that is made later."""
    assert world.run("boxed", "a") == {"text": "a"}
    handle = world.start("boxed", "b", result_type=Box)
    assert handle.result(timeout=LIMIT) == Box("b")
    assert world.client.get_workflow_handle(handle.id).result(timeout=LIMIT) == {"text": "b"}
    assert world.client.get_workflow_handle(handle.id, workflow=boxed).result(timeout=LIMIT) == Box("b")
    assert world.client.get_workflow_handle(handle.id, result_type=Box).result(timeout=LIMIT) == Box("b")


@workflow.defn
def takes_or_leaves(box: Box | None = Box("default")) -> Box | None:
    """Gives back what it got."""
    assert box is None or isinstance(box, Box)
    return box


@scenario()
def an_argument_that_may_be_none(world: World) -> None:
    """Left out it is its default, None is None, and a value has its type."""
    assert world.run("takes_or_leaves", result_type=Box) == Box("default")
    assert world.run(takes_or_leaves, None) is None
    assert world.run(takes_or_leaves, Box("mine")) == Box("mine")


class Level(enum.IntEnum):
    """A number with a name."""

    LOW = 1
    HIGH = 2


class Colour(enum.StrEnum):
    """A text with a name."""

    RED = "red"


class Point(NamedTuple):
    """A pair with names."""

    x: int
    y: int


class Entry(TypedDict):
    """A table with known keys."""

    level: Level


class Model(BaseModel):
    """A model of pydantic's."""

    level: Level
    colour: Colour = Colour.RED
    points: list[Point] = []
    inner: Model | None = None


SMALL = Model(level=Level.LOW)
MODEL = Model(level=Level.HIGH, points=[Point(1, 2)], inner=SMALL)


@activity.defn
def same_model(model: Model) -> Model:
    """A model through an activity."""
    assert isinstance(model.inner, Model)
    return model


@workflow.defn
class Modelled:
    """Models in every kind of message."""

    def __init__(self) -> None:
        self.models: list[Model] = []

    @workflow.run
    def run(self, model: Model) -> Model:
        """Waits for a second one."""
        self.models.append(same_model(model))
        self.models.append(same_model.local(model))
        workflow.wait_condition(lambda: len(self.models) > 2)
        return self.models[-1]

    @workflow.signal
    def put(self, model: Model) -> None:
        """A signal."""
        assert isinstance(model, Model)
        self.models.append(model)

    @workflow.query
    def last(self, level: Level) -> Model:
        """A query."""
        assert isinstance(level, Level)
        return self.models[-1]

    @workflow.update
    def swap(self, model: Model) -> list[Model]:
        """An update."""
        self.models[-1] = model
        return self.models


@scenario("loose")
def pydantic_models_everywhere(world: World) -> None:
    """Models arrive as models: in workflows, activities, local ones, signals, queries and updates."""
    handle = world.start(Modelled.run, MODEL)
    world.until(handle, "MARKER_RECORDED")
    assert handle.execute_update(Modelled.swap, SMALL) == [MODEL, SMALL]
    assert handle.query(Modelled.last, Level.LOW) == SMALL
    handle.signal(Modelled.put, MODEL)
    assert handle.result(timeout=LIMIT) == MODEL


@workflow.defn
def kinds_of_enums(level: Level, colour: Colour, point: Point, entry: Entry) -> list[Any]:
    """Each is of its own type."""
    assert isinstance(level, Level)
    assert isinstance(colour, Colour)
    assert isinstance(point, Point)
    assert isinstance(entry["level"], Level)
    return [level, colour, point, entry]


@scenario()
def enums_tuples_and_tables(world: World) -> None:
    """Enums of numbers and texts, named tuples and typed tables are themselves again."""
    result = world.run(kinds_of_enums, Level.LOW, Colour.RED, Point(1, 2), Entry(level=Level.HIGH))
    assert result == [1, "red", [1, 2], {"level": 2}]


@workflow.defn
class Selfish:
    """Its methods say whose they are."""

    @workflow.run
    def run(self: Self, box: Box) -> str:
        """The annotation of `self` is no argument."""
        assert isinstance(box, Box)
        return box.text


@scenario()
def a_method_that_says_whose_it_is(world: World) -> None:
    """`self: Self` is not taken for an argument."""
    assert world.run(Selfish.run, Box("mine")) == "mine"


@dataclass
class Shelf:
    """Boxes in boxes."""

    boxes: Sequence[Box]
    by_name: dict[str, Box] = field(default_factory=dict)
    spare: Box | None = None


@activity.defn
def tidies(shelf: Shelf, extra: str) -> str:
    """Says what it got."""
    assert all(isinstance(each, Box) for each in (*shelf.boxes, *shelf.by_name.values()))
    return f"{type(shelf).__name__} {type(shelf.spare).__name__} {type(extra).__name__}"


@workflow.defn
def tidy(shelf: Shelf) -> str:
    """Passes it on."""
    return tidies(shelf, "more")


@scenario()
def types_within_types(world: World) -> None:
    """Dataclasses within lists, tables and optional fields have their types in activities."""
    assert world.run(tidy, Shelf([Box("a")], {"b": Box("b")}, Box("c"))) == "Shelf Box str"


class Counter:
    """An object whose methods are activities: one of a name of its own, one that is a coroutine."""

    def __init__(self, start: int) -> None:
        self.start = start

    @activity.defn(name="counter.add")
    def add(self, more: int) -> int:
        """Adds to what the worker's object has."""
        return self.start + more

    @activity.defn
    async def add_later(self, more: int, again: int) -> int:
        """The same, later."""
        return self.start + more + again


@workflow.defn
def counts_with_an_object() -> list[int]:
    """Methods of the class stand for those of the worker's object."""
    return [Counter.add(1), Counter.add_later(1, 2), workflow.execute_activity("counter.add", 5)]


@scenario()
def methods_as_activities(world: World) -> None:
    """Methods run on the object that the worker was given, by whatever name, as functions or coroutines."""
    world.start_worker(activities=[Counter(40)])
    assert world.run(counts_with_an_object) == [41, 43, 45]


@workflow.defn
def misunderstands() -> str:
    """Asks for a type that the result does not have."""
    try:
        workflow.execute_activity("boxes", "a", result_type=int)
    except DecodeError as error:
        return f"not a number: {'Box' not in str(error)}"
    return "understood"


@scenario()
def a_result_of_another_type(world: World) -> None:
    """A result that does not fit the type that was asked for is an error where it is used, and no failure of the activity."""
    assert world.run(misunderstands).startswith("not a number")


@activity.defn(retry_policy=acts.ONCE)
def needs_one(word: str) -> str:
    """Takes one argument."""
    return word


@workflow.defn
def calls_wrongly(how: str) -> str:
    """Calls an activity, by its name, with arguments that do not fit."""
    wrong: dict[str, list[Any]] = {"few": [], "many": ["a", "b"], "other": [{"a": 1}]}
    try:
        return str(workflow.execute_activity("needs_one", *wrong[how], start_to_close_timeout=5))
    except ActivityError as error:
        return type(error.cause).__name__


@scenario(loud=True)
def an_activity_with_wrong_arguments(world: World) -> None:
    """Too few, too many or of another type: the activity fails, for good, and the workflow can catch it."""
    for how in ("few", "many", "other"):
        assert world.run(calls_wrongly, how) == "ApplicationError", how


@scenario()
def a_client_that_expects_another_type(world: World) -> None:
    """A client that asks for the wrong type is told so; the run has completed all the same."""
    handle = world.start("boxed", "a", result_type=int)
    with pytest.raises(DecodeError):
        handle.result(timeout=LIMIT)
    assert world.client.get_workflow_handle(handle.id).result(timeout=LIMIT) == {"text": "a"}
    world.handles[-1] = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
