"""What is told of a history: spans, attempts, waits, failures; of recorded ones, of the embedded engine's and of odd ones."""

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
from .histories import START, Made, S, failure, order, payload

RECORDED = sorted((Path(__file__).parents[2] / "compat" / "histories").glob("*.json"))


def _of(story: Story, kind: Kind) -> list[Span]:
    return [each for each in story.spans if each.kind is kind]


def check(story: Story) -> None:
    """What holds of every story: segments in order, within their span, which is within the story."""
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
def test_recorded_histories_are_drawn_completely(path: Path) -> None:
    """Every history that Temporal's own SDK left is told whole: each activity, timer and signal is a span."""
    text = path.read_text()
    story = build_story(events_from_text(text))
    check(story)
    kinds = [each["eventType"] for each in json.loads(text)["events"]]
    assert story.events == len(kinds)
    assert len(_of(story, Kind.ACTIVITY)) == kinds.count("EVENT_TYPE_ACTIVITY_TASK_SCHEDULED")
    assert len(_of(story, Kind.TIMER)) == kinds.count("EVENT_TYPE_TIMER_STARTED")
    assert len(_of(story, Kind.SIGNAL)) == kinds.count("EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED")
    assert story.tasks == kinds.count("EVENT_TYPE_WORKFLOW_TASK_SCHEDULED")
    json.dumps(document(story))


def test_run_of_the_embedded_engine_is_drawn() -> None:
    """A run on the embedded engine, with a retried activity, tells its attempts, its timer and its result."""
    with Client.connect("local:") as client, Worker(client, workflows=[flows.trip], activities=[flows.flaky]):
        handle = client.start_workflow(flows.trip, "there", id="trip-1")
        assert handle.result() == "there and back"
        story = build_story(tuple(events_from_text(handle.history().to_json())))
    check(story)
    assert (story.workflow_type, story.workflow_id, story.outcome) == ("trip", "trip-1", Outcome.DONE)
    assert [(each.name, each.attempts) for each in _of(story, Kind.ACTIVITY)] == [("flaky", 2)]
    assert [each.name for each in _of(story, Kind.TIMER)] == ["timer 10 ms"]
    assert {each.what for each in story.waits} >= {"activity flaky", "timer 10 ms"}


def test_run_without_a_task_yet() -> None:
    """A run that nobody has touched yet waits for its first task."""
    story = build_story(Made().read, now=START + 5 * S)
    check(story)
    assert (story.outcome, story.until - story.start) == (Outcome.OPEN, 5 * S)
    assert [each.kind for each in story.spans] == [Kind.RUN]
    assert story.waiting_for == ("its first workflow task",)


def test_delayed_start_is_shown() -> None:
    """A run that is to begin later says so."""
    story = build_story(Made(firstWorkflowTaskBackoff="3600s").read)
    assert story.waiting_for == ("its start, delayed by 1 h",)


def test_task_without_a_worker_is_shown() -> None:
    """A task without a worker is what the run waits for."""
    made = Made()
    made.add("WORKFLOW_TASK_SCHEDULED", attempt=1)
    assert build_story(made.read, now=START + 90 * S).waiting_for == (
        "a worker: its workflow task was scheduled 1 min 30 s ago",
    )


def test_parked_run_is_shown() -> None:
    """A run whose code fails is parked: the attempts come from its description, the reason and its cause from its history."""
    story = build_story(Made().task_fails("no such key").read, now=START + 60 * S, task_attempt=7)
    check(story)
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


def test_recovered_run_keeps_its_failed_tasks() -> None:
    """Failed tasks stay in the story after one went well, with the number that the server counted."""
    made = Made().task_fails().wait(10)
    scheduled = made.add("WORKFLOW_TASK_SCHEDULED", attempt=4)
    started = made.add("WORKFLOW_TASK_STARTED", scheduledEventId=str(scheduled))
    made.add("WORKFLOW_TASK_COMPLETED", scheduledEventId=str(scheduled), startedEventId=str(started))
    story = build_story(made.complete().read)
    (task,) = _of(story, Kind.TASK)
    assert (task.outcome, task.attempts, story.outcome) == (Outcome.FAILED, 3, Outcome.DONE)


def test_retried_activity_is_shown() -> None:
    """A description adds to a pending activity: attempts, the last failure, when it will be retried."""
    made = Made().task()
    activity = made.schedule("charge", retryPolicy={"initialInterval": "1s", "maximumAttempts": 9})
    pending = Pending(
        activity_id=made.events[activity - 1]["activityTaskScheduledEventAttributes"]["activityId"],
        attempt=4,
        faults=(Fault("ValueError", "refused"),),
        next_attempt=made.at + 8 * S,
    )
    story = build_story(made.read, now=made.at + 5 * S, pending=[pending])
    check(story)
    (span,) = _of(story, Kind.ACTIVITY)
    assert (span.outcome, span.attempts, span.max_attempts) == (Outcome.RETRYING, 4, 9)
    failed = [each for each in span.segments if each.phase is Phase.FAILED]
    assert len(failed) == 3
    assert all(each.guessed for each in failed)
    assert span.segments[-1].phase is Phase.BACKOFF
    assert story.waiting_for == ("activity charge, attempt 4 of 9, again in 3 s",)


