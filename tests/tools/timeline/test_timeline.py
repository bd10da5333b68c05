"""Timelines of histories: spans, attempts, waits and failures; recorded, embedded and malformed histories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hourglass._history.codec import events_from_text
from hourglass._history.shapes import read_payloads
from hourglass._tools.timeline.axis import fold
from hourglass._tools.timeline.spans import Fault, Kind, Outcome, Phase, Span, Story, document
from hourglass._tools.timeline.timeline import Pending, build_story, nest
from hourglass._tools.timeline.values import peek
from hourglass.client import Client
from hourglass.errors import HistoryError
from hourglass.worker import Worker

from . import flows
from .histories import START, HistoryBuilder, S, failure, order_history, payload

RECORDED = sorted((Path(__file__).parents[2] / "compat" / "histories").glob("*.json"))


def _of(story: Story, kind: Kind) -> list[Span]:
    return [each for each in story.spans if each.kind is kind]


def check_timeline(story: Story) -> None:
    """Check the order of segments, and that they are within their span and the timeline."""
    for span in story.spans:
        end = story.until if span.end is None else span.end
        assert story.start <= span.start <= end <= story.until
        assert (span.end is None) == (span.outcome in (Outcome.OPEN, Outcome.RETRYING))
        at = span.start
        for segment in span.segments:
            assert at <= segment.start <= segment.end <= end
            at = segment.end
    for wait in story.waits:
        assert story.start <= wait.start < wait.end <= story.until


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_timeline_of_recorded_history_contains_every_activity_timer_and_signal(path: Path) -> None:
    text = path.read_text()
    story = build_story(events_from_text(text))
    check_timeline(story)
    kinds = [each["eventType"] for each in json.loads(text)["events"]]
    assert story.events == len(kinds)
    assert len(_of(story, Kind.ACTIVITY)) == kinds.count("EVENT_TYPE_ACTIVITY_TASK_SCHEDULED")
    assert len(_of(story, Kind.TIMER)) == kinds.count("EVENT_TYPE_TIMER_STARTED")
    assert len(_of(story, Kind.SIGNAL)) == kinds.count("EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED")
    assert story.tasks == kinds.count("EVENT_TYPE_WORKFLOW_TASK_SCHEDULED")
    json.dumps(document(story))


def test_timeline_of_an_embedded_run_shows_attempts_timer_and_result() -> None:
    with Client.connect("local:") as client, Worker(client, workflows=[flows.trip], activities=[flows.flaky]):
        handle = client.start_workflow(flows.trip, "there", id="trip-1")
        assert handle.result() == "there and back"
        story = build_story(tuple(events_from_text(handle.history().to_json())))
    check_timeline(story)
    assert (story.workflow_type, story.workflow_id, story.outcome) == ("trip", "trip-1", Outcome.DONE)
    assert [(each.name, each.attempts) for each in _of(story, Kind.ACTIVITY)] == [("flaky", 2)]
    assert [each.name for each in _of(story, Kind.TIMER)] == ["timer 10 ms"]
    assert {each.what for each in story.waits} >= {"activity flaky", "timer 10 ms"}


def test_timeline_of_a_new_run_waits_for_its_first_task() -> None:
    story = build_story(HistoryBuilder().read, now=START + 5 * S)
    check_timeline(story)
    assert (story.outcome, story.until - story.start) == (Outcome.OPEN, 5 * S)
    assert [each.kind for each in story.spans] == [Kind.RUN]
    assert story.waiting_for == ("its first workflow task",)


def test_timeline_shows_a_delayed_start() -> None:
    story = build_story(HistoryBuilder(firstWorkflowTaskBackoff="3600s").read)
    assert story.waiting_for == ("its start, delayed by 1 h",)


def test_timeline_shows_a_task_without_a_worker() -> None:
    history = HistoryBuilder()
    history.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    assert build_story(history.read, now=START + 90 * S).waiting_for == (
        "a worker: its workflow task was scheduled 1 min 30 s ago",
    )


def test_timeline_shows_attempts_and_reason_of_a_parked_run() -> None:
    """The attempts come from the run's description, the reason from its history."""
    story = build_story(HistoryBuilder().task_fails("no such key").read, now=START + 60 * S, task_attempt=7)
    check_timeline(story)
    (task,) = _of(story, Kind.TASK)
    assert (story.outcome, task.outcome, task.attempts, task.end) == (
        Outcome.RETRYING,
        Outcome.RETRYING,
        6,
        None,
    )
    assert task.segments[-1].phase is Phase.BACKOFF
    assert story.faults == (Fault("ValueError", "no such key"),)
    assert "a fix of its code" in story.waiting_for[0]


