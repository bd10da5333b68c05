"""Runs that temporalio began, on one Python or another: which turns a lane lets them take."""

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
def limited() -> None:
    """Whoever waits with a limit comes second by the turns of Python 3.11, and first by those of 3.12."""
    shared = step.start("shared")

    def other() -> None:
        shared.result()
        step.start("other")

    public.spawn(other)
    public.wait_for(shared, 60)
    step.start("body")
    public.sleep(60)


def _evaluations() -> Any:
    return lane_of([limited])


def _order(evaluations: Any, run_id: str, *flags: int) -> list[object]:
    """Replay a run's two tasks; who of the two asked first."""
    first = evaluations.evaluate(start(run_id, "limited", is_replaying=True, flags=flags))
    assert isinstance(first.completion, Succeeded)
    resolved = ActivityCompleted(1, payloads("shared")[0])
    second = evaluations.evaluate(on(run_id, resolved, timestamp_ns=1, is_replaying=True, flags=flags))
    assert isinstance(second.completion, Succeeded)
    asked = [each for each in second.completion.commands if isinstance(each, ScheduleActivity)]
    return [default_converter.decode(each.arguments[0]) for each in asked]


def _refuse(evaluations: Any, run_id: str) -> None:
    evaluations.evaluate(on(run_id, RunEvicted("NONDETERMINISM")))


def test_nondeterministic_run_is_tried_with_other_turns() -> None:
    """The older turns first; refused, the newer ones; refused again, the older ones. Another run is not concerned."""
    evaluations = _evaluations()
    assert _order(evaluations, "r1") == ["other", "body"]
    _refuse(evaluations, "r1")
    assert _order(evaluations, "r1") == ["body", "other"]
    assert _order(evaluations, "r2") == ["other", "body"]
    _refuse(evaluations, "r1")
    assert _order(evaluations, "r1") == ["other", "body"]


def test_learned_turn_rules_outlive_the_cache() -> None:
    """A run that is evicted for want of room comes back with the turns that fitted."""
    evaluations = _evaluations()
    _order(evaluations, "r1")
    _refuse(evaluations, "r1")
    assert _order(evaluations, "r1") == ["body", "other"]
    evaluations.evaluate(evict("r1"))
    assert _order(evaluations, "r1") == ["body", "other"]


def test_our_own_runs_have_one_turn_order() -> None:
    """A run that we began and that does not fit is a bug of its author's: nothing else is tried."""
    evaluations = _evaluations()
    assert _order(evaluations, "r1", Flag.HOURGLASS) == ["other", "body"]
    _refuse(evaluations, "r1")
    assert _order(evaluations, "r1", Flag.HOURGLASS) == ["other", "body"]
