"""What Core says of itself: metrics beside ours, its log in Python's, heartbeats of workers at the server."""

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
    server: DevServer, queue: str, stderr: IO[str] | None = None, *more: str, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen(
        [sys.executable, "-m", "tests.temporal.telemetry_program", server.target, queue, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environ},
    )
    assert made.stdout is not None
    try:
        assert made.stdout.readline() == "done\n"
        yield made
        made.communicate(timeout=60)
        assert made.returncode == 0
    finally:
        if made.returncode is None:
            made.kill()
            made.wait()


def _asked(program: subprocess.Popen[str]) -> str:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("?\n")
    program.stdin.flush()
    lines = []
    while (line := program.stdout.readline()) != "END\n":
        lines.append(line)
    return "".join(lines)


@pytest.mark.server
def test_metrics_of_core_are_included(quick_server: DevServer) -> None:
    """`/metrics` has what Core counts, with its labels, and histograms; once each, however often it is asked."""
    queue = f"telemetry-{uuid4().hex[:8]}"
    with _program(quick_server, queue, HOURGLASS_CORE_METRICS="status") as program:
        labels = f'namespace="default",task_queue="{queue}"'
        completed = f'temporal_workflow_completed_total{{{labels},workflow_type="nothing"}} 1\n'
        while completed not in _asked(program):
            pass  # the result was there before Core had counted it
        text = _asked(program)
        assert completed in text
        assert re.search(r"^temporal_request_latency\w*_bucket\{", text, re.MULTILINE)
        assert f"temporal_worker_task_slots_available{{{labels}," in text
        assert "hourglass_workflow_tasks_total{" in text


@pytest.mark.server
def test_core_log_and_worker_heartbeats(quick_server: DevServer, tmp_path: Path) -> None:
    """Core's log, as asked for, comes through Python's logging; the server's list of workers has ours; the process ends."""
    queue = f"telemetry-{uuid4().hex[:8]}"
    more = {"HOURGLASS_CORE_LOG": "INFO", "HOURGLASS_WORKER_HEARTBEAT": "1"}
    log = tmp_path / "log"
    with log.open("w") as stderr, _program(quick_server, queue, stderr, **more):
        assert asyncio.run(_workers(quick_server, queue)) == {f"who-{queue}"}
    said = log.read_text()
    assert "INFO:hourglass.core:temporalio_sdk_core::worker: Initializing worker" in said
    assert f"task_queue={queue}" in said


@pytest.mark.server
def test_otel_collector_receives_core_metrics(quick_server: DevServer) -> None:
    """Core sends what it counts to a collector, as a program said: with its headers, tags and prefix."""
    got: list[tuple[str, str, bytes]] = []
    enough = threading.Event()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["who"], body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            if b"shop_workflow_completed" in body:
                enough.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    queue = f"telemetry-{uuid4().hex[:8]}"
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        try:
            with _program(quick_server, queue, None, url):
                assert enough.wait(60)
        finally:
            server.shutdown()
            thread.join()
    path, who, body = got[-1]
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
    """Settings that cannot work are refused when they are said."""
    with pytest.raises(UsageError, match=why):
        make()


def test_telemetry_settings_override_the_environment() -> None:
    """What a program says counts before the environment; the environment may name a collector, too."""
    said = TelemetryConfig(
        metrics=PrometheusConfig("127.0.0.1:9464", unit_suffix=True),
        logging=LoggingConfig(TelemetryFilter("WARN")),
        global_tags={"a": "b"},
    )
    made: Any = telemetry.runtime_settings({"HOURGLASS_CORE_METRICS": "status"}, said)
    assert made.telemetry.metrics.prometheus.bind_address == "127.0.0.1:9464"
    assert made.telemetry.metrics.prometheus.unit_suffix is True
    assert made.telemetry.metrics.buffered_with_size == 0
    assert made.telemetry.metrics.global_tags == {"a": "b"}
    assert "temporalio_sdk_core=WARN" in made.telemetry.logging.filter
    named: Any = telemetry.runtime_settings({"HOURGLASS_CORE_METRICS": "otlp:http://localhost:4317"})
    assert named.telemetry.metrics.opentelemetry.url == "http://localhost:4317"
    assert named.telemetry.metrics.opentelemetry.http is False
    other: Any = telemetry.runtime_settings({"HOURGLASS_CORE_METRICS": "otlp+http:http://c/v1/metrics"})
    assert other.telemetry.metrics.opentelemetry.http is True


async def _workers(server: DevServer, queue: str) -> set[str]:
    """The identities in the server's list of workers, as Temporal's own client sees it; waits until there is one."""
    client = await temporalio.client.Client.connect(server.target)
    request = ws.ListWorkersRequest(namespace="default", query=f"TaskQueue = '{queue}'")
    while True:
        answer = await client.workflow_service.list_workers(request)
        if answer.workers_info:
            return {each.worker_heartbeat.worker_identity for each in answer.workers_info}


def _entry(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(level=logging.ERROR, target="core", message="it failed", time=1.5, fields=fields)


def test_core_log_hides_payloads(caplog: pytest.LogCaptureFixture) -> None:
    """Without being asked for, a field that may hold a payload is left out; asked for, all are there."""
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
def test_invalid_telemetry_variable_is_named(name: str, value: str) -> None:
    """The error names the variable, and what it may be."""
    with pytest.raises(TargetError, match=name):
        telemetry.runtime_settings({name: value})


def test_worker_heartbeats_can_be_disabled() -> None:
    """By a zero; they are on by default."""
    off: Any = telemetry.runtime_settings({"HOURGLASS_WORKER_HEARTBEAT": "0"})
    on: Any = telemetry.runtime_settings({})
    assert off.worker_heartbeat_interval_millis is None
    assert on.worker_heartbeat_interval_millis == 60_000
