"""Clients with temporalio's names: `await Client.connect("localhost:7233")`, `await client.execute_workflow(Cart.run, 3,
id=…)`.

They delegate to `hourglass.AsyncClient`. The differences: arguments may also be passed together as `args=[…]`, and a few
names are temporalio's. `local:` and `local:PATH` are valid targets, like the address of a server.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.transport import (
    DnsLoadBalancingConfig,
    GrpcCompression,
    HttpConnectProxyConfig,
    KeepAliveConfig,
    PayloadLimitsConfig,
    RetryConfig,
    TLSConfig,
)
from hourglass._contract.workflows import QueryRejectCondition
from hourglass._contract.workflows import UpdateStage as WorkflowUpdateStage
from hourglass._contract.workflows import WorkflowStatus as WorkflowExecutionStatus
from hourglass._evaluator.options import Duration
from hourglass.aio._handles import (
    AsyncActivityCancelledError,
    AsyncActivityHandle,
    NamedUpdate,
    WorkflowHandle,
)
from hourglass.aio._schedules import ScheduleActionStartWorkflow, ScheduleClient
from hourglass.aio._standalone import (
    NO_TOKEN,
    ActivityClient,
    ActivityHandle,
    ActivityOptionsKey,
    ActivityOptionsKeys,
    ActivityOptionsUpdate,
)
from hourglass.aio._starts import (
    ListedStart,
    NamedAsStart,
    NamedStart,
    SingleStart,
    StartConfig,
    WithStartWorkflowOperation,
)
from hourglass.aio._values import UNSET, chosen_options, overloaded, positional_values, reject_option, takes
from hourglass.client import (
    ActivityExecution,
    ActivityExecutionDescription,
    ActivityExecutionOptions,
    ActivityExecutionStatus,
    AsyncClient,
    AsyncRawService,
    AsyncScheduleHandle,
    AsyncUpdateHandle,
    RpcOptions,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleInfo,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
    WorkflowExecution,
    WorkflowExecutionCount,
    WorkflowExecutionCountAggregationGroup,
)
from hourglass.client import HistoryEventFilter as WorkflowHistoryEventFilterType
from hourglass.client import WorkflowDescription as WorkflowExecutionDescription
from hourglass.client import WorkflowExecutionCount as ActivityExecutionCount
from hourglass.client import WorkflowExecutionCountAggregationGroup as ActivityExecutionCountAggregationGroup
from hourglass.converter import Codec, Converter, HeaderCodecBehavior, default_converter
from hourglass.errors import ActivityFailedError as ActivityFailureError
from hourglass.errors import QueryFailedError as WorkflowQueryFailedError
from hourglass.errors import QueryRejectedError as WorkflowQueryRejectedError
from hourglass.errors import ScheduleAlreadyExistsError as ScheduleAlreadyRunningError
from hourglass.errors import ServiceError as RPCError
from hourglass.errors import ServiceTimeoutError as RPCTimeoutOrCancelledError
from hourglass.errors import ServiceTimeoutError as WorkflowUpdateRPCTimeoutOrCancelledError
from hourglass.errors import UpdateFailedError as WorkflowUpdateFailedError
from hourglass.errors import WorkflowContinuedAsNewError
from hourglass.errors import WorkflowFailedError as WorkflowFailureError
from hourglass.interceptors import AsyncClientOutboundInterceptor as OutboundInterceptor
from hourglass.interceptors import (
    BackfillScheduleInput,
    CancelActivityInput,
    CancelWorkflowInput,
    CompleteAsyncActivityInput,
    CountActivitiesInput,
    CountWorkflowsInput,
    CreateScheduleInput,
    DeleteScheduleInput,
    DescribeActivityInput,
    DescribeScheduleInput,
    DescribeWorkflowInput,
    FailAsyncActivityInput,
    FetchWorkflowHistoryEventsInput,
    HeartbeatAsyncActivityInput,
    ListActivitiesInput,
    ListSchedulesInput,
    ListWorkflowsInput,
    PauseActivityInput,
    PauseScheduleInput,
    QueryWorkflowInput,
    ReportCancellationAsyncActivityInput,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    TerminateActivityInput,
    TerminateWorkflowInput,
    TriggerScheduleInput,
    UnpauseActivityInput,
    UnpauseScheduleInput,
    UpdateActivityOptionsInput,
    UpdateScheduleInput,
)
from hourglass.interceptors import Interceptor as _Interceptor
from hourglass.interceptors import StartActivityExecutionInput as StartActivityInput
from hourglass.interceptors import StartUpdateWithStartInput as StartWorkflowUpdateWithStartInput
from hourglass.plugins import Plugin
from hourglass.replay import History as WorkflowHistory

__all__ = [
    "ActivityExecution",
    "ActivityExecutionCount",
    "ActivityExecutionCountAggregationGroup",
    "ActivityExecutionDescription",
    "ActivityExecutionOptions",
    "ActivityExecutionStatus",
    "ActivityFailureError",
    "ActivityHandle",
    "ActivityOptionsKey",
    "ActivityOptionsKeys",
    "ActivityOptionsUpdate",
    "AsyncActivityCancelledError",
    "AsyncActivityHandle",
    "BackfillScheduleInput",
    "CancelActivityInput",
    "CancelWorkflowInput",
    "Client",
    "CompleteAsyncActivityInput",
    "CountActivitiesInput",
    "CountWorkflowsInput",
    "CreateScheduleInput",
    "DeleteScheduleInput",
    "DescribeActivityInput",
    "DescribeScheduleInput",
    "DescribeWorkflowInput",
    "FailAsyncActivityInput",
    "FetchWorkflowHistoryEventsInput",
    "HeartbeatAsyncActivityInput",
    "Interceptor",
    "ListActivitiesInput",
    "ListSchedulesInput",
    "ListWorkflowsInput",
    "OutboundInterceptor",
    "PauseActivityInput",
    "PauseScheduleInput",
    "Plugin",
    "QueryWorkflowInput",
    "RPCError",
    "RPCTimeoutOrCancelledError",
    "ReportCancellationAsyncActivityInput",
    "Schedule",
    "ScheduleActionExecutionStartWorkflow",
    "ScheduleActionResult",
    "ScheduleActionStartWorkflow",
    "ScheduleAlreadyRunningError",
    "ScheduleBackfill",
    "ScheduleCalendarSpec",
    "ScheduleDescription",
    "ScheduleHandle",
    "ScheduleInfo",
    "ScheduleIntervalSpec",
    "ScheduleListDescription",
    "ScheduleOverlapPolicy",
    "SchedulePolicy",
    "ScheduleRange",
    "ScheduleSpec",
    "ScheduleState",
    "SignalWorkflowInput",
    "StartActivityInput",
    "StartWorkflowInput",
    "StartWorkflowUpdateInput",
    "StartWorkflowUpdateWithStartInput",
    "TLSConfig",
    "TerminateActivityInput",
    "TerminateWorkflowInput",
    "TriggerScheduleInput",
    "UnpauseActivityInput",
    "UnpauseScheduleInput",
    "UpdateActivityOptionsInput",
    "UpdateScheduleInput",
    "WithStartWorkflowOperation",
    "WorkflowContinuedAsNewError",
    "WorkflowExecution",
    "WorkflowExecutionCount",
    "WorkflowExecutionCountAggregationGroup",
    "WorkflowExecutionDescription",
    "WorkflowExecutionStatus",
    "WorkflowFailureError",
    "WorkflowHandle",
    "WorkflowHistory",
    "WorkflowHistoryEventFilterType",
    "WorkflowQueryFailedError",
    "WorkflowQueryRejectedError",
    "WorkflowUpdateFailedError",
    "WorkflowUpdateHandle",
    "WorkflowUpdateRPCTimeoutOrCancelledError",
    "WorkflowUpdateStage",
]

R = TypeVar("R")
W = TypeVar("W")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ScheduleHandle = AsyncScheduleHandle
WorkflowUpdateHandle = AsyncUpdateHandle


class Interceptor(_Interceptor):
    """Intercepts the calls of a client. Override `intercept_client`, which receives an asynchronous interceptor."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if (own := vars(cls).get("intercept_client")) is not None:

            @functools.wraps(own)
            def intercept(self: Any, next: Any) -> Any:
                # Blocking clients on the same connection have their own chain.
                return own(self, next) if isinstance(next, OutboundInterceptor) else next

            cls.intercept_client = intercept  # type: ignore[method-assign]

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # type: ignore[override]
        """Return an interceptor that passes calls on to `next`."""
        return next

    def intercept_async_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Return an interceptor that passes calls on to `next`."""
        return self.intercept_client(next)


class Client(ActivityClient, ScheduleClient):
    """A client of an engine: a Temporal server, or the engine in this process."""

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
        interceptors: Sequence[_Interceptor] = (),
        default_workflow_query_reject_condition: QueryRejectCondition | None = None,
        tls: TLSConfig | bool | None = None,
        retry_config: RetryConfig | None = None,
        keep_alive_config: KeepAliveConfig | None = KeepAliveConfig.default,
        rpc_metadata: Mapping[str, str] | None = None,
        identity: str | None = None,
        lazy: bool = False,
        runtime: None = None,
        http_connect_proxy_config: HttpConnectProxyConfig | None = None,
        dns_load_balancing_config: DnsLoadBalancingConfig | None = None,
        grpc_compression: GrpcCompression = GrpcCompression.NONE,
        payload_limits: PayloadLimitsConfig = PayloadLimitsConfig(),
        connect_timeout: Duration | None = None,
        header_codec_behavior: HeaderCodecBehavior = HeaderCodecBehavior.NO_CODEC,
        plugins: Sequence[Plugin] = (),
    ) -> Client:
        """Connect to `host:port`, `local:`, `local:PATH` or `profile:NAME`. The default target is read from the environment."""
        reject_option(
            runtime, "runtime", "metrics and tracing are those of hourglass.metrics and hourglass.contrib"
        )
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
                header_codec_behavior=header_codec_behavior,
                plugins=plugins,
            )
        )

    @property
    def api_key(self) -> str | None:
        """The API key for a server. Can be set."""
        return self.wrapped.api_key

    @api_key.setter
    def api_key(self, value: str | None) -> None:
        self.wrapped.api_key = value

    @property
    def rpc_metadata(self) -> Mapping[str, str]:
        """The headers of calls to a server. Can be set."""
        return self.wrapped.rpc_metadata

    @rpc_metadata.setter
    def rpc_metadata(self, value: Mapping[str, str]) -> None:
        self.wrapped.rpc_metadata = value

    @property
    def workflow_service(self) -> AsyncRawService:
        """The server's raw workflow service."""
        return self.wrapped.workflow_service

    @property
    def operator_service(self) -> AsyncRawService:
        """The server's raw operator service."""
        return self.wrapped.operator_service

    @property
    def test_service(self) -> AsyncRawService:
        """The raw service of Temporal's test server."""
        return self.wrapped.test_service

    @property
    def namespace(self) -> str:
        """The namespace of the client."""
        return self.wrapped.namespace

    @property
    def identity(self) -> str:
        """The client's identity, as recorded in histories."""
        return self.wrapped.identity

    @property
    def data_converter(self) -> Converter:
        """The data converter."""
        return self.wrapped.converter

    async def close(self) -> None:
        """Close the connection. Workflows keep running."""
        await self.wrapped.close()

    @overload
    async def start_workflow(
        self, workflow: str, *positional: Any, **options: Unpack[NamedAsStart[R]]
    ) -> WorkflowHandle[Any, R]: ...
    @overload
    async def start_workflow(
        self, workflow: str, *positional: Any, **options: Unpack[NamedStart]
    ) -> WorkflowHandle[Any, Any]: ...
    @overload
    async def start_workflow(
        self, workflow: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[StartConfig]
    ) -> WorkflowHandle[Any, R]: ...
    @overload
    async def start_workflow(
        self, workflow: Callable[..., R], **options: Unpack[ListedStart]
    ) -> WorkflowHandle[Any, R]: ...
    @overload
    async def start_workflow(
        self, workflow: Callable[[T], R], **options: Unpack[SingleStart[T]]
    ) -> WorkflowHandle[Any, R]: ...
    @overloaded(StartConfig)
    async def start_workflow(
        self, workflow: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a workflow and return its handle. Pass the workflow's run method or its name."""
        values = positional_values(arg, positional, args)
        return WorkflowHandle(await self.wrapped.start_workflow(workflow, *values, **chosen_options(options)))

    @overload
    async def execute_workflow(
        self, workflow: str, *positional: Any, **options: Unpack[NamedAsStart[R]]
    ) -> R: ...
    @overload
    async def execute_workflow(
        self, workflow: str, *positional: Any, **options: Unpack[NamedStart]
    ) -> Any: ...
    @overload
    async def execute_workflow(
        self, workflow: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[StartConfig]
    ) -> R: ...
    @overload
    async def execute_workflow(self, workflow: Callable[..., R], **options: Unpack[ListedStart]) -> R: ...
    @overload
    async def execute_workflow(self, workflow: Callable[[T], R], **options: Unpack[SingleStart[T]]) -> R: ...
    @overloaded(StartConfig)
    async def execute_workflow(
        self, workflow: Any, arg: Any = UNSET, *positional: Any, args: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Start a workflow and wait for its result."""
        values = positional_values(arg, positional, args)
        return await self.wrapped.execute_workflow(workflow, *values, **chosen_options(options))

    @takes(NamedUpdate)
    async def execute_update_with_start_workflow(
        self,
        update: Any,
        arg: Any = UNSET,
        *positional: Any,
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        args: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Start a workflow, or use the running one; then request an update and wait for its result."""
        handle = await self.start_update_with_start_workflow(
            update,
            start_workflow_operation=start_workflow_operation,
            wait_for_stage=WorkflowUpdateStage.COMPLETED,
            args=positional_values(arg, positional, args),
            **options,
        )
        return await handle.result()

    @takes(NamedUpdate)
    async def start_update_with_start_workflow(
        self,
        update: Any,
        arg: Any = UNSET,
        *positional: Any,
        wait_for_stage: WorkflowUpdateStage,
        start_workflow_operation: WithStartWorkflowOperation[Any, Any],
        args: Sequence[Any] = (),
        **options: Any,
    ) -> AsyncUpdateHandle[Any]:
        """Start a workflow, or use the running one; then request an update and wait until the update has reached a stage."""
        start = start_workflow_operation
        values = positional_values(arg, positional, args)
        planned = start._planned(self.wrapped)
        try:
            handle: AsyncUpdateHandle[Any] = await planned.start_update(
                update, *values, wait_for_stage=wait_for_stage, **chosen_options(options)
            )
        except BaseException as error:
            start._sent(planned, error)
            raise
        start._sent(planned)
        return handle

    @overload
    def get_workflow_handle(
        self,
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: type[R],
    ) -> WorkflowHandle[Any, R]: ...
    @overload
    def get_workflow_handle(
        self,
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: Any = None,
    ) -> WorkflowHandle[Any, Any]: ...
    def get_workflow_handle(
        self,
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: Any = None,
    ) -> WorkflowHandle[Any, Any]:
        """Return a handle to an existing workflow. Does not check whether the workflow exists."""
        return WorkflowHandle(
            self.wrapped.get_workflow_handle(
                workflow_id,
                run_id=run_id,
                first_execution_run_id=first_execution_run_id,
                result_type=result_type,
            )
        )

    def get_workflow_handle_for(
        self,
        workflow: Callable[..., R],
        workflow_id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
    ) -> WorkflowHandle[Any, R]:
        """Return a handle to an existing workflow, with the workflow's type. Does not check whether the workflow exists."""
        handle = self.wrapped.get_workflow_handle(
            workflow_id, run_id=run_id, first_execution_run_id=first_execution_run_id, workflow=workflow
        )
        return WorkflowHandle(handle)

    def list_workflows(
        self,
        query: str | None = None,
        *,
        limit: int | None = None,
        page_size: int = 1000,
        next_page_token: bytes | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncIterator[WorkflowExecution]:
        """Return an iterator over the runs that match a filter. Pages are fetched during iteration."""
        reject_option(next_page_token, "next_page_token", NO_TOKEN)
        return self.wrapped.list_workflows(query or "", limit=limit, page_size=page_size, **rpc)

    async def count_workflows(
        self, query: str | None = None, **rpc: Unpack[RpcOptions]
    ) -> WorkflowExecutionCount:
        """Return the number of runs that match a filter."""
        return await self.wrapped.count_workflows(query or "", **rpc)

    def get_async_activity_handle(
        self,
        *,
        workflow_id: str | None = None,
        run_id: str | None = None,
        activity_id: str | None = None,
        task_token: bytes | None = None,
    ) -> AsyncActivityHandle:
        """Return a handle to an activity that completes asynchronously, by its task token or by its ids."""
        handle = self.wrapped.get_activity_handle(
            token=task_token, workflow_id=workflow_id, run_id=run_id, activity_id=activity_id
        )
        return AsyncActivityHandle(handle._session, handle._reference)
