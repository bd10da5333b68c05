"""The states of a handle and the steps of its drain, as pure functions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hourglass._worker.handles.life import (
    LIFE,
    Deadlines,
    DrainStep,
    DrainView,
    HandleLimits,
    HandleSignal,
    HandleState,
    advance,
    is_hopeless,
    next_step,
)
from hourglass.errors import (
    ConnectionFailedError,
    InternalError,
    NamespaceNotFoundError,
    ServiceError,
    TargetError,
)

LIMITS = HandleLimits()
DEADLINES = Deadlines(runs=102.0, stop_activities=110.0, activities=111.0, end=140.0)


def drain_view(**more: object) -> DrainView:
    fields: dict[str, object] = {
        "open_runs": 0,
        "open_activities": 0,
        "calls": 0,
        "polls_ended": False,
        "stop_requested": False,
        "quiet_since": 100.0,
    }
    return DrainView(**{**fields, **more})  # type: ignore[arg-type]


def test_every_handle_state_leads_to_closed_and_to_abandoned() -> None:
    leaves = {state for state, _ in LIFE}
    assert leaves == {state for state in HandleState if not state.over}
    for state in leaves:
        seen, front = {state}, {state}
        while front:
            front = {after for (before, _), after in LIFE.items() if before in front} - seen
            seen |= front
        assert HandleState.CLOSED in seen
        assert HandleState.ABANDONED in seen


@pytest.mark.parametrize(
    ("state", "signal"), [pair for pair in itertools.product(HandleState, HandleSignal) if pair not in LIFE]
)
def test_impossible_handle_transition_raises_an_internal_error(
    state: HandleState, signal: HandleSignal
) -> None:
    with pytest.raises(InternalError):
        advance(state, signal)


def test_backoff_of_handle_replacements_doubles_up_to_ten_seconds() -> None:
    assert [LIMITS.pause(n) for n in (0, 1, 2, 3)] == [0.0, 0.2, 0.4, 0.8]
    assert LIMITS.pause(7) == 10.0
    assert LIMITS.pause(10**9) == 10.0


@pytest.mark.parametrize(
    ("error", "hopeless"),
    [
        (TargetError("x"), True),
        (NamespaceNotFoundError("x", status="NOT_FOUND"), True),
        (ServiceError("x", status="PERMISSION_DENIED"), True),
        (ConnectionFailedError("x", status="UNAVAILABLE"), False),
        (ServiceError("x", status="FAILED_PRECONDITION"), False),
        (RuntimeError("x"), False),
    ],
)
def test_connection_errors_are_classified_as_permanent_or_transient(error: Exception, hopeless: bool) -> None:
    assert is_hopeless(error) is hopeless


@pytest.mark.parametrize(
    ("seen", "now", "expected"),
    [
        (drain_view(open_runs=1), 101.0, (DrainStep.WAIT, 102.0)),
        (drain_view(open_runs=1), 102.0, (DrainStep.FAIL_RUNS, 102.0)),
        (drain_view(open_runs=1, open_activities=1), 103.0, (DrainStep.FAIL_RUNS, 103.0)),
        (drain_view(open_runs=1, open_activities=1), 101.0, (DrainStep.WAIT, 102.0)),
        (drain_view(open_activities=1), 103.0, (DrainStep.WAIT, 110.0)),
        (drain_view(open_activities=1), 110.0, (DrainStep.STOP_ACTIVITIES, 110.0)),
        (drain_view(open_activities=1, stop_requested=True), 110.0, (DrainStep.WAIT, 111.0)),
        (drain_view(open_activities=1, stop_requested=True), 111.0, (DrainStep.FAIL_ACTIVITIES, 111.0)),
        (drain_view(), 101.0, (DrainStep.WAIT, 130.0)),
        (drain_view(), 130.0, (DrainStep.ABANDON, 130.0)),
        (drain_view(polls_ended=True), 101.0, (DrainStep.FINALIZE, 101.0)),
        (drain_view(polls_ended=True, calls=1), 101.0, (DrainStep.WAIT, 130.0)),
        (drain_view(polls_ended=True, calls=1), 130.0, (DrainStep.ABANDON, 130.0)),
        (drain_view(polls_ended=True, open_activities=1), 500.0, (DrainStep.STOP_ACTIVITIES, 500.0)),
        (drain_view(quiet_since=139.0), 139.0, (DrainStep.WAIT, 140.0)),
        (drain_view(quiet_since=140.0), 140.0, (DrainStep.ABANDON, 140.0)),
        (drain_view(polls_ended=True, quiet_since=140.0), 140.0, (DrainStep.FINALIZE, 140.0)),
    ],
)
def test_drain_chooses_the_next_step_by_open_tasks_and_deadlines(
    seen: DrainView, now: float, expected: tuple[DrainStep, float]
) -> None:
    assert next_step(seen, DEADLINES, LIMITS, now) == expected


def test_earlier_of_two_drain_deadlines_applies() -> None:
    recycled = Deadlines.after(100.0, LIMITS, None)
    asked = Deadlines.after(200.0, LIMITS, 5.0)
    both = recycled.sooner(asked)
    assert both == Deadlines(runs=102.0, stop_activities=205.0, activities=206.0, end=211.0)


def test_finalize_timeout_is_short_after_the_graceful_time() -> None:
    asked, recycled = Deadlines.after(100.0, LIMITS, 5.0), Deadlines.after(100.0, LIMITS, None)
    assert asked.end == 100.0 + 5.0 + LIMITS.cancel_grace + LIMITS.leave
    assert (asked.finalizing(100.0, LIMITS), asked.finalizing(500.0, LIMITS)) == (11.0, 5.0)
    assert recycled.finalizing(100.0, LIMITS) == LIMITS.finalize


@pytest.mark.parametrize(("now", "runs"), [(100.0, 102.0), (103.0, 105.0), (110.0, 111.0), (200.0, 111.0)])
def test_run_that_continues_during_a_drain_gets_two_more_seconds(now: float, runs: float) -> None:
    """At most until the deadline of activities, and never less than before."""
    assert DEADLINES.for_one_more(now, LIMITS) == replace(DEADLINES, runs=runs)
