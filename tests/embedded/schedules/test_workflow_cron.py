"""Cron schedules of workflows: the time of the next run, and what it receives."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hourglass._contract.workflows import CancelWorkflow, TerminateWorkflow
from hourglass._embedded.schedules.times import backoff_until_next, check_cron
from hourglass._evaluator import commands as c
from hourglass._evaluator.events import RunStarted
from hourglass._evaluator.specs import RetryRule
from hourglass._history.events import Initiator
from hourglass.errors import ServiceError, UsageError

from ..memory_world import World, app_failure, text


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


async def test_cron_run_receives_last_result_and_last_failure(world: World) -> None:
    started = await world.start(cron_schedule="*/10 * * * *")
    chain = [started.run_id]
    endings: list[c.Command] = [c.CompleteRun(text("one")), c.FailRun(app_failure("broke"))]
    for ending in endings:
        assert world.is_idle
        world.clock.advance(600)
        await world.activation()
        await world.complete(chain[-1], ending)
        await world.activation()  # the eviction
        await world.complete(chain[-1])
        record = world.record()
        chain.append(record.run.run_id)
    world.clock.advance(600)
    started = (await world.activation()).events[0]
    assert isinstance(started, RunStarted)
    assert started.last_completion_result == (text("one"),)
    assert started.last_failure == app_failure("broke")
    assert (started.attempt, started.continued_run_id) == (1, chain[1])
    assert started.first_execution_run_id == chain[0]
    last = world.record()
    assert last.run.started.initiator is Initiator.CRON_SCHEDULE


async def test_retries_precede_the_next_cron_run(world: World) -> None:
    rule = RetryRule(initial_interval=1.0, maximum_attempts=2)
    await world.start(cron_schedule="@every 60s", retry_policy=rule)
    seen = []
    for wait in (60, 1, 60):
        world.clock.advance(wait)
        activation = await world.activation()
        record = world.record()
        seen.append((record.run.started.initiator, record.run.started.attempt))
        await world.complete(activation.run_id, c.FailRun(app_failure("no")))
        await world.activation()
        await world.complete(activation.run_id)
    assert seen == [(Initiator.CRON_SCHEDULE, 1), (Initiator.RETRY, 2), (Initiator.CRON_SCHEDULE, 1)]


@pytest.mark.parametrize("how", ["cancelled", "terminated"])
async def test_cancel_and_terminate_end_a_cron_workflow(world: World, how: str) -> None:
    started = await world.start(cron_schedule="@every 60s")
    if how == "terminated":
        await world.call(TerminateWorkflow(workflow_id="w"))
    else:
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
