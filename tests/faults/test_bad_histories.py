"""Malformed histories: the replayer rejects each of them quickly with a message, and can be used again."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import effort
from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.errors import HistoryError, HourglassError, NondeterminismError
from hourglass.replay import History, Replayer
from hourglass.worker import Worker

Events = list[dict[str, Any]]
LIMIT = 5.0


@activity.defn
def step(number: int) -> int:
    return number + 1


@workflow.defn
def sample(number: int) -> int:
    number = step(number)
    workflow.sleep(0.01)
    return step(number)


@pytest.fixture(scope="module")
def good() -> Events:
    with Client.connect("local:") as client, Worker(client, workflows=[sample], activities=[step]):
        handle = client.start_workflow(sample, 1)
        assert handle.result(timeout=20) == 3
        return handle.history().events


@pytest.fixture(scope="module")
def replayer() -> Iterator[Replayer]:
    """One replayer for all tests, which must survive malformed histories."""
    with Replayer(workflows=[sample], timeout=LIMIT) as replayer:
        yield replayer


def position_of(events: Events, kind: str, number: int = 0) -> int:
    """Return the position of an event of this type."""
    return [at for at, event in enumerate(events) if event["eventType"] == f"EVENT_TYPE_{kind}"][number]


def renumbered(events: Events) -> Events:
    for at, event in enumerate(events, 1):
        event["eventId"] = str(at)
    return events


Change = Callable[[Events], Events | None]
"""Changes a copy of a history in place, or returns other events."""


def removed(kind: str) -> Change:
    def change(events: Events) -> Events:
        del events[position_of(events, kind)]
        return renumbered(events)

    return change


def doubled(kind: str) -> Change:
    def change(events: Events) -> Events:
        at = position_of(events, kind)
        return renumbered([*events[: at + 1], copy.deepcopy(events[at]), *events[at + 1 :]])

    return change


def appended(kind: str) -> Change:
    return lambda events: renumbered([*events, copy.deepcopy(events[position_of(events, kind)])])


def with_attributes(kind: str, name: str, **attributes: Any) -> Change:
    return lambda events: events[position_of(events, kind)][name].update(attributes)


def with_event_6(**fields: Any) -> Change:
    return lambda events: events[5].update(fields)


def inserted(kind: str, name: str, **attributes: Any) -> Change:
    """Insert an event after the first completed activity."""

    def change(events: Events) -> Events:
        event = {"eventType": f"EVENT_TYPE_{kind}", name: attributes}
        at = position_of(events, "ACTIVITY_TASK_COMPLETED") + 1
        return renumbered([*events[:at], event, *events[at:]])

    return change


def ids_run_backwards(events: Events) -> None:
    for event, number in zip(events, range(len(events), 0, -1), strict=True):
        event["eventId"] = str(number)


def events_swapped(events: Events) -> None:
    events[2], events[3] = events[3], events[2]


def events_swapped_renumbered(events: Events) -> Events:
    events_swapped(events)
    return renumbered(events)


def wrong_attribute_kind(events: Events) -> None:
    at = position_of(events, "ACTIVITY_TASK_SCHEDULED")
    events[at]["timerStartedEventAttributes"] = {"timerId": "1"}
    del events[at]["activityTaskScheduledEventAttributes"]


def no_attributes(events: Events) -> None:
    del events[position_of(events, "ACTIVITY_TASK_COMPLETED")]["activityTaskCompletedEventAttributes"]


def no_run_id(events: Events) -> None:
    del events[0]["workflowExecutionStartedEventAttributes"]["originalExecutionRunId"]


def activity_instead_of_timer(events: Events) -> None:
    at, other = position_of(events, "TIMER_STARTED"), position_of(events, "ACTIVITY_TASK_SCHEDULED")
    events[at] = {**copy.deepcopy(events[other]), "eventId": events[at]["eventId"]}


def one_step_more(events: Events) -> Events:
    first, last = position_of(events, "ACTIVITY_TASK_SCHEDULED"), position_of(events, "TIMER_STARTED")
    return renumbered([*events[:last], *copy.deepcopy(events[first:last]), *events[last:]])


COMPLETED = ("ACTIVITY_TASK_COMPLETED", "activityTaskCompletedEventAttributes")
FIRED = ("TIMER_FIRED", "timerFiredEventAttributes")

MUTATIONS: dict[str, Change] = {
    "empty": lambda events: [],
    "no_start": lambda events: events[1:],
    "no_start_renumbered": lambda events: renumbered(events[1:]),
    "gap_in_ids": lambda events: [*events[:5], *events[6:]],
    "ids_run_backwards": ids_run_backwards,
    "events_swapped": events_swapped,
    "events_swapped_renumbered": events_swapped_renumbered,
    "task_started_doubled": doubled("WORKFLOW_TASK_STARTED"),
    "task_started_missing": removed("WORKFLOW_TASK_STARTED"),
    "task_scheduled_missing": removed("WORKFLOW_TASK_SCHEDULED"),
    "task_completed_missing": removed("WORKFLOW_TASK_COMPLETED"),
    "task_completed_doubled": doubled("WORKFLOW_TASK_COMPLETED"),
    "all_tasks_missing": lambda events: renumbered(
        [event for event in events if "WORKFLOW_TASK" not in event["eventType"]]
    ),
    "events_after_close": appended("TIMER_FIRED"),
    "closed_twice": appended("WORKFLOW_EXECUTION_COMPLETED"),
    "started_twice": doubled("WORKFLOW_EXECUTION_STARTED"),
    "unknown_event_type": with_event_6(eventType="EVENT_TYPE_NEVER_HEARD_OF"),
    "unknown_event_number": with_event_6(eventType=9999),
    "wrong_attribute_kind": wrong_attribute_kind,
    "no_attributes": no_attributes,
    "attributes_are_a_number": lambda events: events[0].update(workflowExecutionStartedEventAttributes=7),
    "only_the_start": lambda events: events[:1],
    "huge_event_id": with_event_6(eventId=str(2**62)),
    "event_id_beyond_64_bits": with_event_6(eventId=str(2**70)),
    "negative_event_id": with_event_6(eventId="-6"),
    "event_id_zero": lambda events: events[0].update(eventId="0"),
    "activity_completed_without_scheduled": removed("ACTIVITY_TASK_SCHEDULED"),
    "activity_completed_with_unknown_scheduled_id": with_attributes(*COMPLETED, scheduledEventId="9999"),
    "activity_completed_with_negative_scheduled_id": with_attributes(*COMPLETED, scheduledEventId="-1"),
    "activity_completed_twice": doubled("ACTIVITY_TASK_COMPLETED"),
    "timer_fired_without_start": removed("TIMER_STARTED"),
    "timer_fired_with_another_id": with_attributes(*FIRED, timerId="77", startedEventId="77"),
    "timer_started_twice": doubled("TIMER_STARTED"),
    "another_activity": with_attributes(
        "ACTIVITY_TASK_SCHEDULED", "activityTaskScheduledEventAttributes", activityType={"name": "other"}
    ),
    "activity_instead_of_timer": activity_instead_of_timer,
    "one_step_more": one_step_more,
    "no_run_id": no_run_id,
    "child_without_start": inserted(
        "CHILD_WORKFLOW_EXECUTION_STARTED",
        "childWorkflowExecutionStartedEventAttributes",
        initiatedEventId="3",
    ),
    "activity_cancelled_without_request": inserted(
        "ACTIVITY_TASK_CANCELED", "activityTaskCanceledEventAttributes", scheduledEventId="5"
    ),
}


def damaged(good: Events, name: str) -> History:
    events = copy.deepcopy(good)
    changed = MUTATIONS[name](events)
    return History.from_json(json.dumps({"events": events if changed is None else changed}))


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_mutated_history_is_rejected(good: Events, replayer: Replayer, name: str) -> None:
    """The rejection has a message and comes long before the time limit."""
    with pytest.raises((HistoryError, NondeterminismError)) as caught:
        replayer.replay(damaged(good, name))
    message = str(caught.value)
    assert len(message) > 20
    assert "in a way that Core does not report" not in message
    assert not any(word in message for word in ("Traceback", "panicked", "KeyError"))


def test_replayer_works_after_a_malformed_history(good: Events, replayer: Replayer) -> None:
    with pytest.raises((HistoryError, NondeterminismError)):
        replayer.replay(damaged(good, "another_activity"))
    assert replayer.replay(History.from_json(json.dumps({"events": good}))).ok


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "null",
        "3",
        '{"events": null}',
        '{"events": {}}',
        '{"events": [null]}',
        '{"events": [[]]}',
        '{"events": [{"eventId": {}}]}',
        '{"events": [' + "[" * 100_000 + "]" * 100_000 + "]}",
        '{"events": [{"eventId": ' + "9" * 5_000 + "}]}",
        b"\xff\xfe\x00",
        b'{"events": ["\xff"]}',
        b"\x00" * 100,
        '{"events": [{"eventId": 1e400}]}',
        '{"events": [{"eventId": NaN}]}',
        '{"events": [{"eventId": -Infinity}]}',
        '{"events": [{"eventId": "\\ud800"}]}',
        '{"events": [{"\\udfff": "1"}]}',
        '{"events": [{"eventId": "\ud800"}]}',
    ],
    ids=lambda text: ascii(text)[-24:],
)
def test_text_that_is_not_a_history_is_rejected(replayer: Replayer, text: str | bytes) -> None:
    with pytest.raises(HistoryError):
        replayer.replay(History.from_json(text))


def test_every_truncated_history_is_replayed_or_rejected(good: Events, replayer: Replayer) -> None:
    for length in range(len(good)):
        result = replayer.try_replay(History.from_json(json.dumps({"events": good[:length]})))
        assert result.ok or isinstance(result.error, (HistoryError, NondeterminismError)), length


VALUES = [
    *(
        None,
        True,
        -1,
        0,
        1,
        57,
        1.5,
        1e308,
        2**31,
        2**63,
        -(2**63),
        10**30,
        10**5000,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "-1",
        "9" * 40,
        "\x00",
        "\ud800",
        "NaN",
        "99999999999s",
        "2262-04-11T23:47:16.9Z",
        "EVENT_TYPE_X",
    ),
    *([], {}, [None], [[]], {"a": 1}, {"payloads": None}, {"payloads": [None]}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all values in a JSON value."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from places(item, (*path, key))


def test_damaged_history_raises_only_our_errors(good: Events, replayer: Replayer) -> None:
    choose = random.Random(7)
    for number in range(effort.cases(300, 10_000)):
        events = copy.deepcopy(good)
        if number % 3 == 0:
            events.insert(choose.randrange(len(events)), events.pop(choose.randrange(len(events))))
            renumbered(events)
        else:
            *path, last = choose.choice(list(places(events)))
            target: Any = events
            for key in path:
                target = target[key]
            target[last] = choose.choice(VALUES)
        sys.set_int_max_str_digits(0)
        try:
            text = json.dumps({"events": events})
        finally:
            sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
        error = replayer.try_replay(History.from_json(text)).error
        assert error is None or isinstance(error, HourglassError), text


def test_update_accepted_after_its_completion_is_rejected() -> None:
    update = {
        "protocolInstanceId": "u",
        "acceptedRequest": {"meta": {"updateId": "u"}, "input": {"name": "ask"}},
    }
    kinds: Events = [
        {
            "workflowExecutionStartedEventAttributes": {
                "workflowType": {"name": "sample"},
                "taskQueue": {"name": "q"},
                "originalExecutionRunId": "00000000-0000-4000-8000-000000000000",
            }
        },
        {"workflowTaskScheduledEventAttributes": {}},
        {"workflowTaskStartedEventAttributes": {"scheduledEventId": "2"}},
        {"workflowTaskCompletedEventAttributes": {"scheduledEventId": "2", "startedEventId": "3"}},
        {
            "workflowExecutionUpdateCompletedEventAttributes": {
                "meta": {"updateId": "u"},
                "acceptedEventId": "6",
            }
        },
        {"workflowExecutionUpdateAcceptedEventAttributes": update},
    ]
    for event in kinds:
        (name,) = event
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("EventAttributes")).upper()
        event |= {"eventType": f"EVENT_TYPE_{kind}", "eventTime": "2026-01-01T00:00:00Z"}
    with (
        Replayer(workflows=[sample]) as replayer,
        pytest.raises(HistoryError, match="event 6 accepts update 'u'"),
    ):
        replayer.replay(History.from_json(json.dumps({"events": renumbered(kinds)})))


def test_unreadable_history_file_is_rejected(tmp_path: Any, replayer: Replayer) -> None:
    with pytest.raises(HistoryError, match=r"gone\.json"):
        History.from_file(tmp_path / "gone.json")
    with pytest.raises(HistoryError):
        History.from_file(tmp_path)
    (tmp_path / "image.json").write_bytes(bytes(range(256)))
    with pytest.raises(HistoryError):
        replayer.replay(History.from_file(tmp_path / "image.json"))
