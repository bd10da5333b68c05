"""The parts of temporalio's private bridge that `core` uses: they exist and accept our arguments.

If a test fails after an upgrade of temporalio, change `core.py` and `configs.py`.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import temporalio.bridge
import temporalio.bridge.temporal_sdk_bridge as bridge  # type: ignore[import-not-found]

from hourglass._contract.handle import HandleConfig
from hourglass._temporal import configs, core, telemetry, version

SIGNATURES: dict[tuple[str, ...], str] = {
    ("init_runtime",): "(options)",
    ("connect_client",): "(runtime_ref, config)",
    ("new_worker",): "(runtime_ref, client, config)",
    ("new_replay_worker",): "(runtime_ref, config)",
    ("RuntimeRef", "retrieve_buffered_metrics"): "($self, durations_as_seconds)",
    ("ClientRef", "call_workflow_service"): "($self, call)",
    ("ClientRef", "call_operator_service"): "($self, call)",
    ("ClientRef", "call_test_service"): "($self, call)",
    ("ClientRef", "call_health_service"): "($self, call)",
    ("ClientRef", "update_api_key"): "($self, api_key)",
    ("ClientRef", "update_metadata"): "($self, headers)",
    ("WorkerRef", "validate"): "($self)",
    ("WorkerRef", "poll_workflow_activation"): "($self)",
    ("WorkerRef", "poll_activity_task"): "($self)",
    ("WorkerRef", "complete_workflow_activation"): "($self, proto)",
    ("WorkerRef", "complete_activity_task"): "($self, proto)",
    ("WorkerRef", "poll_nexus_task"): "($self)",
    ("WorkerRef", "complete_nexus_task"): "($self, proto)",
    ("WorkerRef", "record_activity_heartbeat"): "($self, proto)",
    ("WorkerRef", "request_workflow_eviction"): "($self, run_id)",
    ("WorkerRef", "initiate_shutdown"): "($self)",
    ("WorkerRef", "finalize_shutdown"): "($self)",
    ("HistoryPusher", "push_history"): "($self, workflow_id, history_proto)",
    ("HistoryPusher", "close"): "($self)",
    ("CustomSlotSupplier",): "(inner)",
    ("envconfig", "load_client_connect_config"): (
        "(profile, path, data, disable_file, disable_env, config_file_strict, env_vars=None)"
    ),
    ("envconfig", "load_client_config"): "(path, data, config_file_strict, env_vars=None)",
}


@pytest.mark.parametrize("path", SIGNATURES, ids=".".join)
def test_bridge_signatures_of_temporalio_are_unchanged(path: tuple[str, ...]) -> None:
    thing: Any = bridge
    for name in path:
        thing = getattr(thing, name)
    assert thing.__text_signature__ == SIGNATURES[path]


def test_every_bridge_name_used_by_core_has_a_checked_signature() -> None:
    source = Path(core.__file__).read_text()
    touched = set(re.findall(r"_rust(?:\.envconfig)?\.(\w+)", source))
    touched |= set(re.findall(r"\.get\(\)\)?\.(\w+)\(", source))
    touched |= set(re.findall(r'"(call_\w+_service)"', source))
    listed = {path[-1] for path in SIGNATURES}
    assert touched - {"PollShutdownError", "RPCError"} == listed


def test_bridge_exceptions_of_temporalio_are_unchanged() -> None:
    assert issubclass(bridge.PollShutdownError, Exception)
    assert issubclass(bridge.RPCError, Exception)
    assert core.PollShutdown is bridge.PollShutdownError
    assert core.RpcError is bridge.RPCError


def _fields(source: str, struct: str) -> set[str]:
    body = re.search(rf"struct {struct} \{{(.*?)\n\}}", source, re.DOTALL)
    assert body is not None, struct
    return set(re.findall(r"^\s+(?:pub(?:\(crate\))? )?(\w+):", body.group(1), re.MULTILINE))


_SINCE = {"connect_timeout_millis": (1, 35)}
"""Attributes that Core reads only from a release on; older ones pass over them."""


def _not_read_yet() -> set[str]:
    installed = version.release(version.installed() or "")
    return {name for name, since in _SINCE.items() if installed < since}


def test_settings_have_the_attributes_that_core_reads() -> None:
    sources = Path(temporalio.bridge.__path__[0]) / "src"
    client, worker, runtime = (
        (sources / f"{name}.rs").read_text() for name in ("client", "worker", "runtime")
    )
    live: Any = configs.worker_settings("ns", HandleConfig(task_queue="q"), "me")
    replay: Any = configs.replay_settings()
    connection: Any = configs.client_settings(
        "h:1", version="1", identity="me", tls=True, api_key=None, rpc_metadata={}, timeout=1.0
    )
    logging: Any = telemetry.runtime_settings(
        {"HOURGLASS_CORE_LOG": "WARN", "HOURGLASS_CORE_METRICS": "127.0.0.1:9464"}
    )
    for settings, source, struct in (
        (live, worker, "WorkerConfig"),
        (replay, worker, "WorkerConfig"),
        (live.tuner, worker, "TunerHolder"),
        (live.task_types, worker, "WorkerTaskTypes"),
        (live.tuner.workflow_slot_supplier, worker, "FixedSizeSlotSupplier"),
        (live.workflow_task_poller_behavior, worker, "PollerBehaviorSimpleMaximum"),
        (live.versioning_strategy, worker, "WorkerVersioningNone"),
        (connection, client, "ClientConfig"),
        (connection.tls_config, client, "ClientTlsConfig"),
        (connection.keep_alive_config, client, "ClientKeepAliveConfig"),
        (configs.call_settings("r", b"", 1.0), client, "RpcCall"),
        (logging, runtime, "RuntimeOptions"),
        (logging.telemetry, runtime, "TelemetryConfig"),
        (logging.telemetry.logging, runtime, "LoggingConfig"),
        (logging.telemetry.metrics, runtime, "MetricsConfig"),
        (logging.telemetry.metrics.prometheus, runtime, "PrometheusConfig"),
    ):
        ours, read = set(vars(settings)), _fields(source, struct)
        assert ours - _not_read_yet() == read, struct


async def test_core_replay_worker_is_created_shut_down_and_freed() -> None:
    worker, pusher = core.new_replay_worker(configs.replay_settings())
    poll = core.poll_activation(worker)
    assert asyncio.isfuture(poll)
    assert poll.get_loop() is asyncio.get_running_loop()
    core.close_pusher(pusher)
    core.initiate_shutdown(worker)
    with pytest.raises(core.PollShutdown):
        await poll
    with pytest.raises(core.PollShutdown):
        await core.poll_activity(worker)
    await core.finalize_shutdown(worker)
    with pytest.raises(BaseException) as caught:
        core.initiate_shutdown(worker)
    assert core.is_panic(caught.value)
    worker.drop()
    pusher.drop()


async def test_core_raises_value_error_for_malformed_bytes() -> None:
    worker, pusher = core.new_replay_worker(configs.replay_settings())
    with pytest.raises(ValueError, match="Invalid proto"):
        core.complete_activation(worker, b"\xff")
    with pytest.raises(ValueError, match="Invalid proto"):
        core.heartbeat(worker, b"\xff")
    with pytest.raises(ValueError, match="Invalid proto"):
        core.push_history(pusher, "w", b"\xff")
    core.close_pusher(pusher)
    core.initiate_shutdown(worker)
    with pytest.raises(core.PollShutdown):
        await core.poll_activation(worker)
    await core.finalize_shutdown(worker)
    worker.drop()
    pusher.drop()