def test_timeline_keeps_failed_tasks_of_a_recovered_run() -> None:
    history = HistoryBuilder().task_fails().wait(10)
    scheduled = history.add("WORKFLOW_TASK_SCHEDULED", attempt=4)
    started = history.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled))
    history.add("WORKFLOW_TASK_COMPLETED", scheduledEventId=str(scheduled), startedEventId=str(started))
    story = build_story(history.complete().read)
    (task,) = _of(story, Kind.TASK)
    assert (task.outcome, task.attempts, story.outcome) == (Outcome.FAILED, 3, Outcome.DONE)


def test_timeline_shows_attempts_failure_and_next_retry_of_a_pending_activity() -> None:
    history = HistoryBuilder().task()
    activity = history.schedule("charge", retryPolicy={"initialInterval": "1s", "maximumAttempts": 9})
    pending = Pending(
        activity_id=history.events[activity - 1]["activityTaskScheduledEventAttributes"]["activityId"],
        attempt=4,
        faults=(Fault("ValueError", "refused"),),
        next_attempt=history.at + 8 * S,
    )
    story = build_story(history.read, now=history.at + 5 * S, pending=[pending])
    check_timeline(story)
    (span,) = _of(story, Kind.ACTIVITY)
    assert (span.outcome, span.attempts, span.max_attempts) == (Outcome.RETRYING, 4, 9)
    failed = [each for each in span.segments if each.phase is Phase.FAILED]
    assert len(failed) == 3
    assert all(each.guessed for each in failed)
    assert span.segments[-1].phase is Phase.BACKOFF
    assert story.waiting_for == ("activity charge, attempt 4 of 9, again in 3 s",)


def test_timeline_estimates_earlier_attempts_from_the_retry_policy() -> None:
    """A history only counts them."""
    story = build_story(
        HistoryBuilder().task().activity("charge", 0.4, queued=3.9, attempt=3).complete().read
    )
    (span,) = _of(story, Kind.ACTIVITY)
    phases = [each.phase for each in span.segments]
    assert phases == [Phase.FAILED, Phase.BACKOFF, Phase.FAILED, Phase.BACKOFF, Phase.RUNNING]
    waits = [each.end - each.start for each in span.segments if each.phase is Phase.BACKOFF]
    assert 1 * S <= waits[0] < waits[1]
    assert not span.segments[-1].guessed


def test_timeline_marks_a_timer_that_never_fired_as_left_open() -> None:
    history = HistoryBuilder().task()
    history.add("TIMER_STARTED", timerId="1", startToFireTimeout="60s")
    story = build_story(history.wait(1).complete().read)
    check_timeline(story)
    assert [each.outcome for each in _of(story, Kind.TIMER)] == [Outcome.LEFT]


def test_timeline_failures_contain_their_causes_and_line() -> None:
    history = HistoryBuilder().task()
    inner = {
        **failure("disk full", "OSError"),
        "stackTrace": 'File "app.py", line 7, in write\n  raise OSError',
    }
    history.add("WORKFLOW_EXECUTION_FAILED", failure=failure("cannot save", "ApplicationError", cause=inner))
    story = build_story(history.read)
    assert [str(each) for each in story.faults] == ["ApplicationError: cannot save", "OSError: disk full"]
    assert story.faults[1].place == "app.py:7"


