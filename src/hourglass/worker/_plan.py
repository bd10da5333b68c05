"""The options of a worker, validated and converted to the plan that `hourglass._worker` executes. This module has no side
effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hourglass._built_in import BUILT_IN
from hourglass._contract.handle import HandleConfig, NexusServices
from hourglass._contract.tuning import (
    PollerBehaviorAutoscaling,
    WorkerTuner,
    most_slots,
    poller_behavior,
)
from hourglass._evaluator.definition import check_exceptions
from hourglass._evaluator.options import optional_seconds, seconds, whole_number
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass._worker.interpreter import InterpreterOptions
from hourglass._worker.lanes.cache import FEWEST_CACHED, most_cached
from hourglass._worker.resolver import Resolver
from hourglass._worker.tree.plan import (
    Plan,
    Versioning,
    checked_executor,
    checked_verify,
    checked_versioning,
    checked_watch,
)
from hourglass.activity._context import Resources
from hourglass.client import AsyncClient, Client
from hourglass.client._interception import Interceptor, activity_chain, nexus_chain, workflow_interceptors
from hourglass.client._interception import checked as checked_interceptors
from hourglass.client._plugins import WorkerConfig
from hourglass.errors import UsageError
from hourglass.metrics import default_registry
from hourglass.nexus import Service


def plan_of(config: WorkerConfig, around: Sequence[Callable[[], object]]) -> Plan:
    """Return the plan of a worker. `around` are functions of plugins that return context managers around the worker."""
    client = config["client"]
    versioning = checked_versioning(config["deployment_config"], config["build_id"])
    resolver = Resolver(
        workflows=config["workflows"],
        activities=config["activities"],
        modules=config["modules"],
        needs_behavior=versioning.needs_behavior,
        built_in=BUILT_IN,
    )
    chain = (*client._session.interceptors, *checked_interceptors(config["interceptors"]))
    handle_config, live = _handle_config(config, resolver, versioning), config["max_live_workflows"]
    verify = checked_verify(config["verify"])
    return Plan(
        config=msgspec.structs.replace(handle_config, nexus=_nexus(config, chain)),
        resolver=resolver,
        converter=client.converter,
        codec=client.codec,
        failure_exceptions=check_exceptions(config["failure_exceptions"]),
        patch_activation=config["patch_activation_callback"],
        verify=verify,
        watch=checked_watch(config["watch"], verify),
        lanes=config["lanes"],
        max_live_workflows=handle_config.max_busy_workflows if live is None else live,
        deadlock_timeout=optional_seconds(config["deadlock_timeout"], "deadlock_timeout") or None,
        interpreter=InterpreterOptions(
            optional_seconds(config["switch_interval"], "switch_interval"), config["gc_threshold"]
        ),
        max_processes=config["max_process_activities"],
        activity_executor=checked_executor(config["activity_executor"]),
        payload_limit=config["payload_limit"],
        payload_warn=_payload_warn(client),
        resources=Resources(config["resources"], around),
        activity_inbound=activity_chain(chain),
        workflow_interceptors=workflow_interceptors(chain),
        metrics=default_registry if config["metrics"] is None else config["metrics"],
    )


def _handle_config(config: WorkerConfig, resolver: Resolver, versioning: Versioning) -> HandleConfig:
    """Return the worker's configuration for the engine."""
    polls = poller_behavior(
        config["workflow_task_poller_behavior"], config["workflow_pollers"], "workflow_task_poller_behavior"
    )
    activity_polls = poller_behavior(
        config["activity_task_poller_behavior"], config["activity_pollers"], "activity_task_poller_behavior"
    )
    cache_size = config["max_cached_workflows"]
    return HandleConfig(
        task_queue=config["task_queue"],
        identity=config["identity"] or "",
        build_id=versioning.build_id,
        version=versioning.version,
        default_behavior=versioning.default,
        workflows=resolver.has_workflows,
        activities=resolver.has_activities,
        remote_activities=not config["no_remote_activities"],
        workflow_types=resolver.workflow_types,
        activity_types=resolver.activity_types,
        max_cached_workflows=FEWEST_CACHED if cache_size is None else cache_size,
        max_busy_workflows=most_cached() if cache_size is None else cache_size,
        **_slots(config),
        workflow_pollers=polls.maximum,
        activity_pollers=activity_polls.maximum,
        workflow_scaling=polls if isinstance(polls, PollerBehaviorAutoscaling) else None,
        activity_scaling=activity_polls if isinstance(activity_polls, PollerBehaviorAutoscaling) else None,
        nonsticky_poll_ratio=config["nonsticky_to_sticky_poll_ratio"],
        sticky_timeout=seconds(config["sticky_timeout"], "sticky_timeout"),
        max_activities_per_second=config["max_activities_per_second"],
        max_task_queue_activities_per_second=config["max_task_queue_activities_per_second"],
        max_eager_activities=0
        if config["disable_eager_activity_execution"]
        else config["max_eager_activity_reservations_per_workflow_task"],
        graceful_shutdown=seconds(config["graceful_shutdown_timeout"], "graceful_shutdown_timeout"),
        heartbeat_throttle=seconds(
            config["max_heartbeat_throttle_interval"], "max_heartbeat_throttle_interval"
        ),
        default_heartbeat_throttle=seconds(
            config["default_heartbeat_throttle_interval"], "default_heartbeat_throttle_interval"
        ),
    )


