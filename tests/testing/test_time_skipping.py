"""Time skipping on a server: runs that only wait advance immediately or on request, with a real worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from hourglass import AsyncClient, Client, Worker, workflow
from hourglass.aio import workflow as aio_workflow
from hourglass.aio.testing import WorkflowEnvironment
from hourglass.aio.worker import Worker as AioWorker
from hourglass.client import TimeSkippingConfig
from hourglass.errors import ServiceError, UsageError
from hourglass.testing import DevServer, TimeSkipper

LIMIT = 60
DAY = timedelta(days=1)
go = workflow.Channel("go", str)


@workflow.defn
def naps(days: int, child: bool = False) -> float:
    """Return how long it has slept, by its own clock."""
    start_time = workflow.now()
    if child:
        return workflow.execute_child_workflow(naps, days)
    for _ in range(days):
        workflow.sleep(DAY)
    return (workflow.now() - start_time).total_seconds()


@workflow.defn
def waits() -> str:
    return go.receive()


@pytest.fixture(scope="module")
def skipping(quick_server: DevServer) -> Iterator[tuple[Client, TimeSkipper, str]]:
    """A client whose runs skip time, and a worker for them."""
    skipper, queue = TimeSkipper(), f"skipping-{uuid4().hex[:8]}"
    with (
        Client.connect(quick_server.target, interceptors=[skipper]) as client,
        Worker(client, queue, workflows=[naps, waits]),
    ):
        yield client, skipper, queue


@pytest.mark.server
def test_sleeping_run_completes_without_delay_with_time_skipping(
    skipping: tuple[Client, TimeSkipper, str], quick_server: DevServer
) -> None:
    client, _, queue = skipping
    run = client.start_workflow(naps, 30, task_queue=queue)
    assert run.result(timeout=LIMIT) >= 30 * DAY.total_seconds()
    seen = run.describe().time_skipping
    assert seen is not None
    assert seen.current_time is not None
    assert seen.current_time > datetime.now(UTC) + 29 * DAY
    assert client.execute_workflow(naps, 3, True, task_queue=queue) >= 3 * DAY.total_seconds()

    async def awaited() -> float:
        async with await AsyncClient.connect(quick_server.target, interceptors=[TimeSkipper()]) as other:
            handle = await other.start_workflow(naps, 2, task_queue=queue)
            return await handle.result(timeout=LIMIT)

    assert asyncio.run(awaited()) >= 2 * DAY.total_seconds()


@pytest.mark.server
def test_fast_forward_advances_the_time_of_a_single_run(skipping: tuple[Client, TimeSkipper, str]) -> None:
    client, skipper, queue = skipping
    with skipper.disabled():
        run = client.start_workflow(naps, 3, task_queue=queue)
        other = client.start_workflow(waits, task_queue=queue)
    assert other.describe().time_skipping is None
    while len(run.history()) < 5:
        pass  # until its first timer has started
    assert run.fast_forward(DAY + timedelta(hours=1), timeout=LIMIT)
    seen = run.describe().time_skipping
    assert seen is not None
    assert seen.current_time is not None
    assert DAY < seen.current_time - datetime.now(UTC) < 2 * DAY
    assert not run.fast_forward(config=TimeSkippingConfig(max_session_skip_count=9), timeout=LIMIT)
    assert run.result(timeout=LIMIT) >= 3 * DAY.total_seconds()
    other.signal(go, "done")
    assert other.result(timeout=LIMIT) == "done"


@pytest.mark.server
def test_time_skipping_option_of_a_start_overrides_the_clients(
    skipping: tuple[Client, TimeSkipper, str],
) -> None:
    client, _, queue = skipping
    real = TimeSkippingConfig(enabled=False)
    run = client.with_start(waits, id=f"{queue}-w", task_queue=queue, time_skipping=real).signal(go, "x")
    assert run.result(timeout=LIMIT) == "x"
    seen = run.describe().time_skipping
    assert seen is None or not seen.config.enabled


@pytest.mark.server
async def test_temporalio_time_skipping_environment_skips_and_fast_forwards() -> None:
    async with await WorkflowEnvironment.start_time_skipping(
        ts_config=TimeSkippingConfig(enabled=False), download_dest_dir="/nowhere"
    ) as env:
        assert env.supports_time_skipping
        assert env.supports_time_skipping_v2
        async with AioWorker(env.client, task_queue="q", workflows=[Naps]):
            handle = await env.client.start_workflow(Naps.run, id="n-1", task_queue="q")
            while len((await handle.fetch_history()).events) < 5:
                pass
            assert await env.fast_forward(handle, timedelta(hours=1))
            assert await env.get_current_time(handle) > datetime.now(UTC) + timedelta(minutes=50)
            assert not await env.fast_forward(handle)
            assert await handle.result() == "rested"
            assert await env.get_time_skipping_info(handle) is not None
            with env.with_time_skipping_disabled():
                other = await env.client.start_workflow(Naps.run, id="n-2", task_queue="q")
            assert await env.get_time_skipping_info(other) is None
            with pytest.raises(UsageError, match="its own time"):
                await env.get_current_time()
            await other.terminate()


@aio_workflow.defn
class Naps:
    @aio_workflow.run
    async def run(self) -> str:
        await aio_workflow.sleep(DAY)
        return "rested"


def test_embedded_engine_rejects_time_skipping() -> None:
    with Client.connect("local:") as client:
        with pytest.raises(ServiceError, match="has virtual time"):
            client.start_workflow(naps, 1, time_skipping=TimeSkippingConfig())
        run = client.start_workflow(naps, 1, time_skipping=TimeSkippingConfig(enabled=False))
        with pytest.raises(ServiceError, match="has virtual time"):
            run.fast_forward(5)
        with pytest.raises(UsageError, match="must be a TimeSkippingConfig"):
            client.start_workflow(naps, 1, time_skipping=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a TimeSkippingConfig"):
        TimeSkipper(5)  # type: ignore[arg-type]