def test_attempts_fill_the_time_before_the_last() -> None:
    """Attempts that a history only counts are drawn with the policy's waits between them, and end where the last begins."""
    story = build_story(Made().task().activity("charge", 0.4, queued=3.9, attempt=3).complete().read)
    (span,) = _of(story, Kind.ACTIVITY)
    phases = [each.phase for each in span.segments]
    assert phases == [Phase.FAILED, Phase.BACKOFF, Phase.FAILED, Phase.BACKOFF, Phase.RUNNING]
    waits = [each.end - each.start for each in span.segments if each.phase is Phase.BACKOFF]
    assert 1 * S <= waits[0] < waits[1]
    assert not span.segments[-1].guessed


def test_open_steps_end_with_the_run() -> None:
    """A timer that never fired is left open where its run ended, and says so."""
    made = Made().task()
    made.add("TIMER_STARTED", timerId="1", startToFireTimeout="60s")
    story = build_story(made.wait(1).complete().read)
    check(story)
    assert [each.outcome for each in _of(story, Kind.TIMER)] == [Outcome.LEFT]


def test_failures_keep_their_causes() -> None:
    """A failed run tells the whole chain, the outermost first, and where it was raised."""
    made = Made().task()
    inner = {
        **failure("disk full", "OSError"),
        "stackTrace": 'File "app.py", line 7, in write\n  raise OSError',
    }
    made.add("WORKFLOW_EXECUTION_FAILED", failure=failure("cannot save", "ApplicationError", cause=inner))
    story = build_story(made.read)
    assert [str(each) for each in story.faults] == ["ApplicationError: cannot save", "OSError: disk full"]
    assert story.faults[1].place == "app.py:7"


def test_complete_order_is_drawn() -> None:
    """Retries, a signal, a child, a long timer and a failure come out as spans, and the timer as the longest wait."""
    story = build_story(order().read)
    check(story)
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


def test_children_are_nested() -> None:
    """The steps of a child stand below it, and those of its child below that."""
    inner = build_story(Made("print", "p-1").task().activity("spool").complete().read)
    middle = nest(
        build_story(Made("invoice", "i-1").task().child("print", run_id="r2").complete().read), {"r2": inner}
    )
    story = nest(build_story(Made().task().child("invoice", run_id="r1").complete().read), {"r1": middle})
    assert [(each.depth, each.name) for each in story.spans] == [
        (0, "checkout"),
        (0, "invoice"),
        (1, "print"),
        (2, "spool"),
    ]


def test_payloads_are_hidden_by_default() -> None:
    """Without being asked the story holds no argument and no result; when asked, they are short."""
    events = order().read
    assert "secret" not in json.dumps(document(build_story(events)))
    told = build_story(events, peek=peek(longest=10))
    assert ("result", '{"token":…') in told.spans[1].shown
    assert ("input", '"secret"') in told.spans[1].shown


def test_encrypted_payloads_are_named() -> None:
    """Encrypted payloads are named by their encoding and size, never decoded."""
    secret = {"metadata": {"encoding": "YmluYXJ5L2VuY3J5cHRlZA=="}, "data": "AAECAw=="}
    assert peek()(read_payloads({"payloads": [secret, "decoded by the web UI"]})) == (
        '<binary/encrypted, 4 bytes>, "decoded by the web UI"'
    )


def test_ten_thousand_events_are_folded() -> None:
    """A loop of thousands of steps becomes a row per name that counts them, and how many failed."""
    made = Made().task()
    while len(made.events) < 10_000:
        fails = "broken" if len(made.events) % 97 == 0 else ""
        made.activity("fetch", 0.01).task().activity("store", 0.02, fails=fails).task().timer(60).task()
    story = build_story(made.complete().read)
    folded = fold(story, 60)
    assert len(folded.spans) == 4
    assert sum(each.count for each in folded.spans) == len(story.spans)
    (store,) = [each for each in folded.spans if each.name == "store"]
    assert store.bad == sum(each.outcome.bad for each in story.spans)
    assert store.bad > 1


def test_many_names_are_folded_by_kind() -> None:
    """Thousands of activities of different names become one row, too."""
    made = Made().task()
    for number in range(500):
        made.activity(f"step_{number}", 0.01)
    folded = fold(build_story(made.complete().read), 60)
    assert [(each.name, each.count) for each in folded.spans[1:]] == [("activities of 500 names", 500)]


