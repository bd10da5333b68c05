"""`limits.slot` on virtual time: who enters when, who gives up, who is gone, and what the keeper costs."""

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
    """Hold a slot for a while; when it was entered and left."""
    with slot(key, limit):
        entered = workflow.time()
        inside.publish(entered)
        workflow.sleep(seconds)
        return entered, workflow.time()


@workflow.defn
def hurry(key: str, seconds: float) -> str:
    """Wait for a slot for a limited time only."""
    try:
        with slot(key, timeout=seconds):
            return "entered"
    except TimeoutError:
        return "gave up"


@workflow.defn
def scoped(key: str) -> str:
    """Start a keeper in a scope, and cancel the scope."""

    def later() -> None:
        workflow.sleep(5)
        scope.cancel()

    workflow.spawn(later)
    with workflow.scope() as scope, slot(key, 2):
        workflow.sleep(1000)
    return "left"


@workflow.defn
def timed(key: str) -> str:
    """Limit waiting and holding together."""
    try:
        with workflow.timeout(5), slot(key, 2):
            workflow.sleep(1000)
    except TimeoutError:
        return "too long"
    return "in time"


@workflow.defn
def many(key: str, limit: int, count: int) -> list[Span]:
    """Several tasks of one run that want slots of one key."""

    def one(_: int) -> Span:
        with slot(key, limit):
            entered = workflow.time()
            workflow.sleep(10)
            return entered, workflow.time()

    return workflow.map(one, range(count))


@workflow.defn
def nested(key: str) -> None:
    """Ask for a slot while holding one."""
    with slot(key, 2), slot(key, 2):
        pass


@workflow.defn
def two_keys() -> str:
    """Hold slots of two keys at once."""
    with slot("one"), slot("other"):
        return "both"


@workflow.defn
def chain(left: int) -> int:
    """Continue as new out of the block."""
    with slot("chain"):
        if left:
            workflow.continue_as_new(left - 1)
    return left


@workflow.defn
def again_and_again(key: str, times: int) -> int:
    """Enter and leave many times in one run."""
    for _ in range(times):
        with slot(key):
            workflow.sleep(1)
    return times


@workflow.defn
class Dynamic:
    """A workflow that takes every signal there is."""

    @workflow.init
    def __init__(self) -> None:
        self.seen: list[str] = []

    @workflow.signal(dynamic=True)
    def anything(self, name: str, arguments: list[workflow.RawPayload]) -> None:
        """Take it."""
        self.seen.append(name)

    @workflow.run
    def run(self) -> list[str]:
        """Hold a slot meanwhile."""
        with slot("dynamic"):
            return self.seen


def most_at_once(spans: list[Span]) -> int:
    """How many spans there were at the same time; less than a microsecond, which `env.now()` does not tell, is no time."""
    return max(sum(entered <= moment < left - 1e-6 for entered, left in spans) for moment, _ in spans)


def keeper(env: Environment, key: str) -> WorkflowHandle[None]:
    """The workflow that keeps a key."""
    return env.client.get_workflow_handle(f"hourglass.slots:{key}", workflow=SlotKeeper.run)


def test_slots_are_entered_in_order(kept_by: str) -> None:
    """Five runs that take ten seconds each, two at a time, enter in pairs."""
    with Environment() as env:
        handles = [env.start_workflow(hold, "c", 2, 10.0) for _ in range(5)]
        spans = [handle.result() for handle in handles]
        begin = spans[0][0]
        assert [entered - begin for entered, _ in spans] == [0, 0, 10, 10, 20]
        assert most_at_once(spans) == 2


def test_slots_of_other_keys_are_independent() -> None:
    """A run may hold slots of several keys."""
    with Environment() as env:
        handles = [env.start_workflow(hold, key, 1, 10.0) for key in "abc"]
        assert most_at_once([handle.result() for handle in handles]) == 3
        assert env.execute_workflow(two_keys) == "both"


def test_tasks_of_one_run_share_the_limit() -> None:
    """Concurrent tasks of one workflow share the limit as runs do."""
    with Environment() as env:
        assert most_at_once(env.execute_workflow(many, "m", 3, 10)) == 3


def test_slot_wait_times_out() -> None:
    """`TimeoutError`, and the next in the queue is not delayed."""
    with Environment() as env:
        holder = env.start_workflow(hold, "t", 1, 30.0)
        hasty = env.start_workflow(hurry, "t", 10.0)
        patient = env.start_workflow(hold, "t", 1, 5.0)
        assert hasty.result() == "gave up"
        assert len(keeper(env, "t").query(SlotKeeper.slots).waiting) == 1
        assert patient.result()[0] == holder.result()[1]


