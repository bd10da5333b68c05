"""temporalio's options and arguments in `hourglass.aio`: each works or is rejected by name; none is ignored."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourglass.aio import activity, workflow
from hourglass.aio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
    SignalWorkflowInput,
    StartWorkflowInput,
    WithStartWorkflowOperation,
    WorkflowHandle,
)
from hourglass.aio.common import (
    Priority,
    RetryPolicy,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
)
from hourglass.aio.testing import ActivityEnvironment, WorkflowEnvironment
from hourglass.aio.worker import UnsandboxedWorkflowRunner, Worker
from hourglass.errors import UsageError


@activity.defn
def plain() -> str:
    return "plain"


@workflow.defn
class Echo:
    @workflow.run
    async def run(self, word: str) -> str:
        return word


@asynccontextmanager
async def memory_client() -> AsyncIterator[Client]:
    client = await Client.connect("local:")
    try:
        yield client
    finally:
        await client.close()


async def test_aio_worker_rejects_a_process_pool_and_names_the_alternative() -> None:
    async with memory_client() as client:
        with (
            ProcessPoolExecutor(1) as pool,
            pytest.raises(
                UsageError, match=r"ProcessPoolExecutor.*hourglass\.activity\.defn\(executor='process'\)"
            ),
        ):
            Worker(client, task_queue="q", activities=[plain], activity_executor=pool)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("nexus_service_handlers", [object()]),
        ("shared_state_manager", object()),
        ("use_worker_versioning", True),
        ("max_workflow_task_external_storage_concurrency", 5),
        ("workflow_runner", object()),
        ("unsandboxed_workflow_runner", object()),
        ("workflow_task_executor", ThreadPoolExecutor(1)),
        ("on_fatal_error", print),
        ("disable_safe_workflow_eviction", True),
        ("plugin_shutdown_timeout", timedelta(seconds=5)),
    ],
)
async def test_aio_worker_rejects_unsupported_option_by_name(option: str, value: Any) -> None:
    async with memory_client() as client:
        with pytest.raises(UsageError, match=option):
            Worker(client, task_queue="q", workflows=[Echo], **{option: value})


async def test_aio_worker_accepts_default_and_supported_options() -> None:
    async with memory_client() as client:
        worker = Worker(
            client,
            task_queue="q",
            workflows=[Echo],
            nexus_service_handlers=[],
            workflow_runner=UnsandboxedWorkflowRunner(),
            debug_mode=True,
            disable_payload_error_limit=True,
            shared_state_manager=None,
            use_worker_versioning=False,
            max_concurrent_activities=None,
            plugin_shutdown_timeout=timedelta(seconds=60),
            max_workflow_task_external_storage_concurrency=3,
            workflow_task_executor=None,
            on_fatal_error=None,
            disable_safe_workflow_eviction=False,
        )
        assert worker.wrapped._plan.deadlock_timeout is None
        assert worker.wrapped._plan.payload_limit is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ui", True),
        ("port", 7233),
        ("ip", "0.0.0.0"),
        ("dev_server_extra_args", ["--x"]),
        ("dev_server_database_filename", "x.db"),
        ("dev_server_existing_path", "/usr/bin/temporal"),
        ("dev_server_download_version", "v1.3.0"),
        ("dev_server_log_level", "debug"),
    ],
)
async def test_start_local_rejects_dev_server_options(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=option):
        await WorkflowEnvironment.start_local(**{option: value})


async def test_start_local_passes_interceptors_and_identity_to_its_client() -> None:
    started: list[str] = []

    class RecordingInterceptor(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # type: ignore[override]
            class Calls(OutboundInterceptor):
                async def start_workflow(self, input: StartWorkflowInput) -> Any:
                    started.append(input.workflow)
                    return await super().start_workflow(input)

            return Calls(next)

    async with await WorkflowEnvironment.start_local(
        interceptors=[RecordingInterceptor()],
        identity="me",
        download_dest_dir="/nowhere",
        ip="127.0.0.1",
        ui=False,
    ) as env:
        await env.client.start_workflow(Echo.run, "x", id="w", task_queue="q")
        result = env.client.identity
    assert result == "me"
    assert started == ["Echo"]


async def test_start_local_accepts_default_values_of_dev_server_options() -> None:
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=None,
        dev_server_download_version="default",
        dev_server_log_format="pretty",
        dev_server_log_level="warn",
        dev_server_extra_args=[],
    ):
        pass


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("test_server_existing_path", "/usr/bin/test-server"),
        ("test_server_download_version", "v1.3.0"),
        ("test_server_extra_args", ["--x"]),
        ("port", 7233),
    ],
)
async def test_start_time_skipping_rejects_test_server_options(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=option):
        await WorkflowEnvironment.start_time_skipping(**{option: value})


@pytest.mark.parametrize(
    "policy", [WorkflowIDConflictPolicy.TERMINATE_EXISTING, WorkflowIDConflictPolicy.FAIL]
)
async def test_signal_with_start_in_a_workflow_rejects_other_conflict_policies(
    policy: WorkflowIDConflictPolicy,
) -> None:
    @workflow.defn
    class Starting:
        @workflow.run
        async def run(self) -> str:
            try:
                await workflow.signal_with_start_workflow(
                    "Echo",
                    "x",
                    id="echo",
                    task_queue="nobody",
                    signal="go",
                    id_conflict_policy=policy,
                )
            except UsageError as error:
                return str(error)
            return "accepted"

    async with memory_client() as client, Worker(client, task_queue="q", workflows=[Starting]):
        message = await client.execute_workflow(Starting.run, id="starting", task_queue="q")
    assert "id_conflict_policy" in message


async def test_setting_an_unknown_field_of_an_interceptor_input_raises() -> None:
    class FaultyInterceptor(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # type: ignore[override]
            class Calls(OutboundInterceptor):
                async def signal_workflow(self, input: SignalWorkflowInput) -> None:
                    input.memo = {"a": 1}  # type: ignore[attr-defined]

            return Calls(next)

    client = await Client.connect("local:", interceptors=[FaultyInterceptor()])
    with pytest.raises(AttributeError, match="SignalWorkflowInput has no field 'memo'"):
        await client.get_workflow_handle("w").signal("go")
    await client.close()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda client: client.list_workflows(next_page_token=b"x"), "next_page_token"),
        (lambda client: client.list_activities(next_page_token=b"x"), "next_page_token"),
        (
            lambda client: client.execute_workflow(Echo.run, "x", id="w", versioning_intent=1),
            "versioning_intent",
        ),
        (lambda client: client.execute_workflow(Echo.run, "x", args=["y"], id="w"), "args"),
        (lambda client: client.execute_workflow(Echo.run, "x", id="w", colour=1), "colour"),
    ],
)
async def test_aio_client_rejects_unsupported_options_by_name(call: Any, name: str) -> None:
    async with memory_client() as client:
        with pytest.raises(UsageError, match=name):
            await call(client)


def test_activity_environment_rejects_contradictory_cancellation_details() -> None:
    with pytest.raises(UsageError, match="one reason for its cancellation, not 2"):
        ActivityEnvironment().cancel(activity.ActivityCancellationDetails(paused=True, reset=True))


async def test_aio_classes_accept_none_and_positional_arguments() -> None:
    assert RetryPolicy(timedelta(seconds=2), 3.0, None, 4, None) == RetryPolicy(
        initial_interval=timedelta(seconds=2),
        backoff_coefficient=3.0,
        maximum_attempts=4,
        non_retryable_error_types=None,
    )
    key = SearchAttributeKey.for_keyword("Colour")
    action = ScheduleActionStartWorkflow(
        workflow=Echo.run,
        arg="x",
        id="scheduled",
        task_queue="q",
        memo=None,
        priority=Priority(priority_key=2),
        typed_search_attributes=TypedSearchAttributes(search_attributes=[SearchAttributePair(key, "red")]),
    )
    spec = ScheduleSpec(
        [ScheduleCalendarSpec((ScheduleRange(1),), comment=None)],
        [ScheduleIntervalSpec(timedelta(hours=1), None)],
    )
    schedule = Schedule(action, spec, SchedulePolicy(), ScheduleState(None, True))

    async with memory_client() as client:
        handle = await client.create_schedule("s", schedule)
        now = datetime.now(UTC)
        await handle.backfill(ScheduleBackfill(now, now))
        created = (await handle.describe()).schedule
    assert created.action.args == ("x",)
    assert created.state.paused is True
    assert created.action.options["priority_key"] == 2


@pytest.mark.parametrize("module", ["client", "common", "workflow"])
def test_generic_classes_of_temporalio_accept_type_parameters(module: str) -> None:
    temporalio_module = importlib.import_module(f"temporalio.{module}")
    hourglass_module = importlib.import_module(f"hourglass.aio.{module}")
    checked = 0
    for name, temporalio_class in vars(temporalio_module).items():
        parameters = getattr(temporalio_class, "__parameters__", ())
        if isinstance(temporalio_class, type) and parameters and name in hourglass_module.__all__:
            assert getattr(hourglass_module, name)[(int,) * len(parameters)], name
            checked += 1
    assert checked


def test_handle_classes_can_be_subscripted_at_runtime() -> None:
    assert WorkflowHandle[Echo, str]
    assert WithStartWorkflowOperation[Echo, str]
    assert workflow.ChildWorkflowHandle[Echo, str]
    assert workflow.ExternalWorkflowHandle[Echo]
    assert workflow.ActivityHandle[str]
