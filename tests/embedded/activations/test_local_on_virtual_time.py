"""Local activities and update info of workflows in the test environment, on virtual time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError
from hourglass.testing import Environment


@activity.defn(retry_policy=RetryPolicy(initial_interval=10, backoff_coefficient=3.0, maximum_attempts=4))
def fetch(name: str) -> str:
    raise NotImplementedError(name)


@workflow.defn
def fetches(name: str) -> str:
    return fetch.local(name)


def test_local_activity_backoff_uses_virtual_time() -> None:
    """Pauses of 10 s and 30 s pass within the workflow task; the pause of 90 s becomes a timer."""
    with Environment() as env:
        env.fake(fetch, returns="here", raises=[ApplicationError("no")] * 3)
        before = env.now()
        assert env.execute_workflow(fetches, "x") == "here"
        assert env.now() - before == timedelta(seconds=130)
        assert [call.attempt for call in env.calls(fetch)] == [1, 2, 3, 4]


def test_long_local_activity_heartbeats_its_workflow_task() -> None:
    with Environment() as env:
        env.fake(fetch, returns="late", takes=60)
        handle = env.start_workflow(fetches, "x")
        assert handle.result() == "late"
        kinds = [event["eventType"] for event in handle.history().events]
        assert kinds.count("EVENT_TYPE_WORKFLOW_TASK_COMPLETED") == 8
        assert "EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT" not in kinds


def test_local_activity_runs_again_after_worker_crash() -> None:
    with Environment() as env:
        env.fake(fetch, returns="again", takes=5)
        handle = env.start_workflow(fetches, "x")
        env.skip(2)
        env.crash()
        assert handle.result() == "again"
        assert len(env.calls(fetch)) == 2


@workflow.defn
def fails_with_local_timeout() -> list[Any]:
    try:
        fetch.options(start_to_close_timeout=5, retry_policy=RetryPolicy(maximum_attempts=1)).local("x")
    except ActivityError as error:
        return [error.message, type(error.__cause__).__name__]
    return []


def test_local_activity_times_out_on_virtual_time() -> None:
    with Environment() as env:
        env.fake(fetch, returns="late", takes=60)
        assert env.execute_workflow(fails_with_local_timeout) == ["Local Activity timed out", "TimedOutError"]


@workflow.defn
class UpdateInfoWorkflow:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @workflow.run
    def run(self) -> list[Any]:
        self.seen.append(workflow.current_update_info())
        workflow.wait_condition(lambda: len(self.seen) == 3)
        info = workflow.info()
        return [*self.seen, info.priority_key, dict(info.headers), info.parent_namespace]

    @workflow.update
    def record_update_info(self) -> None:
        own = workflow.current_update_info()
        assert own is not None
        self.seen.append([own.id, own.name])
        self.seen.append(workflow.spawn(self.update_info_of_fiber).result())

    def update_info_of_fiber(self) -> list[str]:
        workflow.sleep(1)
        own = workflow.current_update_info()
        assert own is not None
        return [own.id, own.name]

    @record_update_info.validator
    def check(self) -> None:
        own = workflow.current_update_info()
        assert own is not None
        assert own.name == "record_update_info"


def test_current_update_info_is_available_in_handler_validator_and_fiber() -> None:
    with Environment() as env:
        handle = env.start_workflow(UpdateInfoWorkflow.run)
        handle.execute_update(UpdateInfoWorkflow.record_update_info, id="u-1")
        assert handle.result() == [
            None,
            ["u-1", "record_update_info"],
            ["u-1", "record_update_info"],
            0,
            {},
            None,
        ]
