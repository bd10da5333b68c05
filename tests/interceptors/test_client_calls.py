"""Interception of every client call, for both clients on each engine, and of calls inside activities and workflows."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hourglass import activity, workflow
from hourglass.client import (
    AsyncClient,
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleIntervalSpec,
    ScheduleSpec,
    ScheduleState,
)
from hourglass.errors import ApplicationError, HourglassError
from hourglass.interceptors import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    AsyncClientOutboundInterceptor,
    ClientOutboundInterceptor,
    DescribeWorkflowInput,
    Interceptor,
    StartWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.testing import Environment
from hourglass.worker import Worker

from .caller_interceptor import with_outbound

METHODS = [name for name in vars(ClientOutboundInterceptor) if not name.startswith("_")]
tokens: dict[str, bytes] = {}
ready = threading.Event()


@activity.defn(start_to_close_timeout=60, heartbeat_timeout=60)
def complete_outside(name: str) -> str:
    tokens[name] = activity.info().task_token
    activity.complete_async()


@workflow.defn
def call_complete_outside(name: str) -> str:
    try:
        return complete_outside(name)
    except Exception as error:
        return f"{type(error.__cause__).__name__}"


class RecordsCalls(Interceptor):
    """Records every client call, and redirects calls with the id "another"."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        return _recording(self, ClientOutboundInterceptor)(next)  # type: ignore[no-any-return]

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        return _recording(self, AsyncClientOutboundInterceptor)(next)  # type: ignore[no-any-return]


def _recording(log: RecordsCalls, base: type) -> Callable[..., Any]:
    def method(name: str) -> Callable[..., Any]:
        def see(self: Any, input: Any) -> Any:
            log.seen.append(name)
            if getattr(input, "id", "") == "another":
                input.id = "nightly"
            return getattr(super(made, self), name)(input)

        return see

    made = type("Seen", (base,), {name: method(name) for name in METHODS})
    return made


def _wait_for_token(name: str) -> bytes:
    for _ in range(6000):
        if name in tokens:
            return tokens.pop(name)
        ready.wait(0.01)
    raise AssertionError(f"no attempt of {name}")


NIGHTLY = Schedule(
    ScheduleActionStartWorkflow(call_complete_outside, "scheduled", task_queue="seen"),
    ScheduleSpec(intervals=[ScheduleIntervalSpec(86400)]),
    state=ScheduleState(paused=True),
)
PAST = datetime(2026, 1, 1, tzinfo=UTC)


@activity.defn(start_to_close_timeout=60)
def echo(name: str) -> str:
    return name


def _use_standalone_activities(client: Client) -> None:
    """Call every method of activities without a workflow."""
    assert client.execute_activity(echo, "by itself", task_queue="seen") == "by itself"
    waits = client.start_activity(echo, "late", id="asked", task_queue="seen-by-none")
    assert waits.describe().activity_type == "echo"
    waits.pause("rest")
    waits.unpause()
    assert waits.update_options(start_to_close_timeout=30).start_to_close_timeout == 30
    assert waits.restore_original_options().start_to_close_timeout == 60
    waits.cancel("enough")
    ended = client.start_activity(echo, "late", task_queue="seen-by-none")
    ended.terminate("now")
    assert client.count_activities("ActivityType = 'none such'").count == 0
    assert list(client.list_activities("ActivityType = 'none such'")) == []


def _use_blocking_client(target: str, log: RecordsCalls) -> None:
    with (
        Client.connect(target, interceptors=[log]) as client,
        Worker(client, "seen", workflows=[call_complete_outside], activities=[complete_outside, echo]),
    ):
        run = client.start_workflow(call_complete_outside, "a", task_queue="seen")
        handle = client.get_activity_handle(token=_wait_for_token("a"))
        assert handle.heartbeat(1) is False
        handle.complete("done")
        assert run.result(timeout=60) == "done"
        failing = client.start_workflow(call_complete_outside, "b", task_queue="seen")
        error = ApplicationError("no", non_retryable=True)
        client.get_activity_handle(token=_wait_for_token("b")).fail(error)
        assert failing.result(timeout=60) == "ApplicationError"
        cancelled = client.start_workflow(call_complete_outside, "c", task_queue="seen")
        token = _wait_for_token("c")
        cancelled.cancel("enough")
        with contextlib.suppress(HourglassError):  # the engine may not have delivered the request yet
            client.get_activity_handle(token=token).cancel("late")
        assert client.count_workflows("WorkflowType = 'no such'").count == 0
        assert list(client.list_workflows("WorkflowType = 'no such'")) == []
        assert len(run.history().events) > 5
        assert len(run.history_page(page_size=1).events) >= 1

        schedule = client.create_schedule("another", NIGHTLY)
        assert schedule.id == "nightly", "the interceptor's id is used"
        schedule = client.get_schedule_handle("another")
        schedule.unpause("now")
        schedule.pause("later")
        schedule.update(lambda seen: replace(seen.schedule, state=ScheduleState(paused=True, note="changed")))
        assert client.get_schedule_handle("nightly").describe().schedule.state.note == "changed"
        schedule.trigger()
        schedule.backfill(ScheduleBackfill(start_at=PAST, end_at=PAST))
        list(client.list_schedules())
        schedule.delete()
        _use_standalone_activities(client)


