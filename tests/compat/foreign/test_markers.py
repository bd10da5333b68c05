"""Markers of Go's and Java's SDKs: versions, local activities, side effects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from hourglass import workflow
from hourglass.converter import Payload
from hourglass.errors import ActivityError

from ._corpus import act, local, start, start_local
from .replaying import fits, refused
from .writer import Writer, failure, payload, payloads

# --- versions -------------------------------------------------------------------------------------------------------


def versioned() -> str:
    """Three ways: the first, the second since a patch, the third since a later version of it."""
    if workflow.patched("step-2"):
        return str(act("third"))
    return str(act("second" if workflow.patched("step") else "first"))


@pytest.mark.parametrize(
    ("version", "way"), [(None, "first"), (-1, "first"), (0, "second"), (1, "second"), (2, "third")]
)
@pytest.mark.parametrize("language", ["go", "java"])
def test_get_version_maps_to_patched(language: str, version: int | None, way: str) -> None:
    """`GetVersion` is `patched`: -1 and no marker the old way, 0 and 1 the patched one, 2 what `step-2` says."""
    history = Writer("W", sdk=f"temporal-{language}", ids="events" if language == "go" else "uuids")
    history.task()
    if version is not None:
        write = history.go_version if language == "go" else history.java_version
        write("step", version)
    done = history.activity(way)
    history.activity_done(done, "x")
    history.task()
    history.completed("x")
    fits(history, versioned)


def test_version_recorded_by_a_later_task() -> None:
    """A version is known from the task that recorded it: before that the code went the old way elsewhere."""

    def code() -> str:
        act("a")
        return str(act("new" if workflow.patched("late") else "old"))

    history = Writer("W")
    history.task()
    history.activity_done(history.activity("a"), 1)
    history.task()
    history.go_version("late", 1)
    history.activity_done(history.activity("new"), "x")
    history.task()
    history.completed("x")
    fits(history, code)


def test_recorded_version_unused_by_the_code() -> None:
    """As in Go, code may stop asking for a version that its history holds."""
    history = Writer("W")
    history.task()
    history.go_version("gone", 1)
    history.completed("x")
    fits(history, lambda: "x")


# --- local activities -----------------------------------------------------------------------------------------------


def test_local_activities_that_ended_out_of_order() -> None:
    """Go's markers stand in the order of the ends, and say which was meant by its number."""

    def code() -> Any:
        return workflow.gather(*[start_local("twice", number) for number in (1, 2, 3)])

    history = Writer("W")
    history.task()
    for number in (3, 1, 2):
        history.go_local(number, "twice", 2 * number)
    history.completed([2, 4, 6])
    fits(history, code)


def test_java_local_activities_are_told_apart_by_arguments() -> None:
    """Java's ids are no numbers, but its markers hold the arguments."""

    def code() -> Any:
        return workflow.gather(*[start_local("Twice", number) for number in (1, 2, 3)])

    history = Writer("W", sdk="temporal-java", ids="uuids")
    history.task()
    for number in (2, 3, 1):
        history.java_local("Twice", [number], 2 * number)
    history.completed([2, 4, 6])
    fits(history, code)


def test_first_local_activity_to_end_wins() -> None:
    """They are told one by one, as they ended: the faster one decides."""

    def code() -> Any:
        slow, fast = start_local("slow"), start_local("fast")
        done, _ = workflow.wait([slow, fast], return_when="FIRST_COMPLETED")
        return act("winner", "fast" if fast in done else "slow")

    history = Writer("W")
    history.task()
    history.go_local(2, "fast", 1)
    scheduled = history.activity("winner", "fast")
    history.go_local(1, "slow", 2)
    history.activity_done(scheduled, 3)
    history.task()
    history.completed(3)
    fits(history, code)


def test_local_activity_failure() -> None:
    """Its failure reaches the code as that of an activity, with its cause."""

    def code() -> str:
        try:
            local("breaks")
        except ActivityError as error:
            return type(error.cause).__name__
        return "fine"

    history = Writer("W")
    history.task()
    history.go_local(1, "breaks", failure=failure("broken"), backoff=-1)
    history.completed("ApplicationError")
    fits(history, code)


@pytest.mark.parametrize("language", ["go", "java"])
def test_local_activity_with_a_backoff_timer(language: str) -> None:
    """A long pause between attempts is a timer of the run, and then the activity again."""

    def code() -> Any:
        return local("flaky", 7)

    history = Writer("W", sdk=f"temporal-{language}", ids="uuids" if language == "java" else "events")
    history.task()
    if language == "go":
        history.go_local(1, "flaky", failure=failure("not yet"), backoff=30_000_000_000)
    else:
        history.java_local("flaky", [7], failure=failure("not yet"), backoff=30.0)
    history.fired(history.timer("30s"))
    history.task()
    if language == "go":
        history.go_local(1, "flaky", "at last", attempt=2)
    else:
        history.java_local("flaky", [7], "at last")
    history.completed("at last")
    fits(history, code)