def test_cancelled_waiter_leaves_the_queue() -> None:
    """A run that is cancelled in the queue ends at once, and those behind it move up."""
    with Environment() as env:
        holder = env.start_workflow(hold, "x", 1, 30.0)
        waiting = env.start_workflow(hold, "x", 1, 30.0)
        behind = env.start_workflow(hold, "x", 1, 5.0)
        waiting.cancel()
        with pytest.raises(WorkflowFailedError) as caught:
            waiting.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert behind.result()[0] == holder.result()[1]


def test_cancelled_holder_returns_its_slot() -> None:
    """A run that is cancelled inside the block leaves it, and the next enters at that moment."""
    with Environment() as env:
        holder = env.start_workflow(hold, "h", 1, 1000.0)
        behind = env.start_workflow(hold, "h", 1, 5.0)
        before = env.now().timestamp()
        env.after(seconds=3).cancel(holder)
        assert behind.result()[0] - before == 3


@pytest.mark.usefixtures("by_workflow")
def test_cancelled_scope_returns_its_slot() -> None:
    """A timeout or a cancelled scope ends the block and returns the slot, without an effect on the keeper."""
    with Environment() as env:
        assert env.execute_workflow(scoped, "b") == "left"
        assert env.execute_workflow(timed, "b") == "too long"
        assert is_idle(keeper(env, "b").query(SlotKeeper.slots))
        kinds = [event["eventType"] for event in keeper(env, "b").history().events]
        assert "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED" not in kinds
        assert keeper(env, "b").describe().status is WorkflowStatus.RUNNING
        env.start_workflow(hold, "b", 2, 100.0)
        env.start_workflow(hold, "b", 2, 100.0)
        env.skip(1)
        assert env.execute_workflow(timed, "b") == "too long"
        assert len(keeper(env, "b").query(SlotKeeper.slots).held) == 2


@pytest.mark.parametrize("waited", [0.0, 3600.0])
def test_terminated_holder_loses_its_slot(waited: float, kept_by: str) -> None:
    """Nobody hears from a run that was terminated: the slot is free within `notice`, at once where nobody had looked for long."""
    with Environment() as env:
        holder = env.start_workflow(hold, "dead", 1, 1e6)
        env.skip(waited)
        holder.terminate("out of patience")
        before = env.now().timestamp()
        entered, _ = env.execute_workflow(hold, "dead", 1, 1.0)
        assert entered - before <= (0.0 if waited or kept_by == "engine" else 10.0)


@pytest.mark.usefixtures("by_workflow")
def test_busy_key_does_not_delay_the_check_of_holders() -> None:
    """Frequent requests do not postpone the check."""
    with Environment() as env:
        holder = env.start_workflow(hold, "busy", 1, 1e6)
        holder.terminate()
        before = env.now().timestamp()
        handles = []
        for _ in range(20):
            handles.append(env.start_workflow(hold, "busy", 1, 0.5))
            env.skip(1)
        assert handles[0].result()[0] - before <= 10


@pytest.mark.usefixtures("by_workflow")
def test_other_slots_do_not_delay_the_check_of_holders() -> None:
    """Runs that enter beside it do not postpone the check either."""
    with Environment() as env:
        holder = env.start_workflow(hold, "beside", 2, 1e6)
        holder.terminate()
        for _ in range(60):
            env.start_workflow(hold, "beside", 2, 1.0)
        env.skip(20)
        places = keeper(env, "beside").query(SlotKeeper.slots)
        assert places.waiting
        assert holder.id not in {place.workflow_id for place in places.held}


@pytest.mark.usefixtures("by_workflow")
def test_living_holder_keeps_its_slot() -> None:
    """However often it is checked, a holder keeps its slot until it leaves, and is checked less and less often."""
    with Environment() as env:
        holder = env.start_workflow(hold, "alive", 1, 7200.0)
        behind = env.start_workflow(hold, "alive", 1, 1.0)
        assert behind.result()[0] == holder.result()[1]
        signals = [
            event for event in holder.history().events if event["eventType"].endswith("EXECUTION_SIGNALED")
        ]
        assert 60 < len(signals) < 70


