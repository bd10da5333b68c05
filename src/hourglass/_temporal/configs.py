"""The settings objects that Core reads: pure data, validated here because Core validates little.

Core accepts any object with the right attributes. The `repr` of these objects hides the values of attributes,
because some are keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hourglass._contract.handle import HandleConfig
from hourglass._contract.transport import USUAL, TLSConfig, Transport
from hourglass._contract.tuning import (
    MOST_SLOTS,
    FixedSizeSlotSupplier,
    PollerBehaviorAutoscaling,
    PollerBehaviorSimpleMaximum,
    ResourceBasedSlotSupplier,
    SlotSupplier,
    WorkerTuner,
)
from hourglass._evaluator.options import seconds
from hourglass._temporal.slots import SuppliedSlots
from hourglass.errors import TargetError

# The SDK name in histories and for servers. It is temporalio's name, because servers have tables of known SDKs,
# and tools would not recognise a history with another name. Runs of Hourglass are recognised by their flags.
CLIENT_NAME = "temporal-python"


NO_METADATA: Mapping[str, str | bytes] = {}


class TemporalSettings:
    """An object with attributes that Core reads. Its `repr` shows only the names of the attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self.__dict__))})"


def check_target(target: str) -> str:
    """Return a valid `host:port`. Raise `TargetError` otherwise."""
    host, colon, port = target.rpartition(":")
    if "://" in target or "/" in target:
        raise TargetError(
            f"a Temporal target must have the form host:port, such as localhost:7233, not {target!r}"
        )
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise TargetError(
            f"a Temporal target must contain a host and a port, such as localhost:7233, not {target!r}"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise TargetError(f"an IPv6 address must be in brackets, such as [::1]:7233, not {target!r}")
    return target


def client_settings(
    target: str,
    *,
    version: str,
    identity: str,
    tls: TLSConfig | bool | None,
    api_key: str | None,
    rpc_metadata: Mapping[str, str | bytes],
    timeout: float,
    transport: Transport = USUAL,
) -> TemporalSettings:
    """Return the settings of a connection. An API key alone implies TLS, as in Temporal's SDKs; `tls=False` disables it."""
    secure = tls if tls is not None else api_key is not None
    return TemporalSettings(
        target_url=f"{'https' if secure else 'http'}://{check_target(target)}",
        client_name=CLIENT_NAME,
        client_version=version,
        metadata=dict(rpc_metadata),
        api_key=api_key,
        identity=identity,
        tls_config=settings_of(tls if isinstance(tls, TLSConfig) else TLSConfig()) if secure else None,
        retry_config=settings_of(transport.retry),
        keep_alive_config=settings_of(transport.keep_alive),
        connect_timeout_millis=_millis(timeout),
        http_connect_proxy_config=settings_of(transport.proxy),
        dns_load_balancing_config=settings_of(transport.dns_load_balancing),
        grpc_compression=transport.compression.value,
        payloads_warn_size=transport.payload_limits.payloads_warn_size,
        memo_warn_size=transport.payload_limits.memo_warn_size,
    )


def settings_of(part: Any) -> TemporalSettings | None:
    """Copy the fields of options. Core uses the same names."""
    if part is None:
        return None
    return TemporalSettings(**{attribute.name: getattr(part, attribute.name) for attribute in fields(part)})


def call_settings(
    rpc: str,
    request: bytes,
    timeout: float | None,
    *,
    retry: bool = True,
    metadata: Mapping[str, str | bytes] = NO_METADATA,
) -> TemporalSettings:
    """Return the settings of one RPC. With `retry`, Core retries the RPC. Request ids make retries harmless."""
    return TemporalSettings(
        rpc=rpc,
        req=request,
        retry=retry,
        metadata=metadata,
        timeout_millis=None if timeout is None else _millis(timeout),
    )


def worker_settings(namespace: str, config: HandleConfig, identity: str) -> TemporalSettings:
    """Return the settings of a worker on a task queue.

    A worker with workflows always enables local activities, even without any registered activity, because steps
    are local activities.
    """
    config.check()
    return TemporalSettings(
        namespace=namespace,
        task_queue=config.task_queue,
        identity_override=config.identity or identity or None,
        max_cached_workflows=config.max_cached_workflows,
        tuner=_tuner(config),
        nonsticky_to_sticky_poll_ratio=config.nonsticky_poll_ratio,
        task_types=_task_types(
            config.workflows,
            config.activities and config.remote_activities,
            local=config.workflows,
            nexus=config.nexus is not None,
        ),
        sticky_queue_schedule_to_start_timeout_millis=_millis(config.sticky_timeout),
        max_heartbeat_throttle_interval_millis=_millis(config.heartbeat_throttle),
        default_heartbeat_throttle_interval_millis=_millis(config.default_heartbeat_throttle),
        max_activities_per_second=config.max_activities_per_second,
        max_task_queue_activities_per_second=config.max_task_queue_activities_per_second,
        max_eager_activity_reservations_per_workflow_task=config.max_eager_activities
        if config.activities and config.remote_activities
        else 0,
        graceful_shutdown_period_millis=_millis(config.graceful_shutdown),
        versioning_strategy=_versioning_strategy(config),
        workflow_task_poller_behavior=_pollers(config.workflow_pollers, config.workflow_scaling),
        activity_task_poller_behavior=_pollers(config.activity_pollers, config.activity_scaling),
        nexus_task_poller_behavior=_nexus_pollers(config),
        disable_payload_error_limit=False,
        **_UNUSED,
    )


def _versioning_strategy(config: HandleConfig) -> TemporalSettings:
    """Return the settings of worker versioning: a version by which the server routes tasks, or a build id for
    information only.
    """
    version = config.version
    if version is None:
        return TemporalSettings(build_id_no_versioning=config.build_id)
    return TemporalSettings(
        version=TemporalSettings(deployment_name=version.deployment_name, build_id=version.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=int(config.default_behavior),
    )


def replay_settings() -> TemporalSettings:
    """Return the settings of a replay worker. The cache has room for two runs, so that Core can evict one while
    the next arrives.
    """
    config = HandleConfig(
        task_queue="replay",
        activities=False,
        max_cached_workflows=2,
        max_concurrent_workflow_tasks=2,
        max_concurrent_activities=1,
        max_concurrent_local_activities=1,
        workflow_pollers=2,
        activity_pollers=1,
        nonsticky_poll_ratio=1.0,
    )
    settings = worker_settings("default", config, "")
    settings.__dict__.update(
        task_types=_task_types(workflows=True, activities=False, local=False),
        disable_payload_error_limit=True,
    )
    return settings


def _pollers(count: int, scaling: PollerBehaviorAutoscaling | None = None) -> TemporalSettings:
    # The number of pollers is fixed by default, because with autoscaling pollers a fatal poll error did not
    # surface for minutes.
    if scaling is None:
        return TemporalSettings(simple_maximum=count)
    return TemporalSettings(minimum=scaling.minimum, maximum=scaling.maximum, initial=scaling.initial)


def _nexus_pollers(config: HandleConfig) -> TemporalSettings:
    polls = PollerBehaviorSimpleMaximum(1) if config.nexus is None else config.nexus.polls
    return _pollers(polls.maximum, polls if isinstance(polls, PollerBehaviorAutoscaling) else None)


def _tuner(config: HandleConfig) -> TemporalSettings:
    tuner: WorkerTuner | None = config.tuner
    if tuner is None:
        return _slots(
            config.max_concurrent_workflow_tasks,
            config.max_concurrent_activities,
            config.max_concurrent_local_activities,
            1 if config.nexus is None else config.nexus.slots,
        )
    return TemporalSettings(
        workflow_slot_supplier=_supplier(tuner.workflow_supplier, 5, 0.0),
        activity_slot_supplier=_supplier(tuner.activity_supplier, 1, 0.05),
        local_activity_slot_supplier=_supplier(tuner.local_activity_supplier, 1, 0.05),
        nexus_slot_supplier=_supplier(tuner.nexus_supplier, 1, 0.05),
    )


def _supplier(supplier: SlotSupplier, minimum: int, default_throttle: float) -> Any:
    """Return the settings of a slot supplier. `core` wraps a custom supplier in an object of Core."""
    match supplier:
        case FixedSizeSlotSupplier():
            return TemporalSettings(num_slots=supplier.num_slots)
        case ResourceBasedSlotSupplier():
            slot_options, resource_options = supplier.slot_config, supplier.tuner_config
            throttle = (
                default_throttle
                if slot_options.ramp_throttle is None
                else seconds(slot_options.ramp_throttle, "ramp_throttle")
            )
            maximum = slot_options.maximum_slots or MOST_SLOTS
            return TemporalSettings(
                minimum_slots=min(minimum, maximum)
                if slot_options.minimum_slots is None
                else slot_options.minimum_slots,
                maximum_slots=maximum,
                ramp_throttle_ms=_millis(throttle),
                tuner_config=TemporalSettings(
                    target_memory_usage=float(resource_options.target_memory_usage),
                    target_cpu_usage=float(resource_options.target_cpu_usage),
                ),
            )
        case _:
            return SuppliedSlots(supplier)


def _slots(workflow: int, activity: int, local: int, nexus: int = 1) -> TemporalSettings:
    return TemporalSettings(
        workflow_slot_supplier=TemporalSettings(num_slots=workflow),
        activity_slot_supplier=TemporalSettings(num_slots=activity),
        local_activity_slot_supplier=TemporalSettings(num_slots=local),
        nexus_slot_supplier=TemporalSettings(num_slots=nexus),
    )


def _task_types(workflows: bool, activities: bool, local: bool, nexus: bool = False) -> TemporalSettings:
    return TemporalSettings(
        enable_workflows=workflows,
        enable_local_activities=local,
        enable_remote_activities=activities,
        enable_nexus=nexus,
    )


def _millis(seconds: float) -> int:
    return max(0, round(seconds * 1000))


_UNUSED: dict[str, Any] = {
    "nondeterminism_as_workflow_fail": False,
    "nondeterminism_as_workflow_fail_for_types": set(),
    "plugins": [],
    "storage_drivers": set(),
}
