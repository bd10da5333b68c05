"""Sizes of values: a warning well below what is refused, on each engine, from the size that the client says."""

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
    """What is warned of while a workflow carries 5,000 bytes, with a memo of 200."""
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
    """Embedded, in memory and on a file: arguments, memos, commands and results, by name; as usual and with 0 nothing is said."""
    for target in ("local:", f"local:{tmp_path / 'e.db'}"):
        said = warnings(target, caplog, payload_limits=SMALL)
        for what in (
            "large arguments of StartWorkflow: 5,002 bytes; the recommended maximum is 2,000",
            "large memo of StartSpec: 202 bytes; the recommended maximum is 100",
            "the result of activity grows takes 5,002 bytes",
            "large arguments of ScheduleActivity: 5,002 bytes",
        ):
            assert what in said
        assert "aaaa" not in said
        assert warnings(target, caplog, payload_limits=PayloadLimitsConfig(0, 0)) == ""
        assert warnings(target, caplog) == ""


@pytest.mark.server
def test_large_payloads_are_logged_on_a_server(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """On a server Core says so, through Python's logging, with the sizes and nothing of the values."""
    warnings(quick_server.target, caplog, payload_limits=SMALL)
    until(  # Core forwards its log from a thread of its own
        lambda: caplog.text.count("exceeded the warning limit") >= 4, "Core does not warn of large values"
    )
    assert "limit=100" in caplog.text
    assert "aaaa" not in caplog.text
    assert "warning limit" not in warnings(quick_server.target, caplog)


def test_invalid_payload_limits_are_rejected() -> None:
    """Sizes that are none are refused where they are said."""
    for wrong in (-1, 1.5, True):
        with pytest.raises(TargetError, match="must be a number of bytes"):
            PayloadLimitsConfig(payloads_warn_size=wrong)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="must be a PayloadLimitsConfig"):
        Client.connect("local:", payload_limits=5)  # type: ignore[arg-type]