async def _use_async_client(target: str, log: RecordsCalls) -> None:
    async with (
        await AsyncClient.connect(target, interceptors=[log]) as client,
        Worker(client, "seen", workflows=[call_complete_outside], activities=[complete_outside]),
    ):
        run = await client.start_workflow(call_complete_outside, "a", task_queue="seen")
        handle = client.get_activity_handle(token=await asyncio.to_thread(_wait_for_token, "a"))
        assert await handle.heartbeat(1) is False
        await handle.complete("done")
        assert await run.result(timeout=60) == "done"
        assert (await client.count_workflows("WorkflowType = 'no such'")).count == 0
        assert [run async for run in client.list_workflows("WorkflowType = 'no such'")] == []
        assert len((await run.history()).events) > 5
        schedule = await client.create_schedule("another", NIGHTLY)
        await schedule.update(lambda seen: replace(seen.schedule, state=ScheduleState(note="changed")))
        assert (await schedule.describe()).schedule.state.note == "changed"
        assert len([item async for item in client.list_schedules()]) < 2
        await schedule.delete()


def test_every_client_call_is_intercepted(target: str) -> None:
    log = RecordsCalls()
    _use_blocking_client(target, log)
    tested_with_headers = {
        "signal_workflow",
        "query_workflow",
        "start_workflow_update",
        "start_update_with_start_workflow",
        "terminate_workflow",
        "describe_workflow",
    }  # tests/interceptors/test_headers.py
    assert set(log.seen) == set(METHODS) - tested_with_headers
    assert log.seen.count("fetch_workflow_history_events") == 2
    assert log.seen.count("update_schedule") == 1, "one call, even if it takes several requests"
    async_log = RecordsCalls()
    asyncio.run(_use_async_client(target, async_log))
    assert set(async_log.seen) < set(log.seen)
    assert len(async_log.seen) == 11


class SeesRpcOptions(Interceptor):
    """Records the RPC timeout and metadata of calls, and changes those of `describe`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float | None, dict[str, str]]] = []

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        log = self

        class Outbound(ClientOutboundInterceptor):
            def start_workflow(self, input: StartWorkflowInput) -> Any:
                log.seen.append(("start", input.rpc_timeout, dict(input.rpc_metadata)))
                assert "rpc_timeout" not in input.options
                return self.next.start_workflow(input)

            def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
                log.seen.append(("describe", input.rpc_timeout, dict(input.rpc_metadata)))
                input.rpc_timeout, input.rpc_metadata["trace"] = 60.0, "theirs"
                return self.next.describe_workflow(input)

        return Outbound(next)


def test_interceptors_may_change_rpc_timeout_and_metadata() -> None:
    log = SeesRpcOptions()
    with Client.connect("local:", interceptors=[log]) as client:
        sent: list[Any] = []
        opened = client.connection
        call = opened.call
        opened.call = lambda request: (sent.append(request), call(request))[1]  # type: ignore[method-assign]
        handle = client.start_workflow(
            "none", rpc_timeout=timedelta(seconds=30), rpc_metadata={"trace": "mine"}
        )
        handle.describe(rpc_timeout=5)
        assert log.seen == [("start", 30.0, {"trace": "mine"}), ("describe", 5.0, {})]
        assert [(request.rpc_timeout, request.rpc_metadata) for request in sent] == [
            (30.0, {"trace": "mine"}),
            (60.0, {"trace": "theirs"}),
        ]


# --- outbound ---------------------------------------------------------------------------------------------------------


@activity.defn
def heartbeat_and_report() -> str:
    activity.heartbeat("half")
    return activity.info().activity_type


@activity.defn
async def heartbeat_and_report_async() -> str:
    activity.heartbeat("half")
    return activity.info().activity_type


@workflow.defn
def report_types() -> list[str]:
    return [
        heartbeat_and_report(),
        workflow.execute_activity("heartbeat_and_report_async", start_to_close_timeout=9),
        workflow.info().workflow_type,
    ]


class ChangesInfo(Interceptor):
    """Records heartbeats, and changes `info` of activities and workflows."""

    def __init__(self) -> None:
        self.heartbeats: list[Any] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        log = self

        class Outbound(ActivityOutboundInterceptor):
            def info(self) -> activity.Info:
                return replace(super().info(), activity_type="renamed")

            def heartbeat(self, *details: Any) -> None:
                log.heartbeats.append(details)
                super().heartbeat(*details, "seen")

        class Inbound(ActivityInboundInterceptor):
            def init(self, outbound: ActivityOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound(next)

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        class Outbound(WorkflowOutboundInterceptor):
            def info(self, input: Any) -> workflow.Info:
                info: workflow.Info = super().info(input)
                return replace(info, workflow_type=f"{info.workflow_type}!")

        return with_outbound(next, Outbound)


def test_interceptors_change_info_and_see_heartbeats_inside_activities_and_workflows() -> None:
    log = ChangesInfo()
    with Environment(activities=[heartbeat_and_report_async], interceptors=[log]) as env:
        assert env.execute_workflow(report_types) == ["renamed", "renamed", "report_types!"]
    assert log.heartbeats == [("half",), ("half",)]
    with (
        Client.connect("local:", interceptors=[log]) as client,
        Worker(
            client, workflows=[report_types], activities=[heartbeat_and_report, heartbeat_and_report_async]
        ),
    ):
        assert client.execute_workflow(report_types) == ["renamed", "renamed", "report_types!"]
    assert len(log.heartbeats) == 4
