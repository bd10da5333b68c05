"""What looks alike in a history, what it does not say, and what it leaves out: how the second look makes up its mind."""

from __future__ import annotations

from typing import Any

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
from .replaying import fits, refused
from .writer import Writer

TYPESCRIPT = "temporal-typescript"


def timers(count: int) -> list[c.Command]:
    """Timers that look alike."""
    return [c.StartTimer(number, 50_000_000) for number in range(1, count + 1)]


def ordered(paths: list[tuple[Any, ...]], there: set[tuple[Any, ...]], order: int) -> list[int]:
    """The numbers of timers that fibers of these paths asked for, in one of the orders."""
    commands, origins = timers(len(paths)), Origins()
    origins.note([(command, ("file", 1)) for command in commands], [(path, 1) for path in paths], there)
    return [command.seq for command in origins.ordered(commands, order) if isinstance(command, c.StartTimer)]


def test_orders_of_commands() -> None:
    """As they were asked for; as if spawned functions began at once; the last first."""
    paths: list[tuple[Any, ...]] = [(2,), (1, 1), (1, 2)]
    assert [ordered(paths, {()}, order) for order in range(ORDERS)] == [[1, 2, 3], [2, 3, 1], [3, 2, 1]]


def test_existing_fibers_keep_their_turns() -> None:
    """Only what was spawned in the same activation is moved, to the place of whoever spawned it."""
    there: set[tuple[Any, ...]] = {(), (1,), (2,)}
    assert ordered([(2,), (1,), (2, 1)], there, 1) == [1, 3, 2]
    assert ordered([("signal", 1), (1,), ("signal", 1, 1)], there, 1) == [1, 3, 2]


def test_order_strategy_combines_delivery_and_pairing() -> None:
    """One number holds both; for SDKs in which spawned functions begin at once, that order comes first."""
    assert [Order({0: way}).pairing_of(0, 4) for way in (0, 3, 4, 8)] == [0, 0, 1, 2]
    assert [Order({0: way}, eager=True).pairing_of(0, 1) for way in (0, 1, 2)] == [1, 0, 2]


def racing(names: list[str]) -> Any:
    """Two waits of the same length, of which the first was begun in a function that another one spawned."""

    def leg(name: str) -> str:
        workflow.sleep(50)
        return str(act("echo", name))

    def nested() -> str:
        return workflow.spawn(leg, names[0]).result()

    return workflow.gather(workflow.spawn(nested), workflow.spawn(leg, names[1]))


def test_identical_timers_are_told_apart_by_what_follows() -> None:
    """Whichever of them was begun first elsewhere, the activity that followed its end says which it was."""
    for sdk in ("temporal-go", TYPESCRIPT):
        for first, second in (("a", "b"), ("b", "a")):
            history = Writer("W", ["a", "b"], sdk=sdk, ids="events" if sdk == "temporal-go" else "count")
            history.task()
            started = [history.timer("50s"), history.timer("50s")]
            history.fired(started[0])
            history.task()
            one = history.activity("echo", first)
            history.fired(started[1])
            history.task()
            two = history.activity("echo", second)
            history.activity_done(one, first)
            history.activity_done(two, second)
            history.task()
            history.completed(["a", "b"])
            fits(history, racing)


def dialect(history: Writer) -> Dialect:
    """Who is taken to have written it."""
    facts = History.from_json(history.json())._facts
    found: Dialect = facts.dialect
    return found


def test_history_without_an_sdk_name_is_not_ours() -> None:
    """TypeScript's SDK did not say its name before 2025; Python's order is expected only of what is Python's, or ours."""
    for named, metadata, expected in (
        ("", {"coreUsedFlags": [1, 2]}, Dialect.CORE),
        ("", {"coreUsedFlags": [1, 2], "langUsedFlags": [1000]}, Dialect.PYTHON),
        ("", {}, Dialect.CORE),
        ("temporal-python", {}, Dialect.PYTHON),
        (TYPESCRIPT, {}, Dialect.CORE),
        ("temporal-java", {}, Dialect.OTHER),
    ):
        history = Writer("W", sdk=named)
        history.task()
        history.events[-1]["workflowTaskCompletedEventAttributes"].setdefault("sdkMetadata", {}).update(
            metadata
        )
        history.completed()
        assert dialect(history) is expected, (named, metadata)


def side_by_side() -> list[Any]:
    """Two things at once, the second of which begins at once elsewhere."""

    def second() -> Any:
        return act("echo", "second")

    task = workflow.spawn(second)
    return [act("echo", "first"), task.result()]


