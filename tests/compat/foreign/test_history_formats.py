"""Histories are read in every format and from every SDK, and differences are reported with both sides."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import HistoryError, NondeterminismError

from ._corpus import act, local, start
from .replaying import assert_fits, assert_rejected, replay
from .writer import Writer, payload, payloads

# --- spellings and oddities -----------------------------------------------------------------------------------------


def echoes_then_sleeps(name: str) -> Any:
    answer = act("echo", name)
    workflow.sleep(5)
    return answer


def _plain(**options: Any) -> Writer:
    history = Writer.in_task("W", "x", **options)
    history.activity_done(history.activity("echo", "x"), "x")
    history.task()
    history.fired(history.timer("5s"))
    history.task_completes_run("x")
    return history


def _in_old_spelling(text: str) -> str:
    def short(found: re.Match[str]) -> str:
        return '"' + "".join(word.title() for word in found.group(1).split("_")) + '"'

    return re.sub(r'"EVENT_TYPE_([A-Z_]+)"', short, text)


def _in_snake_case(text: str) -> str:
    def keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower(): keys(item) for key, item in value.items()}
        return [keys(item) for item in value] if isinstance(value, list) else value

    return json.dumps(keys(json.loads(text)))


SPELLINGS: dict[str, Callable[[str], str]] = {
    "today's": lambda text: text,
    "old names": _in_old_spelling,
    "snake case": _in_snake_case,
    "events alone": lambda text: json.dumps(json.loads(text)["events"]),
    "an answer of the API": lambda text: json.dumps({"history": json.loads(text), "nextPageToken": None}),
    "fields that we do not know": lambda text: text.replace(
        '"eventTime"', '"novelty": {"a": 1}, "eventTime"'
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("sdk", ["temporal-go", "temporal-java", "temporal-php", "", "temporal-unheard-of"])
def test_history_is_read_from_every_export_format(spelling: str, sdk: str) -> None:
    assert_fits(SPELLINGS[spelling](_plain(sdk=sdk).json()), echoes_then_sleeps)


@pytest.mark.parametrize("ids", ["events", "count", "uuids"])
def test_unnamed_sdk_is_recognized_by_its_event_ids(ids: str) -> None:
    assert_fits(_plain(sdk="", ids=ids), echoes_then_sleeps)


def test_history_of_java_test_server_replays() -> None:
    history = _plain(sdk="", ids="uuids")
    for event in history.events:
        event.get("workflowTaskCompletedEventAttributes", {}).pop("startedEventId", None)
        for key, attributes in event.items():
            if key.endswith("Attributes") and "workflowTaskCompletedEventId" in attributes:
                completed = int(attributes["workflowTaskCompletedEventId"])
                attributes["workflowTaskCompletedEventId"] = str(completed - 1)
    assert_fits(history, echoes_then_sleeps)


def test_unknown_event_is_ignored_only_if_marked_as_ignorable() -> None:
    history = Writer.in_task("W")
    timer = history.timer("5s")
    history.add("NOVELTY_OF_TOMORROW")
    history.events[-1]["workerMayIgnore"] = True
    history.fired(timer)
    history.task_completes_run()

    def code() -> None:
        workflow.sleep(5)

    assert_fits(history, code)
    del history.events[5]["workerMayIgnore"]
    assert isinstance(replay(history, code).error, HistoryError)


@pytest.mark.parametrize("kind", ["EVENT_TYPE_NOVELTY_OF_TOMORROW", "NoveltyOfTomorrow", 999, 0])
@pytest.mark.parametrize(
    "attributes",
    [
        {"workflowExecutionSignaledEventAttributes": {"signalName": "go"}},
        {"workflowExecutionCompletedEventAttributes": {"workflowTaskCompletedEventId": "4"}},
        {"workflowExecutionUpdateAcceptedEventAttributes": {"protocolInstanceId": "u"}},
        {"timerFiredEventAttributes": {"startedEventId": "5", "timerId": "5"}},
    ],
    ids=lambda attributes: next(iter(attributes)),
)
def test_unknown_ignorable_event_with_known_attributes_is_ignored(
    kind: Any, attributes: dict[str, Any]
) -> None:
    history = Writer.in_task("W")
    timer = history.timer("5s")
    history.add("NOVELTY_OF_TOMORROW")
    event = history.events[-1]
    event |= {"workerMayIgnore": True, "eventType": kind, **attributes}
    history.fired(timer)
    history.task_completes_run()

    def code() -> None:
        workflow.sleep(5)

    assert_fits(history, code)


def test_missing_null_and_empty_results_decode_to_none() -> None:
    def code() -> None:
        act("nothing", None)

    for result in ((), (None,)):
        history = Writer.in_task("W")
        history.activity_done(history.activity("nothing", None), *result)
        history.task_completes_run(*result)
        assert_fits(history, code)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_unknown_marker_is_reported_with_its_event() -> None:
    history = Writer.in_task("W")
    history.marker("Astrology", sign=payloads("Leo"))
    history.completed()
    error = replay(history, lambda: None).error
    assert isinstance(error, HistoryError)
    assert "event 5 is a marker 'Astrology'" in str(error)


@pytest.mark.parametrize("name", ["Version", "LocalActivity", "MutableSideEffect"])
def test_unreadable_marker_is_reported_with_its_event(name: str) -> None:
    history = Writer.in_task("W")
    history.marker(name, data={"payloads": [payload(b"\xff", "binary/plain"), payload(b"{")]})
    history.completed()
    error = replay(history, lambda: None).error
    assert isinstance(error, HistoryError)
    assert f"event 5: the marker {name!r} cannot be read" in str(error)


def test_missing_nexus_operation_is_reported() -> None:
    history = Writer.in_task("W")
    history.asked("NEXUS_OPERATION_SCHEDULED", endpoint="e", service="s", operation="o")
    error = replay(history, lambda: None).error
    assert isinstance(error, NondeterminismError)
    assert "expected by the history: Nexus operation s.o" in str(error)


def _skips_timer(name: str) -> Any:
    return act("echo", name)


def _calls_another(name: str) -> Any:
    return act("other", name)


def _passes_another(name: str) -> Any:
    answer = act("echo", name + "!")
    workflow.sleep(5)
    return answer


def _sleeps_longer(name: str) -> Any:
    answer = act("echo", name)
    workflow.sleep(6)
    return answer


def _sleeps_concurrently(name: str) -> Any:
    task = start("echo", name)
    workflow.sleep(5)
    return task.result()


def _returns_another(name: str) -> Any:
    return str(echoes_then_sleeps(name)) + "!"


def _calls_one_more(name: str) -> Any:
    answer = echoes_then_sleeps(name)
    local("one more")
    return answer


@pytest.mark.parametrize(
    ("code", "expected", "produced"),
    [
        (_skips_timer, "timer", "completion"),
        (_calls_another, "activity echo", "activity other"),
        (_passes_another, "activity echo", "another arguments"),
        (_sleeps_longer, "timer", "another duration"),
        (_sleeps_concurrently, "no further command", "timer"),
        (_returns_another, "completion", "another result"),
        (_calls_one_more, "completion", "local activity one more"),
    ],
    ids=lambda value: value.__name__.removeprefix("_") if callable(value) else None,
)
def test_replay_detects_changed_code_and_names_both_sides(
    code: Callable[..., Any], expected: str, produced: str
) -> None:
    error = assert_rejected(_plain(), code)
    assert expected in error.expected
    assert produced in error.produced


def test_bug_in_replayed_code_is_reported_with_its_place() -> None:
    def code(name: str) -> Any:
        raise KeyError(name)

    error = replay(_plain(), code).error
    assert type(error).__name__ == "WorkflowParked"
    assert "test_history_formats.py" in str(error)


def test_unregistered_workflow_type_is_reported() -> None:
    error = replay(_plain(), echoes_then_sleeps, name="Another").error
    assert error is not None
    assert "'W'" in str(error)


def test_commands_of_an_uncompleted_task_are_not_compared() -> None:
    history = Writer.in_task("W", "x")
    history.activity_done(history.activity("echo", "x"), "x")
    history.task()
    del history.events[-1]
    assert_fits(history, echoes_then_sleeps)


def test_history_of_an_open_run_replays_on_waiting_code_only() -> None:
    history = _plain()
    del history.events[-5:]
    assert_fits(history, echoes_then_sleeps)
    assert_rejected(history, _skips_timer)