def test_local_activity_longer_than_its_task() -> None:
    """Its task is completed with nothing and asked for again: the marker is found in a later one."""

    def code() -> Any:
        timer = workflow.spawn(workflow.sleep, 60)
        result = local("long")
        timer.cancel()
        return act("next", result)

    history = Writer("W", sdk="temporal-java", ids="uuids")
    history.task()
    timer = history.timer("60s")
    history.task()
    history.task()
    history.java_local("long", [], "x")
    history.asked("TIMER_CANCELED", timerId="t", startedEventId=str(timer))
    history.activity_done(history.activity("next", "x"), "y")
    history.task()
    history.completed("y")
    fits(history, code)


def test_time_advances_with_a_local_activity() -> None:
    """After a local activity the clock shows the time of its marker."""

    def code() -> str:
        local("long")
        return workflow.now().strftime("%H:%M")

    history = Writer("W")
    history.task()
    history.go_local(1, "long", time="2023-11-15T01:59:00.5+02:00")
    history.completed("23:59")
    fits(history, code)


# --- effects --------------------------------------------------------------------------------------------------------


def _with_effect(name: str, **details: Any) -> Writer:
    history = Writer("W")
    history.task()
    history.marker(name, **details)
    history.activity_done(history.activity("use", "drawn"), 1)
    history.task()
    history.completed("drawn")
    return history


EFFECTS = {
    "go": ("SideEffect", {"side-effect-id": payloads(1), "data": payloads("drawn")}),
    "java": ("SideEffect", {"data": payloads("drawn")}),
    "java, mutable": ("MutableSideEffect", {"id": payloads("draw"), "data": payloads("drawn")}),
    "go, mutable": (
        "MutableSideEffect",
        {
            "side-effect-id": payloads("draw_5"),
            "data": {
                "payloads": [
                    payload("draw"),
                    payload({"payloads": [payload("drawn")]}, "json/protobuf"),
                ]
            },
        },
    ),
}


@pytest.mark.parametrize("make", EFFECTS)
def test_side_effect_as_a_local_activity(make: str) -> None:
    """A local activity in the place of a side effect gets the recorded value."""

    def code() -> Any:
        value = local("draw")
        act("use", value)
        return value

    name, details = EFFECTS[make]
    fits(_with_effect(name, **details), code)


def test_side_effect_as_randomness() -> None:
    """Code that draws itself gets another value: what it asks for is compared, with what no longer."""

    def code() -> Any:
        value = str(workflow.uuid4())
        act("use", value)
        return value

    name, details = EFFECTS["go"]
    fits(_with_effect(name, **details), code)

    def other() -> Any:
        act("another use", str(workflow.uuid4()))

    assert "another use" in refused(_with_effect(name, **details), other).produced


def test_unchanged_mutable_side_effect() -> None:
    """It is written down when its value changes: asked again, it is what it was."""

    def code() -> list[Any]:
        first = local("setting")
        workflow.sleep(1)
        return [first, local("setting")]

    history = Writer("W")
    history.task()
    history.marker("MutableSideEffect", id=payloads("setting"), data=payloads(5))
    history.fired(history.timer("1s"))
    history.task()
    history.completed([5, 5])
    fits(history, code)


# --- codecs ---------------------------------------------------------------------------------------------------------


class Backwards:
    """A codec that turns bytes round, and refuses what it did not turn."""

    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Turn them round."""
        return [Payload(each.data[::-1], "backwards") for each in payloads]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Turn them back; all of them were JSON."""
        assert all(each.encoding == "backwards" for each in payloads)
        return [Payload(each.data[::-1], "json/plain") for each in payloads]


def _turned(value: Any) -> dict[str, Any]:
    plain = json.dumps(value).encode()
    return {"payloads": [payload(plain[::-1], "backwards")]}


def test_encoded_markers() -> None:
    """A codec reaches what describes a local activity, and what it holds; a version is plain all the same."""

    def code() -> Any:
        assert workflow.patched("step")
        return workflow.gather(start("echo", local("la")), start("echo", "b"))

    data = {"ActivityID": "1", "ActivityType": "la", "ReplayTime": "", "Attempt": 1, "Backoff": 0}
    history = Writer("W")
    history.events[0]["workflowExecutionStartedEventAttributes"]["input"] = {}
    history.task()
    history.go_version("step", 1)
    history.marker("LocalActivity", data=_turned(data), result=_turned("a"))
    scheduled = [history.activity("echo", name) for name in "ba"]
    for at, name in zip(scheduled, "ba", strict=True):
        history.events[at - 1]["activityTaskScheduledEventAttributes"]["input"] = _turned(name)
        history.activity_done(at, name)
        history.events[-1]["activityTaskCompletedEventAttributes"]["result"] = _turned(name.upper())
    history.task()
    history.asked("WORKFLOW_EXECUTION_COMPLETED", result=_turned(["A", "B"]))
    fits(history, code, codec=Backwards())
