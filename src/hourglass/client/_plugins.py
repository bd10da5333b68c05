"""Plugins: code that changes the settings of clients, workers and replayers, and wraps the lifetime of a worker.

Settings are dictionaries. Plugins are called in the order of the list, and each receives the settings that the previous
plugin returned. The dictionaries contain all keyword arguments of `connect`, `Worker` and `Replayer` under their own names,
so that settings unknown to a plugin pass through unchanged. A test compares the names with the signatures. Must not know
what the settings mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

from hourglass._contract.transport import (
    DnsLoadBalancingConfig,
    GrpcCompression,
    HttpConnectProxyConfig,
    KeepAliveConfig,
    PayloadLimitsConfig,
    RetryConfig,
    TLSConfig,
)
from hourglass._contract.tuning import PollerBehavior, WorkerTuner
from hourglass._contract.workflows import QueryRejectCondition
from hourglass._evaluator.options import Duration
from hourglass._worker.lanes.evaluation import Verify
from hourglass._worker.lanes.watcher import Action
from hourglass._worker.tree.plan import WorkerDeploymentConfig
from hourglass.activity._definition import ActivitySource
from hourglass.client._interception import Interceptor
from hourglass.converter import Codec, Converter, HeaderCodecBehavior
from hourglass.errors import UsageError
from hourglass.metrics import Registry
from hourglass.nexus import Service
from hourglass.workflow._definitions import WorkflowSource
from hourglass.workflow._facts import PatchActivationInput

if TYPE_CHECKING:
    from hourglass.client import AsyncClient, Client
    from hourglass.worker import Worker


class ClientConfig(TypedDict):
    """The settings of a client: the arguments of `connect`."""

    target: str | None
    namespace: str | None
    tls: TLSConfig | bool | None
    api_key: str | None
    rpc_metadata: Mapping[str, str] | None
    identity: str | None
    converter: Converter
    codec: Codec | None
    header_codec_behavior: HeaderCodecBehavior
    interceptors: Sequence[Interceptor]
    timeout: Duration
    lazy: bool
    retry_config: RetryConfig | None
    keep_alive_config: KeepAliveConfig | None
    http_connect_proxy_config: HttpConnectProxyConfig | None
    dns_load_balancing_config: DnsLoadBalancingConfig | None
    grpc_compression: GrpcCompression
    payload_limits: PayloadLimitsConfig
    default_query_reject_condition: QueryRejectCondition
    retention: Duration | None
    plugins: Sequence[Plugin]


class WorkerConfig(TypedDict):
    """The settings of a worker: the arguments of `Worker`."""

    client: Client | AsyncClient
    task_queue: str
    workflows: Sequence[WorkflowSource | type]
    activities: Sequence[ActivitySource]
    modules: Sequence[str | ModuleType]
    max_cached_workflows: int | None
    max_live_workflows: int | None
    max_concurrent_workflow_tasks: int
    max_concurrent_activities: int
    max_concurrent_local_activities: int
    tuner: WorkerTuner | None
    workflow_pollers: int
    activity_pollers: int
    workflow_task_poller_behavior: PollerBehavior | None
    activity_task_poller_behavior: PollerBehavior | None
    nonsticky_to_sticky_poll_ratio: float
    sticky_timeout: Duration
    graceful_shutdown_timeout: Duration
    max_activities_per_second: float | None
    max_task_queue_activities_per_second: float | None
    no_remote_activities: bool
    max_eager_activity_reservations_per_workflow_task: int
    disable_eager_activity_execution: bool
    failure_exceptions: Sequence[type[BaseException]]
    nexus_services: Sequence[Service]
    max_concurrent_nexus_tasks: int
    nexus_task_poller_behavior: PollerBehavior | None
    nexus_task_executor: Executor | None
    patch_activation_callback: Callable[[PatchActivationInput], bool] | None
    verify: Verify | None
    watch: Action | Literal["off"] | None
    max_process_activities: int
    activity_executor: Executor | None
    max_heartbeat_throttle_interval: Duration
    default_heartbeat_throttle_interval: Duration
    payload_limit: int | None
    lanes: int
    deadlock_timeout: Duration | None
    switch_interval: Duration | None
    gc_threshold: int | None
    status_address: str | None
    interceptors: Sequence[Interceptor]
    resources: Sequence[Any]
    metrics: Registry | None
    identity: str | None
    build_id: str | None
    deployment_config: WorkerDeploymentConfig | None
    plugins: Sequence[Plugin]


class ReplayerConfig(TypedDict):
    """The settings of a replayer: the arguments of `Replayer`."""

    workflows: Sequence[WorkflowSource | type]
    modules: Sequence[Any]
    converter: Converter
    codec: Codec | None
    header_codec_behavior: HeaderCodecBehavior
    compare_arguments: bool
    failure_exceptions: Sequence[type[BaseException]]
    interceptors: Sequence[Interceptor]
    namespace: str
    timeout: float
    plugins: Sequence[Plugin]


class Plugin:
    """Changes the settings of clients, workers and replayers. Override the methods that you need.

    A plugin passed to `Client.connect(plugins=[…])` applies to the client and all its workers. One passed to
    `Worker(plugins=[…])` or `Replayer(plugins=[…])` applies only to that worker or replayer.
    """

    @property
    def name(self) -> str:
        """The name of the plugin, used in messages."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """Return the settings for a client. The dictionary may be changed in place."""
        return config

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Return the settings for a worker. The dictionary may be changed in place."""
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Return the settings for a replayer, which needs the same workflows, interceptors and converter as the worker. The
        dictionary may be changed in place.
        """
        return config

    def run_worker(self, worker: Worker) -> AbstractContextManager[object]:
        """Return a context manager that spans the worker's lifetime. It is entered before the worker starts, in the thread
        that starts the worker, and exited after the worker has stopped. The first plugin's context manager is the outermost.
        `activity.resource(Type)` returns the value that it yields.
        """
        return nullcontext()


S = TypeVar("S", ClientConfig, WorkerConfig, ReplayerConfig)


def all_plugins(inherited: Sequence[Plugin], own: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Return the plugins of a client and of its worker, without duplicates. Raise `UsageError` if an object is not a plugin."""
    plugins: list[Plugin] = []
    candidates: Sequence[Any] = (*inherited, *own)
    for plugin in candidates:
        if not isinstance(plugin, Plugin):
            hint = ": pass an instance" if isinstance(plugin, type) else ""
            raise UsageError(f"plugins must be instances of Plugin's subclasses, not {plugin!r:.80}{hint}")
        if plugin not in plugins:
            plugins.append(plugin)
    return tuple(plugins)


def configured(kind: type[S], method: str, plugins: Sequence[Plugin], arguments: Mapping[str, Any]) -> S:
    """Return the settings after every plugin has modified them. Ignore arguments that are not settings."""
    names = kind.__annotations__
    config: Any = {name: arguments[name] for name in names}
    for plugin in plugins:
        config = getattr(plugin, method)(config)
        if not isinstance(config, dict):
            raise UsageError(
                f"{method} of plugin {plugin.name} must return the settings, not {type(config).__name__}"
            )
        if config.keys() != names.keys():
            wrong = sorted(config.keys() ^ names.keys())
            raise UsageError(
                f"plugin {plugin.name} returned settings that {kind.__name__} does not have: {', '.join(wrong)}"
            )
    return cast(S, config)
