"""Clients under temporalio's names: `await Client.connect("localhost:7233")`, `await client.execute_workflow(Cart.run, 3, id=…)`.

A face of `hourglass.AsyncClient`, which does the work: arguments may come together as `args=[…]`, and a few names differ.
`local:` and a file are targets like a server's address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.service import IdConflictPolicy, QueryRejectCondition
from hourglass._contract.service import UpdateStage as WorkflowUpdateStage
from hourglass._contract.service import WorkflowStatus as WorkflowExecutionStatus
from hourglass._contract.transport import (
    DnsLoadBalancingConfig,
    GrpcCompression,
    HttpConnectProxyConfig,
    KeepAliveConfig,
    PayloadLimitsConfig,
    RetryConfig,
    TLSConfig,
)
from hourglass._engine.options import Duration, RetryPolicy
from hourglass._engine.specs import IdReusePolicy
from hourglass._engine.versions import VersioningOverride
from hourglass.aio._values import given_options, given_values
from hourglass.aio.common import Priority
from hourglass.client import (
    AsyncActivityHandle,
    AsyncClient,
    AsyncRawService,
    AsyncScheduleHandle,
    AsyncUpdateHandle,
    AsyncWorkflowHandle,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
    WorkflowExecution,
    WorkflowExecutionCount,
)
from hourglass.client import WorkflowDescription as WorkflowExecutionDescription
from hourglass.converter import Codec, Converter, SearchAttributes, default_converter
from hourglass.errors import QueryFailedError as WorkflowQueryFailedError
from hourglass.errors import QueryRejectedError as WorkflowQueryRejectedError
from hourglass.errors import ScheduleAlreadyExistsError as ScheduleAlreadyRunningError
from hourglass.errors import ServiceError as RPCError
from hourglass.errors import UpdateFailedError as WorkflowUpdateFailedError
from hourglass.errors import UsageError, WorkflowContinuedAsNewError
from hourglass.errors import WorkflowFailedError as WorkflowFailureError
from hourglass.interceptors import Interceptor
from hourglass.replay import History as WorkflowHistory

__all__ = [
    "AsyncActivityHandle",
    "Client",
    "Interceptor",
    "RPCError",
    "Schedule",
    "ScheduleActionStartWorkflow",
    "ScheduleAlreadyRunningError",
    "ScheduleBackfill",
    "ScheduleCalendarSpec",
    "ScheduleDescription",
    "ScheduleHandle",
    "ScheduleIntervalSpec",
    "ScheduleListDescription",
    "ScheduleOverlapPolicy",
    "SchedulePolicy",
    "ScheduleRange",
    "ScheduleSpec",
    "ScheduleState",
    "TLSConfig",
    "WithStartWorkflowOperation",
    "WorkflowContinuedAsNewError",
    "WorkflowExecution",
    "WorkflowExecutionCount",
    "WorkflowExecutionDescription",
    "WorkflowExecutionStatus",
    "WorkflowFailureError",
    "WorkflowHandle",
    "WorkflowHistory",
    "WorkflowQueryFailedError",
    "WorkflowQueryRejectedError",
    "WorkflowUpdateFailedError",
    "WorkflowUpdateHandle",
    "WorkflowUpdateStage",
]

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ScheduleHandle = AsyncScheduleHandle
WorkflowUpdateHandle = AsyncUpdateHandle


class StartConfig(TypedDict, total=False):
    """How a workflow is started. All are optional."""

    id: str
    task_queue: str
    execution_timeout: Duration | None
    run_timeout: Duration | None
    task_timeout: Duration | None
    start_delay: Duration | None
    id_reuse_policy: IdReusePolicy
    id_conflict_policy: IdConflictPolicy
    retry_policy: RetryPolicy | None
    cron_schedule: str
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | None
    static_summary: str | None
    static_details: str | None
    start_signal: str | None
    start_signal_args: Sequence[Any]
    priority: Priority
    request_id: str | None
    versioning_override: VersioningOverride | None
    rpc_timeout: Duration | None


class WorkflowHandle(Generic[R]):
    """A workflow, from outside."""

    def __init__(self, handle: AsyncWorkflowHandle[R]) -> None:
        self._handle = handle

    @property
    def wrapped(self) -> AsyncWorkflowHandle[R]:
        """The same as a handle of `hourglass.client`."""
        return self._handle

    @property
    def id(self) -> str:
        """The workflow's id."""
        return self._handle.id

    @property
    def run_id(self) -> str | None:
        """The run that was named; None where only the workflow was."""
        return self._handle.run_id

    @property
    def first_execution_run_id(self) -> str | None:
        """The first run of the chain, where this handle knows it because it started it."""
        return self._handle.first_execution_run_id

    @property
    def result_run_id(self) -> str | None:
        """The run whose result is waited for first."""
        return self._handle.run_id

    async def result(self, *, follow_runs: bool = True) -> R:
        """Wait for the result. Raises `WorkflowFailureError` if it did not complete."""
        return await self._handle.result(follow_runs=follow_runs)

    @overload
    async def signal(self, signal: str, /, *given: Any, args: Sequence[Any] = ()) -> None: ...
    @overload
    async def signal(self, signal: Callable[[*Ts], Any], /, *given: *Ts) -> None: ...
    @overload
    async def signal(self, signal: Callable[..., Any], /, *, args: Sequence[Any]) -> None: ...
    async def signal(self, signal: Any, /, *given: Any, args: Sequence[Any] = ()) -> None:  # type: ignore[misc]
        """Send a signal, given as its name or a decorated method."""
        await self._handle.signal(signal, *given_values(given, args))

    @overload
    async def query(
        self,
        query: str,
        /,
        *given: Any,
        args: Sequence[Any] = (),
        result_type: Any = None,
        reject_condition: QueryRejectCondition | None = None,
    ) -> Any: ...
    @overload
    async def query(
        self,
        query: Callable[[*Ts], T],
        /,
        *given: *Ts,
        reject_condition: QueryRejectCondition | None = None,
    ) -> T: ...
    async def query(  # type: ignore[misc]
        self,
        query: Any,
        /,
        *given: Any,
        args: Sequence[Any] = (),
        result_type: Any = None,
        reject_condition: QueryRejectCondition | None = None,
    ) -> Any:
        """Ask a question, given as its name or a decorated method."""
        return await self._handle.query(
            query,
            *given_values(given, args),
            result_type=result_type,
            reject_condition=reject_condition,
        )

    @overload
    async def execute_update(
        self,
        update: str,
        /,
        *given: Any,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: Any = None,
    ) -> Any: ...
    @overload
    async def execute_update(
        self, update: Callable[[*Ts], T], /, *given: *Ts, id: str | None = None
    ) -> T: ...
    @overload
    async def execute_update(
        self, update: Callable[..., T], /, *, args: Sequence[Any], id: str | None = None
    ) -> T: ...
    async def execute_update(  # type: ignore[misc]
        self, update: Any, /, *given: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Ask for an update and wait for its result. Raises `WorkflowUpdateFailedError`."""
        return await self._handle.execute_update(update, *given_values(given, args), **given_options(options))

    @overload
    async def start_update(
        self,
        update: str,
        /,
        *given: Any,
        wait_for_stage: WorkflowUpdateStage,
        args: Sequence[Any] = (),
        id: str | None = None,
        result_type: Any = None,
    ) -> AsyncUpdateHandle[Any]: ...
    @overload
    async def start_update(
        self,
        update: Callable[[*Ts], T],
        /,
        *given: *Ts,
        wait_for_stage: WorkflowUpdateStage,
        id: str | None = None,
    ) -> AsyncUpdateHandle[T]: ...
    async def start_update(  # type: ignore[misc]
        self,
        update: Any,
        /,
        *given: Any,
        wait_for_stage: WorkflowUpdateStage,
        args: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Ask for an update and wait until it has come to a stage."""
        return await self._handle.start_update(
            update, *given_values(given, args), wait_for_stage=wait_for_stage, **given_options(options)
        )

    def get_update_handle(self, id: str, *, result_type: Any = None) -> AsyncUpdateHandle[Any]:
        """A handle to an update that was asked for before."""
        return self._handle.get_update_handle(id, result_type=result_type)

    async def cancel(self) -> None:
        """Ask the workflow to cancel. It may take its time, or refuse."""
        await self._handle.cancel()

    async def terminate(self, *details: Any, reason: str | None = None) -> None:
        """End the workflow now. Its code is not asked and cannot clean up."""
        await self._handle.terminate(reason or "", *details)

    async def describe(self) -> WorkflowExecutionDescription:
        """Look at the workflow: its status, times, memo and what it waits for."""
        return await self._handle.describe()

    async def fetch_history(self) -> WorkflowHistory:
        """Its history."""
        return await self._handle.history()

    def __repr__(self) -> str:
        return f"<workflow handle {self.id}>"


class WithStartWorkflowOperation(Generic[R]):
    """A workflow that an update starts, unless it runs: given to `Client.execute_update_with_start_workflow`."""

    @overload
    def __init__(
        self, workflow: str, /, *given: Any, args: Sequence[Any] = (), **options: Unpack[StartConfig]
    ) -> None: ...
    @overload
    def __init__(
        self, workflow: Callable[[*Ts], R], /, *given: *Ts, **options: Unpack[StartConfig]
    ) -> None: ...
    @overload
    def __init__(
        self, workflow: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[StartConfig]
    ) -> None: ...
    def __init__(self, workflow: Any, /, *given: Any, args: Sequence[Any] = (), **options: Any) -> None:  # type: ignore[misc]
        self.workflow = workflow
        self.values = given_values(given, args)
        self.options = given_options(options)
        self.handle: WorkflowHandle[R] | None = None

    async def workflow_handle(self) -> WorkflowHandle[R]:
        """The workflow that was started or used. Known once the update was sent."""
        if self.handle is None:
            raise UsageError("the workflow has not been started yet: send its update first")
        return self.handle


class Client:
    """A client of an engine: of a Temporal server, or of the one in this process."""

    def __init__(self, client: AsyncClient) -> None:
        self.wrapped = client

    @classmethod
    async def connect(
        cls,
        target_host: str | None = None,
        *,
        namespace: str | None = None,
        api_key: str | None = None,
        data_converter: Converter = default_converter,
        codec: Codec | None = None,
        interceptors: Sequence[Interceptor] = (),
        default_workflow_query_reject_condition: QueryRejectCondition | None = None,
        tls: TLSConfig | bool | None = None,
        retry_config: RetryConfig | None = None,
        keep_alive_config: KeepAliveConfig | None = KeepAliveConfig.default,
        rpc_metadata: Mapping[str, str] | None = None,
        identity: str | None = None,
        lazy: bool = False,
        http_connect_proxy_config: HttpConnectProxyConfig | None = None,
        dns_load_balancing_config: DnsLoadBalancingConfig | None = None,
        grpc_compression: GrpcCompression = GrpcCompression.NONE,
        payload_limits: PayloadLimitsConfig = PayloadLimitsConfig(),
        connect_timeout: Duration | None = None,
    ) -> Client:
        """Connect to `host:port`, `local:`, `sqlite:///…` or `profile:NAME`; by default to what the environment names."""
        return cls(
            await AsyncClient.connect(
                target_host,
                namespace=namespace,
                tls=tls,
                api_key=api_key,
                rpc_metadata=rpc_metadata,
                identity=identity,
                converter=data_converter,
                codec=codec,
                interceptors=interceptors,
                default_query_reject_condition=default_workflow_query_reject_condition
                or QueryRejectCondition.NONE,
                retry_config=retry_config,
                keep_alive_config=keep_alive_config,
                lazy=lazy,
                http_connect_proxy_config=http_connect_proxy_config,
                dns_load_balancing_config=dns_load_balancing_config,
                grpc_compression=grpc_compression,
                payload_limits=payload_limits,
                timeout=10.0 if connect_timeout is None else connect_timeout,
            )
        )

    @property
    def api_key(self) -> str | None:
        """The API key that it sends to a server; it can be set."""
        return self.wrapped.api_key

    @api_key.setter
    def api_key(self, value: str | None) -> None:
        self.wrapped.api_key = value

    @property
    def rpc_metadata(self) -> Mapping[str, str]:
        """The headers that it sends to a server; they can be set."""
        return self.wrapped.rpc_metadata

    @rpc_metadata.setter
    def rpc_metadata(self, value: Mapping[str, str]) -> None:
        self.wrapped.rpc_metadata = value

    @property
    def workflow_service(self) -> AsyncRawService:
        """A server's own service for workflows."""
        return self.wrapped.workflow_service

    @property
    def operator_service(self) -> AsyncRawService:
        """A server's own service for its operators."""
        return self.wrapped.operator_service

    @property
    def test_service(self) -> AsyncRawService:
        """The service of Temporal's test server."""
        return self.wrapped.test_service

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self.wrapped.namespace

    @property
    def identity(self) -> str:
        """How it is called in histories."""
        return self.wrapped.identity

    async def close(self) -> None:
        """Close the connection. Workflows go on without it."""
        await self.wrapped.close()

    @overload
    async def start_workflow(
        self,
        workflow: str,
        /,
        *given: Any,
        args: Sequence[Any] = (),
        result_type: Any = None,
        **options: Unpack[StartConfig],
    ) -> WorkflowHandle[Any]: ...
    @overload
    async def start_workflow(
        self, workflow: Callable[[*Ts], R], /, *given: *Ts, **options: Unpack[StartConfig]
    ) -> WorkflowHandle[R]: ...
    @overload
    async def start_workflow(
        self, workflow: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[StartConfig]
    ) -> WorkflowHandle[R]: ...
    async def start_workflow(  # type: ignore[misc]
        self, workflow: Any, /, *given: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a workflow, given as its run method or its name, and get a handle to it."""
        values = given_values(given, args)
        return WorkflowHandle(await self.wrapped.start_workflow(workflow, *values, **given_options(options)))

    @overload
    async def execute_workflow(
        self,
        workflow: str,
        /,
        *given: Any,
        args: Sequence[Any] = (),
        result_type: Any = None,
        **options: Unpack[StartConfig],
    ) -> Any: ...
    @overload
    async def execute_workflow(
        self, workflow: Callable[[*Ts], R], /, *given: *Ts, **options: Unpack[StartConfig]
    ) -> R: ...
    @overload
    async def execute_workflow(
        self, workflow: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[StartConfig]
    ) -> R: ...
    async def execute_workflow(  # type: ignore[misc]
        self, workflow: Any, /, *given: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a workflow and wait for its result."""
        values = given_values(given, args)
        return await self.wrapped.execute_workflow(workflow, *values, **given_options(options))

    async def execute_update_with_start_workflow(
        self,
        update: Any,
        /,
        *given: Any,
        start_workflow_operation: WithStartWorkflowOperation[Any],
        args: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Start a workflow, or use the one that runs, ask it for an update and wait for the update's result."""
        start = start_workflow_operation
        planned = self.wrapped.with_start(start.workflow, *start.values, **start.options)
        try:
            return await planned.execute_update(update, *given_values(given, args), **given_options(options))
        finally:
            start.handle = WorkflowHandle(planned.handle)

    async def start_update_with_start_workflow(
        self,
        update: Any,
        /,
        *given: Any,
        wait_for_stage: WorkflowUpdateStage,
        start_workflow_operation: WithStartWorkflowOperation[Any],
        args: Sequence[Any] = (),
        **options: Any,
    ) -> AsyncUpdateHandle[Any]:
        """The same, and wait until the update has come to a stage."""
        start = start_workflow_operation
        planned = self.wrapped.with_start(start.workflow, *start.values, **start.options)
        handle: AsyncUpdateHandle[Any] = await planned.start_update(
            update, *given_values(given, args), wait_for_stage=wait_for_stage, **given_options(options)
        )
        start.handle = WorkflowHandle(planned.handle)
        return handle

    def get_workflow_handle(
        self, workflow_id: str, *, run_id: str | None = None, result_type: Any = None
    ) -> WorkflowHandle[Any]:
        """A handle to an existing workflow; does not ask whether it exists."""
        return WorkflowHandle(
            self.wrapped.get_workflow_handle(workflow_id, run_id=run_id, result_type=result_type)
        )

    def get_workflow_handle_for(
        self, workflow: Callable[..., R], workflow_id: str, *, run_id: str | None = None
    ) -> WorkflowHandle[R]:
        """The same, of the type that a workflow has."""
        found = self.wrapped.get_workflow_handle(workflow_id, run_id=run_id, workflow=workflow)
        return WorkflowHandle(found)

    def list_workflows(
        self, query: str | None = None, *, limit: int | None = None
    ) -> AsyncIterator[WorkflowExecution]:
        """The runs that match a filter, fetched page by page."""
        return self.wrapped.list_workflows(query or "", limit=limit)

    async def count_workflows(self, query: str | None = None) -> WorkflowExecutionCount:
        """How many runs match a filter."""
        return await self.wrapped.count_workflows(query or "")

    def get_async_activity_handle(
        self,
        *,
        workflow_id: str | None = None,
        run_id: str | None = None,
        activity_id: str | None = None,
        task_token: bytes | None = None,
    ) -> AsyncActivityHandle:
        """A handle to an activity that is completed from outside, by its token or by ids."""
        return self.wrapped.get_activity_handle(
            token=task_token, workflow_id=workflow_id, run_id=run_id, activity_id=activity_id
        )

    async def create_schedule(
        self,
        id: str,
        schedule: Schedule,
        *,
        trigger_immediately: bool = False,
        backfill: Sequence[ScheduleBackfill] = (),
        memo: Mapping[str, Any] | None = None,
        search_attributes: SearchAttributes | None = None,
    ) -> AsyncScheduleHandle:
        """Create a schedule, which starts a workflow again and again, and get a handle to it."""
        return await self.wrapped.create_schedule(
            id,
            schedule,
            trigger_immediately=trigger_immediately,
            backfill=backfill,
            memo=memo,
            search_attributes=search_attributes,
        )

    def get_schedule_handle(self, id: str) -> AsyncScheduleHandle:
        """A handle to an existing schedule; does not ask whether it exists."""
        return self.wrapped.get_schedule_handle(id)

    async def list_schedules(self, query: str | None = None) -> AsyncIterator[ScheduleListDescription]:
        """The schedules that match a filter."""
        return self.wrapped.list_schedules(query or "")