@pytest.mark.parametrize(
    "text",
    [
        order().text,
        json.dumps(order().events),
        json.dumps({"history": {"events": order().events}}),
        "\n".join(json.dumps(each) for each in order().events),
        order().text.replace("EVENT_TYPE_TIMER_FIRED", "TimerFired"),
    ],
    ids=["object", "list", "nested", "lines", "old spelling"],
)
def test_every_form_of_export_is_read(text: str) -> None:
    """What the web UI, the command line and SDKs write tells the same story."""
    assert document(build_story(events_from_text(text))) == document(build_story(order().read))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("{}", "list of events"),
        ('{"events": []}', "no events"),
        ('{"events": [1]}', "item 1 is not a history event"),
        ('{"events": [{"eventType": "TimerFired"}]}', "has no eventTime"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_history_is_rejected(text: str, said: str) -> None:
    """Anything else is refused with a reason."""
    with pytest.raises(HistoryError, match=said):
        events_from_text(text)


def test_odd_histories_are_drawn_partially() -> None:
    """Ends without a beginning, unknown kinds and missing attributes lose themselves, not the story."""
    made = Made().task()
    made.add("ACTIVITY_TASK_COMPLETED", scheduledEventId="99")
    made.add("TIMER_FIRED")
    made.add("MARKER_RECORDED", markerName="core_local_activity", details={"data": {"payloads": []}})
    made.add("SOMETHING_OF_TOMORROW", workflowTaskCompletedEventId="4")
    story = build_story(made.complete().read)
    check(story)
    assert [each.name for each in story.spans[1:]] == ["local activity", "something of tomorrow"]


def test_control_characters_do_not_reach_a_terminal() -> None:
    """A name or a message cannot carry an escape sequence into the picture."""
    made = Made("evil\x1b[2J").task().activity("a\x07b\n", fails="\x1b]0;title\x07")
    assert not any(
        ord(each) < 32 for each in json.dumps(document(build_story(made.read)), ensure_ascii=False)
    )


def test_activity_start_recorded_with_its_end_is_not_queued() -> None:
    """Where an engine writes the start of an activity with its end, to the nanosecond, all of its time counts as running."""
    made = Made().task()
    scheduled = str(made.schedule("charge"))
    made.wait(0.6).add("ACTIVITY_TASK_STARTED", scheduledEventId=scheduled, attempt=1)
    made.add("ACTIVITY_TASK_COMPLETED", scheduledEventId=scheduled)
    (span,) = _of(build_story(made.complete().read), Kind.ACTIVITY)
    assert [each.phase for each in span.segments] == [Phase.RUNNING]


def _limit_timer(made: Made, summary: str, seconds: float) -> int:
    asked = {"workflowTaskCompletedEventId": "4", "timerId": "1"}
    number = made.add("TIMER_STARTED", startToFireTimeout=f"{seconds}s", **asked)
    made.events[-1]["userMetadata"] = {"summary": payload(summary)}
    return number


@pytest.mark.parametrize(
    ("summary", "wanted"),
    [("waits for a slot of 'crane'", "slot of 'crane'"), ("until the turn of 'mail'", "'mail'")],
)
def test_throttle_wait_is_one_span(summary: str, wanted: str) -> None:
    """While it lasts the run `waits for a turn`, since it first asked, and later it `waited` for it; no timer is drawn."""
    made = Made().task()
    first = _limit_timer(made, summary, 60)
    begun = made.at
    made.wait(60).add("TIMER_FIRED", startedEventId=str(first))
    made.task()
    second = _limit_timer(made, summary, 120)
    story = build_story(made.wait(5).read, now=made.at)
    check(story)
    (span,) = _of(story, Kind.TIMER)
    assert (span.name, span.start, span.end) == (f"waits for a turn: {wanted}", begun, None)
    assert [each.partition(", for")[0] for each in story.waiting_for] == [f"a turn: {wanted}"]
    made.add("TIMER_CANCELED", startedEventId=str(second), workflowTaskCompletedEventId="4")
    ended = build_story(made.complete().read)
    (span,) = _of(ended, Kind.TIMER)
    assert (span.name, span.start) == (f"waited for a turn: {wanted}", begun)


def test_unread_signal_ends_no_wait() -> None:
    """A signal that no code takes does not count under what was waited for: the run waited on. One that it acts on counts."""
    made = Made().task()
    timer = made.add(
        "TIMER_STARTED", timerId="1", startToFireTimeout="100s", workflowTaskCompletedEventId="4"
    )
    made.wait(30).signal("ignored").task().wait(70)
    made.add("TIMER_FIRED", startedEventId=str(timer))
    made.task().schedule("charge")
    made.events[-1]["activityTaskScheduledEventAttributes"]["workflowTaskCompletedEventId"] = "4"
    made.wait(5).signal("pay").task()
    made.add("WORKFLOW_EXECUTION_COMPLETED", workflowTaskCompletedEventId="4")
    assert [each.what for each in build_story(made.read).waits] == ["timer 1 min 40 s", "signal pay"]


def test_signal_during_a_pause_ends_the_wait() -> None:
    """A run that is resumed continues with the signal that came meanwhile: that ended its wait, and not the resuming."""
    made = Made()
    made.task().wait(30)
    made.add("WORKFLOW_EXECUTION_PAUSED")
    made.wait(30).signal("pay").wait(40)
    made.add("WORKFLOW_EXECUTION_UNPAUSED")
    made.task()
    made.add("WORKFLOW_EXECUTION_COMPLETED", workflowTaskCompletedEventId=str(len(made.events)))
    assert [each.what for each in build_story(made.read).waits] == ["signal pay"]
