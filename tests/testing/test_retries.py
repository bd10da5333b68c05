"""Attempts that fail, and what is kept of them: told exactly, however cheaply they are made."""

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
def by_name_with_the_wrong_thing() -> object:
    return workflow.execute_activity("pack", 7, start_to_close_timeout=timedelta(minutes=1))


executed: list[str] = []


def test_retry_backoff_takes_virtual_time() -> None:
    """Ten failures are ten calls, each twice as long after the last, and only the eleventh has returned."""
    with Environment() as env:
        begun = env.now()
        env.fake(pack, returns=2, raises=[ConnectionError(f"no {n}") for n in range(10)])
        assert env.execute_workflow(parcel, ["a", "b"]) == 2
        calls = env.calls(pack)
        assert calls == [call(["a", "b"])] * 11
        assert [each.attempt for each in calls] == list(range(1, 12))
        assert [each.returned for each in calls] == [False] * 10 + [True]
        assert [each.time - begun for each in calls] == [timedelta(minutes=2**n - 1) for n in range(11)]
        assert env.now() - begun == timedelta(minutes=2**10 - 1, days=30)


def test_recorded_calls_are_not_shared() -> None:
    """What a fake does to its arguments reaches no call, no call shares its arguments, and calls stay the same ones."""

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


def test_uncallable_activity_records_no_call() -> None:
    """Arguments that an activity cannot take fail it, with no call."""
    with Environment(activities=[pack]) as env, pytest.raises(WorkflowFailedError) as caught:
        env.execute_workflow(by_name_with_the_wrong_thing)
    assert isinstance(caught.value.__cause__, ActivityError)
    with Environment() as env:
        env.fake(pack, lambda items: 1)
        with pytest.raises(WorkflowFailedError):
            env.execute_workflow(by_name_with_the_wrong_thing)
        assert env.calls(pack) == []


def test_last_failure_is_complete() -> None:
    """The failure that ends the retries arrives with its message, its type and its details."""
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


def test_parked_run_is_not_retried_while_time_passes() -> None:
    """After its bug a run stays as it is, however much time passes for the others."""
    executed.clear()
    with Environment() as env:
        with pytest.raises(WorkflowParked):
            env.start_workflow(careless, "o-1").result()
        env.fake(pack, returns=1, raises=[OSError()] * 5)
        assert env.execute_workflow(parcel, ["a"]) == 1
        assert executed == ["o-1"]
