"""`limits.throttle` on virtual time: times of turns, timeouts, faults and wrong clocks."""

from __future__ import annotations

import pytest
from tests.embedded.memory_world import SECOND

from hourglass import activity, workflow
from hourglass.client import WorkflowStatus
from hourglass.errors import WorkflowFailedError, WorkflowParked
from hourglass.limits import _keepers, slot, throttle
from hourglass.limits._throttles import TurnKeeper
from hourglass.testing import Environment


@workflow.defn
def turn(key: str, limit: int, per: float, smooth: bool = False) -> float:
    """Wait for a turn and return its time."""
    throttle(key, limit, per=per, smooth=smooth)
    return workflow.time()


@workflow.defn
def throttle_with_timeout(key: str, limit: int, per: float, patience: float) -> str:
    try:
        throttle(key, limit, per=per, timeout=patience)
    except TimeoutError:
        return f"too late at {workflow.time():g}"
    return f"continued at {workflow.time():g}"


@workflow.defn
def throttle_repeatedly(key: str, times: int) -> list[float]:
    """Return the times of many turns."""
    moments = []
    for _ in range(times):
        throttle(key, 5, per=1)
        moments.append(workflow.time())
    return moments


def test_throttle_limits_calls_per_period(kept_by: str, env: Environment) -> None:
    begin = env.now().timestamp()
    handles = [env.start_workflow(turn, "t", 2, 10.0) for _ in range(7)]
    assert [handle.result() - begin for handle in handles] == [0, 0, 10, 10, 20, 20, 30]


def test_smooth_throttle_spreads_turns_evenly(env: Environment) -> None:
    begin = env.now().timestamp()
    handles = [env.start_workflow(turn, "s", 4, 1.0, True) for _ in range(5)]
    moments = [handle.result() - begin for handle in handles]
    assert moments == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=1e-6)


def test_throttle_timeout_raises_immediately_without_using_a_turn(env: Environment) -> None:
    begin = env.now().timestamp()
    assert env.execute_workflow(throttle_with_timeout, "i", 1, 60.0, 0.0) == f"continued at {begin:g}"
    assert env.execute_workflow(throttle_with_timeout, "i", 1, 60.0, 59.0) == f"too late at {begin:g}"
    assert env.execute_workflow(turn, "i", 1, 60.0) - begin == 60


def test_run_cancelled_while_throttled_ends_immediately(env: Environment) -> None:
    env.execute_workflow(turn, "c", 1, 60.0)
    waiting = env.start_workflow(turn, "c", 1, 60.0)
    before = env.now()
    waiting.cancel()
    with pytest.raises(WorkflowFailedError, match="cancelled"):
        waiting.result()
    assert env.now() == before


@pytest.mark.usefixtures("by_workflow")
def test_throttle_keeper_survives_crashes_and_continue_as_new(
    monkeypatch: pytest.MonkeyPatch, env: Environment
) -> None:
    """The keeper ends when it is no longer needed."""
    monkeypatch.setattr(_keepers, "_MANY_MESSAGES", 7)
    handles = [env.start_workflow(throttle_repeatedly, "l", 10) for _ in range(3)]
    env.skip(1.5)
    env.crash()
    moments = sorted(moment for handle in handles for moment in handle.result())
    assert all(later - sooner >= 1 for sooner, later in zip(moments, moments[5:], strict=False))
    env.skip(120)
    keeper = env.client.get_workflow_handle("hourglass.throttle:l")
    assert keeper.describe().status is WorkflowStatus.COMPLETED


def test_daily_throttle_holds_after_hours_without_requests(kept_by: str, env: Environment) -> None:
    first = env.execute_workflow(turn, "day", 1, 86_400.0)
    env.skip(hours=20)
    assert env.execute_workflow(turn, "day", 1, 86_400.0) - first == 86_400


def test_throttle_counts_turns_granted_in_the_future(kept_by: str, env: Environment) -> None:
    begin = env.now().timestamp()
    for _ in range(5):
        env.start_workflow(turn, "ahead", 1, 60.0)
    env.skip(150)
    assert env.execute_workflow(turn, "ahead", 1, 60.0) - begin == 300


@pytest.mark.parametrize(
    ("limit", "per", "words"),
    [(0, 1.0, "at least 1"), (1, 0.0, "more than 0"), (1001, 1.0, "smooth=True")],
)
def test_invalid_throttle_arguments_are_rejected(
    limit: int, per: float, words: str, env: Environment
) -> None:
    with pytest.raises(WorkflowParked) as caught:
        env.execute_workflow(turn, "n", limit, per)
    assert words in str(caught.value.__cause__)


