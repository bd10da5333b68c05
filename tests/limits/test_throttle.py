"""`limits.throttle` on virtual time: who goes on when, and what happens to those who do not want to wait."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hourglass import workflow
from hourglass.client import WorkflowStatus
from hourglass.errors import WorkflowFailedError, WorkflowParked
from hourglass.limits import _keepers, throttle
from hourglass.testing import Environment


@workflow.defn
def turn(key: str, limit: int, per: float, smooth: bool = False) -> float:
    """Wait for a turn; when it went on."""
    throttle(key, limit, per=per, smooth=smooth)
    return workflow.time()


@workflow.defn
def impatient(key: str, limit: int, per: float, patience: float) -> str:
    """Go on only if the turn comes soon."""
    try:
        throttle(key, limit, per=per, timeout=patience)
    except TimeoutError:
        return f"too late at {workflow.time():g}"
    return f"went on at {workflow.time():g}"


@workflow.defn
def loop(key: str, times: int) -> list[float]:
    """Many turns in one run."""
    moments = []
    for _ in range(times):
        throttle(key, 5, per=1)
        moments.append(workflow.time())
    return moments


def test_at_most_so_many_go_on_in_a_span(kept_by: str) -> None:
    """Of seven, two in ten seconds go on at a time, in the order of asking."""
    with Environment() as env:
        begin = env.now().timestamp()
        handles = [env.start_workflow(turn, "t", 2, 10.0) for _ in range(7)]
        assert [handle.result() - begin for handle in handles] == [0, 0, 10, 10, 20, 20, 30]


def test_smooth_spreads_them_evenly() -> None:
    """Four in a second are a quarter of a second apart."""
    with Environment() as env:
        begin = env.now().timestamp()
        handles = [env.start_workflow(turn, "s", 4, 1.0, True) for _ in range(5)]
        moments = [handle.result() - begin for handle in handles]
        assert moments == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=1e-6)


def test_who_does_not_want_to_wait_is_told_at_once_and_uses_up_nothing() -> None:
    """A turn that would come too late is a TimeoutError now, and goes to the next who is patient."""
    with Environment() as env:
        begin = env.now().timestamp()
        assert env.execute_workflow(impatient, "i", 1, 60.0, 0.0) == f"went on at {begin:g}"
        assert env.execute_workflow(impatient, "i", 1, 60.0, 59.0) == f"too late at {begin:g}"
        assert env.execute_workflow(turn, "i", 1, 60.0) - begin == 60


def test_cancelling_who_waits_ends_it() -> None:
    """A run that is cancelled before its turn ends at once."""
    with Environment() as env:
        env.execute_workflow(turn, "c", 1, 60.0)
        waiting = env.start_workflow(turn, "c", 1, 60.0)
        before = env.now()
        waiting.cancel()
        with pytest.raises(WorkflowFailedError, match="cancelled"):
            waiting.result()
        assert env.now() == before


@pytest.mark.usefixtures("by_workflow")
def test_the_keeper_remembers_through_crashes_and_continuing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds across the keeper's runs and a worker's death; when it is not needed any more the keeper ends."""
    monkeypatch.setattr(_keepers, "_MANY_MESSAGES", 7)
    with Environment() as env:
        handles = [env.start_workflow(loop, "l", 10) for _ in range(3)]
        env.skip(1.5)
        env.crash()
        moments = sorted(moment for handle in handles for moment in handle.result())
        assert all(later - sooner >= 1 for sooner, later in zip(moments, moments[5:], strict=False))
        env.skip(120)
        keeper = env.client.get_workflow_handle("hourglass.throttle:l")
        assert keeper.describe().status is WorkflowStatus.COMPLETED


def test_a_keeper_does_not_forget_a_long_period(kept_by: str) -> None:
    """A limit by the day holds although nobody asked for hours."""
    with Environment() as env:
        first = env.execute_workflow(turn, "day", 1, 86_400.0)
        env.skip(hours=20)
        assert env.execute_workflow(turn, "day", 1, 86_400.0) - first == 86_400


def test_a_keeper_does_not_forget_turns_that_are_still_to_come(kept_by: str) -> None:
    """Turns given for later count although nobody has asked for a while."""
    with Environment() as env:
        begin = env.now().timestamp()
        for _ in range(5):
            env.start_workflow(turn, "ahead", 1, 60.0)
        env.skip(150)
        assert env.execute_workflow(turn, "ahead", 1, 60.0) - begin == 300


@pytest.mark.parametrize(
    ("limit", "per", "words"),
    [(0, 1.0, "at least 1"), (1, 0.0, "longer than nothing"), (1001, 1.0, "smooth=True")],
)
def test_nonsense_is_refused(limit: int, per: float, words: str) -> None:
    """A rate that makes no sense is told in the workflow that gives it."""
    with Environment() as env:
        with pytest.raises(WorkflowParked) as caught:
            env.execute_workflow(turn, "n", limit, per)
        assert words in str(caught.value.__cause__)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 4),
    st.floats(0.5, 5),
    st.booleans(),
)
def test_never_more_than_the_limit_in_any_span(
    arrivals: list[tuple[float, bool]], limit: int, per: float, smooth: bool
) -> None:
    """However they arrive, and with workers that crash, no span holds more than the limit (but for a microsecond's rounding)."""
    with Environment() as env:
        handles = []
        for gap, crash in arrivals:
            handles.append(env.start_workflow(turn, "p", limit, per, smooth))
            env.skip(gap)
            if crash:
                env.crash()
        moments = sorted(handle.result() for handle in handles)
        spans = zip(moments, moments[limit:], strict=False)
        assert all(later - sooner >= per - 2e-6 for sooner, later in spans)
