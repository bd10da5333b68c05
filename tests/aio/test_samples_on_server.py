"""temporalio's samples on a real server under temporalio's worker and ours, with replay of each other's histories."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import temporalio.client
import temporalio.worker

from hourglass.aio.client import Client
from hourglass.aio.worker import Worker
from hourglass.replay import History, Replayer
from hourglass.testing import DevServer

from . import samples
from .test_samples import EXPECTED, ours, run_all

pytestmark = pytest.mark.server

WITHOUT_SANDBOX = temporalio.worker.UnsandboxedWorkflowRunner()


class TemporalioWorker(temporalio.worker.Worker):
    """temporalio's worker with threads, and without its sandbox, which would import the tests again for each run."""

    def __init__(self, client: Any, **options: Any) -> None:
        from concurrent.futures import ThreadPoolExecutor

        super().__init__(
            client, workflow_runner=WITHOUT_SANDBOX, activity_executor=ThreadPoolExecutor(10), **options
        )


async def fetch_histories(client: temporalio.client.Client) -> list[temporalio.client.WorkflowHistory]:
    """Return the histories of all closed runs of the samples."""
    query = f"TaskQueue = '{samples.QUEUE}' AND ExecutionStatus != 'Running'"
    found: list[temporalio.client.WorkflowHistory] = []
    while len(found) < len(EXPECTED):  # lists lag behind
        found = [
            await client.get_workflow_handle(each.id, run_id=each.run_id).fetch_history()
            async for each in client.list_workflows(query)
        ]
    return found


@pytest.mark.parametrize("worker_library", ["theirs", "ours"])
def test_sample_histories_replay_under_temporalio_and_hourglass(
    quick_server: DevServer, worker_library: str
) -> None:
    async def main() -> list[temporalio.client.WorkflowHistory]:
        their_client = await temporalio.client.Client.connect(quick_server.target)
        if worker_library == "theirs":
            results = await run_all(their_client, TemporalioWorker, samples, list(samples.SCENARIOS))
        else:
            client = await Client.connect(quick_server.target)
            results = await run_all(client, Worker, ours, list(ours.SCENARIOS))
            await client.close()
        assert results == EXPECTED
        recorded = await fetch_histories(their_client)
        if worker_library == "ours":
            temporalio_replayer = temporalio.worker.Replayer(
                workflows=samples.WORKFLOWS, workflow_runner=WITHOUT_SANDBOX
            )
            for each in recorded:
                await temporalio_replayer.replay_workflow(each)
        return recorded

    recorded = asyncio.run(main())
    assert len(recorded) >= len(EXPECTED)
    with Replayer(workflows=ours.WORKFLOWS) as replayer:
        for each in recorded:
            assert replayer.replay(History.from_json(each.to_json())).ok