def test_terminated_waiter_is_skipped() -> None:
    """A run that was terminated in the queue does not delay those behind it."""
    with Environment() as env:
        holder = env.start_workflow(hold, "q", 1, 10.0)
        waiting = env.start_workflow(hold, "q", 1, 10.0)
        behind = env.start_workflow(hold, "q", 1, 1.0)
        waiting.terminate()
        assert behind.result()[0] == holder.result()[1]


def test_nested_slot_of_the_same_key_is_rejected() -> None:
    """A block that would wait for itself raises an error."""
    with Environment() as env:
        with pytest.raises(WorkflowParked) as caught:
            env.execute_workflow(nested, "n")
        assert isinstance(caught.value.__cause__, UsageError)
        assert "inside a block that already holds one" in str(caught.value.__cause__)


def test_continue_as_new_leaves_the_block() -> None:
    """A run that continues as new out of the block has given its slot back, and its successor gets one."""
    with Environment() as env:
        assert env.execute_workflow(chain, 3) == 0


def test_slots_survive_a_worker_crash() -> None:
    """Holders, waiters and the keeper are rebuilt from their histories."""
    with Environment() as env:
        handles = [env.start_workflow(hold, "crash", 2, 10.0) for _ in range(6)]
        for _ in range(5):
            env.skip(4)
            env.crash()
        assert most_at_once([handle.result() for handle in handles]) == 2


@pytest.mark.usefixtures("by_workflow")
def test_keeper_continues_as_new_and_ends_when_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its history stays short however often the key is used, and it goes when nobody has used it for a while."""
    monkeypatch.setattr(_keepers, "_MANY_MESSAGES", 7)
    with Environment() as env:
        handles = [env.start_workflow(again_and_again, "long", 10) for _ in range(3)]
        assert [handle.result() for handle in handles] == [10, 10, 10]
        last = keeper(env, "long")
        assert last.describe().status is WorkflowStatus.RUNNING
        assert len(last.history().events) < 200
        runs = [each for each in env.client.list_workflows() if each.id == "hourglass.slots:long"]
        assert len(runs) >= 5
        env.skip(timedelta(minutes=2))
        assert last.describe().status is WorkflowStatus.COMPLETED
        assert env.execute_workflow(hold, "long", 1, 1.0)


@pytest.mark.usefixtures("by_workflow")
def test_keeper_ignores_cancellation() -> None:
    """Cancelling the keeper does not strand the waiting runs."""
    with Environment() as env:
        holder = env.start_workflow(hold, "k", 1, 10.0)
        behind = env.start_workflow(hold, "k", 1, 1.0)
        keeper(env, "k").cancel()
        assert behind.result()[0] == holder.result()[1]


def test_terminated_keeper_is_replaced(kept_by: str) -> None:
    """Those who wait ask again after a while, and a new keeper serves them."""
    with Environment() as env:
        env.start_workflow(hold, "gone", 1, 5.0)
        waiting = env.start_workflow(hold, "gone", 1, 1.0)
        before = env.now().timestamp()
        keeper(env, "gone").terminate()
        assert waiting.result()[0] - before == 60


def test_dynamic_signal_handler_does_not_receive_limit_messages() -> None:
    """Messages of a keeper do not reach the author's handlers."""
    with Environment() as env:
        assert env.execute_workflow(Dynamic.run) == []


@pytest.mark.parametrize(
    ("key", "limit", "words"),
    [("", 1, "must be a non-empty str"), ("k" * 201, 1, "at most 200"), ("k", 0, "at least 1")],
)
def test_invalid_slot_arguments_are_rejected(key: str, limit: int, words: str) -> None:
    """A key or limit that makes no sense is told in the workflow that gives it."""
    with Environment() as env:
        with pytest.raises(WorkflowParked) as caught:
            env.execute_workflow(hold, key, limit, 1.0)
        assert words in str(caught.value.__cause__)


Life = tuple[float, float, str]
LIVES = st.lists(
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
@given(LIVES, st.integers(1, 3))
def test_slot_limit_holds_under_random_faults(kept_by: str, lives: list[Life], limit: int) -> None:
    """With runs that come, are cancelled or terminated and workers that crash, no more than the limit hold slots, and all who
    stay get one.
    """
    with Environment() as env:
        handles: list[WorkflowHandle[Span]] = []
        ended: dict[int, float] = {}
        for number, (gap, seconds, fate) in enumerate(lives):
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
