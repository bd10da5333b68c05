"""Runs that temporalio started, on different Python versions: the turn order that a lane chooses."""

from __future__ import annotations

from typing import Any

from hourglass import activity
from hourglass import workflow as public
from hourglass._evaluator.behaviour import Flag
from hourglass._evaluator.commands import ScheduleActivity, Succeeded
from hourglass._evaluator.events import ActivityCompleted, RunEvicted
from hourglass.converter import default_converter

from ..scripted import evict, lane_of, on, payloads, start, workflow


@activity.defn
def step(who: str) -> str:
    return who


@workflow
def waits_with_a_timeout() -> None:
    """A wait with a timeout ends second in the turn order of Python 3.11, first in that of 3.12."""
    shared = step.start("shared")

    def other() -> None:
        shared.result()
        step.start("other")

    public.spawn(other)
    public.wait_for(shared, 60)
    step.start("body")
    public.sleep(60)


def _evaluations() -> Any:
    return lane_of([waits_with_a_timeout])


def _replay_order(evaluations: Any, run_id: str, *flags: int) -> list[object]:
    """Replay a run's two tasks and return the order in which its fibers scheduled steps."""
    first = evaluations.evaluate(start(run_id, "waits_with_a_timeout", is_replaying=True, flags=flags))
    assert isinstance(first.completion, Succeeded)
    resolved = ActivityCompleted(1, payloads("shared")[0])
    second = evaluations.evaluate(on(run_id, resolved, timestamp_ns=1, is_replaying=True, flags=flags))
    assert isinstance(second.completion, Succeeded)
    asked = [command for command in second.completion.commands if isinstance(command, ScheduleActivity)]
    return [default_converter.decode(item.arguments[0]) for item in asked]


def _report_nondeterminism(evaluations: Any, run_id: str) -> None:
    evaluations.evaluate(on(run_id, RunEvicted("NONDETERMINISM")))


def test_nondeterministic_run_is_replayed_with_the_other_turn_order() -> None:
    """The older order is tried first; each report of nondeterminism switches it, for this run only."""
    evaluations = _evaluations()
    assert _replay_order(evaluations, "r1") == ["other", "body"]
    _report_nondeterminism(evaluations, "r1")
    assert _replay_order(evaluations, "r1") == ["body", "other"]
    assert _replay_order(evaluations, "r2") == ["other", "body"]
    _report_nondeterminism(evaluations, "r1")
    assert _replay_order(evaluations, "r1") == ["other", "body"]


def test_learned_turn_order_of_a_run_outlives_its_eviction() -> None:
    evaluations = _evaluations()
    _replay_order(evaluations, "r1")
    _report_nondeterminism(evaluations, "r1")
    assert _replay_order(evaluations, "r1") == ["body", "other"]
    evaluations.evaluate(evict("r1"))
    assert _replay_order(evaluations, "r1") == ["body", "other"]


def test_run_started_by_hourglass_has_a_fixed_turn_order() -> None:
    evaluations = _evaluations()
    assert _replay_order(evaluations, "r1", Flag.HOURGLASS) == ["other", "body"]
    _report_nondeterminism(evaluations, "r1")
    assert _replay_order(evaluations, "r1", Flag.HOURGLASS) == ["other", "body"]
