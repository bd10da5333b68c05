"""`limits.throttle` on virtual time: who goes on when, and what happens to those who do not want to wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.embedded.memory_world import SECOND

from hourglass import activity, workflow
from hourglass.client import WorkflowStatus
from hourglass.errors import WorkflowFailedError, WorkflowParked
from hourglass.limits import _keepers, slot, throttle
from hourglass.limits._throttles import TurnKeeper
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


def test_throttle_limits_calls_per_period(kept_by: str) -> None:
    """Of seven, two per ten seconds continue, in order."""
    with Environment() as env:
        begin = env.now().timestamp()
        handles = [env.start_workflow(turn, "t", 2, 10.0) for _ in range(7)]
        assert [handle.result() - begin for handle in handles] == [0, 0, 10, 10, 20, 20, 30]


def test_smooth_throttle_spreads_turns_evenly() -> None:
    """Four per second are a quarter of a second apart."""
    with Environment() as env:
        begin = env.now().timestamp()
        handles = [env.start_workflow(turn, "s", 4, 1.0, True) for _ in range(5)]
        moments = [handle.result() - begin for handle in handles]
        assert moments == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=1e-6)


def test_throttle_timeout_raises_at_once_without_using_a_turn() -> None:
    """A turn that would come too late raises `TimeoutError` now, and goes to the next run."""
    with Environment() as env:
        begin = env.now().timestamp()
        assert env.execute_workflow(impatient, "i", 1, 60.0, 0.0) == f"went on at {begin:g}"
        assert env.execute_workflow(impatient, "i", 1, 60.0, 59.0) == f"too late at {begin:g}"
        assert env.execute_workflow(turn, "i", 1, 60.0) - begin == 60


def test_cancelled_throttle_ends_the_run() -> None:
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
def test_keeper_state_survives_crashes_and_continue_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_keeper_remembers_a_long_period(kept_by: str) -> None:
    """A daily limit holds although nobody asked for hours."""
    with Environment() as env:
        first = env.execute_workflow(turn, "day", 1, 86_400.0)
        env.skip(hours=20)
        assert env.execute_workflow(turn, "day", 1, 86_400.0) - first == 86_400


def test_keeper_remembers_future_turns(kept_by: str) -> None:
    """Granted turns count although nobody has asked for a while."""
    with Environment() as env:
        begin = env.now().timestamp()
        for _ in range(5):
            env.start_workflow(turn, "ahead", 1, 60.0)
        env.skip(150)
        assert env.execute_workflow(turn, "ahead", 1, 60.0) - begin == 300


@pytest.mark.parametrize(
    ("limit", "per", "words"),
    [(0, 1.0, "at least 1"), (1, 0.0, "more than 0"), (1001, 1.0, "smooth=True")],
)
def test_invalid_throttle_arguments_are_rejected(limit: int, per: float, words: str) -> None:
    """A rate that makes no sense is told in the workflow that gives it."""
    with Environment() as env:
        with pytest.raises(WorkflowParked) as caught:
            env.execute_workflow(turn, "n", limit, per)
        assert words in str(caught.value.__cause__)


@settings(max_examples=cases(15, 250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 4),
    st.floats(0.5, 5),
    st.booleans(),
)
def test_no_period_exceeds_the_limit(
    arrivals: list[tuple[float, bool]], limit: int, per: float, smooth: bool
) -> None:
    """Also with workers that crash (except for the rounding to a microsecond)."""
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


# --- clocks that were wrong -----------------------------------------------------------------------


HOURS = 3 * 3600
stamps: list[float] = []


@activity.defn
def stamp() -> None:
    """The engine's time: that of a run's events does not go back."""
    stamps.append(activity_time())


activity_time = lambda: 0.0  # noqa: E731


@workflow.defn
def stamped(key: str, times: int, pause: float = 0.0) -> None:
    """So many turns, three in ten seconds."""
    for _ in range(times):
        throttle(key, 3, per=10)
        stamp()
        workflow.sleep(pause)


@workflow.defn
def no_slot(key: str) -> str:
    """Hold a slot for a day, or say that there was none in five seconds."""
    try:
        with slot(key, timeout=5):
            workflow.sleep(86_400)
    except TimeoutError:
        return "none"
    return "held"


def set_clock(env: Environment, by: float) -> None:
    """Set the clock of the environment's engine, as if the wall clock had been set."""
    driver = env._fixture.driver
    driver.clock._now += int(by * SECOND)
    driver.horizon_ns += int(by * SECOND)

    async def follow() -> None:
        driver.engine.runs.realign()

    driver.loop.run_until_complete(follow())


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """An environment whose time is stamped, from its start on."""
    with Environment() as env:
        begin = env.now().timestamp()
        stamps.clear()
        monkeypatch.setitem(globals(), "activity_time", lambda: env.now().timestamp() - begin)
        yield env


