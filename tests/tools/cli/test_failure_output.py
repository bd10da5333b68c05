"""Failures in the output of `hourglass dev` and `hourglass worker`, on both engines."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import main
from hourglass import Client, Worker
from hourglass._tools.cli import logs
from hourglass.errors import ApplicationError, WorkflowFailedError
from hourglass.testing import DevServer

from . import why_flows
from .command import Command, run_command

BY_ZERO = (
    "integer division or modulo by zero" if sys.version_info < (3, 14) else "division by zero"
)  # Python's words

APP = """
import logging

from hourglass import RetryPolicy, activity, workflow


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def charge(cents: int) -> int:
    activity.logger.info("charging", extra={"customer": 7})
    logging.getLogger("bank").warning("slow today", extra={"seconds": 3})
    return cents // 0


@workflow.defn
def order(cents: int) -> int:
    workflow.logger.info("taken", extra={"lane": "fast"})
    logging.getLogger("shop").warning("plainly said")
    return charge(cents)


@workflow.defn
def ends() -> int:
    return 1
"""

_numbers = itertools.count(1)


@pytest.fixture(params=["embedded", pytest.param("server", marks=pytest.mark.server)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file of the embedded engine, or a real server; with the program in app.py."""
    (tmp_path / "app.py").write_text(APP)
    if request.param == "embedded":
        return f"local:{tmp_path / 'a.db'}"
    server: DevServer = request.getfixturevalue("quick_server")
    return server.target


@pytest.fixture
def queue() -> str:
    return f"shown-{os.getpid()}-{next(_numbers)}"


def test_dev_logs_run_starts_ends_and_activity_failures_with_user_lines(
    target: str, queue: str, tmp_path: Path
) -> None:
    command = ("dev", "app.py", "--target", target, "--task-queue", queue, "--no-ui")
    with Command(*command, cwd=tmp_path) as dev, Client.connect(target) as client:
        dev.wait_for("receiving tasks")
        assert client.execute_workflow("ends", id=f"{queue}-ends", task_queue=queue) == 1
        with pytest.raises(WorkflowFailedError):
            client.execute_workflow("order", 1, id=f"{queue}-order", task_queue=queue)
        dev.wait_for(f"order {queue}-order failed after ")
    assert f"runs: ends {queue}-ends starts\n" in dev.text
    assert f"runs: ends {queue}-ends completed after " in dev.text
    assert f"runs: order {queue}-order starts\n" in dev.text
    assert (
        f"ERROR   worker: activity charge of workflow {queue}-order (id 1, attempt 1 of 1) failed permanently"
        in dev.text
    )
    assert "    return cents // 0\n" in dev.text
    assert f"activity charge failed: ZeroDivisionError: {BY_ZERO}" in dev.text
    assert "_worker/" not in dev.text


def test_worker_json_log_has_ids_types_queue_attempt_and_extra_fields(
    target: str, queue: str, tmp_path: Path
) -> None:
    command = ("worker", "app.py", "--target", target, "--task-queue", queue, "--log", "json")
    with Command(*command, cwd=tmp_path) as worker, Client.connect(target) as client:
        worker.wait_for("the worker on task queue")
        handle = client.start_workflow("order", 1, id=f"{queue}-1", task_queue=queue)
        with pytest.raises(WorkflowFailedError):
            handle.result(timeout=60)
        worker.wait_for("failed after ")
    documents = [json.loads(line) for line in worker.text.splitlines() if line.startswith("{")]
    taken, plain, charging, bank, failed, closed = (
        _found(documents, part)
        for part in ("taken", "plainly said", "charging", "slow today", "failed permanently", "failed after")
    )
    common = {
        "workflow_id": f"{queue}-1",
        "run_id": handle.run_id,
        "workflow_type": "order",
        "task_queue": queue,
    }
    for each in (taken, plain, charging, bank, failed, closed):
        assert {name: each.get(name) for name in common} == common
    assert (taken["level"], taken["lane"], taken["attempt"]) == ("info", "fast", 1)
    assert (bank["logger"], bank["seconds"], bank["activity_type"], bank["attempt"]) == (
        "bank",
        3,
        "charge",
        1,
    )
    assert (charging["customer"], charging["activity_type"], charging["attempt"]) == (7, "charge", 1)
    assert (failed["level"], failed["activity_type"], failed["activity_id"], failed["attempt"]) == (
        "error",
        "charge",
        "1",
        1,
    )
    assert failed["error_type"] == "ZeroDivisionError"
    assert "return cents // 0" in failed["message"]
    assert (closed["level"], closed["error_type"]) == ("warning", "ZeroDivisionError")


def _found(documents: list[dict[str, Any]], part: str) -> dict[str, Any]:
    return next(each for each in documents if part in each["message"])


def test_result_command_prints_the_full_traceback_only_on_request(
    target: str, queue: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOURGLASS_TRACEBACK", "")
    with (
        Client.connect(target) as client,
        Worker(client, queue, workflows=[why_flows.ships], activities=[why_flows.refused]),
    ):
        client.start_workflow(why_flows.ships, id=f"{queue}-1", task_queue=queue)
        assert main(["result", f"{queue}-1", "--target", target]) == 1
        short = capsys.readouterr().err
        assert main(["result", f"{queue}-1", "--target", target, "--traceback"]) == 1
        full = capsys.readouterr().err
    line = 'raise ApplicationError("no carrier serves this address"'
    assert "no carrier serves this address" in short
    assert line not in short
    assert line in full
    assert "_worker/activities/invocation.py" in full
    assert "client/_waiting.py" in full


def test_run_command_in_a_pipe_logs_failed_attempts(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        APP.replace("maximum_attempts=1", "maximum_attempts=2, initial_interval=0.01")
    )
    ended = run_command("run", "app.py:order", "1", "--id", "piped-1", cwd=tmp_path)
    assert ended.returncode == 1
    assert (
        "activity charge of workflow piped-1 (id 1, attempt 1 of 2) failed (retried in 0.01 s, at "
        in ended.stderr
    )
    assert (
        "(id 1, attempt 2 of 2) failed permanently (no attempts are left): ZeroDivisionError" in ended.stderr
    )
    assert "error: the workflow failed: activity charge failed: ZeroDivisionError" in ended.stderr
    assert "runs" not in ended.stderr


def test_json_log_record_with_unserializable_field_is_written() -> None:
    class UnprintableValue:
        def __repr__(self) -> str:
            raise ApplicationError("no")

    circle: list[Any] = []
    circle.append(circle)
    for value in ({(1, 2): 3}, circle, UnprintableValue(), object()):
        record = logging.LogRecord("hourglass", logging.INFO, "f", 1, "said", (), None)
        record.given = value
        assert json.loads(logs.JsonFormatter().format(record))["message"] == "said"
    record = logging.LogRecord("hourglass", logging.INFO, "f", 1, "said", (), None)
    record.level, record.time = "mine", "mine"
    document = json.loads(logs.JsonFormatter().format(record))
    assert document["level"] == "info"
    assert document["time"] != "mine"
