"""`Environment`: workflows in a test, on virtual time."""

from __future__ import annotations

import gc
import json
import weakref
from datetime import UTC, datetime, timedelta

import pytest

from hourglass import Worker, workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import (
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
    always_fails,
    approval,
    approval_in_time,
    browse,
    buggy,
    calls_by_name,
    charge,
    checkout,
    decisions,
    fetch,
    ship,
)

ORDER = Order("o-1", 1200)


def test_workflow_that_sleeps_thirty_days_completes_on_virtual_time() -> None:
    with Environment() as env:
        before = env.now()
        assert env.execute_workflow(checkout, ORDER) == "charged o-1"
        assert env.now() - before == timedelta(days=30)


def test_environment_records_activity_calls_with_attempt_and_time() -> None:
    with Environment(start=datetime(2030, 1, 1, tzinfo=UTC)) as env:
        env.fake(charge, returns="c-1", raises=[ConnectionError("no"), ConnectionError("still no")])
        env.fake(ship)
        assert env.execute_workflow(checkout, ORDER) == "c-1"
        assert env.calls(charge) == [call("o-1", 1200)] * 3
        assert env.calls("charge")[0] == call(order_id="o-1", cents=1200)
        assert env.calls(charge)[0] != call("o-1")
        assert [recorded.attempt for recorded in env.calls(charge)] == [1, 2, 3]
        assert [recorded.time for recorded in env.calls(charge)] == [
            datetime(2030, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 1, 3)
        ]
        assert env.calls(ship) == [call("o-1")]
        assert env.calls(fetch) == []


def test_virtual_time_advances_only_while_the_test_waits() -> None:
    with Environment() as env:
        env.fake(charge, returns="c-1")
        before = env.now()
        handle = env.start_workflow(checkout, ORDER, id="order-1")
        assert isinstance(handle, WorkflowHandle)
        assert env.calls(charge) == [call("o-1", 1200)]
        assert handle.describe().status.name == "RUNNING"
        assert env.now() == before
        assert env.calls(ship) == []


def test_skip_advances_virtual_time_and_runs_due_timers() -> None:
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


def test_scheduled_signals_arrive_at_their_virtual_time() -> None:
    with Environment() as env:
        before = env.now()
        handle = env.start_workflow(approval_in_time, "a")
        env.after(days=3).signal(handle, decisions, "yes")
        assert handle.result() == "a: yes"
        assert env.now() - before == timedelta(days=3)
        late = env.start_workflow(approval_in_time, "b")
        env.after(timedelta(days=8)).signal(late, "decision", "yes")
        assert late.result() == "b: too late"


def test_unknown_part_of_a_duration_is_rejected() -> None:
    with Environment() as env:
        with pytest.raises(
            TypeError, match=r"after\(\) got an unexpected keyword argument 'day'; .* weeks, days"
        ):
            env.after(day=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"skip\(\) got an unexpected keyword argument 'milliseconds'"):
            env.skip(milliseconds=3)  # type: ignore[call-arg]


def test_scheduled_cancel_terminate_and_call_happen_at_their_virtual_time() -> None:
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


def test_error_of_a_scheduled_action_is_raised_by_the_wait() -> None:
    with Environment() as env:
        handle = env.start_workflow(always_fails)
        env.after(days=1).signal(handle, "too-late")
        with pytest.raises(WorkflowNotFoundError) as caught:
            env.skip(days=2)
        assert "too-late" not in str(caught.value)
        assert any("signal to" in note for note in caught.value.__notes__)


def test_parked_run_raises_workflow_parked_at_every_wait() -> None:
    with Environment() as env:
        handle = env.start_workflow(buggy, id="b-1")
        for _ in range(2):
            with pytest.raises(WorkflowParked, match=r"shop\.py:\d+: a bug") as caught:
                handle.result()
            assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(WorkflowParked):
            env.client.get_workflow_handle("b-1").result()


def test_skip_raises_once_for_a_parked_run() -> None:
    with Environment() as env:
        env.start_workflow(buggy)
        with pytest.raises(WorkflowParked):
            env.skip(1)
        assert env.execute_workflow(checkout, ORDER) == "charged o-1"


def test_run_that_waits_forever_raises_workflow_stuck_with_its_line() -> None:
    with Environment() as env:
        handle = env.start_workflow(approval, "a", id="stuck-1")
        with pytest.raises(WorkflowStuck, match=r"'stuck-1' waits at .*shop\.py:\d+ for a signal"):
            handle.result()
        handle.signal(decisions, "yes")
        assert handle.result() == "a: yes"


