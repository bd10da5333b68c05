"""`AsyncClient`: each method runs an operation on the control loop and is awaited on the caller's loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._contract.schedule_specs import ScheduleBackfill
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
from hourglass._evaluator.options import INT64, Duration, whole_number
from hourglass._evaluator.specs import VersioningOverride, WorkerDeploymentVersion
from hourglass._worker.code_origin import without_our_frames
from hourglass._worker.portal import Portal
from hourglass.client import (
    _bulk,
    _deployments,
    _operations,
    _reset,
    _schedules,
    _starts,
)
from hourglass.client._async_activities import (
    AsyncActivities,
)
from hourglass.client._async_handles import AsyncScheduleHandle, AsyncWithStart, AsyncWorkflowHandle
from hourglass.client._bulk import BulkResult, Progress
from hourglass.client._deployments import DeploymentDescription, TaskQueueDescription
from hourglass.client._faces import ClientFacts
from hourglass.client._interception import Interceptor
from hourglass.client._options import RpcOptions, StartOptions
from hourglass.client._plugins import ClientConfig, Plugin, all_plugins, configured
from hourglass.client._schedule_data import Schedule, ScheduleListDescription
from hourglass.client._services import AsyncRawService
from hourglass.client._session import opening
from hourglass.client._values import WorkflowExecution, WorkflowExecutionCount, WorkflowExecutionPage
from hourglass.converter import (
    Codec,
    Converter,
    HeaderCodecBehavior,
    SearchAttributes,
    default_converter,
)
from hourglass.errors import HourglassError

if TYPE_CHECKING:
    from hourglass.replay import History

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

# mypy does not recognize that `*args: Any` accepts `*args: *Ts`, hence `ignore[misc]` on the implementations.


class AsyncOperator(ClientFacts):
    """The administrative methods of a client: namespaces, Nexus endpoints, search attributes, task queues, worker versions."""

    async def create_namespace(
        self, name: str, *, retention: Duration = 72 * 3600.0, description: str = ""
    ) -> None:
        """Create a namespace on a server. `retention` is how long closed workflows are kept. The call may return before the
        entire server knows the namespace.

        An embedded engine has only the namespace with which it was opened.
        """
        await self._session.arun(_deployments.create_namespace(name, retention, description))

    async def create_nexus_endpoint(
        self, name: str, *, task_queue: str, namespace: str | None = None, description: str = ""
    ) -> None:
        """Create a Nexus endpoint on a server. Workflows use the endpoint to call the Nexus operations of the workers on
        this task queue, in this client's namespace or another.
        """
        await self._session.arun(_deployments.create_nexus_endpoint(name, task_queue, namespace, description))

    async def delete_nexus_endpoint(self, name: str) -> None:
        """Delete a Nexus endpoint from a server."""
        await self._session.arun(_deployments.delete_nexus_endpoint(name))

    async def add_search_attributes(self, types: Mapping[str, str]) -> None:
        """Create search attributes, such as `{"Region": "Keyword"}`. Attributes that already exist with the same type are
        kept.

        The call may return before the entire server knows the attributes. An embedded engine also creates an attribute on
        first use.
        """
        await self._session.arun(_deployments.add_search_attributes(types))

    async def list_search_attributes(self) -> dict[str, str]:
        """Return the custom search attributes and their types."""
        return await self._session.arun(_deployments.list_search_attributes())

    async def describe_task_queue(
        self, name: str = "default", **rpc: Unpack[RpcOptions]
    ) -> TaskQueueDescription:
        """Return the workers and the backlog of a task queue."""
        return await self._session.arun(_deployments.describe_task_queue(name), rpc)

    async def set_current_version(
        self,
        deployment: str,
        build_id: str | None,
        *,
        wait: Duration = 10.0,
        ignore_missing_task_queues: bool = False,
    ) -> WorkerDeploymentVersion | None:
        """Make a build of a deployment the current version, and return the previous one. The workers of the current version
        receive new runs and runs that upgrade automatically. With None, unversioned workers receive them.

        If no worker has reported the version yet, `wait` is how long to wait for the report. A server rejects a version that
        lacks a task queue of the previous one unless `ignore_missing_task_queues` is set.
        """
        operation = _deployments.set_current_version(
            self._session,
            deployment,
            build_id,
            wait=wait,
            ignore_missing_task_queues=ignore_missing_task_queues,
        )
        return await self._session.arun(operation)

    async def set_ramping_version(
        self,
        deployment: str,
        build_id: str | None,
        percentage: float = 0.0,
        *,
        wait: Duration = 10.0,
        ignore_missing_task_queues: bool = False,
    ) -> WorkerDeploymentVersion | None:
        """Route a percentage of the current version's runs to a build of a deployment, and return the previous ramping
        version. Runs are selected by workflow id. A run that has moved to the new version stays there. None ends the ramp.

        To complete the rollout, call `set_current_version`, which has the same other options.
        """
        operation = _deployments.set_ramping_version(
            self._session,
            deployment,
            build_id,
            percentage,
            wait=wait,
            ignore_missing_task_queues=ignore_missing_task_queues,
        )
        return await self._session.arun(operation)

    async def describe_deployment(self, name: str, **rpc: Unpack[RpcOptions]) -> DeploymentDescription:
        """Return the versions of a deployment, including the current one."""
        return await self._session.arun(_deployments.describe_deployment(name), rpc)


class AsyncClient(AsyncActivities, AsyncOperator):
    """A client for asyncio. It has the methods of `Client` as coroutines, and works on any event loop."""

    @classmethod
    async def connect(
        cls,
        target: str | None = None,
        *,
        namespace: str | None = None,
        tls: TLSConfig | bool | None = None,
        api_key: str | None = None,
        rpc_metadata: Mapping[str, str] | None = None,
        identity: str | None = None,
        converter: Converter = default_converter,
        codec: Codec | None = None,
        header_codec_behavior: HeaderCodecBehavior = HeaderCodecBehavior.NO_CODEC,
        interceptors: Sequence[Interceptor] = (),
        timeout: Duration = 10.0,
        lazy: bool = False,
        retry_config: RetryConfig | None = None,
        keep_alive_config: KeepAliveConfig | None = KeepAliveConfig.default,
        http_connect_proxy_config: HttpConnectProxyConfig | None = None,
        dns_load_balancing_config: DnsLoadBalancingConfig | None = None,
        grpc_compression: GrpcCompression = GrpcCompression.NONE,
        payload_limits: PayloadLimitsConfig = PayloadLimitsConfig(),
        default_query_reject_condition: QueryRejectCondition = QueryRejectCondition.NONE,
        retention: Duration | None = None,
        plugins: Sequence[Plugin] = (),
    ) -> AsyncClient:
        """Connect to `local:`, `host:port` or `profile:NAME`.

        The default target is set by `HOURGLASS_TARGET`, or by `TEMPORAL_ADDRESS` and related variables. Each client of
        `local:` has its own in-memory engine, which stops when the client is closed. `retention` is how long a worker on a
        file keeps closed workflows, 30 days by default; a Temporal server has a separate setting for each namespace. With
        `lazy`, the client connects on its first call, and `timeout` counts from that call. `payload_limits` sets the sizes
        from which warnings about values are logged. The options named `…_config`, and `grpc_compression`, apply only to
        connections to a server.
        """
        every = all_plugins((), plugins)
        settings = configured(ClientConfig, "configure_client", every, locals())
        portal = Portal.current()
        try:
            return cls(await portal.acall(opening(portal, settings, every)))
        except HourglassError as error:
            without_our_frames(error)
            raise

    @property
    def workflow_service(self) -> AsyncRawService:
        """The server's raw workflow service, for RPCs that the client has no method for."""
        return AsyncRawService(self._session, "workflow")

    @property
    def operator_service(self) -> AsyncRawService:
        """The server's raw operator service: search attributes, Nexus endpoints, clusters."""
        return AsyncRawService(self._session, "operator")

    @property
    def test_service(self) -> AsyncRawService:
        """The raw service of Temporal's test server, for time skipping."""
        return AsyncRawService(self._session, "test")

    @property
    def health_service(self) -> AsyncRawService:
        """The raw gRPC health service of a server."""
        return AsyncRawService(self._session, "health")

    async def close(self) -> None:
        """Close the connection. Workflows keep running."""
        if not self.closed and not self._portal.closed:  # a closed portal has closed everything
            await self._session.link.portal.acall(self._session.link.close())

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @overload
    async def start_workflow(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> AsyncWorkflowHandle[R]: ...
    @overload
    async def start_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> AsyncWorkflowHandle[Any]: ...
    @overload
    async def start_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> AsyncWorkflowHandle[R]: ...
    async def start_workflow(  # type: ignore[misc]
        self, workflow: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start a workflow and return its handle. Pass the decorated workflow or its name.

        `result_type` is for workflows passed by name. The options are those of `StartOptions`.
        """
        operation = _starts.start(self._session, workflow, args, options, result_type)
        return await self._session.arun(operation.then(partial(AsyncWorkflowHandle, self._session)))

    @overload
    async def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    async def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> Any: ...
    @overload
    async def execute_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    async def execute_workflow(  # type: ignore[misc]
        self, workflow: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start a workflow and wait for its result."""
        session = self._session
        if session.interceptors:  # an interceptor may have returned a handle of its own
            handle = await self.start_workflow(workflow, *args, result_type=result_type, **options)
            return await handle.result()
        return await session.arun(_starts.execute(session, workflow, args, options, result_type))

    @overload
    def with_start(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> AsyncWithStart[R]: ...
    @overload
    def with_start(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> AsyncWithStart[Any]: ...
    @overload
    def with_start(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> AsyncWithStart[R]: ...
    def with_start(self, workflow: Any, /, *args: Any, result_type: Any = None, **options: Any) -> Any:  # type: ignore[misc]
        """Prepare to start a workflow together with a message: `with_start(cart, id="c-1").signal(add, item)`.

        The call on the returned object sends both. The workflow is started unless it is already running. The start and the
        message are atomic: either both happen or neither does.
        """
        return AsyncWithStart(self._session, workflow, args, options, result_type)

    @overload
    def get_workflow_handle(
        self,
        id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        workflow: Callable[..., R],
    ) -> AsyncWorkflowHandle[R]: ...
    @overload
    def get_workflow_handle(
        self,
        id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: type[R],
    ) -> AsyncWorkflowHandle[R]: ...
    @overload
    def get_workflow_handle(
        self,
        id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        workflow: str | None = None,
        result_type: Any = None,
    ) -> AsyncWorkflowHandle[Any]: ...
    def get_workflow_handle(
        self,
        id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        workflow: Any = None,
        result_type: Any = None,
    ) -> Any:
        """Return a handle to an existing workflow, or, with `run_id`, to that run only. Does not check whether the workflow
        exists.

        With `first_execution_run_id`, the handle cancels, terminates and updates the workflow only if its current run
        belongs to the chain that began with that run. This protects a later workflow that reuses the id.
        """
        reference = _operations.refer(id, run_id, workflow, result_type, first_execution_run_id)
        return AsyncWorkflowHandle(self._session, reference)

    async def import_workflow(
        self,
        history: History,
        *,
        id: str | None = None,
        request_id: str | None = None,
        dry_run: bool = False,
        hold: bool = False,
    ) -> AsyncWorkflowHandle[Any]:
        """Start a workflow from the history of an open run, from this or another engine, and return its handle.

        The workflow continues from the end of the history; no completed step is repeated. Pending activities start again at
        their first attempt. A server repeats the workflow tasks of the history, so times and random numbers change.
        Histories that cannot be repeated (children, updates, timed-out activities) are rejected with `ServiceError`, as they
        are with `dry_run`, which starts no workflow. Calls with the same `request_id` perform a single import. With `hold`,
        no worker on a server receives the run until the call is repeated without `hold`.
        """
        events = [json.dumps(event).encode() for event in history.events]
        operation = _reset.import_workflow(events, id or history.workflow_id, request_id, dry_run, hold)
        return AsyncWorkflowHandle(self._session, await self._session.arun(operation))

    def list_workflows(
        self,
        query: str = "",
        *,
        page_size: int = 100,
        limit: int | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncIterator[WorkflowExecution]:
        """Return an iterator over the runs that match a filter, or over all runs by default. Pages are fetched during
        iteration. `limit` is the maximum number of runs.
        """
        if limit is not None:
            whole_number(limit, "limit", 0, INT64)
        page = partial(_operations.list_page, self._session, query, page_size)
        return self._session.aeach(page, rpc, limit)

    async def list_page(
        self,
        query: str = "",
        *,
        page_size: int = 100,
        page_token: bytes = b"",
        **rpc: Unpack[RpcOptions],
    ) -> WorkflowExecutionPage:
        """Return one page of the runs that match a filter: the first page, or the page after `next_page_token`."""
        return await self._session.arun(
            _operations.list_page(self._session, query, page_size, page_token), rpc
        )

    async def count_workflows(self, query: str = "", **rpc: Unpack[RpcOptions]) -> WorkflowExecutionCount:
        """Return the number of runs that match a filter. If the filter ends with `GROUP BY ExecutionStatus`, the result's
        `groups` contain the number of runs for each status.
        """
        return await self._session.arun(_operations.count(self._session, query), rpc)

    async def cancel_workflows(
        self, query: str, *, reason: str = "", progress: Progress | None = None
    ) -> BulkResult:
        """Request the cancellation of every open workflow that matches a filter. `progress` is called with the number of
        workflows handled so far and the total.
        """
        return await self._to_each(
            query, lambda run: _operations.cancel(self._session, run, reason), progress
        )

    async def terminate_workflows(
        self, query: str, *, reason: str = "", progress: Progress | None = None
    ) -> BulkResult:
        """Terminate every open workflow that matches a filter immediately."""
        return await self._to_each(
            query, lambda run: _operations.terminate(self._session, run, reason, ()), progress
        )

    async def signal_workflows(
        self, query: str, signal: Any, /, *args: Any, progress: Progress | None = None
    ) -> BulkResult:
        """Send a signal to every open workflow that matches a filter. Pass the signal's name, its channel or its decorated
        method.
        """
        return await self._to_each(
            query, lambda run: _operations.signal(self._session, run, signal, args), progress
        )

    async def update_options_of_workflows(
        self,
        query: str,
        *,
        versioning_override: VersioningOverride | None,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Move every open workflow that matches a filter to a worker version, like `update_options` of a handle."""
        return await self._to_each(
            query,
            lambda run: _operations.update_options(
                self._session, run, {"versioning_override": versioning_override}
            ),
            progress,
        )

    async def _to_each(self, query: str, act: _bulk.Act, progress: Progress | None) -> BulkResult:
        executions = self.list_workflows(_bulk.open_only(query), page_size=1000)
        references = [_bulk.pinned(execution.id, execution.run_id) async for execution in executions]
        result = BulkResult(found=len(references))
        for some in _bulk.slices(references):
            result.add(await self._session.arun(_bulk.act_on(some, act)))
            if progress is not None:
                progress(result.handled, result.found)
        return result

    async def create_schedule(
        self,
        id: str,
        schedule: Schedule,
        *,
        trigger_immediately: bool = False,
        backfill: Sequence[ScheduleBackfill] = (),
        memo: Mapping[str, Any] | None = None,
        search_attributes: SearchAttributes | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> AsyncScheduleHandle:
        """Create a schedule, which starts workflows at defined times, and return its handle.

        With `trigger_immediately`, the schedule also acts now; with `backfill`, also for past times. `memo` and
        `search_attributes` belong to the schedule itself. Set those of its workflows in its action.
        """
        operation = _schedules.create(
            self._session,
            id,
            schedule,
            trigger_immediately=trigger_immediately,
            backfill=backfill,
            memo=memo,
            search_attributes=search_attributes,
        )
        return await self._session.arun(operation.then(partial(AsyncScheduleHandle, self._session)), rpc)

    def get_schedule_handle(self, id: str) -> AsyncScheduleHandle:
        """Return a handle to an existing schedule. Does not check whether the schedule exists."""
        return AsyncScheduleHandle(self._session, _schedules.refer_schedule(id))

    def list_schedules(
        self, query: str = "", *, page_size: int = 100, **rpc: Unpack[RpcOptions]
    ) -> AsyncIterator[ScheduleListDescription]:
        """Return an iterator over the schedules that match a filter, or over all schedules by default. Pages are fetched
        during iteration.
        """
        page = partial(_schedules.list_page, self._session, query, page_size)
        return self._session.aeach(page, rpc)
