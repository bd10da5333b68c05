"""The properties that an exploration checks, its messages, and rejected arguments."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.errors import ActivityError, ApplicationError, ExplorationFailed, UsageError
from hourglass.testing import Environment, Exploration, call, sometime
from hourglass.workflow import Channel

words = Channel("word", str)


@activity.defn
def act(number: int) -> int:
    return number


@workflow.defn
def steps(count: int) -> int:
    return sum(act(number) for number in range(count))


@workflow.defn
def always_fails() -> None:
    raise ApplicationError("no", type="Grumpy")


@workflow.defn
def wraps_its_failure() -> int:
    try:
        return act(1)
    except ActivityError as error:
        raise ApplicationError("it did not work", type="CheckoutFailed") from error


@workflow.defn
def waits() -> str:
    act(1)
    return words.receive()


@workflow.defn
def hangs(number: int) -> int:
    number = act(number)
    while number:
        pass
    return number


def failed(workflow: Any, *args: Any, **options: Any) -> ExplorationFailed:
    with Environment(deadlock_timeout=0.3) as env, pytest.raises(ExplorationFailed) as caught:
        env.explore(workflow, *args, **options)
    return caught.value


def report(workflow: Any, *args: Any, **options: Any) -> Exploration:
    with Environment() as env:
        return env.explore(workflow, *args, **options)


def test_exploration_checks_the_invariant_after_every_step() -> None:
    error = failed(steps, 5, invariant=lambda env: len(env.calls(act)) < 3)
    assert error.broken == "invariant"
    assert error.token == "usual"
    assert error.story[-1] == "act(2) succeeds"


def test_exploration_check_fails_by_raising_or_returning_false() -> None:
    assert "ZeroDivisionError" in str(failed(steps, 1, check=lambda result, env: 1 / result))
    assert "returned False" in str(failed(steps, 1, check=lambda result, env: result == 1))
    assert report(steps, 1, runs=5, check=lambda result, env: None).orders > 2


def test_pytest_fail_fails_an_exploration_check_and_skip_skips_the_test() -> None:
    assert "so it is" in str(failed(steps, 1, check=lambda result, env: pytest.fail("so it is")))
    with pytest.raises(pytest.skip.Exception):
        report(steps, 1, check=lambda result, env: pytest.skip("not now"))


def test_exploration_reports_a_workflow_failure_without_a_fault() -> None:
    assert report(wraps_its_failure).orders > 10
    error = failed(always_fails)
    assert error.broken == "end"
    assert error.token == "usual"


def test_exploration_accepts_allowed_failures_by_class_or_type() -> None:
    """Also if the failure is only a cause of the raised error."""

    class CheckoutFailed(ApplicationError):
        pass

    assert report(wraps_its_failure, runs=60, allowed=CheckoutFailed).orders > 10
    assert report(wraps_its_failure, runs=60, allowed=["CheckoutFailed"]).orders > 10
    assert report(wraps_its_failure, runs=60, allowed=[ApplicationError]).orders > 10
    assert report(steps, 1, runs=60, allowed=[ActivityError]).orders > 10
    assert failed(wraps_its_failure, allowed=()).broken == "end"
    assert failed(wraps_its_failure, allowed=["Grumpy"]).broken == "end"


def test_exploration_reports_a_stuck_workflow_with_its_location() -> None:
    error = failed(waits)
    assert error.broken == "stuck"
    assert "test_explore_properties.py" in str(error)
    assert report(waits, arrivals=[sometime().signal(words, "go")]).orders > 10


def test_exploration_reports_a_hanging_workflow_with_its_location() -> None:
    error = failed(hangs, 1)
    assert error.broken == "stuck"
    assert "test_explore_properties.py" in str(error)
    assert "does not return" in str(error)


def test_exploration_message_has_the_problem_and_its_reproduction() -> None:
    def is_one(result: object, env: Environment) -> bool:
        return result == 1

    text = str(failed(steps, 1, check=is_one))
    lines = text.split("\n")
    assert lines[0] == f"steps: the check does not hold: {is_one.__qualname__} returned False"
    assert lines[2] == "    1  0:00:00  steps(1) starts"
    assert lines[3].strip() == "→ calls act(0)"
    assert lines[-2] == "repeat: the same call with story='usual'"
    assert lines[-1] == "tried:  steps: 1 orders explored, 3 choice points, 2 states (seed 0)"


def test_each_explored_fault_is_in_the_story() -> None:
    stories: dict[str, str] = {}
    with Environment() as env:
        for token in ("0.1", "0.2", "1.1", "1.2", "1.3", "1.4", "2.1"):
            with pytest.raises(ExplorationFailed) as caught:
                env.explore(steps, 1, check=lambda result, env: False, story=token)
            stories[token] = "\n".join(caught.value.story)
    assert "the worker crashes before it reports that" in stories["0.1"]
    assert "the late completion arrives and is rejected" in stories["0.2"]
    assert "the workflow task timed out and will be delivered again" in stories["0.2"]
    assert "act(0) fails: Explored\nact(0), attempt 2, succeeds" in stories["1.1"]
    assert "act(0) fails permanently: ExploredPermanently" in stories["1.2"]
    assert (
        "act(0) never executes, and never has a result\nact, attempt 1, timed out (heartbeat)"
        in stories["1.3"]
    )
    assert "act(0) executes, but its result is lost" in stories["1.4"]
    assert "the worker crashes; another one takes over" in stories["2.1"]


def test_attempt_with_a_lost_result_keeps_its_side_effects() -> None:
    seen: set[tuple[bool, ...]] = set()

    def check(result: Any, env: Environment) -> None:
        seen.add(tuple(recorded.returned for recorded in env.calls(act)))
        assert env.calls(act) == [call(0)] * len(env.calls(act))

    report(steps, 1, check=check)
    assert {(True,), (True, True), (False, True), (False,)} <= seen


def test_exploration_reports_a_check_that_keeps_state() -> None:
    checks: list[object] = []

    def check(result: object, env: Environment) -> bool:
        checks.append(result)
        return len(checks) != 12

    with Environment() as env, pytest.raises(ExplorationFailed, match="prepare="):
        env.explore(steps, 1, check=check)


def test_interrupted_exploration_reports_its_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    left = [10]

    def check(result: Any, env: Environment) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report(steps, 2, check=check)
    assert "interrupted; steps: 9 orders explored" in capsys.readouterr().err


def test_exploration_shows_progress_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    seconds = iter(range(100_000))
    monkeypatch.setattr("hourglass.testing._explore.explorer.monotonic", lambda: float(next(seconds)))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    report(steps, 1, runs=3)
    assert terminal.getvalue().count("exploring steps: ") >= 1
    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)
    report(steps, 1, runs=3)
    assert quiet.getvalue() == ""


def test_invalid_explore_arguments_are_rejected() -> None:
    with Environment() as env:
        with pytest.raises(UsageError, match="runs="):
            env.explore(steps, 1, runs=0)
        with pytest.raises(UsageError, match="seed="):
            env.explore(steps, 1, seed="x")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="story="):
            env.explore(steps, 1, story="4;9")
        with pytest.raises(UsageError, match="arrivals="):
            env.explore(steps, 1, arrivals=["x"])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="allowed="):
            env.explore(steps, 1, allowed=[3])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="may_fail"):
            env.may_fail(act, with_=3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="window"):
            sometime(after=2, before=1)


def test_exploration_records_no_calls_in_its_environment() -> None:
    with Environment() as env:
        env.explore(steps, 1, runs=10)
        assert env.calls(act) == []
        assert env.execute_workflow(steps, 3) == 3
        assert len(env.calls(act)) == 3


def test_exploration_logs_workflow_messages_once(caplog: pytest.LogCaptureFixture) -> None:
    @workflow.defn
    def careless() -> float:
        workflow.logger.info("begins")
        return time.time() * 0 + act(1)

    with caplog.at_level("INFO"):
        report(careless, runs=20)
    assert sum("time.time" in record.getMessage() for record in caplog.records) == 1
    assert sum(record.getMessage().startswith("begins") for record in caplog.records) == 1
