# Made by `make faces` from _async.py: edit that one.
"""The blocking face: each method runs an operation and blocks the calling thread, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

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
from hourglass.client._schedule_data import Schedule, ScheduleBackfill, ScheduleListDescription
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

# mypy does not see that `*args: Any` accepts `*args: *Ts`, hence `ignore[misc]` on the implementations.


class Operator(ClientFacts):
    """What operators ask of a client: namespaces, endpoints of Nexus, search attributes, task queues, versions of workers."""

    def create_namespace(
        self, name: str, *, retention: Duration = 72 * 3600.0, description: str = ""
    ) -> None:
        """Make a namespace on a server, which keeps closed workflows for so long; a server takes a moment to know it everywhere.
        An embedded engine has the one that it is opened with.
        """
        self._session.run(_deployments.create_namespace(name, retention, description))

    def create_nexus_endpoint(
        self, name: str, *, task_queue: str, namespace: str | None = None, description: str = ""
    ) -> None:
        """Make an endpoint of Nexus on a server, by which workflows call the operations that workers of this task queue serve, in
        this client's namespace or another.
        """
        self._session.run(_deployments.create_nexus_endpoint(name, task_queue, namespace, description))

    def delete_nexus_endpoint(self, name: str) -> None:
        """Remove an endpoint of Nexus from a server."""
        self._session.run(_deployments.delete_nexus_endpoint(name))

    def add_search_attributes(self, types: Mapping[str, str]) -> None:
        """Make search attributes, `{"Region": "Keyword"}`: those that are there with their type stay. A server takes a moment to
        know them everywhere; an embedded engine knows one from its first use, too, without this.
        """
        self._session.run(_deployments.add_search_attributes(types))

    def list_search_attributes(self) -> dict[str, str]:
        """The search attributes that users have made, with their types."""
        return self._session.run(_deployments.list_search_attributes())

    def describe_task_queue(self, name: str = "default", **rpc: Unpack[RpcOptions]) -> TaskQueueDescription:
        """Who takes workflow tasks and activities from a task queue."""
        return self._session.run(_deployments.describe_task_queue(name), rpc)

    def set_current_version(
        self,
        deployment: str,
        build_id: str | None,
        *,
        wait: Duration = 10.0,
        ignore_missing_task_queues: bool = False,
    ) -> WorkerDeploymentVersion | None:
        """Make a build of a deployment the current version, and get the one that was: new runs, and those that move on, go to
        its workers; with None to workers without a version.

        A version that no worker has been seen of yet is waited for, for so long. On a server, a version that lacks a
        task queue of the one before is refused unless `ignore_missing_task_queues`.
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
        """Let a build of a deployment take so many in a hundred of the runs that would go to the current version, and get the
        build that did so before. Which workflows those are follows from their ids: one that has moved stays. With None
        nothing ramps any more.

        Make it current with `set_current_version` once it has proved itself. The other options are as there.
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
        """The versions of a deployment, and which of them is current."""
        return self._session.run(_deployments.describe_deployment(name), rpc)


class Client(Activities, Operator):
    """A blocking client: for scripts, threads, web frameworks and wherever `await` is not at hand."""

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

        Without a target: to what `HOURGLASS_TARGET`, or `TEMPORAL_ADDRESS` and its companions, name.
        Each client of `local:` has an engine of its own, in memory, which ends with it. `retention` is how long the
        worker of a file keeps closed workflows, 30 days by default; a Temporal server has its own for a namespace.
        With `lazy` it connects with its first call, and `timeout` counts from there. `payload_limits` says from which size on
        values are warned of. The settings called `…_config`, and
        `grpc_compression`, are those of a connection to a server.
        """
        every = all_plugins((), plugins)
        said = configured(ClientConfig, "configure_client", every, locals())
        portal = Portal.current()
        try:
            return cls(portal.call(opening(portal, said, every)))
        except HourglassError as error:
            without_our_frames(error)
            raise

    @property
    def workflow_service(self) -> RawService:
        """A server's own service for workflows, for RPCs that no method here stands for."""
        return RawService(self._session, "workflow")

    @property
    def operator_service(self) -> RawService:
        """A server's own service for its operators: search attributes, Nexus endpoints, clusters."""
        return RawService(self._session, "operator")

    @property
    def test_service(self) -> RawService:
        """The service of Temporal's test server, which skips time."""
        return RawService(self._session, "test")

    @property
    def health_service(self) -> RawService:
        """gRPC's own service for a server's health."""
        return RawService(self._session, "health")

    def close(self) -> None:
        """Close the connection. Workflows go on without it."""
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
        """Start a workflow, given as its decorated object or its name, and get a handle to it.

        `result_type` is for workflows given by name. The options are those of `StartOptions`.
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
        if session.interceptors:  # they may have put a handle of their own in between
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
        """A workflow that the next call starts, unless it runs already: `with_start(cart, id="c-1").signal(add, item)`.

        Starting and sending are one step: either both happen or neither.
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
        """A handle to an existing workflow, or with `run_id` to that run alone; does not ask whether it exists.

        With `first_execution_run_id` it is cancelled, terminated or updated only if it still belongs to the chain that
        began with that run, and no other workflow has its id by now.
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
        """Begin a workflow that has this history already, of an open run, from here or from another engine; gives its handle.

        It goes on from where the history ends; nothing in it is done again. Activities that were pending begin at their
        first attempt. On a server the run is taken through the same workflow tasks anew, so times and random numbers are
        new; what it cannot be taken through (children, updates, activities that timed out) is refused with `ServiceError`,
        as with `dry_run`, which begins nothing. The same `request_id` again is the same import. With `hold` no worker gets
        the run on a server until the same call without it.
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
        """The runs that match a filter (all, if it is empty), fetched page by page as they are asked for.

        With a `limit` no more than so many.
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
        """One page of the runs that match a filter: the first, or the one after a page that told its token."""
        return self._session.run(_operations.list_page(self._session, query, page_size, page_token), rpc)

    def count_workflows(self, query: str = "", **rpc: Unpack[RpcOptions]) -> WorkflowExecutionCount:
        """How many runs match a filter; its `groups` say how many of each, where it ends with `GROUP BY ExecutionStatus`."""
        return self._session.run(_operations.count(self._session, query), rpc)

    def cancel_workflows(
        self, query: str, *, reason: str = "", progress: Progress | None = None
    ) -> BulkResult:
        """Ask every open workflow that a filter finds to cancel. `progress` hears how many of how many are done."""
        return self._to_each(query, lambda run: _operations.cancel(self._session, run, reason), progress)

    def terminate_workflows(
        self, query: str, *, reason: str = "", progress: Progress | None = None
    ) -> BulkResult:
        """End every open workflow that a filter finds, now."""
        return self._to_each(
            query, lambda run: _operations.terminate(self._session, run, reason, ()), progress
        )

    def signal_workflows(
        self, query: str, signal: Any, /, *args: Any, progress: Progress | None = None
    ) -> BulkResult:
        """Send every open workflow that a filter finds a signal, given as its name, a channel or a decorated method."""
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
        """Move every open workflow that a filter finds to a version: as `update_options` of a handle does with one."""
        return self._to_each(
            query,
            lambda run: _operations.update_options(
                self._session, run, {"versioning_override": versioning_override}
            ),
            progress,
        )

    def _to_each(self, query: str, act: _bulk.Act, progress: Progress | None) -> BulkResult:
        found = self.list_workflows(_bulk.open_ones(query), page_size=1000)
        references = [_bulk.pinned(each.id, each.run_id) for each in found]
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
        """Create a schedule, which starts a workflow again and again, and get a handle to it.

        With `trigger_immediately` it acts once at once, with `backfill` for times of the past. `memo` and
        `search_attributes` are the schedule's own; those of its workflows are its action's.
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
        """A handle to an existing schedule; does not ask whether it exists."""
        return ScheduleHandle(self._session, _schedules.refer_schedule(id))

    def list_schedules(
        self, query: str = "", *, page_size: int = 100, **rpc: Unpack[RpcOptions]
    ) -> Iterator[ScheduleListDescription]:
        """The schedules that match a filter (all, if it is empty), fetched page by page as they are asked for."""
        page = partial(_schedules.list_page, self._session, query, page_size)
        return self._session.each(page, rpc)