def test_timeline_of_an_order_contains_all_steps_and_its_longest_wait() -> None:
    story = build_story(order_history().read)
    check_timeline(story)
    assert [each.name for each in story.spans] == [
        "checkout",
        "reserve_stock",
        "charge_card",
        "address_changed",
        "invoice",
        "timer 30 d",
        "ask_for_review",
        "ship",
    ]
    longest = max(story.waits, key=lambda each: each.end - each.start)
    assert longest.what == "timer 30 d"
    assert "no attempts left" in story.spans[-1].note


def test_timeline_nests_steps_of_children() -> None:
    inner = build_story(HistoryBuilder("print", "p-1").task().activity("spool").complete().read)
    middle = nest(
        build_story(HistoryBuilder("invoice", "i-1").task().child("print", run_id="r2").complete().read),
        {"r2": inner},
    )
    story = nest(
        build_story(HistoryBuilder().task().child("invoice", run_id="r1").complete().read), {"r1": middle}
    )
    assert [(each.depth, each.name) for each in story.spans] == [
        (0, "checkout"),
        (0, "invoice"),
        (1, "print"),
        (2, "spool"),
    ]


def test_timeline_shows_payloads_only_on_request_and_shortened() -> None:
    events = order_history().read
    assert "secret" not in json.dumps(document(build_story(events)))
    told = build_story(events, peek=peek(longest=10))
    assert ("result", '{"token":…') in told.spans[1].shown
    assert ("input", '"secret"') in told.spans[1].shown


def test_encrypted_payloads_are_shown_as_encoding_and_size() -> None:
    secret = {"metadata": {"encoding": "YmluYXJ5L2VuY3J5cHRlZA=="}, "data": "AAECAw=="}
    assert peek()(read_payloads({"payloads": [secret, "decoded by the web UI"]})) == (
        '<binary/encrypted, 4 bytes>, "decoded by the web UI"'
    )


def test_timeline_of_ten_thousand_events_is_folded_by_name() -> None:
    history = HistoryBuilder().task()
    while len(history.events) < 10_000:
        fails = "broken" if len(history.events) % 97 == 0 else ""
        history.activity("fetch", 0.01).task().activity("store", 0.02, fails=fails).task().timer(60).task()
    story = build_story(history.complete().read)
    folded = fold(story, 60)
    assert len(folded.spans) == 4
    assert sum(each.count for each in folded.spans) == len(story.spans)
    (store,) = [each for each in folded.spans if each.name == "store"]
    assert store.bad == sum(each.outcome.bad for each in story.spans)
    assert store.bad > 1


def test_timeline_with_many_activity_names_is_folded_by_kind() -> None:
    history = HistoryBuilder().task()
    for number in range(500):
        history.activity(f"step_{number}", 0.01)
    folded = fold(build_story(history.complete().read), 60)
    assert [(each.name, each.count) for each in folded.spans[1:]] == [("activities of 500 names", 500)]


