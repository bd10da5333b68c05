# Made by `make faces` from _async.py: edit that one.
"""`Client`: each method runs an operation on the control loop and blocks the calling thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from hourglass.client._blocking_activities import (
    Activities,
)
from hourglass.client._blocking_handles import ScheduleHandle, WithStart, WorkflowHandle
from hourglass.client._bulk import BulkResult, Progress
from hourglass.client._deployments import DeploymentDescription, TaskQueueDescription
from hourglass.client._faces import ClientFacts
from hourglass.client._interception import Interceptor
from hourglass.client._options import RpcOptions, StartOptions
from hourglass.client._plugins import ClientConfig, Plugin, all_plugins, configured
from hourglass.client._schedule_data import Schedule, ScheduleListDescription
from hourglass.client._services import RawService
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


class Operator(ClientFacts):
    """The administrative methods of a client: namespaces, Nexus endpoints, search attributes, task queues, worker versions."""

    def create_namespace(
        self, name: str, *, retention: Duration = 72 * 3600.0, description: str = ""
    ) -> None:
        """Create a namespace on a server. `retention` is how long closed workflows are kept. The call may return before the
        entire server knows the namespace.

        An embedded engine has only the namespace with which it was opened.
        """
        self._session.run(_deployments.create_namespace(name, retention, description))

    def create_nexus_endpoint(
        self, name: str, *, task_queue: str, namespace: str | None = None, description: str = ""
    ) -> None:
        """Create a Nexus endpoint on a server. Workflows use the endpoint to call the Nexus operations of the workers on
        this task queue, in this client's namespace or another.
        """
        self._session.run(_deployments.create_nexus_endpoint(name, task_queue, namespace, description))

    def delete_nexus_endpoint(self, name: str) -> None:
        """Delete a Nexus endpoint from a server."""
        self._session.run(_deployments.delete_nexus_endpoint(name))

    def add_search_attributes(self, types: Mapping[str, str]) -> None:
        """Create search attributes, such as `{"Region": "Keyword"}`. Attributes that already exist with the same type are
        kept.

        The call may return before the entire server knows the attributes. An embedded engine also creates an attribute on
        first use.
        """
        self._session.run(_deployments.add_search_attributes(types))

    def list_search_attributes(self) -> dict[str, str]:
        """Return the custom search attributes and their types."""
        return self._session.run(_deployments.list_search_attributes())

    def describe_task_queue(self, name: str = "default", **rpc: Unpack[RpcOptions]) -> TaskQueueDescription:
        """Return the workers and the backlog of a task queue."""
        return self._session.run(_deployments.describe_task_queue(name), rpc)

    def set_current_version(
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
        return self._session.run(operation)

    def set_ramping_version(
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
        return self._session.run(operation)

    def describe_deployment(self, name: str, **rpc: Unpack[RpcOptions]) -> DeploymentDescription:
        """Return the versions of a deployment, including the current one."""
        return self._session.run(_deployments.describe_deployment(name), rpc)


class Client(Activities, Operator):
    """A client for asyncio. It has the methods of `Client` as coroutines, and works on any event loop."""

    @classmethod
    def connect(
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
    ) -> Client:
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
            return cls(portal.call(opening(portal, settings, every)))
        except HourglassError as error:
            without_our_frames(error)
            raise

    @property
    def workflow_service(self) -> RawService:
        """The server's raw workflow service, for RPCs that the client has no method for."""
        return RawService(self._session, "workflow")

    @property
    def operator_service(self) -> RawService:
        """The server's raw operator service: search attributes, Nexus endpoints, clusters."""
        return RawService(self._session, "operator")

    @property
    def test_service(self) -> RawService:
        """The raw service of Temporal's test server, for time skipping."""
        return RawService(self._session, "test")

    @property
    def health_service(self) -> RawService:
        """The raw gRPC health service of a server."""
        return RawService(self._session, "health")

    def close(self) -> None:
        """Close the connection. Workflows keep running."""
        if not self.closed and not self._portal.closed:  # a closed portal has closed everything
            self._session.link.portal.call(self._session.link.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @overload
    def start_workflow(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    @overload
    def start_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[Any]: ...
    @overload
    def start_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    def start_workflow(  # type: ignore[misc]
        self, workflow: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start a workflow and return its handle. Pass the decorated workflow or its name.

        `result_type` is for workflows passed by name. The options are those of `StartOptions`.
        """
        operation = _starts.start(self._session, workflow, args, options, result_type)
        return self._session.run(operation.then(partial(WorkflowHandle, self._session)))

    @overload
    def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    def execute_workflow(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> Any: ...
    @overload
    def execute_workflow(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    def execute_workflow(  # type: ignore[misc]
        self, workflow: Any, /, *args: Any, result_type: Any = None, **options: Any
    ) -> Any:
        """Start a workflow and wait for its result."""
        session = self._session
        if session.interceptors:  # an interceptor may have returned a handle of its own
            handle = self.start_workflow(workflow, *args, result_type=result_type, **options)
            return handle.result()
        return session.run(_starts.execute(session, workflow, args, options, result_type))

    @overload
    def with_start(
        self, workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[StartOptions]
    ) -> WithStart[R]: ...
    @overload
    def with_start(
        self, workflow: str, /, *args: Any, result_type: Any = None, **options: Unpack[StartOptions]
    ) -> WithStart[Any]: ...
    @overload
    def with_start(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> WithStart[R]: ...
    def with_start(self, workflow: Any, /, *args: Any, result_type: Any = None, **options: Any) -> Any:  # type: ignore[misc]
        """Prepare to start a workflow together with a message: `with_start(cart, id="c-1").signal(add, item)`.

        The call on the returned object sends both. The workflow is started unless it is already running. The start and the
        message are atomic: either both happen or neither does.
        """
        return WithStart(self._session, workflow, args, options, result_type)

    @overload
    def get_workflow_handle(
        self,
        id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        workflow: Callable[..., R],
    ) -> WorkflowHandle[R]: ...
    @overload
    def get_workflow_handle(
        self,
        id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        result_type: type[R],
    ) -> WorkflowHandle[R]: ...
    @overload
    def get_workflow_handle(
        self,
        id: str,
        *,
        run_id: str | None = None,
        first_execution_run_id: str | None = None,
        workflow: str | None = None,
        result_type: Any = None,
    ) -> WorkflowHandle[Any]: ...
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
        return WorkflowHandle(self._session, reference)

    def import_workflow(
        self,
        history: History,
        *,
        id: str | None = None,
        request_id: str | None = None,
        dry_run: bool = False,
        hold: bool = False,
    ) -> WorkflowHandle[Any]:
        """Start a workflow from the history of an open run, from this or another engine, and return its handle.

        The workflow continues from the end of the history; no completed step is repeated. Pending activities start again at
        their first attempt. A server repeats the workflow tasks of the history, so times and random numbers change.
        Histories that cannot be repeated (children, updates, timed-out activities) are rejected with `ServiceError`, as they
        are with `dry_run`, which starts no workflow. Calls with the same `request_id` perform a single import. With `hold`,
        no worker on a server receives the run until the call is repeated without `hold`.
        """
        events = [json.dumps(event).encode() for event in history.events]
        operation = _reset.import_workflow(events, id or history.workflow_id, request_id, dry_run, hold)
        return WorkflowHandle(self._session, self._session.run(operation))

    def list_workflows(
        self,
        query: str = "",
        *,
        page_size: int = 100,
        limit: int | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> Iterator[WorkflowExecution]:
        """Return an iterator over the runs that match a filter, or over all runs by default. Pages are fetched during
        iteration. `limit` is the maximum number of runs.
        """
        if limit is not None:
            whole_number(limit, "limit", 0, INT64)
        page = partial(_operations.list_page, self._session, query, page_size)
        return self._session.each(page, rpc, limit)

    def list_page(
        self,
        query: str = "",
        *,
        page_size: int = 100,
        page_token: bytes = b"",
        **rpc: Unpack[RpcOptions],
    ) -> WorkflowExecutionPage:
        """Return one page of the runs that match a filter: the first page, or the page after `next_page_token`."""
        return self._session.run(_operations.list_page(self._session, query, page_size, page_token), rpc)

    def count_workflows(self, query: str = "", **rpc: Unpack[RpcOptions]) -> WorkflowExecutionCount:
        """Return the number of runs that match a filter. If the filter ends with `GROUP BY ExecutionStatus`, the result's
        `groups` contain the number of runs for each status.
        """
        return self._session.run(_operations.count(self._session, query), rpc)

    def cancel_workflows(
        self, query: str, *, reason: str = "", progress: Progress | None = None
    ) -> BulkResult:
        """Request the cancellation of every open workflow that matches a filter. `progress` is called with the number of
        workflows handled so far and the total.
        """
        return self._to_each(query, lambda run: _operations.cancel(self._session, run, reason), progress)

    def terminate_workflows(
        self, query: str, *, reason: str = "", progress: Progress | None = None
    ) -> BulkResult:
        """Terminate every open workflow that matches a filter immediately."""
        return self._to_each(
            query, lambda run: _operations.terminate(self._session, run, reason, ()), progress
        )

    def signal_workflows(
        self, query: str, signal: Any, /, *args: Any, progress: Progress | None = None
    ) -> BulkResult:
        """Send a signal to every open workflow that matches a filter. Pass the signal's name, its channel or its decorated
        method.
        """
        return self._to_each(
            query, lambda run: _operations.signal(self._session, run, signal, args), progress
        )

    def update_options_of_workflows(
        self,
        query: str,
        *,
        versioning_override: VersioningOverride | None,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Move every open workflow that matches a filter to a worker version, like `update_options` of a handle."""
        return self._to_each(
            query,
            lambda run: _operations.update_options(
                self._session, run, {"versioning_override": versioning_override}
            ),
            progress,
        )

    def _to_each(self, query: str, act: _bulk.Act, progress: Progress | None) -> BulkResult:
        executions = self.list_workflows(_bulk.open_only(query), page_size=1000)
        references = [_bulk.pinned(execution.id, execution.run_id) for execution in executions]
        result = BulkResult(found=len(references))
        for some in _bulk.slices(references):
            result.add(self._session.run(_bulk.act_on(some, act)))
            if progress is not None:
                progress(result.handled, result.found)
        return result

    def create_schedule(
        self,
        id: str,
        schedule: Schedule,
        *,
        trigger_immediately: bool = False,
        backfill: Sequence[ScheduleBackfill] = (),
        memo: Mapping[str, Any] | None = None,
        search_attributes: SearchAttributes | None = None,
        **rpc: Unpack[RpcOptions],
    ) -> ScheduleHandle:
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
        return self._session.run(operation.then(partial(ScheduleHandle, self._session)), rpc)

    def get_schedule_handle(self, id: str) -> ScheduleHandle:
        """Return a handle to an existing schedule. Does not check whether the schedule exists."""
        return ScheduleHandle(self._session, _schedules.refer_schedule(id))

    def list_schedules(
        self, query: str = "", *, page_size: int = 100, **rpc: Unpack[RpcOptions]
    ) -> Iterator[ScheduleListDescription]:
        """Return an iterator over the schedules that match a filter, or over all schedules by default. Pages are fetched
        during iteration.
        """
        page = partial(_schedules.list_page, self._session, query, page_size)
        return self._session.each(page, rpc)
