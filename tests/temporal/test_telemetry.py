"""What Core says of itself: metrics beside ours, its log in Python's, heartbeats of workers at the server."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from uuid import uuid4

import pytest
import temporalio.api.workflowservice.v1 as ws
import temporalio.client

from hourglass._temporal import telemetry
from hourglass.errors import TargetError
from hourglass.testing import DevServer


@contextmanager
def _program(
    server: DevServer, queue: str, stderr: IO[str] | None = None, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen(
        [sys.executable, "-m", "tests.temporal.telemetry_program", server.target, queue],
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
def test_metrics_of_core_beside_ours(quick_server: DevServer) -> None:
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
def test_the_log_of_core_and_the_heartbeats_of_a_worker(quick_server: DevServer, tmp_path: Path) -> None:
    """Core's log, as asked for, comes through Python's logging; the server's list of workers has ours; the process ends."""
    queue = f"telemetry-{uuid4().hex[:8]}"
    more = {"HOURGLASS_CORE_LOG": "INFO", "HOURGLASS_WORKER_HEARTBEAT": "1"}
    log = tmp_path / "log"
    with log.open("w") as stderr, _program(quick_server, queue, stderr, **more):
        assert asyncio.run(_workers(quick_server, queue)) == {f"who-{queue}"}
    said = log.read_text()
    assert "INFO:hourglass.core:temporalio_sdk_core::worker: Initializing worker" in said
    assert f"task_queue={queue}" in said


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


def test_errors_are_told_without_payloads(caplog: pytest.LogCaptureFixture) -> None:
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
        ("HOURGLASS_WORKER_HEARTBEAT", "61"),
        ("HOURGLASS_WORKER_HEARTBEAT", "often"),
        ("HOURGLASS_WORKER_HEARTBEAT", "nan"),
    ],
)
def test_settings_that_are_none(name: str, value: str) -> None:
    """The error names the variable, and what it may be."""
    with pytest.raises(TargetError, match=name):
        telemetry.runtime_settings({name: value})


def test_heartbeats_can_be_off() -> None:
    """By a zero; they are on by default."""
    off: Any = telemetry.runtime_settings({"HOURGLASS_WORKER_HEARTBEAT": "0"})
    on: Any = telemetry.runtime_settings({})
    assert off.worker_heartbeat_interval_millis is None
    assert on.worker_heartbeat_interval_millis == 60_000
