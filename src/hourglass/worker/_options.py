"""What a worker was told, checked, as the plan that `_runtime` carries out. Nothing here has an effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hourglass._built_in import BUILT_IN
from hourglass._contract.handle import HandleConfig, NexusServices
from hourglass._contract.tuning import PollerBehaviorAutoscaling, WorkerTuner, most_slots, poller_behavior
from hourglass._engine.definition import check_exceptions
from hourglass._engine.options import optional_seconds, seconds, whole_number
from hourglass._runtime.cache import FEWEST_CACHED, most_cached
from hourglass._runtime.daemon_executor import DaemonExecutor
from hourglass._runtime.plan import (
    Plan,
    Versioning,
    checked_executor,
    checked_verify,
    checked_versioning,
    checked_watch,
)
from hourglass._runtime.resolver import Resolver
from hourglass.activity._context import Resources
from hourglass.client import AsyncClient, Client
from hourglass.client._interception import Interceptor, activity_chain, nexus_chain, workflow_interceptors
from hourglass.client._interception import checked as checked_interceptors
from hourglass.client._plugins import WorkerConfig
from hourglass.errors import UsageError
from hourglass.metrics import default_registry
from hourglass.nexus import Service


def plan_of(said: WorkerConfig, around: Sequence[Callable[[], object]]) -> Plan:
    """What the worker is asked to be; `around` are the blocks of its plugins."""
    client = said["client"]
    versioning = checked_versioning(said["deployment_config"], said["build_id"])
    resolver = Resolver(
        workflows=said["workflows"],
        activities=said["activities"],
        modules=said["modules"],
        needs_behavior=versioning.needs_behavior,
        built_in=BUILT_IN,
    )
    chain = (*client._session.interceptors, *checked_interceptors(said["interceptors"]))
    config, live = _handle_config(said, resolver, versioning), said["max_live_workflows"]
    verify = checked_verify(said["verify"])
    return Plan(
        config=msgspec.structs.replace(config, nexus=_nexus(said, chain)),
        resolver=resolver,
        converter=client.converter,
        codec=client.codec,
        failure_exceptions=check_exceptions(said["failure_exceptions"]),
        patch_activation=said["patch_activation_callback"],
        verify=verify,
        watch=checked_watch(said["watch"], verify),
        lanes=said["lanes"],
        max_live_workflows=config.max_busy_workflows if live is None else live,
        deadlock_timeout=optional_seconds(said["deadlock_timeout"], "deadlock_timeout") or None,
        max_processes=said["max_process_activities"],
        activity_executor=checked_executor(said["activity_executor"]),
        payload_limit=said["payload_limit"],
        payload_warn=_payload_warn(client),
        resources=Resources(said["resources"], around),
        activity_inbound=activity_chain(chain),
        workflow_interceptors=workflow_interceptors(chain),
        metrics=default_registry if said["metrics"] is None else said["metrics"],
    )


def _handle_config(said: WorkerConfig, resolver: Resolver, versioning: Versioning) -> HandleConfig:
    """What the engine is told of the worker."""
    polls = poller_behavior(
        said["workflow_task_poller_behavior"], said["workflow_pollers"], "workflow_task_poller_behavior"
    )
    activity_polls = poller_behavior(
        said["activity_task_poller_behavior"], said["activity_pollers"], "activity_task_poller_behavior"
    )
    kept = said["max_cached_workflows"]
    return HandleConfig(
        task_queue=said["task_queue"],
        identity=said["identity"] or "",
        build_id=versioning.build_id,
        version=versioning.version,
        default_behavior=versioning.default,
        workflows=resolver.has_workflows,
        activities=resolver.has_activities,
        remote_activities=not said["no_remote_activities"],
        workflow_types=resolver.workflow_types,
        activity_types=resolver.activity_types,
        max_cached_workflows=FEWEST_CACHED if kept is None else kept,
        max_busy_workflows=most_cached() if kept is None else kept,
        **_slots(said),
        workflow_pollers=polls.maximum,
        activity_pollers=activity_polls.maximum,
        workflow_scaling=polls if isinstance(polls, PollerBehaviorAutoscaling) else None,
        activity_scaling=activity_polls if isinstance(activity_polls, PollerBehaviorAutoscaling) else None,
        nonsticky_poll_ratio=said["nonsticky_to_sticky_poll_ratio"],
        sticky_timeout=seconds(said["sticky_timeout"], "sticky_timeout"),
        max_activities_per_second=said["max_activities_per_second"],
        max_task_queue_activities_per_second=said["max_task_queue_activities_per_second"],
        max_eager_activities=0
        if said["disable_eager_activity_execution"]
        else said["max_eager_activity_reservations_per_workflow_task"],
        graceful_shutdown=seconds(said["graceful_shutdown_timeout"], "graceful_shutdown_timeout"),
        heartbeat_throttle=seconds(
            said["max_heartbeat_throttle_interval"], "max_heartbeat_throttle_interval"
        ),
        default_heartbeat_throttle=seconds(
            said["default_heartbeat_throttle_interval"], "default_heartbeat_throttle_interval"
        ),
    )


def _nexus(said: WorkerConfig, interceptors: Sequence[Interceptor]) -> NexusServices | None:
    """The Nexus services, where there are any."""
    given = said["nexus_services"]
    if not given:
        return None
    services: dict[str, Service] = {}
    for each in given:
        if not isinstance(each, Service):
            raise UsageError(f"nexus_services are objects of nexus.Service, not {type(each).__name__}")
        if services.setdefault(each.name, each) is not each:
            raise UsageError(f"two Nexus services are called {each.name!r}")
    client = said["client"]
    slots = whole_number(said["max_concurrent_nexus_tasks"], "max_concurrent_nexus_tasks", 1, 2**31 - 1)
    return NexusServices(
        services=services,
        executor=checked_executor(said["nexus_task_executor"], "nexus_task_executor")
        or DaemonExecutor("hourglass-nexus", slots),
        converter=client.converter,
        codec=client.codec,
        client=lambda: blocking_client(said["client"]),
        inbound=nexus_chain(interceptors),
        registry=default_registry if said["metrics"] is None else said["metrics"],
        polls=poller_behavior(said["nexus_task_poller_behavior"], 1, "nexus_task_poller_behavior"),
        slots=slots,
    )


def _payload_warn(client: Client | AsyncClient) -> int:
    """From how many bytes on results of activities are warned of here; on a server Core does so."""
    where = client._session.link.where
    return 0 if where.kind == "temporal" else where.transport.payload_limits.payloads_warn_size


_COUNTS = ("max_concurrent_workflow_tasks", "max_concurrent_activities", "max_concurrent_local_activities")


def _slots(said: WorkerConfig) -> dict[str, Any]:
    """How many tasks at once: numbers, or a tuner, of which engines that know none get its largest numbers."""
    settings: Mapping[str, Any] = said
    tuner = said["tuner"]
    if tuner is None:
        return {name: settings[name] for name in _COUNTS}
    if not isinstance(tuner, WorkerTuner):
        raise UsageError(f"tuner must be a WorkerTuner, not {type(tuner).__name__}")
    if both := [name for name in _COUNTS if settings[name] != 100]:
        raise UsageError(f"a tuner says how many slots there are: leave {both[0]} out, or the tuner")
    suppliers = (tuner.workflow_supplier, tuner.activity_supplier, tuner.local_activity_supplier)
    counts: dict[str, Any] = dict(zip(_COUNTS, map(most_slots, suppliers), strict=True))
    return {**counts, "tuner": None if tuner.is_fixed else tuner}


def blocking_client(client: Client | AsyncClient) -> Client:
    """What `activity.client()` gives: activities in threads need a client that blocks, over the same link."""
    return client if isinstance(client, Client) else Client(client._session)