def test_turns_after_a_clock_jump_are_corrected(env: Environment) -> None:
    """The clock is hours ahead for a while: afterwards runs wait as long as the rate demands, and no longer."""
    set_clock(env, HOURS)
    ahead = [env.start_workflow(stamped, "k", 1) for _ in range(5)]
    env.skip(1)
    assert len(stamps) == 3  # two wait for their turn
    stamps.clear()
    set_clock(env, -HOURS)
    later = [env.start_workflow(stamped, "k", 1) for _ in range(4)]
    for handle in (*ahead, *later):
        handle.result()
    assert len(stamps) == 6
    assert max(stamps) < 40
    assert all(there - here >= 10 - 2e-6 for here, there in zip(stamps, stamps[3:], strict=False))


@pytest.mark.parametrize("pause", [0.0, 1.0])
def test_run_started_while_the_clock_was_ahead_keeps_the_rate(env: Environment, pause: float) -> None:
    """A run began while the clock was ahead, so that its own time stands still when that is set right: it waits for every turn
    as long as the rate wants, with the key on loan or not, and beside a run that began later.
    """
    set_clock(env, HOURS)
    first = env.start_workflow(stamped, "k", 20, pause)
    env.skip(25)  # it has the key on loan by now
    set_clock(env, -HOURS)
    second = env.start_workflow(stamped, "k", 5, pause)
    first.result()
    second.result()
    since = [each for each in stamps if each < HOURS]
    assert len(stamps) == 25
    assert len(since) >= 15
    assert max(since) < 25 + 10 * len(since) / 3 + 15
    assert all(there - here >= 10 - 2e-6 for here, there in zip(since, since[3:], strict=False))


def test_slot_timeout_holds_after_the_clock_was_set_back(env: Environment) -> None:
    """A wait that may take five seconds, begun while the clock was ahead, takes no hours once it is right again."""
    set_clock(env, HOURS)
    env.start_workflow(no_slot, "k")
    env.skip(1)
    waits = env.start_workflow(no_slot, "k")
    env.skip(1)
    set_clock(env, -HOURS)
    begin = env.now()
    assert waits.result() == "none"
    assert (env.now() - begin).total_seconds() < 10


@workflow.defn
def many(key: str, count: int) -> None:
    """Tasks that come one after the other, all the time."""

    def one(number: int) -> None:
        throttle(key, 100, per=1)
        workflow.sleep(0.05 + 0.01 * (number % 7))

    workflow.map(one, range(count), limit=20)


def test_loan_with_a_slow_keeper(by_workflow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an answer is pending, other tasks of the run want a turn: they wait for it, and the loan serves them too."""
    serve = TurnKeeper._serve

    def slow(keeper: TurnKeeper) -> bool:
        workflow.sleep(0.3)
        return serve(keeper)

    monkeypatch.setattr(TurnKeeper, "_serve", slow)
    with Environment() as env:
        handle = env.start_workflow(many, "k", 200)
        handle.result()
        kinds = [event["eventType"] for event in handle.history().events]
    assert kinds.count("EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED") <= 5
