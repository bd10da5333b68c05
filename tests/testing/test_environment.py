"""`Environment`: workflows in a test, on virtual time, with nothing to set up."""

from __future__ import annotations

import gc
import json
import weakref
from datetime import UTC, datetime, timedelta

import pytest

from hourglass import Worker, workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import (
    ApplicationError,
    CancelledError,
    NondeterminismError,
    UnknownTypeError,
    UsageError,
    WorkflowFailedError,
    WorkflowNotFoundError,
    WorkflowParked,
    WorkflowStuck,
)
from hourglass.testing import Environment, call

from .shop import (
    Order,
    approval,
    approval_in_time,
    browse,
    buggy,
    by_name,
    charge,
    checkout,
    decisions,
    doomed,
    fetch,
    ship,
)

ORDER = Order("o-1", 1200)


def test_month_passes_on_virtual_time() -> None:
    """A workflow that is listed nowhere runs with its real activities, and sleeps thirty days of virtual time."""
    with Environment() as env:
        before = env.now()
        assert env.execute_workflow(checkout, ORDER) == "charged o-1"
        assert env.now() - before == timedelta(days=30)


def test_calls_are_recorded_with_attempt_and_time() -> None:
    """Every attempt is a call, with the arguments however they are written, its number and its virtual time."""
    with Environment(start=datetime(2030, 1, 1, tzinfo=UTC)) as env:
        env.fake(charge, returns="c-1", raises=[ConnectionError("no"), ConnectionError("still no")])
        env.fake(ship)
        assert env.execute_workflow(checkout, ORDER) == "c-1"
        assert env.calls(charge) == [call("o-1", 1200)] * 3
        assert env.calls("charge")[0] == call(order_id="o-1", cents=1200)
        assert env.calls(charge)[0] != call("o-1")
        assert [each.attempt for each in env.calls(charge)] == [1, 2, 3]
        assert [each.time for each in env.calls(charge)] == [
            datetime(2030, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 1, 3)
        ]
        assert env.calls(ship) == [call("o-1")]
        assert env.calls(fetch) == []


def test_virtual_time_advances_only_while_waiting() -> None:
    """Starting, signalling and asking take no virtual time; what can happen without time has happened."""
    with Environment() as env:
        env.fake(charge, returns="c-1")
        before = env.now()
        handle = env.start_workflow(checkout, ORDER, id="order-1")
        assert isinstance(handle, WorkflowHandle)
        assert env.calls(charge) == [call("o-1", 1200)]
        assert handle.describe().status.name == "RUNNING"
        assert env.now() == before
        assert env.calls(ship) == []


def test_skip_advances_virtual_time() -> None:
    """`skip` does what is due on the way and stops exactly where it should."""
    with Environment() as env:
        env.fake(charge, returns="c-1")
        before = env.now()
        handle = env.start_workflow(checkout, ORDER)
        env.skip(days=29, hours=23)
        assert env.calls(ship) == []
        env.skip(timedelta(hours=1))
        assert env.calls(ship) == [call("o-1")]
        env.skip(0.5)
        assert env.now() - before == timedelta(days=30, milliseconds=500)
        assert handle.result() == "c-1"
        assert env.now() - before == timedelta(days=30, milliseconds=500)


def test_signals_arrive_at_their_scheduled_time() -> None:
    """`after` sends a signal at a chosen virtual time, by channel or by name."""
    with Environment() as env:
        before = env.now()
        handle = env.start_workflow(approval_in_time, "a")
        env.after(days=3).signal(handle, decisions, "yes")
        assert handle.result() == "a: yes"
        assert env.now() - before == timedelta(days=3)
        late = env.start_workflow(approval_in_time, "b")
        env.after(timedelta(days=8)).signal(late, "decision", "yes")
        assert late.result() == "b: too late"


def test_scheduled_cancel_and_terminate() -> None:
    """`after` and `at` cancel and terminate too, and call functions that use the environment."""
    with Environment() as env:
        before = env.now()
        cancelled, ended = env.start_workflow(approval, "a"), env.start_workflow(approval, "b")
        env.at(before + timedelta(hours=1)).cancel(cancelled)
        env.after(hours=2).terminate(ended, "enough")
        seen: list[datetime] = []
        env.after(hours=3).call(lambda: seen.append(env.now()))
        with pytest.raises(WorkflowFailedError) as caught:
            cancelled.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert env.now() - before == timedelta(hours=1)
        with pytest.raises(WorkflowFailedError, match="enough"):
            ended.result()
        env.skip(hours=1)
        assert seen == [before + timedelta(hours=3)]


