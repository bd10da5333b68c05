"""Failed attempts in an environment: retry times, recorded calls and the last failure."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError, WorkflowFailedError, WorkflowParked
from hourglass.testing import Environment, call


@activity.defn(retry_policy=RetryPolicy(initial_interval=60, maximum_interval=100_000, maximum_attempts=12))
def pack(items: list[str]) -> int:
    return len(items)


@workflow.defn
def parcel(items: list[str]) -> int:
    packed = pack(items)
    workflow.sleep(timedelta(days=30))
    return packed


@workflow.defn
def careless(order: str) -> str:
    executed.append(order)
    raise RuntimeError("a bug")


@workflow.defn
def calls_by_name_with_a_wrong_argument() -> object:
    return workflow.execute_activity("pack", 7, start_to_close_timeout=timedelta(minutes=1))


executed: list[str] = []


def test_retry_backoff_takes_virtual_time_and_records_every_attempt() -> None:
    with Environment() as env:
        start_time = env.now()
        env.fake(pack, returns=2, raises=[ConnectionError(f"no {n}") for n in range(10)])
        assert env.execute_workflow(parcel, ["a", "b"]) == 2
        calls = env.calls(pack)
        assert calls == [call(["a", "b"])] * 11
        assert [attempt.attempt for attempt in calls] == list(range(1, 12))
        assert [attempt.returned for attempt in calls] == [False] * 10 + [True]
        assert [attempt.time - start_time for attempt in calls] == [
            timedelta(minutes=2**n - 1) for n in range(11)
        ]
        assert env.now() - start_time == timedelta(minutes=2**10 - 1, days=30)


def test_recorded_calls_do_not_share_arguments() -> None:
    def empty(items: list[str]) -> int:
        items.clear()
        return 0

    with Environment() as env:
        env.fake(pack, empty, raises=[OSError()])
        assert env.execute_workflow(parcel, ["a"]) == 0
        first, second = env.calls(pack)
        assert first == second == call(["a"])
        assert first.args[0] is not second.args[0]
        assert env.calls(pack)[0] is first


def test_activity_with_wrong_arguments_records_no_call() -> None:
    with Environment(activities=[pack]) as env, pytest.raises(WorkflowFailedError) as caught:
        env.execute_workflow(calls_by_name_with_a_wrong_argument)
    assert isinstance(caught.value.__cause__, ActivityError)
    with Environment() as env:
        env.fake(pack, lambda items: 1)
        with pytest.raises(WorkflowFailedError):
            env.execute_workflow(calls_by_name_with_a_wrong_argument)
        assert env.calls(pack) == []


def test_last_failure_of_the_retries_has_message_type_and_details() -> None:
    with Environment() as env:
        env.fake(pack, raises=ApplicationError("straße zu", 7, type="Closed"))
        with pytest.raises(WorkflowFailedError) as caught:
            env.execute_workflow(parcel, [])
        assert len(env.calls(pack)) == 12
        error = caught.value.__cause__
        assert isinstance(error, ActivityError)
        cause = error.__cause__
        assert isinstance(cause, ApplicationError)
        assert (cause.message, cause.type, cause.details) == ("straße zu", "Closed", (7,))


def test_parked_run_is_not_executed_again_while_virtual_time_advances() -> None:
    executed.clear()
    with Environment() as env:
        with pytest.raises(WorkflowParked):
            env.start_workflow(careless, "o-1").result()
        env.fake(pack, returns=1, raises=[OSError()] * 5)
        assert env.execute_workflow(parcel, ["a"]) == 1
        assert executed == ["o-1"]
