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
def grows(size: int) -> str:
    return "x" * size


@activity.defn
def takes(text: str) -> int:
    return len(text)


@workflow.defn
def carries(text: str) -> int:
    return takes(grows(len(text)))


def warnings(target: str, caplog: pytest.LogCaptureFixture, **options: Any) -> str:
    """Return the warnings logged by a workflow with payloads of 5,000 bytes and a memo of 200 bytes."""
    caplog.clear()
    queue = f"sizes-{uuid4().hex[:8]}"
    with (
        Client.connect(target, **options) as client,
        Worker(client, queue, workflows=[carries], activities=[grows, takes]),
    ):
        memo = {"note": "m" * 200}
        assert client.execute_workflow(carries, "a" * 5_000, task_queue=queue, memo=memo) == 5_000
    return "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_large_payloads_are_logged(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    for target in ("local:", f"local:{tmp_path / 'e.db'}"):
        said = warnings(target, caplog, payload_limits=SMALL)
        for what in (
            "the arguments of StartWorkflow take 5,002 bytes, more than 2,000",
            "the memo of StartSpec take 202 bytes, more than 100",
            "the result of activity grows takes 5,002 bytes",
            "the arguments of ScheduleActivity take 5,002 bytes",
        ):
            assert what in said
        assert "aaaa" not in said
        assert warnings(target, caplog, payload_limits=PayloadLimitsConfig(0, 0)) == ""
        assert warnings(target, caplog) == ""


@pytest.mark.server
def test_large_payloads_are_logged_on_a_server(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    warnings(quick_server.target, caplog, payload_limits=SMALL)
    until(  # Core forwards its log from a thread of its own
        lambda: caplog.text.count("exceeded the warning limit") >= 4, "Core does not warn of large values"
    )
    assert "limit=100" in caplog.text
    assert "aaaa" not in caplog.text
    assert "warning limit" not in warnings(quick_server.target, caplog)


def test_invalid_payload_limits_are_rejected() -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(TargetError, match="is a number of bytes"):
            PayloadLimitsConfig(payloads_warn_size=wrong)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="must be a PayloadLimitsConfig"):
        Client.connect("local:", payload_limits=5)  # type: ignore[arg-type]