def test_order_is_tolerated_for_an_sdk_without_a_name() -> None:
    """What was spawned came first there: the same task, the same things."""
    history = Writer("W", sdk="", ids="count")
    history.task()
    history.events[-1]["workflowTaskCompletedEventAttributes"]["sdkMetadata"] = {"coreUsedFlags": [1, 2]}
    spawned, own = history.activity("echo", "second"), history.activity("echo", "first")
    history.activity_done(spawned, "second")
    history.activity_done(own, "first")
    history.task()
    history.completed(["first", "second"])
    fits(history, side_by_side)


class Asked:
    """Answers an update when it has ended."""

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


def asked_at_the_end() -> Writer:
    """An update was accepted in the only task."""
    history = Writer("W", sdk=TYPESCRIPT)
    history.task()
    history.add(
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
        protocolInstanceId="u",
        acceptedRequestMessageId="u/request",
        acceptedRequestSequencingEventId="2",
        acceptedRequest={"meta": {"updateId": "u"}, "input": {"name": "ask"}},
    )
    return history


def test_commands_after_the_completion_may_be_missing() -> None:
    """Older SDKs sent nothing after the completion: an answer given then is in no history."""
    history = asked_at_the_end()
    history.completed()
    fits(history, Asked)


def test_commands_before_the_completion_must_be_present() -> None:
    """Code that ends where its history goes on is refused."""
    history = asked_at_the_end()
    history.fired(history.timer("5s"))
    history.task()
    history.completed()
    assert "completion" in refused(history, Asked).produced


def napping() -> str:
    """Gives way, and does something."""
    workflow.sleep(0)
    return str(act("echo", "one"))


def test_zero_sleep_with_a_recorded_timer() -> None:
    """TypeScript's and .NET's SDKs start a timer of a millisecond for it."""
    history = Writer("W", sdk=TYPESCRIPT, ids="count")
    history.task()
    history.fired(history.timer("0.001s"))
    history.task()
    history.activity_done(history.activity("echo", "one"), "one")
    history.task()
    history.completed("one")
    fits(history, napping)


def test_zero_sleep_without_a_recorded_timer() -> None:
    """Where a history has no such timer, a sleep of nothing starts none."""
    history = Writer("W", sdk=TYPESCRIPT, ids="count")
    history.task()
    history.activity_done(history.activity("echo", "one"), "one")
    history.task()
    history.completed("one")
    fits(history, napping)


# --- local activities of one kind ---------------------------------------------------------------------------------------


def local(seq: int) -> c.ScheduleLocalActivity:
    """A local activity like all others."""
    return c.ScheduleLocalActivity(
        seq=seq, activity_id=str(seq), activity_type="echo", arguments=(), spec=ActivitySpec()
    )


def mark(number: int, **more: Any) -> LocalMark:
    """The mark of one that the other SDK had numbered so."""
    return LocalMark(event_id=100 + number, activity_type="echo", activity_id=str(number), **more)


def told(waiting: list[int], marks: list[LocalMark], later: list[LocalMark], *cancelled: int) -> list[Any]:
    """Whose ends are told, in order; some are cancelled first."""
    found = ForeignLocalActivities()
    found.prepare([*marks, *later])
    for seq in waiting:
        found.schedule(local(seq), seq)
    for seq in cancelled:
        found.cancel(seq)
    found.begin_task(marks)
    ends: list[e.AnyEvent] = []
    while more := found.next_end():
        ends += more
    assert found.unmatched_mark() is None
    return [getattr(each, "seq", 0) for each in ends]


def test_local_activities_are_told_apart_by_number() -> None:
    """Numbers are another SDK's, but they rise: the lowest that has not ended is the oldest, in whatever order they end."""
    assert told([1, 2, 3], [mark(12), mark(10), mark(11)], []) == [3, 1, 2]
    assert told([1, 2, 3], [mark(12)], [mark(10), mark(11)]) == [3]


def test_marker_of_a_cancelled_local_activity() -> None:
    """It is of the one that the run has cancelled, not of those that it waits for."""
    gone = Failure("Activity cancelled", CanceledFailure())
    assert told([1, 2, 3], [mark(10, failure=gone), mark(11), mark(12)], [], 1) == [2, 3]
    assert told([1, 2], [mark(11, failure=gone), mark(10)], []) == [1, 2]
