"""Cron schedules of workflows: the time of the next run, and what it receives."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hourglass._contract.workflows import CancelWorkflow
from hourglass._embedded.schedules.times import backoff_until_next, check_cron
from hourglass._evaluator import commands as c
from hourglass.errors import ServiceError, UsageError

from ..memory_world import World


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000) * 1000


@pytest.mark.parametrize(
    ("cron", "since", "now", "seconds"),
    [
        ("@every 1s", "2030-01-01T00:00:00.400", "2030-01-01T00:00:00.400", 1),
        ("@every 90s", "2030-01-01T00:00:00", "2030-01-01T00:00:10", 80),
        ("@every 90s", "2030-01-01T00:00:00", "2030-01-01T00:10:01", 29),
        ("@hourly", "2030-01-01T00:00:00", "2030-01-01T00:59:59.5", 1),
        ("*/5 * * * *", "2030-01-01T00:00:00", "2030-01-01T00:07:00", 180),
        ("0 0 1 * *", "2030-01-01T00:00:00", "2030-01-01T00:00:01", 31 * 86400 - 1),
        (
            "0 0 13 * 5",
            "2030-01-01T00:00:00",
            "2030-01-01T00:00:00",
            3 * 86400,
        ),  # Friday the 4th: either is enough
        ("0 0 ? * 5", "2030-01-01T00:00:00", "2030-01-01T00:00:00", 3 * 86400),
        ("0 0 13 * *", "2030-01-01T00:00:00", "2030-01-01T00:00:00", 12 * 86400),
        ("CRON_TZ=Europe/Berlin 0 12 * * *", "2030-07-01T00:00:00", "2030-07-01T00:00:00", 10 * 3600),
        ("0 0 * * *", "2030-01-01T00:00:00", "2030-01-02T00:00:00", 0),
    ],
)
def test_next_cron_time_is_after_now_in_whole_seconds(
    cron: str, since: str, now: str, seconds: float
) -> None:
    assert backoff_until_next(cron, ns(since), ns(now)) == seconds


@pytest.mark.parametrize(
    "cron", ["", "now", "* * * *", "0 0 1 1 * 2030", "@every", "@every 6h/45m", "0 25 * * *"]
)
def test_invalid_cron_string_is_rejected(cron: str) -> None:
    with pytest.raises(UsageError, match="is invalid"):
        check_cron(cron)


async def test_cancellation_ends_a_cron_workflow(world: World) -> None:
    started = await world.start(cron_schedule="@every 60s")
    world.clock.advance(60)
    await world.activation()
    await world.complete(started.run_id, c.StartTimer(1, 10**15))
    await world.call(CancelWorkflow(workflow_id="w", request_id="r"))
    await world.activation()
    await world.complete(started.run_id, c.CancelRun())
    record = world.record()
    assert record.run.run_id == started.run_id
    assert not record.run.is_open


async def test_cron_continues_after_a_run_timeout(world: World) -> None:
    started = await world.start(cron_schedule="@every 60s", run_timeout=5.0)
    world.clock.advance(65)
    record = world.record()
    assert record.run.run_id != started.run_id
    assert record.run.started.continued_failure is not None


async def test_start_delay_with_cron_is_rejected(world: World) -> None:
    with pytest.raises(ServiceError, match="start delay"):
        await world.start(cron_schedule="@hourly", start_delay=5.0)