@pytest.mark.parametrize(
    "text",
    [
        order_history().text,
        json.dumps(order_history().events),
        json.dumps({"history": {"events": order_history().events}}),
        "\n".join(json.dumps(each) for each in order_history().events),
        order_history().text.replace("EVENT_TYPE_TIMER_FIRED", "TimerFired"),
    ],
    ids=["object", "list", "nested", "lines", "old spelling"],
)
def test_histories_in_every_export_format_have_the_same_timeline(text: str) -> None:
    assert document(build_story(events_from_text(text))) == document(build_story(order_history().read))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ("{}", "list of events"),
        ('{"events": []}', "no events"),
        ('{"events": [1]}', "item 1 is not a history event"),
        ('{"events": [{"eventType": "TimerFired"}]}', "has no eventTime"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_history_text_raises_history_error(text: str, message: str) -> None:
    with pytest.raises(HistoryError, match=message):
        events_from_text(text)


def test_timeline_ignores_malformed_events_of_a_history() -> None:
    history = HistoryBuilder().task()
    history.add("ACTIVITY_TASK_COMPLETED", scheduledEventId="99")
    history.add("TIMER_FIRED")
    history.add("MARKER_RECORDED", markerName="core_local_activity", details={"data": {"payloads": []}})
    history.add("SOMETHING_OF_TOMORROW", workflowTaskCompletedEventId="4")
    story = build_story(history.complete().read)
    check_timeline(story)
    assert [each.name for each in story.spans[1:]] == ["local activity", "something of tomorrow"]


def test_timeline_removes_control_characters_of_names_and_messages() -> None:
    history = HistoryBuilder("evil\x1b[2J").task().activity("a\x07b\n", fails="\x1b]0;title\x07")
    assert not any(
        ord(each) < 32 for each in json.dumps(document(build_story(history.read)), ensure_ascii=False)
    )


def test_activity_started_and_completed_in_one_instant_counts_as_running() -> None:
    history = HistoryBuilder().task()
    scheduled = str(history.schedule("charge"))
    history.wait(0.6).add("ACTIVITY_TASK_STARTED", scheduledEventId=scheduled, attempt=1)
    history.add("ACTIVITY_TASK_COMPLETED", scheduledEventId=scheduled)
    (span,) = _of(build_story(history.complete().read), Kind.ACTIVITY)
    assert [each.phase for each in span.segments] == [Phase.RUNNING]


def _limit_timer(history: HistoryBuilder, summary: str, seconds: float) -> int:
    asked = {"workflowTaskCompletedEventId": "4", "timerId": "1"}
    number = history.add("TIMER_STARTED", startToFireTimeout=f"{seconds}s", **asked)
    history.events[-1]["userMetadata"] = {"summary": payload(summary)}
    return number


@pytest.mark.parametrize(
    ("summary", "name"),
    [("waits for a slot of 'crane'", "slot of 'crane'"), ("until the turn of 'mail'", "'mail'")],
)
def test_timeline_merges_the_timers_of_a_throttle_into_one_wait(summary: str, name: str) -> None:
    history = HistoryBuilder().task()
    first = _limit_timer(history, summary, 60)
    start = history.at
    history.wait(60).add("TIMER_FIRED", startedEventId=str(first))
    history.task()
    second = _limit_timer(history, summary, 120)
    story = build_story(history.wait(5).read, now=history.at)
    check_timeline(story)
    (span,) = _of(story, Kind.TIMER)
    assert (span.name, span.start, span.end) == (f"waits for a turn: {name}", start, None)
    assert [each.partition(", for")[0] for each in story.waiting_for] == [f"a turn: {name}"]
    history.add("TIMER_CANCELED", startedEventId=str(second), workflowTaskCompletedEventId="4")
    ended = build_story(history.complete().read)
    (span,) = _of(ended, Kind.TIMER)
    assert (span.name, span.start) == (f"waited for a turn: {name}", start)


def test_timeline_wait_ends_with_a_handled_signal_only() -> None:
    history = HistoryBuilder().task()
    timer = history.add(
        "TIMER_STARTED", timerId="1", startToFireTimeout="100s", workflowTaskCompletedEventId="4"
    )
    history.wait(30).signal("ignored").task().wait(70)
    history.add("TIMER_FIRED", startedEventId=str(timer))
    history.task().schedule("charge")
    history.events[-1]["activityTaskScheduledEventAttributes"]["workflowTaskCompletedEventId"] = "4"
    history.wait(5).signal("pay").task()
    history.add("WORKFLOW_EXECUTION_COMPLETED", workflowTaskCompletedEventId="4")
    assert [each.what for each in build_story(history.read).waits] == ["timer 1 min 40 s", "signal pay"]


def test_timeline_wait_ends_with_a_signal_received_while_paused() -> None:
    history = HistoryBuilder()
    history.task().wait(30)
    history.add("WORKFLOW_EXECUTION_PAUSED")
    history.wait(30).signal("pay").wait(40)
    history.add("WORKFLOW_EXECUTION_UNPAUSED")
    history.task()
    history.add("WORKFLOW_EXECUTION_COMPLETED", workflowTaskCompletedEventId=str(len(history.events)))
    assert [each.what for each in build_story(history.read).waits] == ["signal pay"]
