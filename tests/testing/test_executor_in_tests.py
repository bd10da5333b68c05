"""Activities in an environment behave as in a worker: heartbeats, cancellation, interceptors, contexts, progress."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import hourglass.aio.activity
from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, Cancelled, CancelledError, WorkflowFailedError
from hourglass.interceptors import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from hourglass.testing import Environment, call

from .shop import charge

ONCE = RetryPolicy(maximum_attempts=1)


def test_automatic_heartbeats_keep_a_real_activity_alive_during_virtual_time() -> None:
    @workflow.defn
    def sleeps() -> str:
        workflow.sleep(timedelta(hours=5))
        return "slept"

    @activity.defn(start_to_close_timeout=timedelta(days=1), retry_policy=ONCE)
    def start_another() -> str:
        return activity.client().execute_workflow(sleeps)

    @workflow.defn
    def outer() -> str:
        return start_another()

    with Environment(workflows=[sleeps]) as env:
        before = env.now()
        assert env.execute_workflow(outer) == "slept"
        assert env.now() - before == timedelta(hours=5)
        assert [attempt.attempt for attempt in env.calls(start_another)] == [1]


def test_cancellation_interrupts_a_blocking_aio_activity() -> None:
    running, interrupted = threading.Event(), threading.Event()

    @hourglass.aio.activity.defn
    def computes() -> None:
        try:
            running.set()
            while True:
                time.sleep(0.001)  # the thread must be between two bytecodes, not in a wait
        except CancelledError:
            interrupted.set()
            raise

    @workflow.defn
    def outer() -> str:
        try:
            workflow.execute_activity(computes, start_to_close_timeout=60)
        except Cancelled:
            return "cancelled"
        return "returned"

    with Environment() as env:
        handle = env.start_workflow(outer)
        assert running.wait(30)
        handle.cancel()
        assert handle.result() == "cancelled"
        assert interrupted.wait(30)


def test_async_activity_cancelled_before_its_first_line_never_runs() -> None:
    blocked, free, begun = threading.Event(), threading.Event(), []

    @activity.defn
    async def blocks() -> None:
        blocked.set()
        free.wait(30)

    @activity.defn
    async def waits() -> None:
        begun.append("waits")

    @workflow.defn
    def outer() -> str:
        workflow.spawn(blocks)
        waiting = workflow.spawn(waits)
        try:
            waiting.result()
        except Cancelled:
            return "cancelled"
        return "returned"

    with Environment() as env:
        handle = env.start_workflow(outer)
        assert blocked.wait(30)
        handle.cancel()
        free.set()
        assert handle.result() == "cancelled"
    assert begun == []


class Recorder(ActivityInboundInterceptor):
    """Record the outcome of each call."""

    def __init__(self, next: ActivityInboundInterceptor, calls: list[str]) -> None:
        super().__init__(next)
        self._calls = calls

    def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            result = super().execute_activity(input)
        except Exception as error:
            self._calls.append(f"{input.activity} raised {error}")
            raise
        self._calls.append(f"{input.activity} returned {result}")
        return result


class RecordingInterceptor(Interceptor):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Recorder(next, self.calls)


@workflow.defn
def charges() -> str:
    return charge.options(retry_policy=RetryPolicy(maximum_attempts=3))("a", 5)


def test_interceptors_see_exceptions_raised_by_fakes() -> None:
    recording = RecordingInterceptor()
    with Environment(interceptors=[recording]) as env:
        env.fake(charge, returns="c-1", raises=[ConnectionError("down"), None])
        assert env.execute_workflow(charges) == "c-1"
        assert env.calls(charge) == [call("a", 5)] * 2
    assert recording.calls == ["charge raised down", "charge returned c-1"]


def test_planned_failures_of_fakes_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Environment() as env:
        env.fake(charge, raises=ConnectionError("down"))
        with pytest.raises(WorkflowFailedError) as caught:
            env.execute_workflow(charges)
    assert isinstance(caught.value.__cause__, ActivityError)
    assert not [
        record
        for record in caplog.records
        if "charge" in record.getMessage() and "attempt" in record.getMessage()
    ]


def test_local_activities_of_two_task_queues_have_separate_results() -> None:
    @activity.defn
    def where(name: str) -> str:
        return f"{name} on {activity.info().task_queue}"

    @workflow.defn
    def local(name: str) -> str:
        return where.local(name)

    with Environment() as env:
        env.fake(where, lambda name: f"{name} on {activity.info().task_queue}", takes=5)
        handles = [env.start_workflow(local, queue, task_queue=queue) for queue in ("one", "two")]
        assert [handle.result() for handle in handles] == ["one on one", "two on two"]


def test_exploration_with_the_same_seed_repeats_every_order() -> None:
    @activity.defn
    async def on_loop(number: int) -> int:
        activity.heartbeat(number)
        return number

    @activity.defn
    def on_thread(number: int) -> int:
        activity.heartbeat(number)
        return number

    @workflow.defn
    def both() -> list[object]:
        def one(number: int) -> object:
            try:
                return (charge("a", number), on_loop(number), on_thread(number))
            except ActivityError as error:
                return type(error.cause).__name__

        return list(workflow.gather(*[workflow.spawn(one, number) for number in range(3)]))

    def orders(seed: int) -> list[object]:
        seen: list[object] = []

        def check(result: object, env: Environment) -> bool:
            calls = [
                (str(recorded), recorded.time, recorded.returned)
                for kind in (charge, on_loop, on_thread)
                for recorded in env.calls(kind)
            ]
            seen.append((str(result), env.now(), tuple(calls)))
            return True

        with Environment() as env:
            env.fake(charge, returns="c", takes=90)
            report = env.explore(both, check=check, runs=25, seed=seed)
        return [*seen, str(report)]

    first = orders(3)
    assert first == orders(3)
    assert len({str(order) for order in first}) > 10
    assert first != orders(4)
