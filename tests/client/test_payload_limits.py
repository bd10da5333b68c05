"""Warnings about large payloads on each engine, with the limits of `payload_limits`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from tests.waiting import until

from hourglass import Client, Worker, activity, workflow
from hourglass.client import PayloadLimitsConfig
from hourglass.errors import TargetError
from hourglass.testing import DevServer

SMALL = PayloadLimitsConfig(payloads_warn_size=2_000, memo_warn_size=100)


@activity.defn
def returns_payload_of_size(size: int) -> str:
    return "x" * size


@activity.defn
def returns_length(text: str) -> int:
    return len(text)


@workflow.defn
def handles_large_payloads(text: str) -> int:
    return returns_length(returns_payload_of_size(len(text)))


def logged_warnings(target: str, caplog: pytest.LogCaptureFixture, **options: Any) -> str:
    """Return the warnings logged by a workflow with payloads of 5,000 bytes and a memo of 200 bytes."""
    caplog.clear()
    queue = f"sizes-{uuid4().hex[:8]}"
    with (
        Client.connect(target, **options) as client,
        Worker(
            client,
            queue,
            workflows=[handles_large_payloads],
            activities=[returns_payload_of_size, returns_length],
        ),
    ):
        memo = {"note": "m" * 200}
        assert (
            client.execute_workflow(handles_large_payloads, "a" * 5_000, task_queue=queue, memo=memo) == 5_000
        )
    return "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_payload_above_the_warning_limit_is_logged_without_its_content(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    for target in ("local:", f"local:{tmp_path / 'e.db'}"):
        log = logged_warnings(target, caplog, payload_limits=SMALL)
        for message in (
            "large arguments of StartWorkflow: 5,002 bytes; the recommended maximum is 2,000",
            "large memo of StartSpec: 202 bytes; the recommended maximum is 100",
            "large result of activity returns_payload_of_size: 5,002 bytes",
            "large arguments of ScheduleActivity: 5,002 bytes",
        ):
            assert message in log
        assert "aaaa" not in log
        assert logged_warnings(target, caplog, payload_limits=PayloadLimitsConfig(0, 0)) == ""
        assert logged_warnings(target, caplog) == ""


@pytest.mark.server
def test_core_logs_large_payloads_through_python_logging(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    logged_warnings(quick_server.target, caplog, payload_limits=SMALL)
    until(  # Core forwards its log from a thread of its own
        lambda: caplog.text.count("exceeded the warning limit") >= 4, "Core does not warn of large values"
    )
    assert "limit=100" in caplog.text
    assert "aaaa" not in caplog.text
    assert "warning limit" not in logged_warnings(quick_server.target, caplog)


def test_invalid_payload_limits_are_rejected() -> None:
    for size in (-1, 1.5, True):
        with pytest.raises(TargetError, match="must be a number of bytes"):
            PayloadLimitsConfig(payloads_warn_size=size)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="must be a PayloadLimitsConfig"):
        Client.connect("local:", payload_limits=5)  # type: ignore[arg-type]
