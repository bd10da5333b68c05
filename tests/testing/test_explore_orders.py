"""Which orders an exploration reaches, and that nothing but the choices decides."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError, ExplorationFailed, TimedOutError
from hourglass.testing import Environment, Exploration, sometime

NO_MISHAPS: dict[str, Any] = {"crashes": False, "failures": False, "timeouts": False, "redeliveries": False}


@activity.defn
def note(name: str) -> str:
    return name


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=2))
def twice(name: str) -> str:
    return name


@workflow.defn
def race(names: list[str]) -> list[str]:
    done: list[str] = []

    def one(name: str) -> None:
        done.append(note(name))

    workflow.gather(*[workflow.spawn(one, name) for name in names])
    return done


@workflow.defn
def timers(count: int) -> list[int]:
    done: list[int] = []

    def one(number: int) -> None:
        workflow.sleep(60)
        done.append(number)

    workflow.gather(*[workflow.spawn(one, number) for number in range(count)])
    return done


@workflow.defn
def result_or_timer() -> list[str]:
    """What comes first, and whether both are heard of together."""
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
def careful() -> str:
    try:
        return twice("a")
    except ActivityError as error:
        cause = error.cause
        return cause.type if isinstance(cause, ApplicationError) else type(cause).__name__


@workflow.defn
class Listens:
    """Tells how long it waited for its signals."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    @workflow.run
    def run(self, count: int) -> list[float]:
        workflow.wait_condition(lambda: len(self.heard) == count)
        return self.heard

    @workflow.signal
    def hear(self) -> None:
        self.heard.append((workflow.now() - workflow.info().workflow_start_time).total_seconds())


@workflow.defn
def patient() -> str:
    try:
        workflow.sleep(timedelta(days=1))
    except workflow.Cancelled:
        note("clean up")
        raise
    return "slept"


def outcomes(workflow: Any, *args: Any, **options: Any) -> tuple[set[str], Exploration]:
    """Everything that a workflow can come to."""
    seen: set[str] = set()

    def check(result: Any, env: Environment) -> None:
        cause = getattr(result, "cause", None)
        seen.add(repr(result) if cause is None else type(cause).__name__)

    with Environment() as env:
        env.fake(note, lambda name: name)
        return seen, env.explore(workflow, *args, check=check, **options)


def test_all_orders_of_a_small_workflow() -> None:
    """Where there is room, every order is tried, and that is known: three activities end in all six orders."""
    seen, report = outcomes(race, ["a", "b", "c"], runs=500, **NO_MISHAPS)
    assert seen == {repr(list(each)) for each in ("abc", "acb", "bac", "bca", "cab", "cba")}
    assert report.is_complete
    assert "all of its" in str(report)
    again, _ = outcomes(race, ["a", "b", "c"], runs=report.orders, **NO_MISHAPS)
    assert again == seen


def test_simultaneous_timers_fire_in_any_order() -> None:
    """Timers that are due at the same instant fire in any order."""
    seen, report = outcomes(timers, 3, **NO_MISHAPS)
    assert seen == {
        repr(list(each)) for each in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    }
    assert report.is_complete


def test_result_races_with_a_timer() -> None:
    """The result comes first, the timer comes first, or both are heard of at once."""
    seen, _ = outcomes(result_or_timer, **NO_MISHAPS)
    pairs = [eval_free(each) for each in seen]
    firsts = {pair[0][0] for pair in pairs}
    assert firsts == {"result", "timer"}
    assert any(pair[0][1] == pair[1][1] for pair in pairs), "never together"
    assert any(pair[0][1] != pair[1][1] for pair in pairs), "never apart"


def eval_free(shown: str) -> list[tuple[str, str]]:
    """A list of `kind length` as it was shown."""
    words = [each.strip(" '") for each in shown.strip("[]").split(",")]
    return [(word.split(" ")[0], word.split(" ")[1]) for word in words]


def test_failures_and_timeouts_are_explored() -> None:
    """An activity succeeds, fails for good, fails as often as it may, and times out for good."""
    seen, _ = outcomes(careful)
    assert seen == {"'a'", "'Explored'", "'ExploredPermanently'", f"'{TimedOutError.__name__}'"}


def test_each_kind_of_deviation_can_be_disabled() -> None:
    """Without failures nothing fails; without timeouts and lost answers nothing times out."""
    assert outcomes(careful, failures=False)[0] == {"'a'", "'TimedOutError'"}
    assert "'TimedOutError'" not in outcomes(careful, timeouts=False, redeliveries=False, crashes=False)[0]
    assert outcomes(careful, **NO_MISHAPS)[0] == {"'a'"}


class CardDeclined(ApplicationError):
    """Of the author's own."""


def test_may_fail_limits_the_explored_errors() -> None:
    """`may_fail` names the errors, and no others come."""
    seen: set[str] = set()
    with Environment() as env:
        env.may_fail(twice, with_=CardDeclined("no", non_retryable=True))
        env.explore(careful, check=lambda result, _: seen.add(result), timeouts=False, redeliveries=False)
        assert seen == {"a", "CardDeclined"}
        env.may_fail(twice, with_=[CardDeclined, ValueError("x")])
        seen.clear()
        env.explore(careful, check=lambda result, _: seen.add(result), timeouts=False, redeliveries=False)
        assert seen == {"a", "CardDeclined", "ValueError"}


