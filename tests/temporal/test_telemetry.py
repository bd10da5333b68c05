"""Telemetry of Core: its metrics beside ours, its log in Python's logging, and worker heartbeats."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from uuid import uuid4

import pytest
import temporalio.api.workflowservice.v1 as ws
import temporalio.client

from hourglass._temporal import telemetry
from hourglass.errors import TargetError, UsageError
from hourglass.metrics import (
    LoggingConfig,
    OpenTelemetryConfig,
    PrometheusConfig,
    TelemetryConfig,
    TelemetryFilter,
    set_telemetry,
)
from hourglass.testing import DevServer


@contextmanager
def _program(
    server: DevServer, queue: str, stderr: IO[str] | None = None, *arguments: str, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.temporal.telemetry_program", server.target, queue, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "done\n"
        yield process
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


def _metrics_of(program: subprocess.Popen[str]) -> str:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("?\n")
    program.stdin.flush()
    lines = []
    while (line := program.stdout.readline()) != "END\n":
        lines.append(line)
    return "".join(lines)


@pytest.mark.server
def test_metrics_endpoint_includes_core_metrics(quick_server: DevServer) -> None:
    queue = f"telemetry-{uuid4().hex[:8]}"
    with _program(quick_server, queue, HOURGLASS_CORE_METRICS="status") as program:
        labels = f'namespace="default",task_queue="{queue}"'
        completed = f'temporal_workflow_completed_total{{{labels},workflow_type="returns_one"}} 1\n'
        while completed not in _metrics_of(program):
            pass  # Core counts the completion after the result has arrived
        text = _metrics_of(program)
        assert completed in text
        assert re.search(r"^temporal_request_latency\w*_bucket\{", text, re.MULTILINE)
        assert f"temporal_worker_task_slots_available{{{labels}," in text
        assert "hourglass_workflow_tasks_total{" in text


@pytest.mark.server
def test_core_logs_through_python_and_workers_heartbeat_to_the_server(
    quick_server: DevServer, tmp_path: Path
) -> None:
    queue = f"telemetry-{uuid4().hex[:8]}"
    environ = {"HOURGLASS_CORE_LOG": "INFO", "HOURGLASS_WORKER_HEARTBEAT": "1"}
    log = tmp_path / "log"
    with log.open("w") as stderr, _program(quick_server, queue, stderr, **environ):
        assert asyncio.run(_heartbeating_workers(quick_server, queue)) == {f"who-{queue}"}
    log_text = log.read_text()
    assert "INFO:hourglass.core:temporalio_sdk_core::worker: Initializing worker" in log_text
    assert f"task_queue={queue}" in log_text


@pytest.mark.server
def test_otel_collector_receives_core_metrics_with_headers_tags_and_prefix(quick_server: DevServer) -> None:
    received: list[tuple[str, str, bytes]] = []
    metrics_received = threading.Event()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, self.headers["who"], body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            if b"shop_workflow_completed" in body:
                metrics_received.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    queue = f"telemetry-{uuid4().hex[:8]}"
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        try:
            with _program(quick_server, queue, None, url):
                assert metrics_received.wait(60)
        finally:
            server.shutdown()
            thread.join()
    path, who, body = received[-1]
    assert (path, who) == ("/v1/metrics", "us")
    assert b"shop" in body
    assert queue.encode() in body


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: OpenTelemetryConfig("localhost:4317"), "url must be the URL of a collector"),
        (lambda: OpenTelemetryConfig("http://x", metric_periodicity=0), "above 0"),
        (lambda: PrometheusConfig("9464"), "bind_address must have the form host:port"),
        (lambda: TelemetryFilter("LOUD"), "core_level must be one of"),
        (lambda: TelemetryConfig(metrics="on"), "PrometheusConfig"),
        (lambda: set_telemetry("on"), "TelemetryConfig"),
    ],
)
def test_invalid_telemetry_settings_are_rejected(make: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make()


def test_telemetry_settings_override_the_environment() -> None:
    settings = TelemetryConfig(
        metrics=PrometheusConfig("127.0.0.1:9464", unit_suffix=True),
        logging=LoggingConfig(TelemetryFilter("WARN")),
        global_tags={"a": "b"},
    )
    configured: Any = telemetry.runtime_settings({"HOURGLASS_CORE_METRICS": "status"}, settings)
    assert configured.telemetry.metrics.prometheus.bind_address == "127.0.0.1:9464"
    assert configured.telemetry.metrics.prometheus.unit_suffix is True
    assert configured.telemetry.metrics.buffered_with_size == 0
    assert configured.telemetry.metrics.global_tags == {"a": "b"}
    assert "temporalio_sdk_core=WARN" in configured.telemetry.logging.filter
    named: Any = telemetry.runtime_settings({"HOURGLASS_CORE_METRICS": "otlp:http://localhost:4317"})
    assert named.telemetry.metrics.opentelemetry.url == "http://localhost:4317"
    assert named.telemetry.metrics.opentelemetry.http is False
    other: Any = telemetry.runtime_settings({"HOURGLASS_CORE_METRICS": "otlp+http:http://c/v1/metrics"})
    assert other.telemetry.metrics.opentelemetry.http is True


async def _heartbeating_workers(server: DevServer, queue: str) -> set[str]:
    """Wait until the server lists workers of the queue, and return their identities."""
    client = await temporalio.client.Client.connect(server.target)
    request = ws.ListWorkersRequest(namespace="default", query=f"TaskQueue = '{queue}'")
    while True:
        answer = await client.workflow_service.list_workers(request)
        if answer.workers_info:
            return {worker_info.worker_heartbeat.worker_identity for worker_info in answer.workers_info}


def _entry(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(level=logging.ERROR, target="core", message="it failed", time=1.5, fields=fields)


def test_core_log_hides_payload_fields_unless_everything_is_forwarded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry.forward_errors([_entry(run_id="r", failure="secret")])
    telemetry.forward_everything([_entry(run_id="r", failure="secret")])
    quiet, all_of_it = caplog.messages
    assert quiet == "core: it failed (run_id=r)"
    assert all_of_it == "core: it failed (run_id=r failure=secret)"
    assert caplog.records[0].created == 1.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOURGLASS_CORE_METRICS", "9464"),
        ("HOURGLASS_CORE_METRICS", "on"),
        ("HOURGLASS_CORE_METRICS", "otlp:localhost"),
        ("HOURGLASS_WORKER_HEARTBEAT", "61"),
        ("HOURGLASS_WORKER_HEARTBEAT", "often"),
        ("HOURGLASS_WORKER_HEARTBEAT", "nan"),
    ],
)
def test_invalid_telemetry_variable_is_rejected_by_name(name: str, value: str) -> None:
    with pytest.raises(TargetError, match=name):
        telemetry.runtime_settings({name: value})


def test_worker_heartbeats_are_disabled_by_zero() -> None:
    off: Any = telemetry.runtime_settings({"HOURGLASS_WORKER_HEARTBEAT": "0"})
    on: Any = telemetry.runtime_settings({})
    assert off.worker_heartbeat_interval_millis is None
    assert on.worker_heartbeat_interval_millis == 60_000
