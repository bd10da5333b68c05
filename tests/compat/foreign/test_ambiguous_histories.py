"""Histories that are ambiguous or incomplete: how the second, tolerant comparison decides."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import ActivitySpec
from hourglass._history.dialect import Dialect
from hourglass.converter import CanceledFailure, Failure
from hourglass.replay import History
from hourglass.replay._foreign_markers import LocalMark
from hourglass.replay._foreign_matching import ForeignLocalActivities
from hourglass.replay._foreign_walk import ORDERS, Order, Origins

from ._corpus import act
from .replaying import assert_fits, assert_rejected
from .writer import Writer

TYPESCRIPT = "temporal-typescript"


def timers(count: int) -> list[c.Command]:
    """Return commands that start timers of the same duration."""
    return [c.StartTimer(number, 50_000_000) for number in range(1, count + 1)]


def sequence_numbers(paths: list[tuple[Any, ...]], there: set[tuple[Any, ...]], order: int) -> list[int]:
    """Return the sequence numbers of timers of fibers with these paths, in one of the orders."""
    commands, origins = timers(len(paths)), Origins()
    origins.note([(command, ("file", 1)) for command in commands], [(path, 1) for path in paths], there)
    return [command.seq for command in origins.ordered(commands, order) if isinstance(command, c.StartTimer)]


def test_commands_are_tried_in_issue_order_eager_order_and_reverse_order() -> None:
    paths: list[tuple[Any, ...]] = [(2,), (1, 1), (1, 2)]
    assert [sequence_numbers(paths, {()}, order) for order in range(ORDERS)] == [
        [1, 2, 3],
        [2, 3, 1],
        [3, 2, 1],
    ]


def test_eager_order_moves_only_commands_of_newly_spawned_fibers() -> None:
    there: set[tuple[Any, ...]] = {(), (1,), (2,)}
    assert sequence_numbers([(2,), (1,), (2, 1)], there, 1) == [1, 3, 2]
    assert sequence_numbers([("signal", 1), (1,), ("signal", 1, 1)], there, 1) == [1, 3, 2]


def test_order_number_encodes_delivery_and_pairing() -> None:
    assert [Order({0: way}).pairing_of(0, 4) for way in (0, 3, 4, 8)] == [0, 0, 1, 2]
    assert [Order({0: way}, eager=True).pairing_of(0, 1) for way in (0, 1, 2)] == [1, 0, 2]


def races_equal_timers(names: list[str]) -> Any:
    """Wait twice for the same duration; the first wait is in a nested spawned function."""

    def leg(name: str) -> str:
        workflow.sleep(50)
        return str(act("echo", name))

    def nested() -> str:
        return workflow.spawn(leg, names[0]).result()

    return workflow.gather(workflow.spawn(nested), workflow.spawn(leg, names[1]))


def test_identical_timers_are_matched_by_the_activities_that_follow() -> None:
    for sdk in ("temporal-go", TYPESCRIPT):
        for first, second in (("a", "b"), ("b", "a")):
            history = Writer.in_task(
                "W", ["a", "b"], sdk=sdk, ids="events" if sdk == "temporal-go" else "count"
            )
            started = [history.timer("50s"), history.timer("50s")]
            history.fired(started[0])
            history.task()
            one = history.activity("echo", first)
            history.fired(started[1])
            history.task()
            two = history.activity("echo", second)
            history.activity_done(one, first)
            history.activity_done(two, second)
            history.task_completes_run(["a", "b"])
            assert_fits(history, races_equal_timers)


def dialect(history: Writer) -> Dialect:
    """Return the dialect that the replayer recognizes."""
    facts = History.from_json(history.json())._facts
    found: Dialect = facts.dialect
    return found


def test_dialect_is_recognized_by_sdk_name_and_flags() -> None:
    """SDKs before 2025 do not write their name."""
    for named, metadata, expected in (
        ("", {"coreUsedFlags": [1, 2]}, Dialect.CORE),
        ("", {"coreUsedFlags": [1, 2], "langUsedFlags": [1000]}, Dialect.PYTHON),
        ("", {}, Dialect.CORE),
        ("temporal-python", {}, Dialect.PYTHON),
        (TYPESCRIPT, {}, Dialect.CORE),
        ("temporal-java", {}, Dialect.OTHER),
    ):
        history = Writer.in_task("W", sdk=named)
        history.events[-1]["workflowTaskCompletedEventAttributes"].setdefault("sdkMetadata", {}).update(
            metadata
        )
        history.completed()
        assert dialect(history) is expected, (named, metadata)


def runs_two_activities_concurrently() -> list[Any]:
    def second() -> Any:
        return act("echo", "second")

    task = workflow.spawn(second)
    return [act("echo", "first"), task.result()]


def test_order_of_spawned_function_is_tolerated_for_an_unnamed_sdk() -> None:
    history = Writer.in_task("W", sdk="", ids="count")
    history.events[-1]["workflowTaskCompletedEventAttributes"]["sdkMetadata"] = {"coreUsedFlags": [1, 2]}
    spawned, own = history.activity("echo", "second"), history.activity("echo", "first")
    history.activity_done(spawned, "second")
    history.activity_done(own, "first")
    history.task_completes_run(["first", "second"])
    assert_fits(history, runs_two_activities_concurrently)


class AnswersUpdateAtEnd:
    def __init__(self) -> None:
        self.asked = self.ended = False

    @workflow.run
    def run(self) -> None:
        workflow.wait_condition(lambda: self.asked)
        self.ended = True

    @workflow.update
    def ask(self) -> str:
        self.asked = True
        workflow.wait_condition(lambda: self.ended)
        return "answered"


def update_in_the_only_task() -> Writer:
    """Write a history whose only task accepts an update."""
    history = Writer.in_task("W", sdk=TYPESCRIPT)
    history.add(
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
        protocolInstanceId="u",
        acceptedRequestMessageId="u/request",
        acceptedRequestSequencingEventId="2",
        acceptedRequest={"meta": {"updateId": "u"}, "input": {"name": "ask"}},
    )
    return history


def test_replay_accepts_missing_update_answer_after_completion() -> None:
    """Older SDKs did not send commands after the completion."""
    history = update_in_the_only_task()
    history.completed()
    assert_fits(history, AnswersUpdateAtEnd)


def test_replay_detects_code_that_completes_too_early() -> None:
    history = update_in_the_only_task()
    history.fired(history.timer("5s"))
    history.task_completes_run()
    assert "completion" in assert_rejected(history, AnswersUpdateAtEnd).produced


def sleeps_zero_then_calls() -> str:
    workflow.sleep(0)
    return str(act("echo", "one"))


@pytest.mark.parametrize("recorded_timer", ["0.001s", ""], ids=["timer of a millisecond", "no timer"])
def test_zero_sleep_matches_history_with_or_without_timer(recorded_timer: str) -> None:
    """TypeScript's and .NET's SDKs start a timer of one millisecond."""
    history = Writer.in_task("W", sdk=TYPESCRIPT, ids="count")
    if recorded_timer:
        history.fired(history.timer(recorded_timer))
        history.task()
    history.activity_done(history.activity("echo", "one"), "one")
    history.task_completes_run("one")
    assert_fits(history, sleeps_zero_then_calls)


# --- local activities of one kind ---------------------------------------------------------------------------------------


def local_activity(seq: int) -> c.ScheduleLocalActivity:
    return c.ScheduleLocalActivity(
        seq=seq, activity_id=str(seq), activity_type="echo", arguments=(), spec=ActivitySpec()
    )


def marker_of(number: int, **more: Any) -> LocalMark:
    """Return the marker of a local activity with this number in the other SDK."""
    return LocalMark(event_id=100 + number, activity_type="echo", activity_id=str(number), **more)


def resolved_order(
    waiting: list[int], marks: list[LocalMark], later: list[LocalMark], *cancelled: int
) -> list[Any]:
    """Return the sequence numbers of resolved local activities in order; some are cancelled first."""
    found = ForeignLocalActivities()
    found.prepare([*marks, *later])
    for seq in waiting:
        found.schedule(local_activity(seq), seq)
    for seq in cancelled:
        found.cancel(seq)
    found.begin_task(marks)
    ends: list[e.AnyEvent] = []
    while more := found.next_end():
        ends += more
    assert found.unmatched_mark() is None
    return [getattr(end, "seq", 0) for end in ends]


def test_local_activities_are_matched_to_markers_by_ascending_number() -> None:
    assert resolved_order([1, 2, 3], [marker_of(12), marker_of(10), marker_of(11)], []) == [3, 1, 2]
    assert resolved_order([1, 2, 3], [marker_of(12)], [marker_of(10), marker_of(11)]) == [3]


def test_cancellation_marker_matches_the_cancelled_local_activity() -> None:
    gone = Failure("Activity cancelled", CanceledFailure())
    assert resolved_order([1, 2, 3], [marker_of(10, failure=gone), marker_of(11), marker_of(12)], [], 1) == [
        2,
        3,
    ]
    assert resolved_order([1, 2], [marker_of(11, failure=gone), marker_of(10)], []) == [1, 2]