def test_failing_scheduled_action_is_raised_by_the_wait() -> None:
    """A signal that comes too late is the test's own error, and says when it was to come."""
    with Environment() as env:
        handle = env.start_workflow(doomed)
        env.after(days=1).signal(handle, "too-late")
        with pytest.raises(WorkflowNotFoundError) as caught:
            env.skip(days=2)
        assert "too-late" not in str(caught.value)
        assert any("signal to" in note for note in caught.value.__notes__)


def test_failed_run_raises_like_a_client() -> None:
    """A run that fails raises what a client's handle raises."""
    with Environment() as env, pytest.raises(WorkflowFailedError) as caught:
        env.execute_workflow(doomed)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "Doom"


def test_parked_run_raises_at_once() -> None:
    """A bug in workflow code is raised by the first wait, with the line and the exception itself, every time."""
    with Environment() as env:
        handle = env.start_workflow(buggy, id="b-1")
        for _ in range(2):
            with pytest.raises(WorkflowParked, match=r"shop\.py:\d+: a bug") as caught:
                handle.result()
            assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(WorkflowParked):
            env.client.get_workflow_handle("b-1").result()


def test_skip_raises_for_a_parked_run() -> None:
    """Nobody passes by a parked run unawares, but it is told once, and others go on."""
    with Environment() as env:
        env.start_workflow(buggy)
        with pytest.raises(WorkflowParked):
            env.skip(1)
        assert env.execute_workflow(checkout, ORDER) == "charged o-1"


def test_stuck_run_is_reported() -> None:
    """Waiting for a signal that nobody sends raises at once, and says where the workflow stands."""
    with Environment() as env:
        handle = env.start_workflow(approval, "a", id="stuck-1")
        with pytest.raises(WorkflowStuck, match=r"'stuck-1' waits at .*shop\.py:\d+ for a signal"):
            handle.result()
        handle.signal(decisions, "yes")
        assert handle.result() == "a: yes"


def test_horizon_stops_an_endless_workflow() -> None:
    """A workflow that sleeps again and again is stopped at the horizon, not by the patience of whoever waits."""

    @workflow.defn
    def forever() -> None:
        while True:
            workflow.sleep(timedelta(days=1))

    with Environment(horizon=timedelta(days=100)) as env, pytest.raises(WorkflowStuck, match="horizon"):
        env.execute_workflow(forever)


def test_result_timeout_is_virtual() -> None:
    """`result(timeout=…)` counts virtual time, and the run goes on."""
    with Environment() as env:
        before = env.now()
        handle = env.start_workflow(checkout, ORDER)
        with pytest.raises(TimeoutError):
            handle.result(timeout=timedelta(days=2))
        assert env.now() - before == timedelta(days=2)
        assert handle.result() == "charged o-1"


def test_queries_see_a_settled_state() -> None:
    """A query is answered when everything has happened that takes no time."""

    @workflow.defn
    class Progress:
        def __init__(self) -> None:
            self.state = "new"

        @workflow.run
        def run(self) -> str:
            charge("a")
            self.state = "charged"
            workflow.sleep(60)
            return self.state

        @workflow.query
        def now(self) -> str:
            return self.state

    with Environment() as env:
        env.fake(charge, returns="x")
        handle = env.start_workflow(Progress.run)
        assert handle.query(Progress.now) == "charged"
        assert handle.result() == "charged"


def test_unknown_types_are_reported_at_once() -> None:
    """A name that nobody knows is an error of the test, not a retry for ever."""
    with Environment() as env:
        with pytest.raises(UnknownTypeError, match="charge-by-name"):
            env.execute_workflow(by_name, "o")
        with pytest.raises(WorkflowParked, match="workflow type 'nobody' is not registered"):
            env.execute_workflow("nobody")


def test_environment_cannot_be_used_outside_its_block() -> None:
    """It is used after it is opened, before it is closed, and once; each misuse says so."""
    env = Environment()
    with pytest.raises(UsageError, match="not open"):
        env.now()
    with env:
        handle = env.start_workflow(approval, "a")
        with pytest.raises(UsageError, match="opened before"):
            env.open()
    env.close()
    for use in (lambda: env.execute_workflow(doomed), handle.result, lambda: env.skip(1), handle.describe):
        with pytest.raises(UsageError, match="closed"):
            use()


