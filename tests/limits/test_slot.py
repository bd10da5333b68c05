"""`limits.slot` on virtual time: order, timeouts, cancelled and terminated runs, and keeper workflows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.limits import is_idle

from hourglass import workflow
from hourglass.client import WorkflowHandle, WorkflowStatus
from hourglass.errors import CancelledError, UsageError, WorkflowFailedError, WorkflowParked
from hourglass.limits import _keepers, slot
from hourglass.limits._slots import SlotKeeper
from hourglass.progress import Progress
from hourglass.testing import Environment

Span = tuple[float, float]

inside = Progress("inside", float)


@workflow.defn
def hold(key: str, limit: int, seconds: float) -> Span:
    """Hold a slot; return the times of entering and leaving."""
    with slot(key, limit):
        entered = workflow.time()
        inside.publish(entered)
        workflow.sleep(seconds)
        return entered, workflow.time()


@workflow.defn
def enter_or_time_out(key: str, seconds: float) -> str:
    try:
        with slot(key, timeout=seconds):
            return "entered"
    except TimeoutError:
        return "timed out"


@workflow.defn
def hold_in_a_cancelled_scope(key: str) -> str:
    def later() -> None:
        workflow.sleep(5)
        scope.cancel()

    workflow.spawn(later)
    with workflow.scope() as scope, slot(key, 2):
        workflow.sleep(1000)
    return "left"


@workflow.defn
def hold_with_timeout(key: str) -> str:
    try:
        with workflow.timeout(5), slot(key, 2):
            workflow.sleep(1000)
    except TimeoutError:
        return "too long"
    return "in time"


@workflow.defn
def hold_in_many_tasks(key: str, limit: int, count: int) -> list[Span]:
    """Enter slots of one key in concurrent tasks of one run."""

    def task(_: int) -> Span:
        with slot(key, limit):
            entered = workflow.time()
            workflow.sleep(10)
            return entered, workflow.time()

    return workflow.map(task, range(count))


@workflow.defn
def enter_nested_slots(key: str) -> None:
    with slot(key, 2), slot(key, 2):
        pass


@workflow.defn
def hold_two_keys() -> str:
    with slot("one"), slot("other"):
        return "both"


@workflow.defn
def continue_as_new_in_a_slot(left: int) -> int:
    with slot("chain"):
        if left:
            workflow.continue_as_new(left - 1)
    return left


@workflow.defn
def enter_repeatedly(key: str, times: int) -> int:
    for _ in range(times):
        with slot(key):
            workflow.sleep(1)
    return times


@workflow.defn
class HandlesEverySignal:
    @workflow.init
    def __init__(self) -> None:
        self.seen: list[str] = []

    @workflow.signal(dynamic=True)
    def anything(self, name: str, arguments: list[workflow.RawPayload]) -> None:
        self.seen.append(name)

    @workflow.run
    def run(self) -> list[str]:
        with slot("dynamic"):
            return self.seen


def most_at_once(spans: list[Span]) -> int:
    """Return the maximum number of overlapping spans; shorter ones than a microsecond, which `env.now()` omits, do not count."""
    return max(sum(entered <= moment < left - 1e-6 for entered, left in spans) for moment, _ in spans)


def keeper(env: Environment, key: str) -> WorkflowHandle[None]:
    """Return a handle of the keeper workflow of a key."""
    return env.client.get_workflow_handle(f"hourglass.slots:{key}", workflow=SlotKeeper.run)


def test_slots_are_entered_in_order(kept_by: str, env: Environment) -> None:
    handles = [env.start_workflow(hold, "c", 2, 10.0) for _ in range(5)]
    spans = [handle.result() for handle in handles]
    begin = spans[0][0]
    assert [entered - begin for entered, _ in spans] == [0, 0, 10, 10, 20]
    assert most_at_once(spans) == 2


def test_slots_of_different_keys_are_independent(env: Environment) -> None:
    handles = [env.start_workflow(hold, key, 1, 10.0) for key in "abc"]
    assert most_at_once([handle.result() for handle in handles]) == 3
    assert env.execute_workflow(hold_two_keys) == "both"


def test_concurrent_tasks_of_one_run_share_the_slot_limit(env: Environment) -> None:
    assert most_at_once(env.execute_workflow(hold_in_many_tasks, "m", 3, 10)) == 3


def test_slot_timeout_does_not_delay_the_next_run(env: Environment) -> None:
    holder = env.start_workflow(hold, "t", 1, 30.0)
    hasty = env.start_workflow(enter_or_time_out, "t", 10.0)
    patient = env.start_workflow(hold, "t", 1, 5.0)
    assert hasty.result() == "timed out"
    assert len(keeper(env, "t").query(SlotKeeper.slots).waiting) == 1
    assert patient.result()[0] == holder.result()[1]


def test_run_cancelled_while_waiting_for_a_slot_ends_immediately(env: Environment) -> None:
    holder = env.start_workflow(hold, "x", 1, 30.0)
    waiting = env.start_workflow(hold, "x", 1, 30.0)
    behind = env.start_workflow(hold, "x", 1, 5.0)
    waiting.cancel()
    with pytest.raises(WorkflowFailedError) as caught:
        waiting.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert behind.result()[0] == holder.result()[1]


def test_cancelled_run_releases_its_slot(env: Environment) -> None:
    holder = env.start_workflow(hold, "h", 1, 1000.0)
    behind = env.start_workflow(hold, "h", 1, 5.0)
    before = env.now().timestamp()
    env.after(seconds=3).cancel(holder)
    assert behind.result()[0] - before == 3


@pytest.mark.usefixtures("by_workflow")
def test_timed_out_or_cancelled_scope_releases_its_slot(env: Environment) -> None:
    """The keeper is not cancelled with the scope."""
    assert env.execute_workflow(hold_in_a_cancelled_scope, "b") == "left"
    assert env.execute_workflow(hold_with_timeout, "b") == "too long"
    assert is_idle(keeper(env, "b").query(SlotKeeper.slots))
    kinds = [event["eventType"] for event in keeper(env, "b").history().events]
    assert "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED" not in kinds
    assert keeper(env, "b").describe().status is WorkflowStatus.RUNNING
    env.start_workflow(hold, "b", 2, 100.0)
    env.start_workflow(hold, "b", 2, 100.0)
    env.skip(1)
    assert env.execute_workflow(hold_with_timeout, "b") == "too long"
    assert len(keeper(env, "b").query(SlotKeeper.slots).held) == 2


@pytest.mark.parametrize("idle", [0.0, 3600.0])
def test_slot_of_a_terminated_run_is_freed_within_the_notice(
    idle: float, kept_by: str, env: Environment
) -> None:
    """Without recent checks the slot is free immediately."""
    holder = env.start_workflow(hold, "dead", 1, 1e6)
    env.skip(idle)
    holder.terminate("out of patience")
    before = env.now().timestamp()
    entered, _ = env.execute_workflow(hold, "dead", 1, 1.0)
    assert entered - before <= (0.0 if idle or kept_by == "engine" else 10.0)


@pytest.mark.usefixtures("by_workflow")
def test_frequent_slot_requests_do_not_delay_the_check_for_terminated_holders(env: Environment) -> None:
    holder = env.start_workflow(hold, "busy", 1, 1e6)
    holder.terminate()
    before = env.now().timestamp()
    handles = []
    for _ in range(20):
        handles.append(env.start_workflow(hold, "busy", 1, 0.5))
        env.skip(1)
    assert handles[0].result()[0] - before <= 10


@pytest.mark.usefixtures("by_workflow")
def test_runs_entering_other_slots_do_not_delay_the_check_for_terminated_holders(env: Environment) -> None:
    holder = env.start_workflow(hold, "shared", 2, 1e6)
    holder.terminate()
    for _ in range(60):
        env.start_workflow(hold, "shared", 2, 1.0)
    env.skip(20)
    slots = keeper(env, "shared").query(SlotKeeper.slots)
    assert slots.waiting
    assert holder.id not in {claim.workflow_id for claim in slots.held}


@pytest.mark.usefixtures("by_workflow")
def test_running_workflow_keeps_its_slot_and_is_checked_less_often(env: Environment) -> None:
    holder = env.start_workflow(hold, "alive", 1, 7200.0)
    behind = env.start_workflow(hold, "alive", 1, 1.0)
    assert behind.result()[0] == holder.result()[1]
    signals = [
        event for event in holder.history().events if event["eventType"].endswith("EXECUTION_SIGNALED")
    ]
    assert 60 < len(signals) < 70


def test_run_terminated_while_waiting_for_a_slot_is_skipped(env: Environment) -> None:
    holder = env.start_workflow(hold, "q", 1, 10.0)
    waiting = env.start_workflow(hold, "q", 1, 10.0)
    behind = env.start_workflow(hold, "q", 1, 1.0)
    waiting.terminate()
    assert behind.result()[0] == holder.result()[1]


def test_nested_slot_of_the_same_key_is_rejected(env: Environment) -> None:
    """Otherwise the block would wait for itself."""
    with pytest.raises(WorkflowParked) as caught:
        env.execute_workflow(enter_nested_slots, "n")
    assert isinstance(caught.value.__cause__, UsageError)
    assert "inside a block that already holds one" in str(caught.value.__cause__)


def test_continue_as_new_in_a_slot_releases_it_for_the_next_run(env: Environment) -> None:
    assert env.execute_workflow(continue_as_new_in_a_slot, 3) == 0


def test_slots_survive_worker_crashes(env: Environment) -> None:
    handles = [env.start_workflow(hold, "crash", 2, 10.0) for _ in range(6)]
    for _ in range(5):
        env.skip(4)
        env.crash()
    assert most_at_once([handle.result() for handle in handles]) == 2


@pytest.mark.usefixtures("by_workflow")
def test_slot_keeper_continues_as_new_and_ends_when_unused(
    monkeypatch: pytest.MonkeyPatch, env: Environment
) -> None:
    monkeypatch.setattr(_keepers, "_MANY_MESSAGES", 7)
    handles = [env.start_workflow(enter_repeatedly, "long", 10) for _ in range(3)]
    assert [handle.result() for handle in handles] == [10, 10, 10]
    last = keeper(env, "long")
    assert last.describe().status is WorkflowStatus.RUNNING
    assert len(last.history().events) < 200
    runs = [run for run in env.client.list_workflows() if run.id == "hourglass.slots:long"]
    assert len(runs) >= 5
    env.skip(timedelta(minutes=2))
    assert last.describe().status is WorkflowStatus.COMPLETED
    assert env.execute_workflow(hold, "long", 1, 1.0)


@pytest.mark.usefixtures("by_workflow")
def test_cancelled_slot_keeper_still_serves_waiting_runs(env: Environment) -> None:
    holder = env.start_workflow(hold, "k", 1, 10.0)
    behind = env.start_workflow(hold, "k", 1, 1.0)
    keeper(env, "k").cancel()
    assert behind.result()[0] == holder.result()[1]


def test_waiting_run_requests_its_slot_again_after_the_keeper_was_terminated(
    kept_by: str, env: Environment
) -> None:
    env.start_workflow(hold, "gone", 1, 5.0)
    waiting = env.start_workflow(hold, "gone", 1, 1.0)
    before = env.now().timestamp()
    keeper(env, "gone").terminate()
    assert waiting.result()[0] - before == 60


def test_dynamic_signal_handler_does_not_receive_limit_messages(env: Environment) -> None:
    assert env.execute_workflow(HandlesEverySignal.run) == []


@pytest.mark.parametrize(
    ("key", "limit", "words"),
    [("", 1, "must be a non-empty str"), ("k" * 201, 1, "at most 200"), ("k", 0, "at least 1")],
)
def test_invalid_slot_arguments_are_rejected(key: str, limit: int, words: str, env: Environment) -> None:
    with pytest.raises(WorkflowParked) as caught:
        env.execute_workflow(hold, key, limit, 1.0)
    assert words in str(caught.value.__cause__)


RunPlan = tuple[float, float, str]
RUNS = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.floats(0.1, 15),
        st.sampled_from(["stay", "stay", "stay", "cancel", "terminate", "crash"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=cases(12, 250),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(RUNS, st.integers(1, 3))
def test_slot_limit_holds_under_random_faults(kept_by: str, runs: list[RunPlan], limit: int) -> None:
    """Every run that is neither cancelled nor terminated gets a slot."""
    with Environment() as env:
        handles: list[WorkflowHandle[Span]] = []
        ended: dict[int, float] = {}
        for number, (gap, seconds, fate) in enumerate(runs):
            handles.append(env.start_workflow(hold, "p", limit, seconds))
            env.skip(gap)
            if fate == "crash":
                env.crash()
            elif fate != "stay" and handles[number].describe().status is WorkflowStatus.RUNNING:
                getattr(handles[number], fate)()
                ended[number] = env.now().timestamp()
        spans = [handle.result() for number, handle in enumerate(handles) if number not in ended]
        for number, end in ended.items():
            begin = inside.latest(handles[number])
            spans += [] if begin is None else [(begin, end)]
        assert not spans or most_at_once(spans) <= limit
        env.skip(timedelta(days=2))
        if kept_by == "engine":
            assert is_idle(keeper(env, "p").query(SlotKeeper.slots))
        else:
            assert keeper(env, "p").describe().status is WorkflowStatus.COMPLETED
