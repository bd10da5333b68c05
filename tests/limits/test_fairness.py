"""Events that limits add to histories, and fairness between runs with many tasks."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.limits import is_idle

from hourglass import activity, limits, workflow
from hourglass._built_in import without_keepers
from hourglass.client import WorkflowHandle, WorkflowStatus
from hourglass.limits._slots import SlotKeeper
from hourglass.progress import Progress
from hourglass.testing import Environment

Span = tuple[float, float]

entered = Progress("entered", float)
left = Progress("left", float)


@activity.defn
def work(number: int) -> int:
    return number


@workflow.defn
def tasks(key: str, limit: int, count: int, seconds: float) -> list[Span]:
    """Run `count` concurrent tasks, each in a slot."""

    def hold(_: int) -> Span:
        with limits.slot(key, limit):
            begin = workflow.time()
            entered.publish(begin)
            workflow.sleep(seconds)
            left.publish(workflow.time())
            return begin, workflow.time()

    return workflow.map(hold, range(count))


@workflow.defn
def loop(key: str, limit: int, count: int, seconds: float) -> list[Span]:
    """Enter a slot `count` times in sequence."""
    spans = []
    for _ in range(count):
        with limits.slot(key, limit):
            begin = workflow.time()
            workflow.sleep(seconds)
            spans.append((begin, workflow.time()))
    return spans


@workflow.defn
def turns(key: str, limit: int, per: float, count: int, pause: float, smooth: bool = False) -> list[float]:
    """Take `count` turns, with pauses."""
    moments = []
    for _ in range(count):
        limits.throttle(key, limit, per=per, smooth=smooth)
        moments.append(workflow.time())
        entered.publish(workflow.time())
        if pause:
            workflow.sleep(pause)
    return moments


@workflow.defn
def items(kind: str, count: int) -> int:
    """Execute an activity per item, with or without a limit, in sequence or concurrently."""

    def limited_work(number: int) -> int:
        if "slot" in kind:
            with limits.slot(kind, 5):
                return work(number)
        if "turn" in kind:
            limits.throttle(kind, 1000, per=1)
        return work(number)

    if kind.startswith("loop"):
        return len([limited_work(number) for number in range(count)])
    return len(workflow.map(limited_work, range(count), limit=5 if "slot" not in kind else None))


def most_at_once(spans: list[Span]) -> int:
    """Return the maximum number of overlapping spans."""
    return max(sum(begin <= moment < end - 1e-6 for begin, end in spans) for moment, _ in spans)


def count_events(env: Environment, kind: str, kept_by: str) -> int:
    """Count the events of the run and of its keeper workflow."""
    run = env.start_workflow(items, kind, 200)
    assert run.result() == 200
    keeper = {"slot": "slots", "turn": "throttle"}.get(kind[-4:]) if kept_by == "workflow" else None
    return len(run.history().events) + (
        len(env.client.get_workflow_handle(f"hourglass.{keeper}:{kind}").history().events) if keeper else 0
    )


@pytest.mark.parametrize(
    ("plain", "limited"), [("map", "map slot"), ("loop", "loop slot"), ("loop", "loop turn")]
)
def test_limits_add_at_most_10_percent_of_events(
    plain: str, limited: str, kept_by: str, env: Environment
) -> None:
    env.fake(work, lambda number: number, takes=0.01)
    assert count_events(env, limited, kept_by) <= 1.1 * count_events(env, plain, kept_by)


def test_waiting_tasks_of_a_run_enter_before_a_later_run(env: Environment) -> None:
    begin = env.now().timestamp()
    first = env.start_workflow(tasks, "k", 1, 5, 10.0)
    env.skip(1)
    second = env.start_workflow(tasks, "k", 1, 1, 10.0)
    assert second.result()[0][0] - begin == 50
    assert most_at_once([*first.result(), *second.result()]) == 1


def test_run_that_enters_repeatedly_does_not_starve_another_run(env: Environment) -> None:
    begin = env.now().timestamp()
    first = env.start_workflow(loop, "k", 1, 10, 10.0)
    env.skip(1)
    second = env.start_workflow(loop, "k", 1, 1, 10.0)
    assert second.result()[0][0] - begin == 10
    assert most_at_once([*first.result(), *second.result()]) == 1


def test_recently_used_slot_is_granted_to_another_run_without_delay(env: Environment) -> None:
    idle_run = env.start_workflow(loop, "k", 2, 2, 1.0)
    idle_run.result()
    assert is_idle(env.client.get_workflow_handle("hourglass.slots:k").query(SlotKeeper.slots))
    before = env.now().timestamp()
    spans = env.execute_workflow(loop, "k", 2, 1, 1.0)
    assert spans[0][0] == before


SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

RUNS = st.lists(
    st.tuples(
        st.floats(0, 8),
        st.integers(1, 4),
        st.floats(0.1, 6),
        st.booleans(),
        st.sampled_from(["stay", "stay", "stay", "cancel", "terminate", "crash"]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=cases(8, 200), deadline=None, suppress_health_check=SUPPRESSED)
@given(RUNS, st.integers(1, 3))
def test_slot_limit_holds_with_many_tasks_and_random_faults(
    kept_by: str, runs: list[tuple[float, int, float, bool, str]], limit: int
) -> None:
    """Every run that is neither cancelled nor terminated is served."""
    with Environment() as env:
        handles: list[WorkflowHandle[list[Span]]] = []
        ended: set[int] = set()
        for number, (gap, count, seconds, at_once, fate) in enumerate(runs):
            handles.append(env.start_workflow(tasks if at_once else loop, "p", limit, count, seconds))
            env.skip(gap)
            if fate == "crash":
                env.crash()
            elif fate != "stay" and handles[number].describe().status is WorkflowStatus.RUNNING:
                getattr(handles[number], fate)()
                ended.add(number)
        spans = [
            span for number, handle in enumerate(handles) if number not in ended for span in handle.result()
        ]
        assert not spans or most_at_once(spans) <= limit
        env.skip(86_400 * 2)
        keeper = env.client.get_workflow_handle("hourglass.slots:p")
        if kept_by == "engine":
            assert is_idle(keeper.query(SlotKeeper.slots))
        else:
            assert keeper.describe().status is WorkflowStatus.COMPLETED


TURNS = st.lists(
    st.tuples(
        st.floats(0, 6), st.integers(1, 8), st.floats(0, 2), st.sampled_from(["", "", "terminate", "crash"])
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=cases(8, 200), deadline=None, suppress_health_check=SUPPRESSED)
@given(TURNS, st.integers(1, 4), st.floats(0.5, 5), st.booleans())
def test_throttle_rate_holds_for_runs_with_many_turns_and_random_faults(
    kept_by: str, runs: list[tuple[float, int, float, str]], limit: int, per: float, smooth: bool
) -> None:
    with Environment() as env:
        handles = []
        for gap, count, pause, fate in runs:
            handles.append(env.start_workflow(turns, "p", limit, per, count, pause, smooth))
            env.skip(gap)
            if fate == "crash":
                env.crash()
            elif fate and handles[-1].describe().status is WorkflowStatus.RUNNING:
                handles[-1].terminate()
        for handle in handles:
            if handle.describe().status is WorkflowStatus.RUNNING:
                handle.result()
        moments = sorted(moment for handle in handles for moment in entered.follow(handle))
        spans = zip(moments, moments[limit:], strict=False)
        assert all(later - sooner >= per - 2e-6 for sooner, later in spans)


def test_busy_run_shares_its_throttle_with_a_later_run(env: Environment) -> None:
    first = env.start_workflow(turns, "k", 2, 1.0, 40, 0.0)
    env.skip(5)
    second = env.start_workflow(turns, "k", 2, 1.0, 4, 0.0)
    done = second.result()
    assert done[0] - env.now().timestamp() <= 0
    assert first.describe().status is WorkflowStatus.RUNNING
    moments = sorted([*first.result(), *done])
    assert all(b - a >= 1 - 2e-6 for a, b in zip(moments, moments[2:], strict=False))


@pytest.mark.parametrize(
    ("query", "filtered"),
    [
        ("", "{0}"),
        ("WorkflowType = 'a'", "(WorkflowType = 'a') AND {0}"),
        (
            "ExecutionStatus = 'Running' GROUP BY ExecutionStatus",
            "(ExecutionStatus = 'Running') AND {0} GROUP BY ExecutionStatus",
        ),
        ("GROUP BY ExecutionStatus", "{0} GROUP BY ExecutionStatus"),
        ("WorkflowType = 'hourglass.slots'", "WorkflowType = 'hourglass.slots'"),
    ],
)
def test_workflow_list_hides_keepers_unless_the_filter_names_them(query: str, filtered: str) -> None:
    kinds = ("hourglass.debounce", "hourglass.slots", "hourglass.throttle")
    others = " AND ".join(f"WorkflowType != '{kind}'" for kind in kinds)
    assert without_keepers(query) == filtered.format(others)