def test_horizon_stops_an_endless_workflow() -> None:
    @workflow.defn
    def forever() -> None:
        while True:
            workflow.sleep(timedelta(days=1))

    with Environment(horizon=timedelta(days=100)) as env, pytest.raises(WorkflowStuck, match="horizon"):
        env.execute_workflow(forever)


def test_result_timeout_counts_virtual_time() -> None:
    with Environment() as env:
        before = env.now()
        handle = env.start_workflow(checkout, ORDER)
        with pytest.raises(TimeoutError):
            handle.result(timeout=timedelta(days=2))
        assert env.now() - before == timedelta(days=2)
        assert handle.result() == "charged o-1"


def test_query_is_answered_after_all_steps_that_need_no_time() -> None:
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


def test_unknown_workflow_and_activity_types_raise_in_the_test() -> None:
    with Environment() as env:
        with pytest.raises(UnknownTypeError, match="charge-by-name"):
            env.execute_workflow(calls_by_name, "o")
        with pytest.raises(WorkflowParked, match="workflow type 'nobody' is not registered"):
            env.execute_workflow("nobody")


def test_environment_used_outside_its_with_block_is_rejected() -> None:
    env = Environment()
    with pytest.raises(UsageError, match="not open"):
        env.now()
    with env:
        handle = env.start_workflow(approval, "a")
        with pytest.raises(UsageError, match="already opened"):
            env.open()
    env.close()
    for use in (
        lambda: env.execute_workflow(always_fails),
        handle.result,
        lambda: env.skip(1),
        handle.describe,
    ):
        with pytest.raises(UsageError, match="closed"):
            use()


def test_environment_client_cannot_be_closed_or_passed_to_a_worker() -> None:
    with Environment() as env:
        with pytest.raises(UsageError, match="do not close the client, and do not pass it to a Worker"):
            env.client.close()
        with pytest.raises(UsageError, match="do not close the client, and do not pass it to a Worker"):
            Worker(env.client, workflows=[always_fails]).start()


def test_closed_environment_frees_its_engine_and_driver() -> None:
    with Environment() as env:
        env.fake(charge, returns="c-1", raises=[ConnectionError("down")])
        env.fake(ship, returns=None)  # the threads of real activities would keep the environment in memory
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


def test_two_open_environments_are_independent() -> None:
    with Environment() as first_env, Environment() as second_env:
        first_env.fake(charge, returns="one")
        second_env.fake(charge, returns="other")
        first = first_env.start_workflow(checkout, ORDER, id="same")
        second = second_env.start_workflow(checkout, ORDER, id="same")
        first_env.skip(days=10)
        assert second_env.now() < first_env.now()
        assert (second.result(), first.result()) == ("other", "one")


def test_environment_detects_nondeterminism_and_forbidden_calls() -> None:
    numbers = iter(range(1000))

    @workflow.defn
    def nondeterministic() -> None:
        charge(f"o-{next(numbers)}")

    with Environment() as env, pytest.raises(WorkflowParked) as caught:
        env.execute_workflow(nondeterministic)
    assert type(caught.value.__cause__).__name__ == "NondeterminismError"

    @workflow.defn
    def reads_the_clock() -> str:
        return datetime.now().isoformat()

    with Environment(watch="error", verify="off") as env, pytest.raises(WorkflowParked, match="datetime"):
        env.execute_workflow(reads_the_clock)


def test_open_run_is_verified_when_the_environment_closes_unless_the_test_failed() -> None:
    numbers = iter(range(1000))

    @workflow.defn
    def nondeterministic() -> None:
        workflow.sleep(timedelta(days=1 + next(numbers)))

    with pytest.raises(WorkflowParked) as caught, Environment() as env:
        env.start_workflow(nondeterministic)
    assert isinstance(caught.value.__cause__, NondeterminismError)

    def fail() -> None:
        with Environment() as env:
            env.start_workflow(nondeterministic)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with Environment(verify="off") as env:
        env.start_workflow(nondeterministic)


def test_workflow_continues_after_a_simulated_worker_crash() -> None:
    with Environment() as env:
        env.fake(charge, returns="c-1")
        handle = env.start_workflow(checkout, ORDER)
        env.skip(days=3)
        env.crash()
        assert handle.result() == "c-1"
        assert len(env.calls(charge)) == 1


def test_run_whose_code_changed_is_parked_after_a_simulated_crash() -> None:
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


def test_environment_serves_every_task_queue() -> None:
    @workflow.defn
    def elsewhere() -> str:
        return charge.options(task_queue="far")("o-1")

    with Environment() as env:
        assert env.execute_workflow(elsewhere, task_queue="near") == "charged o-1"


def test_environment_handle_returns_the_history() -> None:
    with Environment() as env:
        handle = env.start_workflow(browse, "u")
        handle.result()
        events = json.loads(handle.history().to_json())["events"]
        assert events[-1]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
