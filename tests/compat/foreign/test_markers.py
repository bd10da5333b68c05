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
from .replaying import assert_fits, assert_rejected
from .writer import Writer, failure, payload, payloads

# --- versions -------------------------------------------------------------------------------------------------------


def branches_by_patches() -> str:
    if workflow.patched("step-2"):
        return str(act("third"))
    return str(act("second" if workflow.patched("step") else "first"))


@pytest.mark.parametrize(
    ("version", "way"), [(None, "first"), (-1, "first"), (0, "second"), (1, "second"), (2, "third")]
)
@pytest.mark.parametrize("language", ["go", "java"])
def test_get_version_markers_map_to_patches(language: str, version: int | None, way: str) -> None:
    history = Writer.in_task("W", sdk=f"temporal-{language}", ids="events" if language == "go" else "uuids")
    if version is not None:
        write = history.go_version if language == "go" else history.java_version
        write("step", version)
    done = history.activity(way)
    history.activity_done(done, "x")
    history.task_completes_run("x")
    assert_fits(history, branches_by_patches)


def test_version_recorded_later_does_not_affect_earlier_tasks() -> None:
    def code() -> str:
        act("a")
        return str(act("new" if workflow.patched("late") else "old"))

    history = Writer.in_task("W")
    history.activity_done(history.activity("a"), 1)
    history.task()
    history.go_version("late", 1)
    history.activity_done(history.activity("new"), "x")
    history.task_completes_run("x")
    assert_fits(history, code)


def test_recorded_version_may_be_unused_by_the_code() -> None:
    history = Writer.in_task("W")
    history.go_version("gone", 1)
    history.completed("x")
    assert_fits(history, lambda: "x")


# --- local activities -----------------------------------------------------------------------------------------------


def test_go_local_activities_are_matched_by_number() -> None:
    def code() -> Any:
        return workflow.gather(*[start_local("twice", number) for number in (1, 2, 3)])

    history = Writer.in_task("W")
    for number in (3, 1, 2):
        history.go_local(number, "twice", 2 * number)
    history.completed([2, 4, 6])
    assert_fits(history, code)


def test_java_local_activities_are_matched_by_arguments() -> None:
    def code() -> Any:
        return workflow.gather(*[start_local("Twice", number) for number in (1, 2, 3)])

    history = Writer.in_task("W", sdk="temporal-java", ids="uuids")
    for number in (2, 3, 1):
        history.java_local("Twice", [number], 2 * number)
    history.completed([2, 4, 6])
    assert_fits(history, code)


def test_local_activities_resolve_in_order_of_their_markers() -> None:
    def code() -> Any:
        slow, fast = start_local("slow"), start_local("fast")
        done, _ = workflow.wait([slow, fast], return_when="FIRST_COMPLETED")
        return act("winner", "fast" if fast in done else "slow")

    history = Writer.in_task("W")
    history.go_local(2, "fast", 1)
    scheduled = history.activity("winner", "fast")
    history.go_local(1, "slow", 2)
    history.activity_done(scheduled, 3)
    history.task_completes_run(3)
    assert_fits(history, code)


def test_failed_local_activity_raises_activity_error_with_cause() -> None:
    def code() -> str:
        try:
            local("breaks")
        except ActivityError as error:
            return type(error.cause).__name__
        return "fine"

    history = Writer.in_task("W")
    history.go_local(1, "breaks", failure=failure("broken"), backoff=-1)
    history.completed("ApplicationError")
    assert_fits(history, code)


@pytest.mark.parametrize("language", ["go", "java"])
def test_local_activity_backoff_timer_precedes_its_next_attempt(language: str) -> None:
    def code() -> Any:
        return local("flaky", 7)

    history = Writer.in_task("W", sdk=f"temporal-{language}", ids="uuids" if language == "java" else "events")
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
    assert_fits(history, code)


def test_local_activity_marker_may_be_in_a_later_task() -> None:
    def code() -> Any:
        timer = workflow.spawn(workflow.sleep, 60)
        result = local("long")
        timer.cancel()
        return act("next", result)

    history = Writer.in_task("W", sdk="temporal-java", ids="uuids")
    timer = history.timer("60s")
    history.task()
    history.task()
    history.java_local("long", [], "x")
    history.asked("TIMER_CANCELED", timerId="t", startedEventId=str(timer))
    history.activity_done(history.activity("next", "x"), "y")
    history.task_completes_run("y")
    assert_fits(history, code)


def test_workflow_time_advances_to_local_activity_marker() -> None:
    def code() -> str:
        local("long")
        return workflow.now().strftime("%H:%M")

    history = Writer.in_task("W")
    history.go_local(1, "long", time="2023-11-15T01:59:00.5+02:00")
    history.completed("23:59")
    assert_fits(history, code)


# --- effects --------------------------------------------------------------------------------------------------------


def _with_effect(name: str, **details: Any) -> Writer:
    history = Writer.in_task("W")
    history.marker(name, **details)
    history.activity_done(history.activity("use", "drawn"), 1)
    history.task_completes_run("drawn")
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
def test_side_effect_marker_gives_result_of_local_activity(make: str) -> None:
    def code() -> Any:
        value = local("draw")
        act("use", value)
        return value

    name, details = EFFECTS[make]
    assert_fits(_with_effect(name, **details), code)


def test_history_with_side_effects_accepts_other_random_values() -> None:
    def code() -> Any:
        value = str(workflow.uuid4())
        act("use", value)
        return value

    name, details = EFFECTS["go"]
    assert_fits(_with_effect(name, **details), code)

    def other() -> Any:
        act("another use", str(workflow.uuid4()))

    assert "another use" in assert_rejected(_with_effect(name, **details), other).produced


def test_mutable_side_effect_without_new_marker_keeps_its_value() -> None:
    def code() -> list[Any]:
        first = local("setting")
        workflow.sleep(1)
        return [first, local("setting")]

    history = Writer.in_task("W")
    history.marker("MutableSideEffect", id=payloads("setting"), data=payloads(5))
    history.fired(history.timer("1s"))
    history.task_completes_run([5, 5])
    assert_fits(history, code)


# --- codecs ---------------------------------------------------------------------------------------------------------


class ReversingCodec:
    """Reverses bytes, and rejects payloads that it has not encoded."""

    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(payload.data[::-1], "backwards") for payload in payloads]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        assert all(each.encoding == "backwards" for each in payloads)
        return [Payload(payload.data[::-1], "json/plain") for payload in payloads]


def _turned(value: Any) -> dict[str, Any]:
    plain = json.dumps(value).encode()
    return {"payloads": [payload(plain[::-1], "backwards")]}


def test_codec_decodes_local_activity_markers_but_not_versions() -> None:
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
    assert_fits(history, code, codec=ReversingCodec())
