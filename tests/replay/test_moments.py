"""Moments: the position of a run's code at each step of its history, and its variables."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hourglass import Client, History, Worker, activity, workflow
from hourglass.errors import NondeterminismError
from hourglass.replay import Moment, Replayer, changes
from hourglass.testing import Environment


@activity.defn(start_to_close_timeout=5)
def add(one: int, other: int) -> int:
    return one + other


def doubled(number: int) -> int:
    found = add(number, 1)
    return found * 2


@workflow.defn
class Totals:
    def __init__(self) -> None:
        self.found: list[int] = []

    @workflow.run
    def run(self, times: int) -> int:
        total = 0
        for number in range(times):
            total += doubled(number)
            self.found.append(total)
        beside = workflow.spawn(doubled, 10)
        workflow.sleep(60)
        return total + beside.result()


@pytest.fixture(scope="module")
def history() -> History:
    """The history of a completed run."""
    with Environment() as env:
        handle = env.start_workflow(Totals.run, 2)
        assert handle.result() == 28
        return handle.history()


@pytest.fixture(scope="module")
def moments(history: History) -> tuple[Moment, ...]:
    with Replayer(workflows=[Totals]) as replayer:
        shown, result = replayer.moments(history)
    assert result.ok
    return shown


def test_moment_shows_frames_and_variables_outermost_first(moments: tuple[Moment, ...]) -> None:
    (fiber,) = moments[1].fibers or ()
    assert [frame.function for frame in fiber.frames] == ["Totals.run", "doubled"]
    outer, inner = fiber.frames
    assert (outer.values["total"], outer.values["number"], outer.values["self.found"]) == ("2", "1", "[2]")
    assert inner.values == {"number": "1"}
    assert fiber.waits_for == "activity add"
    assert fiber.at[0] == __file__
    assert fiber.at[1] == doubled.__code__.co_firstlineno + 1


def test_moment_shows_events_and_commands_with_lines(moments: tuple[Moment, ...]) -> None:
    assert moments[0].events == ("run started Totals",)
    assert moments[1].events == ("activity completed add",)
    assert [(command.what, command.line) for command in moments[1].issued] == [
        ("schedule activity add", doubled.__code__.co_firstlineno + 1)
    ]
    assert moments[-1].events == ("timer fired of 60 s",)
    assert moments[-1].closed


def test_changes_lists_variables_that_differ_between_moments(moments: tuple[Moment, ...]) -> None:
    values = {
        (change.function, change.name): (change.before, change.after)
        for change in changes(moments[0], moments[1])
    }
    assert values == {
        ("Totals.run", "self.found"): ("[]", "[2]"),
        ("Totals.run", "total"): ("0", "2"),
        ("Totals.run", "number"): ("0", "1"),
        ("doubled", "number"): ("0", "1"),
    }


def test_moment_shows_spawned_fibers_by_function_name(moments: tuple[Moment, ...]) -> None:
    assert sorted(fiber.name for fiber in moments[2].fibers or ()) == ["doubled", "workflow"]


def test_moments_are_equal_in_every_replay(history: History, moments: tuple[Moment, ...]) -> None:
    with Replayer(workflows=[Totals]) as replayer:
        assert replayer.moments(history)[0] == moments


def test_moments_outside_the_selected_range_have_no_fibers(
    history: History, moments: tuple[Moment, ...]
) -> None:
    with Replayer(workflows=[Totals]) as replayer:
        selected, _ = replayer.moments(history, range(1, 2))
    assert [moment.fibers is not None for moment in selected] == [
        number == 1 for number in range(len(selected))
    ]
    assert selected[1] == moments[1]


def test_moments_before_a_nondeterminism_error_are_returned(history: History) -> None:
    @workflow.defn(name="Totals")
    class Changed:
        @workflow.run
        def run(self, times: int) -> int:
            doubled(0)
            workflow.sleep(5)
            return 0

    with Replayer(workflows=[Changed]) as replayer:
        shown, result = replayer.moments(history)
    assert isinstance(result.error, NondeterminismError)
    assert [moment.issued[0].what for moment in shown[:2]] == ["schedule activity add", "start timer of 5 s"]


@dataclass
class RaisingRepr:
    name: str

    def __repr__(self) -> str:
        raise ZeroDivisionError


@workflow.defn
def holds_unusual_values(times: int) -> int:
    rude = RaisingRepr("x")
    endless: list[object] = []
    endless.append(endless)
    long = "a" * 100_000
    many = list(range(100_000))
    asks = ActivityInRepr()
    return add(len(long), len(many)) + len(endless) + len(rude.name) + len(asks.name)


class ActivityInRepr:
    """A value whose repr would be a step of the workflow."""

    name = "y"

    def __repr__(self) -> str:
        return f"asks {add(1, 1)}"


def test_moment_truncates_values_and_tolerates_failing_reprs() -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[holds_unusual_values], activities=[add]),
    ):
        handle = client.start_workflow(holds_unusual_values, 1, id="odd")
        handle.result()
        history = handle.history()
    with Replayer(workflows=[holds_unusual_values]) as replayer:
        shown, result = replayer.moments(history)
    assert result.ok
    values = (shown[0].fibers or ())[0].frames[0].values
    assert values["rude"] == "<RaisingRepr instance>"
    assert values["endless"].startswith("[[[")
    assert len(values["long"]) < 3_000
    assert len(values["many"]) < 3_000
    assert values["asks"] == "<ActivityInRepr instance>"