def test_environment_client_cannot_be_closed_or_reused() -> None:
    """Its client is neither closed nor given to a worker, and says why."""
    with Environment() as env:
        with pytest.raises(UsageError, match="do not close the client, and do not pass it to a Worker"):
            env.client.close()
        with pytest.raises(UsageError, match="do not close the client, and do not pass it to a Worker"):
            Worker(env.client, workflows=[doomed]).start()


def test_closed_environment_is_freed() -> None:
    """A closed environment answers until the test drops it; then nothing keeps its engine and its driver in memory."""
    with Environment() as env:
        env.fake(charge, returns="c-1", raises=[ConnectionError("down")])
        env.fake(ship, returns=None)  # real activities have threads, which keep it until they end
        handle = env.start_workflow(checkout, ORDER)
        handle.result()
        engine = weakref.ref(env._fixture.driver.engine)
        driver = weakref.ref(env._fixture.driver)
    assert len(env.calls(charge)) == 2
    with pytest.raises(UsageError, match="closed"):
        handle.result()
    del env, handle
    gc.collect()
    assert (engine(), driver()) == (None, None)


def test_open_environments_are_independent() -> None:
    """Environments that are open together have their own runs, ids, times and fakes."""
    with Environment() as one, Environment() as other:
        one.fake(charge, returns="one")
        other.fake(charge, returns="other")
        first = one.start_workflow(checkout, ORDER, id="same")
        second = other.start_workflow(checkout, ORDER, id="same")
        one.skip(days=10)
        assert other.now() < one.now()
        assert (second.result(), first.result()) == ("other", "one")


def test_nondeterminism_is_detected() -> None:
    """A workflow that is not deterministic is found, as by a worker in development."""
    numbers = iter(range(1000))

    @workflow.defn
    def moody() -> None:
        charge(f"o-{next(numbers)}")

    with Environment() as env, pytest.raises(WorkflowParked) as caught:
        env.execute_workflow(moody)
    assert type(caught.value.__cause__).__name__ == "NondeterminismError"

    @workflow.defn
    def curious() -> str:
        return datetime.now().isoformat()

    with Environment(watch="error", verify="off") as env, pytest.raises(WorkflowParked, match="datetime"):
        env.execute_workflow(curious)


def test_open_run_is_verified_when_the_environment_closes() -> None:
    """One that is open at the end, and does something else when it is executed again, is told of there; not where the test
    has failed already.
    """
    numbers = iter(range(1000))

    @workflow.defn
    def moody() -> None:
        workflow.sleep(timedelta(days=1 + next(numbers)))

    with pytest.raises(WorkflowParked) as caught, Environment() as env:
        env.start_workflow(moody)
    assert isinstance(caught.value.__cause__, NondeterminismError)

    def fail() -> None:
        with Environment() as env:
            env.start_workflow(moody)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with Environment(verify="off") as env:
        env.start_workflow(moody)


def test_simulated_crash_loses_nothing() -> None:
    """After a crash runs are rebuilt from their histories and go on where they were."""
    with Environment() as env:
        env.fake(charge, returns="c-1")
        handle = env.start_workflow(checkout, ORDER)
        env.skip(days=3)
        env.crash()
        assert handle.result() == "c-1"
        assert len(env.calls(charge)) == 1


def test_run_of_changed_code_is_parked() -> None:
    """Code that changed under a run is found when the run is rebuilt, and raised instead of tried for ever."""
    changed: list[bool] = []

    @workflow.defn
    def changing() -> None:
        if changed:
            workflow.sleep(5)
        charge("a")
        workflow.sleep(timedelta(days=1))

    with Environment(verify="off") as env:
        env.start_workflow(changing)
        env.skip(hours=1)
        changed.append(True)
        env.crash()
        with pytest.raises(WorkflowParked) as caught:
            env.skip(days=2)
        assert isinstance(caught.value.__cause__, NondeterminismError)


def test_other_task_queues_are_served() -> None:
    """Workflows and activities on any task queue run, without a word about them."""

    @workflow.defn
    def elsewhere() -> str:
        return charge.options(task_queue="far")("o-1")

    with Environment() as env:
        assert env.execute_workflow(elsewhere, task_queue="near") == "charged o-1"


def test_histories_are_available() -> None:
    """Handles give histories, in virtual time."""
    with Environment() as env:
        handle = env.start_workflow(browse, "u")
        handle.result()
        events = json.loads(handle.history().to_json())["events"]
        assert events[-1]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
