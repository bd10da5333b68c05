"""Signals and queries that come early, late, malformed or just when a run wants to close."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import QueryFailedError

from . import acts
from .scenario import scenario
from .world import World, kinds


@workflow.defn
def registers_late() -> list[Any]:
    heard: list[Any] = []
    workflow.Channel("begin", str).receive()

    @workflow.signal
    def tell(word: str, times: int = 1) -> None:
        heard.append([word, times])

    workflow.wait_condition(lambda: len(heard) == 3)
    return heard


@scenario()
def signals_wait_for_their_handler(world: World) -> None:
    """What comes before its handler is there is kept, in order, with all its arguments."""
    handle = world.start(registers_late)
    told: list[list[Any]] = [["a"], ["b", 2], ["c", 3]]
    for number, words in enumerate(told, 1):
        world.until(handle, "WORKFLOW_TASK_COMPLETED", number)
        handle.signal("tell", *words)
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 4)
    handle.signal("begin", "")
    assert handle.result(timeout=60) == [["a", 1], ["b", 2], ["c", 3]]


@workflow.defn
def closes_in_a_moment() -> list[str]:
    inbox = workflow.Channel("word", str)
    inbox.receive()
    with workflow.unsafe():
        acts.gate("closing").set()
        acts.gate("signalled").wait(1.5)
    return inbox.drain()


@scenario("loose")
def a_signal_meets_the_end(world: World) -> None:
    """A signal that comes while a run's last task is under way is not lost: the task is done again, with it."""
    handle = world.start(closes_in_a_moment)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal("word", "first")
    acts.arrived("closing")
    handle.signal("word", "second")
    acts.gate("signalled").set()
    assert handle.result(timeout=60) == ["second"]
    found = kinds(handle.history())
    assert found.count("WORKFLOW_TASK_FAILED") == 1
    failed = next(e for e in handle.history().events if "workflowTaskFailedEventAttributes" in e)
    cause = failed["workflowTaskFailedEventAttributes"]["cause"]
    assert cause == "WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND"


@workflow.defn
def signalled_while_busy() -> list[str]:
    inbox = workflow.Channel("word", str)
    done = acts.passes("begun")
    return [done, *inbox.drain()]


@scenario("loose")
def signals_while_an_activity_runs(world: World) -> None:
    """Signals that come during an activity are there when it has ended."""
    handle = world.start(signalled_while_busy)
    acts.arrived("begun")
    for word in ("a", "b"):
        handle.signal("word", word)
    world.until(handle, "WORKFLOW_EXECUTION_SIGNALED", 2)
    acts.gate("go").set()
    assert handle.result(timeout=60) == ["begun", "a", "b"]


@scenario("loose")
def signals_before_the_first_task(world: World) -> None:
    """Signals that come before any worker are there when the body begins."""
    world.stop_worker()
    handle = world.start(signalled_while_busy)
    handle.signal("word", "early")
    acts.gate("go").set()
    world.start_worker()
    assert handle.result(timeout=60) == ["begun", "early"]


@workflow.defn
class Answering:
    """Answers whatever is asked."""

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


def asked(world: World) -> Any:
    handle = world.start(Answering.run)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    return handle


@scenario("loose")
def queries_with_arguments(world: World) -> None:
    """Arguments and defaults of queries; the dynamic one hears every other name."""
    handle = asked(world)
    assert handle.query(Answering.both, 1) == [1, "x", 0]
    assert handle.query("both", 2, "y") == [2, "y", 0]
    assert handle.query("something", 1, 2) == "something/2"
    handle.signal(Answering.hear, "end")
    assert handle.result(timeout=60) == 1


@scenario("loose")
def queries_see_signals_that_were_answered(world: World) -> None:
    """A query that is asked after a signal's answer sees what the signal did."""
    handle = asked(world)
    for number in range(1, 6):
        handle.signal(Answering.hear, "word")
        assert handle.query(Answering.both, 0) == [0, "x", number]
    handle.signal(Answering.hear, "end")
    assert handle.result(timeout=60) == 6


@scenario("loose")
def queries_may_only_look(world: World) -> None:
    """A query that wants to sleep is refused, and the run goes on."""
    handle = asked(world)
    with pytest.raises(QueryFailedError):
        handle.query("durable")
    handle.signal(Answering.hear, "end")
    assert handle.result(timeout=60) == 1


@scenario("loose")
def queries_of_many_at_once(world: World) -> None:
    """Eight ask at once, and each gets the answer to its own question."""
    handle = asked(world)
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        answers[number] = handle.query(Answering.both, number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {number: [number, "x", 0] for number in range(8)}
    handle.signal(Answering.hear, "end")
    assert handle.result(timeout=60) == 1


@workflow.defn
def spawns_from_signals() -> list[str]:
    log: list[str] = []

    @workflow.signal
    def job(name: str) -> None:
        log.append(f"{name} begins")
        log.append(acts.note(f"{name} ends"))

    workflow.wait_condition(lambda: len(log) >= 4 and workflow.all_handlers_finished())
    return sorted(log)


@scenario("loose")
def handlers_that_wait(world: World) -> None:
    """Two handlers call activities side by side; the run ends when both have finished."""
    handle = world.start(spawns_from_signals)
    handle.signal("job", "a")
    handle.signal("job", "b")
    assert handle.result(timeout=60) == ["a begins", "a ends", "b begins", "b ends"]


@workflow.defn
def many_steps_by_signal() -> int:
    inbox = workflow.Channel("n", int)
    total = 0
    while (number := inbox.receive()) >= 0:
        total += acts.double(number)
    return total


@scenario("loose", max_cached_workflows=0)
def signals_without_a_cache(world: World) -> None:
    """A worker that keeps nothing rebuilds the run for every signal."""
    handle = world.start(many_steps_by_signal)
    for number in (1, 2, 3, -1):
        handle.signal("n", number)
    assert handle.result(timeout=60) == 12


@scenario()
def a_wrong_signal_does_no_harm(world: World) -> None:
    """A signal whose argument is not what the handler takes is dropped and logged; the next one counts."""
    handle = world.start(registers_once)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal("number", "not a number")
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
    handle.signal("number", 5)
    assert handle.result(timeout=60) == 5


@workflow.defn
def registers_once() -> int:
    got: list[int] = []

    @workflow.signal
    def number(value: int) -> None:
        got.append(value)

    workflow.wait_condition(lambda: bool(got))
    return got[0]