def test_infallible_activity_finally_succeeds() -> None:
    """Its attempts fail and time out, but never the last one."""
    attempts: set[int] = set()

    def check(result: Any, env: Environment) -> None:
        assert result == "a"
        attempts.add(len(env.calls(twice)))

    with Environment() as env:
        env.cannot_fail(twice)
        env.explore(careful, check=check, runs=400)
    assert attempts == {1, 2}


def test_signals_arrive_within_their_windows() -> None:
    """A signal comes at the beginning of its window, at its end, or where something else happens in it."""
    heard: set[float] = set()

    def check(result: list[float], env: Environment) -> None:
        heard.update(result)
        assert all(100 <= each <= 200 for each in result)

    with Environment() as env:
        window = sometime(after=100, before=timedelta(seconds=200))
        env.explore(
            Listens.run,
            2,
            arrivals=[window.signal(Listens.hear), window.signal("hear")],
            check=check,
            **NO_MISHAPS,
        )
    assert heard == {100.0, 200.0}


def test_cancellation_is_explored_at_any_time() -> None:
    """Before the workflow begins, while it sleeps, or too late; what it does then is explored, too."""
    seen, _ = outcomes(patient, arrivals=[sometime().cancel("enough")])
    assert seen >= {"CancelledError", "'slept'"}


def test_termination_and_calls_are_explored() -> None:
    """Whatever a handle can do may come from outside."""
    asked: list[str] = []
    seen, _ = outcomes(
        patient,
        arrivals=[sometime().terminate("enough"), sometime().call(lambda handle: asked.append(handle.id))],
    )
    assert seen == {"TerminatedError", "'slept'"}
    assert set(asked) == {"explored"}


def test_durations_of_fakes_are_respected() -> None:
    """A fake that takes its time can be overtaken by a timer only then."""
    seen: set[str] = set()
    with Environment() as env:
        env.fake(note, returns="x", takes=timedelta(minutes=5))
        env.explore(result_or_timer, check=lambda result, _: seen.add(result[0].split(" ")[0]), **NO_MISHAPS)
    assert seen == {"timer"}


@activity.defn
async def fetch(url: str) -> str:
    return f"page {url}"


@workflow.defn
def reads(url: str) -> str:
    return fetch(url) + note("!")


def test_real_activities_are_explored() -> None:
    """Activities without a fake are called, one at a time: `def` ones here, `async def` ones on their loop."""
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
    done: list[str] = []

    def one(name: str) -> None:
        done.append(child(name))

    workflow.gather(*[workflow.spawn(one, name) for name in names])
    return done


@workflow.defn
def goes_on(number: int) -> int:
    note(str(number))
    if number < 3:
        workflow.continue_as_new(number + 1)
    return number


@workflow.defn
class Counter:
    """Counts what it is told, by updates."""

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


def test_children_are_explored() -> None:
    """Children end in any order, and their workers crash, too."""
    with Environment() as env:
        env.cannot_fail(note)
        seen: set[str] = set()
        report = env.explore(
            parent, ["a", "b"], check=lambda result, _: seen.add("".join(result)), allowed=()
        )
        assert seen == {"ab", "ba"}
        assert report.orders > 100


def test_continued_runs_are_explored() -> None:
    """A workflow is followed through all its runs."""
    with Environment() as env:
        env.cannot_fail(note)
        assert env.explore(goes_on, 1, check=lambda result, _: result == 3, allowed=()).orders > 100


def test_updates_are_explored() -> None:
    """Updates come like signals; one that is refused leaves no trace."""
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
from testing.test_explore import CASES, found
from testing.test_explore_orders import NO_MISHAPS, outcomes, race
for case in CASES[:5]:
    print(found(case, seed=7))
print(sorted(outcomes(race, ["a", "b", "c", "d"], runs=60)[0]))
"""


def test_same_seed_gives_the_same_story() -> None:
    """In another process, with other hashes, every word is the same."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    told = [
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
    assert told[0] == told[1]
    assert told[0].count("broken:") == 5


def test_different_seeds_try_different_orders() -> None:
    """Another seed tries other orders."""
    one, other = (outcomes(race, list("abcdef"), runs=30, seed=seed, **NO_MISHAPS)[0] for seed in (1, 2))
    assert one != other


def test_bug_that_needs_several_deviations_is_found() -> None:
    """What no single deviation shows is found by chance or by pairs, and shrunk to what it needs."""

    def check(result: list[str], env: Environment) -> None:
        assert result[:3] != ["d", "c", "b"]

    with pytest.raises(ExplorationFailed) as caught, Environment() as env:
        env.explore(race, list("abcd"), check=check, runs=2000, **NO_MISHAPS)
    assert len(caught.value.token.split("-")) == 3
    assert len(caught.value.story) <= 10
