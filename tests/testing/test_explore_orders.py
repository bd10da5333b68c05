"""The orders that a chooser or an exploration reaches, and their dependence on nothing but the choices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError, ExplorationFailed, TimedOutError
from hourglass.testing import Chooser, Environment, Exploration, Shuffled, Step, call, sometime

T = TypeVar("T")

NO_FAULTS: dict[str, Any] = {"crashes": False, "failures": False, "timeouts": False, "redeliveries": False}


@activity.defn
def note(name: str) -> str:
    return name


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=2))
def twice(name: str) -> str:
    return name


def in_order_of_completion(work: Callable[[T], T], items: Iterable[T]) -> list[T]:
    """Do work for all items concurrently."""
    done: list[T] = []

    def one(item: T) -> None:
        done.append(work(item))

    workflow.gather(*[workflow.spawn(one, item) for item in items])
    return done


@workflow.defn
def race(names: list[str]) -> list[str]:
    return in_order_of_completion(note, names)


@workflow.defn
def timers(count: int) -> list[int]:
    def sleep(number: int) -> int:
        workflow.sleep(60)
        return number

    return in_order_of_completion(sleep, range(count))


@workflow.defn
def result_or_timer() -> list[str]:
    """Return which of an activity and a timer came first, and whether one activation delivered both."""
    seen: list[str] = []

    def asked() -> None:
        note("a")
        seen.append(f"result {workflow.info().history_length}")

    task = workflow.spawn(asked)
    workflow.sleep(60)
    seen.append(f"timer {workflow.info().history_length}")
    task.result()
    return seen


@workflow.defn
def catches_failures() -> str:
    try:
        return twice("a")
    except ActivityError as error:
        cause = error.cause
        return cause.type if isinstance(cause, ApplicationError) else type(cause).__name__


@workflow.defn
class Listens:
    """Return when its signals arrived."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    @workflow.run
    def run(self, count: int) -> list[float]:
        workflow.wait_condition(lambda: len(self.heard) == count)
        return self.heard

    @workflow.signal
    def receive(self) -> None:
        self.heard.append((workflow.now() - workflow.info().workflow_start_time).total_seconds())


@workflow.defn
def sleeps_a_day() -> str:
    try:
        workflow.sleep(timedelta(days=1))
    except workflow.Cancelled:
        note("clean up")
        raise
    return "slept"


def outcomes(workflow: Any, *args: Any, **options: Any) -> tuple[set[str], Exploration]:
    """Explore a workflow and return the set of its outcomes."""
    seen: set[str] = set()

    def check(result: Any, env: Environment) -> None:
        cause = getattr(result, "cause", None)
        seen.add(repr(result) if cause is None else type(cause).__name__)

    with Environment() as env:
        env.fake(note, lambda name: name)
        return seen, env.explore(workflow, *args, check=check, **options)


def test_exploration_tries_every_order_of_a_small_workflow() -> None:
    seen, report = outcomes(race, ["a", "b", "c"], runs=500, **NO_FAULTS)
    assert seen == {repr(list(item)) for item in ("abc", "acb", "bac", "bca", "cab", "cba")}
    assert report.is_complete
    assert "all of its" in str(report)
    again, _ = outcomes(race, ["a", "b", "c"], runs=report.orders, **NO_FAULTS)
    assert again == seen


def test_exploration_fires_simultaneous_timers_in_any_order() -> None:
    seen, report = outcomes(timers, 3, **NO_FAULTS)
    assert seen == {
        repr(list(item)) for item in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    }
    assert report.is_complete


def test_exploration_delivers_a_result_before_after_and_with_a_timer() -> None:
    seen, _ = outcomes(result_or_timer, **NO_FAULTS)
    pairs = [parse_pairs(item) for item in seen]
    firsts = {pair[0][0] for pair in pairs}
    assert firsts == {"result", "timer"}
    assert any(pair[0][1] == pair[1][1] for pair in pairs), "never together"
    assert any(pair[0][1] != pair[1][1] for pair in pairs), "never apart"