def _nexus(config: WorkerConfig, interceptors: Sequence[Interceptor]) -> NexusServices | None:
    """Return the Nexus services, or None if there are none."""
    listed = config["nexus_services"]
    if not listed:
        return None
    services: dict[str, Service] = {}
    for service in listed:
        if not isinstance(service, Service):
            raise UsageError(f"nexus_services must be nexus.Service objects, not {type(service).__name__}")
        if services.setdefault(service.name, service) is not service:
            raise UsageError(f"two Nexus services have the name {service.name!r}")
    client = config["client"]
    slots = whole_number(config["max_concurrent_nexus_tasks"], "max_concurrent_nexus_tasks", 1, 2**31 - 1)
    return NexusServices(
        services=services,
        executor=checked_executor(config["nexus_task_executor"], "nexus_task_executor")
        or DaemonExecutor("hourglass-nexus", slots),
        converter=client.converter,
        codec=client.codec,
        client=lambda: blocking_client(config["client"]),
        inbound=nexus_chain(interceptors),
        registry=default_registry if config["metrics"] is None else config["metrics"],
        polls=poller_behavior(config["nexus_task_poller_behavior"], 1, "nexus_task_poller_behavior"),
        slots=slots,
    )


def _payload_warn(client: Client | AsyncClient) -> int:
    """Return the size in bytes above which an activity's result is logged as a warning. Return 0 on a server, because Core
    logs the warning itself.
    """
    where = client._session.link.where
    return 0 if where.kind == "temporal" else where.transport.payload_limits.payloads_warn_size


_COUNTS = ("max_concurrent_workflow_tasks", "max_concurrent_activities", "max_concurrent_local_activities")


def _slots(config: WorkerConfig) -> dict[str, Any]:
    """Return the numbers of slots, or a tuner. For engines without tuners, return the tuner's maximum numbers."""
    settings: Mapping[str, Any] = config
    tuner = config["tuner"]
    if tuner is None:
        return {name: settings[name] for name in _COUNTS}
    if not isinstance(tuner, WorkerTuner):
        raise UsageError(f"tuner must be a WorkerTuner, not {type(tuner).__name__}")
    if both := [name for name in _COUNTS if settings[name] != 100]:
        raise UsageError(f"tuner and {both[0]} both set the number of slots: omit one of them")
    suppliers = (tuner.workflow_supplier, tuner.activity_supplier, tuner.local_activity_supplier)
    counts: dict[str, Any] = dict(zip(_COUNTS, map(most_slots, suppliers), strict=True))
    return {**counts, "tuner": None if tuner.is_fixed else tuner}


def blocking_client(client: Client | AsyncClient) -> Client:
    """Return the client for `activity.client()`. Activities in threads need a blocking client that shares the connection."""
    return client if isinstance(client, Client) else Client(client._session)
