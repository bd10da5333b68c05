"""Local activities, cron schedules and facts of workflows, through the whole of Hourglass, on virtual time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError
from hourglass.testing import Environment


@activity.defn(retry_policy=RetryPolicy(initial_interval=10, backoff_coefficient=3.0, maximum_attempts=4))
def fetch(name: str) -> str:
    """Never called for real here."""
    raise NotImplementedError(name)


@workflow.defn
def fetches(name: str) -> str:
    """One local activity."""
    return fetch.local(name)


def test_local_backoff_takes_virtual_time() -> None:
    """10 and 30 seconds pass within the task, 90 as a timer: nobody waits for real."""
    with Environment() as env:
        env.fake(fetch, returns="here", raises=[ApplicationError("no")] * 3)
        before = env.now()
        assert env.execute_workflow(fetches, "x") == "here"
        assert env.now() - before == timedelta(seconds=130)
        assert [each.attempt for each in env.calls(fetch)] == [1, 2, 3, 4]


def test_long_local_activity_sends_task_heartbeats_on_virtual_time() -> None:
    """A local activity that takes a minute of virtual time keeps its task alive by heartbeats."""
    with Environment() as env:
        env.fake(fetch, returns="late", takes=60)
        handle = env.start_workflow(fetches, "x")
        assert handle.result() == "late"
        kinds = [event["eventType"] for event in handle.history().events]
        assert kinds.count("EVENT_TYPE_WORKFLOW_TASK_COMPLETED") == 8
        assert "EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT" not in kinds


def test_lost_local_activity_runs_again() -> None:
    """What a worker lost with its process is executed by the next."""
    with Environment() as env:
        env.fake(fetch, returns="again", takes=5)
        handle = env.start_workflow(fetches, "x")
        env.skip(2)
        env.crash()
        assert handle.result() == "again"
        assert len(env.calls(fetch)) == 2


@workflow.defn
def fails_locally() -> list[Any]:
    """Says how its local activity failed."""
    try:
        fetch.options(start_to_close_timeout=5, retry_policy=RetryPolicy(maximum_attempts=1)).local("x")
    except ActivityError as error:
        return [error.message, type(error.__cause__).__name__]
    return []


def test_local_activity_times_out_on_virtual_time() -> None:
    """An attempt that takes longer than it may."""
    with Environment() as env:
        env.fake(fetch, returns="late", takes=60)
        assert env.execute_workflow(fails_locally) == ["Local Activity timed out", "TimedOutError"]


@workflow.defn
class Facts:
    """Tells which update it works for."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @workflow.run
    def run(self) -> list[Any]:
        self.seen.append(workflow.current_update_info())
        workflow.wait_condition(lambda: len(self.seen) == 3)
        info = workflow.info()
        return [*self.seen, info.priority_key, dict(info.headers), info.parent_namespace]

    @workflow.update
    def tell(self) -> None:
        own = workflow.current_update_info()
        assert own is not None
        self.seen.append([own.id, own.name])
        self.seen.append(workflow.spawn(self.inner).result())

    def inner(self) -> list[str]:
        workflow.sleep(1)
        own = workflow.current_update_info()
        assert own is not None
        return [own.id, own.name]

    @tell.validator
    def check(self) -> None:
        own = workflow.current_update_info()
        assert own is not None
        assert own.name == "tell"


def test_update_info_is_known_to_its_handler() -> None:
    """A handler, its validator and what it spawned know their update; the body has none."""
    with Environment() as env:
        handle = env.start_workflow(Facts.run)
        handle.execute_update(Facts.tell, id="u-1")
        assert handle.result() == [None, ["u-1", "tell"], ["u-1", "tell"], 0, {}, None]


@workflow.defn
def counts() -> int:
    """How many runs there were; fails at the third, and begins anew."""
    before = workflow.last_completion_result(int)
    failure = workflow.last_failure()
    if failure is not None:
        assert before == 2
        assert str(failure) == "three is enough"
        workflow.sleep(10**6)
    if before == 2:
        raise ApplicationError("three is enough")
    return (before or 0) + 1


def test_daily_schedule_on_virtual_time() -> None:
    """A run a day; each knows what the last one returned, and how the one before it failed."""
    with Environment() as env:
        env.start_workflow(counts, id="daily", cron_schedule="0 0 * * *")
        env.skip(timedelta(days=5))
        runs = list(env.client.list_workflows('WorkflowId = "daily"'))
        assert sorted(each.status.name for each in runs) == ["COMPLETED", "COMPLETED", "FAILED", "RUNNING"]