def parse_pairs(shown: str) -> list[tuple[str, str]]:
    """Parse a list of `kind length` strings from its repr."""
    words = [word.strip(" '") for word in shown.strip("[]").split(",")]
    return [(word.split(" ")[0], word.split(" ")[1]) for word in words]


def test_exploration_tries_failures_and_timeouts_of_activities() -> None:
    seen, _ = outcomes(catches_failures)
    assert seen == {"'a'", "'Explored'", "'ExploredPermanently'", f"'{TimedOutError.__name__}'"}


def test_each_kind_of_explored_fault_can_be_disabled() -> None:
    assert outcomes(catches_failures, failures=False)[0] == {"'a'", "'TimedOutError'"}
    assert (
        "'TimedOutError'"
        not in outcomes(catches_failures, timeouts=False, redeliveries=False, crashes=False)[0]
    )
    assert outcomes(catches_failures, **NO_FAULTS)[0] == {"'a'"}


class CardDeclined(ApplicationError):
    pass


def test_may_fail_limits_the_explored_errors() -> None:
    seen: set[str] = set()
    with Environment() as env:
        env.may_fail(twice, with_=CardDeclined("no", non_retryable=True))
        options: dict[str, Any] = {"timeouts": False, "redeliveries": False}
        env.explore(catches_failures, check=lambda result, _: seen.add(result), **options)
        assert seen == {"a", "CardDeclined"}
        env.may_fail(twice, with_=[CardDeclined, ValueError("x")])
        seen.clear()
        env.explore(catches_failures, check=lambda result, _: seen.add(result), **options)
        assert seen == {"a", "CardDeclined", "ValueError"}


def test_activity_that_cannot_fail_succeeds_at_its_last_attempt() -> None:
    attempts: set[int] = set()

    def check(result: Any, env: Environment) -> None:
        assert result == "a"
        attempts.add(len(env.calls(twice)))

    with Environment() as env:
        env.cannot_fail(twice)
        env.explore(catches_failures, check=check, runs=400)
    assert attempts == {1, 2}


def test_explored_signals_arrive_at_both_ends_of_their_window() -> None:
    heard: set[float] = set()

    def check(result: list[float], env: Environment) -> None:
        heard.update(result)
        assert all(100 <= item <= 200 for item in result)

    with Environment() as env:
        window = sometime(after=100, before=timedelta(seconds=200))
        env.explore(
            Listens.run,
            2,
            arrivals=[window.signal(Listens.receive), window.signal("receive")],
            check=check,
            **NO_FAULTS,
        )
    assert heard == {100.0, 200.0}


def test_exploration_tries_cancellation_before_and_after_the_end() -> None:
    seen, _ = outcomes(sleeps_a_day, arrivals=[sometime().cancel("enough")])
    assert seen >= {"CancelledError", "'slept'"}


def test_exploration_tries_termination_and_calls() -> None:
    asked: list[str] = []
    seen, _ = outcomes(
        sleeps_a_day,
        arrivals=[sometime().terminate("enough"), sometime().call(lambda handle: asked.append(handle.id))],
    )
    assert seen == {"TerminatedError", "'slept'"}
    assert set(asked) == {"explored"}


def test_exploration_respects_the_durations_of_fakes() -> None:
    seen: set[str] = set()
    with Environment() as env:
        env.fake(note, returns="x", takes=timedelta(minutes=5))
        env.explore(result_or_timer, check=lambda result, _: seen.add(result[0].split(" ")[0]), **NO_FAULTS)
    assert seen == {"timer"}


@activity.defn
async def fetch(url: str) -> str:
    return f"page {url}"


@workflow.defn
def reads(url: str) -> str:
    return fetch(url) + note("!")


def test_exploration_calls_real_activities() -> None:
    with Environment() as env:
        report = env.explore(
            reads, "a", check=lambda result, _: result == "page a!", allowed=(), failures=False
        )
        assert report.orders > 50


@workflow.defn
def child(name: str) -> str:
    return note(name)


@workflow.defn
def parent(names: list[str]) -> list[str]:
    return in_order_of_completion(child, names)


@workflow.defn
def continues_as_new(number: int) -> int:
    note(str(number))
    if number < 3:
        workflow.continue_as_new(number + 1)
    return number