# --- wrong clocks ---------------------------------------------------------------------------------


HOURS = 3 * 3600
stamps: list[float] = []


@activity.defn
def stamp() -> None:
    """Record the engine's time, which unlike that of a run's events can go back."""
    stamps.append(activity_time())


activity_time = lambda: 0.0  # noqa: E731


@workflow.defn
def throttle_and_stamp(key: str, times: int, pause: float = 0.0) -> None:
    """Take `times` turns, three in ten seconds."""
    for _ in range(times):
        throttle(key, 3, per=10)
        stamp()
        workflow.sleep(pause)


@workflow.defn
def hold_or_time_out(key: str) -> str:
    """Hold a slot for a day; return "none" if there is none within five seconds."""
    try:
        with slot(key, timeout=5):
            workflow.sleep(86_400)
    except TimeoutError:
        return "none"
    return "held"


def set_clock(env: Environment, by: float) -> None:
    """Move the clock of the environment's engine, as if the wall clock had been set."""
    driver = env._fixture.driver
    driver.clock._now += int(by * SECOND)
    driver.horizon_ns += int(by * SECOND)

    async def follow() -> None:
        driver.engine.runs.realign()

    driver.loop.run_until_complete(follow())


@pytest.fixture
def stamped(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamp times relative to the start of the environment."""
    begin = env.now().timestamp()
    stamps.clear()
    monkeypatch.setitem(globals(), "activity_time", lambda: env.now().timestamp() - begin)


@pytest.mark.usefixtures("stamped")
def test_throttle_wait_is_corrected_after_a_fast_clock_is_set_back(env: Environment) -> None:
    set_clock(env, HOURS)
    ahead = [env.start_workflow(throttle_and_stamp, "k", 1) for _ in range(5)]
    env.skip(1)
    assert len(stamps) == 3  # two wait for their turn
    stamps.clear()
    set_clock(env, -HOURS)
    later = [env.start_workflow(throttle_and_stamp, "k", 1) for _ in range(4)]
    for handle in (*ahead, *later):
        handle.result()
    assert len(stamps) == 6
    assert max(stamps) < 40
    assert all(later - earlier >= 10 - 2e-6 for earlier, later in zip(stamps, stamps[3:], strict=False))


@pytest.mark.usefixtures("stamped")
@pytest.mark.parametrize("pause", [0.0, 1.0])
def test_run_started_by_a_fast_clock_keeps_the_rate_after_it_is_set_back(
    env: Environment, pause: float
) -> None:
    """The run's own time does not advance then. The rate must hold with the key on loan or not, and with a later run."""
    set_clock(env, HOURS)
    first = env.start_workflow(throttle_and_stamp, "k", 20, pause)
    env.skip(25)  # by now the key is on loan to it
    set_clock(env, -HOURS)
    second = env.start_workflow(throttle_and_stamp, "k", 5, pause)
    first.result()
    second.result()
    stamps_after = [moment for moment in stamps if moment < HOURS]
    assert len(stamps) == 25
    assert len(stamps_after) >= 15
    assert max(stamps_after) < 25 + 10 * len(stamps_after) / 3 + 15
    assert all(
        later - earlier >= 10 - 2e-6 for earlier, later in zip(stamps_after, stamps_after[3:], strict=False)
    )


def test_slot_timeout_begun_by_a_fast_clock_ends_after_it_is_set_back(
    env: Environment,
) -> None:
    set_clock(env, HOURS)
    env.start_workflow(hold_or_time_out, "k")
    env.skip(1)
    waits = env.start_workflow(hold_or_time_out, "k")
    env.skip(1)
    set_clock(env, -HOURS)
    begin = env.now()
    assert waits.result() == "none"
    assert (env.now() - begin).total_seconds() < 10


@workflow.defn
def throttle_many_tasks(key: str, count: int) -> None:
    """Run a steady stream of throttled tasks."""

    def task(number: int) -> None:
        throttle(key, 100, per=1)
        workflow.sleep(0.05 + 0.01 * (number % 7))

    workflow.map(task, range(count), limit=20)


def test_slow_throttle_keeper_serves_many_tasks_with_few_signals(
    by_workflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that request a turn while an answer is pending wait for it and share the loan."""
    serve = TurnKeeper._serve

    def slow(keeper: TurnKeeper) -> bool:
        workflow.sleep(0.3)
        return serve(keeper)

    monkeypatch.setattr(TurnKeeper, "_serve", slow)
    with Environment() as env:
        handle = env.start_workflow(throttle_many_tasks, "k", 200)
        handle.result()
        kinds = [event["eventType"] for event in handle.history().events]
    assert kinds.count("EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED") <= 5
