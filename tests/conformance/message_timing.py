"""Signals and queries that arrive early, late, malformed, or while a run closes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import QueryFailedError

from . import activities
from .scenario import scenario
from .world import World, attributes_of


@workflow.defn
def registers_handler_late() -> list[Any]:
    received: list[Any] = []
    workflow.Channel("begin", str).receive()

    @workflow.signal
    def tell(word: str, times: int = 1) -> None:
        received.append([word, times])

    workflow.wait_condition(lambda: len(received) == 3)
    return received


@scenario()
def signals_are_buffered_until_handler_is_registered(world: World) -> None:
    handle = world.start(registers_handler_late)
    signals: list[list[Any]] = [["a"], ["b", 2], ["c", 3]]
    for number, words in enumerate(signals, 1):
        world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", number)
        handle.signal("tell", *words)
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 4)
    handle.signal("begin", "")
    assert handle.result(timeout=60) == [["a", 1], ["b", 2], ["c", 3]]


@workflow.defn
def closes_while_signalled() -> list[str]:
    inbox = workflow.Channel("word", str)
    inbox.receive()
    with workflow.unsafe():
        activities.gate("closing").set()
        activities.gate("signalled").wait(1.5)
    return inbox.drain()


@scenario("loose")
def signal_during_last_task_fails_task_and_is_delivered(world: World) -> None:
    handle = world.start_waiting(closes_while_signalled)
    handle.signal("word", "first")
    activities.wait_for_gate("closing")
    handle.signal("word", "second")
    activities.gate("signalled").set()
    assert handle.result(timeout=60) == ["second"]
    (failed,) = attributes_of(handle.history(), "WORKFLOW_TASK_FAILED")
    assert failed["cause"] == "WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND"


@workflow.defn
def drains_signals_after_activity() -> list[str]:
    inbox = workflow.Channel("word", str)
    done = activities.opens_gate_and_waits_for_go("begun")
    return [done, *inbox.drain()]


@scenario("loose")
def signals_during_activity_are_received_after_it(world: World) -> None:
    handle = world.start(drains_signals_after_activity)
    activities.wait_for_gate("begun")
    for word in ("a", "b"):
        handle.signal("word", word)
    world.wait_for_event(handle, "WORKFLOW_EXECUTION_SIGNALED", 2)
    activities.gate("go").set()
    assert handle.result(timeout=60) == ["begun", "a", "b"]


@scenario("loose")
def signals_before_first_task_are_received(world: World) -> None:
    world.stop_worker()
    handle = world.start(drains_signals_after_activity)
    handle.signal("word", "early")
    activities.gate("go").set()
    world.start_worker()
    assert handle.result(timeout=60) == ["begun", "early"]


@workflow.defn
class AnswersQueries:
    def __init__(self) -> None:
        self.heard: list[str] = []

    @workflow.run
    def run(self) -> int:
        workflow.wait_condition(lambda: "end" in self.heard)
        return len(self.heard)

    @workflow.signal
    def hear(self, word: str) -> None:
        self.heard.append(word)

    @workflow.query
    def both(self, a: int, b: str = "x") -> list[Any]:
        return [a, b, len(self.heard)]

    @workflow.query
    def durable(self) -> None:
        workflow.sleep(1)

    @workflow.query(dynamic=True)
    def anything(self, name: str, arguments: list[workflow.RawPayload]) -> str:
        return f"{name}/{len(arguments)}"


def waiting_run(world: World) -> Any:
    return world.start_waiting(AnswersQueries.run)


@scenario("loose")
def queries_take_arguments_defaults_and_dynamic_names(world: World) -> None:
    handle = waiting_run(world)
    assert handle.query(AnswersQueries.both, 1) == [1, "x", 0]
    assert handle.query("both", 2, "y") == [2, "y", 0]
    assert handle.query("something", 1, 2) == "something/2"
    handle.signal(AnswersQueries.hear, "end")
    assert handle.result(timeout=60) == 1


@scenario("loose")
def query_sees_effect_of_earlier_signal(world: World) -> None:
    handle = waiting_run(world)
    for number in range(1, 6):
        handle.signal(AnswersQueries.hear, "word")
        assert handle.query(AnswersQueries.both, 0) == [0, "x", number]
    handle.signal(AnswersQueries.hear, "end")
    assert handle.result(timeout=60) == 6


@scenario("loose")
def query_that_sleeps_is_rejected(world: World) -> None:
    handle = waiting_run(world)
    with pytest.raises(QueryFailedError):
        handle.query("durable")
    handle.signal(AnswersQueries.hear, "end")
    assert handle.result(timeout=60) == 1


@scenario("loose")
def concurrent_queries_get_their_own_answers(world: World) -> None:
    handle = waiting_run(world)
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        answers[number] = handle.query(AnswersQueries.both, number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {number: [number, "x", 0] for number in range(8)}
    handle.signal(AnswersQueries.hear, "end")
    assert handle.result(timeout=60) == 1


@workflow.defn
def calls_activity_per_signal() -> int:
    inbox = workflow.Channel("n", int)
    total = 0
    while (number := inbox.receive()) >= 0:
        total += activities.double(number)
    return total


@scenario("loose", max_cached_workflows=0)
def signals_are_processed_without_cache(world: World) -> None:
    handle = world.start(calls_activity_per_signal)
    for number in (1, 2, 3, -1):
        handle.signal("n", number)
    assert handle.result(timeout=60) == 12


@scenario()
def signal_with_invalid_argument_is_dropped(world: World) -> None:
    handle = world.start_waiting(returns_first_number)
    handle.signal("number", "not a number")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
    handle.signal("number", 5)
    assert handle.result(timeout=60) == 5


@workflow.defn
def returns_first_number() -> int:
    got: list[int] = []

    @workflow.signal
    def number(value: int) -> None:
        got.append(value)

    workflow.wait_condition(lambda: bool(got))
    return got[0]