@workflow.defn
class Counter:
    def __init__(self) -> None:
        self.names: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        workflow.wait_condition(lambda: len(self.names) == 2)
        return self.names

    @workflow.update
    def add(self, name: str) -> int:
        self.names.append(note(name))
        return len(self.names)

    @add.validator
    def check(self, name: str) -> None:
        if not name:
            raise ValueError("a name is needed")


def test_exploration_tries_all_orders_of_children() -> None:
    with Environment() as env:
        env.cannot_fail(note)
        seen: set[str] = set()
        report = env.explore(
            parent, ["a", "b"], check=lambda result, _: seen.add("".join(result)), allowed=()
        )
        assert seen == {"ab", "ba"}
        assert report.orders > 100


def test_exploration_follows_continue_as_new() -> None:
    with Environment() as env:
        env.cannot_fail(note)
        assert env.explore(continues_as_new, 1, check=lambda result, _: result == 3, allowed=()).orders > 100


def test_exploration_tries_updates_in_any_order() -> None:
    seen: set[str] = set()
    arrivals = [sometime().update(Counter.add, name) for name in ("a", "", "b")]
    with Environment() as env:
        env.cannot_fail(note)
        env.explore(
            Counter.run, arrivals=arrivals, check=lambda result, _: seen.add("".join(result)), allowed=()
        )
    assert seen == {"ab", "ba"}


_PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from testing.test_explore import CASES, exploration_failure
from testing.test_explore_orders import NO_FAULTS, outcomes, race
for case in CASES[:5]:
    print(exploration_failure(case, seed=7))
print(sorted(outcomes(race, ["a", "b", "c", "d"], runs=60)[0]))
"""


def test_exploration_with_the_same_seed_is_identical_in_another_process() -> None:
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(tests=tests)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("broken:") == 5


def test_exploration_with_another_seed_tries_other_orders() -> None:
    one, other = (outcomes(race, list("abcdef"), runs=30, seed=seed, **NO_FAULTS)[0] for seed in (1, 2))
    assert one != other


def test_exploration_finds_and_shrinks_a_bug_that_needs_three_deviations() -> None:
    def check(result: list[str], env: Environment) -> None:
        assert result[:3] != ["d", "c", "b"]

    with pytest.raises(ExplorationFailed) as caught, Environment() as env:
        env.explore(race, list("abcd"), check=check, runs=2000, **NO_FAULTS)
    assert len(caught.value.token.split("-")) == 3
    assert len(caught.value.story) <= 10


class RecordingChooser:
    """Record the choices of another chooser."""

    def __init__(self, chooser: Chooser | None = None) -> None:
        self.chooser = chooser
        self.story: list[str] = []
        self.widest = 0

    def choose(self, steps: Sequence[Step]) -> int:
        chosen = 0 if self.chooser is None else self.chooser.choose(steps)
        self.widest = max(self.widest, len(steps))
        if steps[chosen].kind != "activation":  # its text has the run id, which differs each time
            self.story.append(str(steps[chosen]))
        return chosen


def _record(chooser: Chooser | None) -> tuple[list[str], RecordingChooser]:
    recorder = RecordingChooser(chooser)
    with Environment(chooser=recorder) as env:
        env.fake(note, lambda name: name)
        result = env.execute_workflow(race, ["a", "b", "c", "d"])
        assert sorted(result) == ["a", "b", "c", "d"]
        assert env.calls(note) == [call(name) for name in result]
        return result, recorder


def test_steps_run_first_come_first_served_by_default() -> None:
    result, recorder = _record(None)
    assert result == ["a", "b", "c", "d"]
    assert recorder.story[0].startswith("attempt note (1, attempt 1)")
    assert recorder.widest == 4


def test_seed_of_a_shuffled_chooser_determines_the_order_of_steps() -> None:
    orders = {seed: tuple(_record(Shuffled(seed))[0]) for seed in range(12)}
    assert orders == {seed: tuple(_record(Shuffled(seed))[0]) for seed in range(12)}
    assert len(set(orders.values())) > 3
    assert _record(Shuffled(3))[1].story == _record(Shuffled(3))[1].story
