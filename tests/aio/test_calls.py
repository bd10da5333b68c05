"""Calls with keyword arguments and interceptors that change inputs, with temporalio and with `hourglass.aio`."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
import temporalio.client
import temporalio.worker

from hourglass.aio.client import Client
from hourglass.aio.worker import Worker
from hourglass.testing import DevServer

from . import calls
from .porting import ported_module

ours = ported_module(calls.__file__, "tests.aio.calls_ported")

EXPECTED: dict[str, Any] = {
    "keywords": [
        *["o: 5", 3, "nothing", "o: 5", 7, "o: 5", 11],
        *[20, 30, 40, 50, 101, 102, 103, 104, "told 7", "from outside 8"],
    ],
    "renamed": [True, True, 4, 3, None, True, "charged"],
    "asked": [14, 24, 5, 6, 7, 6, ["fifth", "first", "fourth", "second", "sixth", "third", "zero"]],
    "with_start": [
        1,
        True,
        "ApplicationError",
        True,
        True,
        "WorkflowAlreadyStartedError",
        "WorkflowAlreadyStartedError",
    ],
    "changed": [
        True,
        True,
        4,
        4,
        "Messages",
        "calls",
        True,
        ["along", "changed", "changed signal", "changed update"],
    ],
    "environment": [[3, "mine", [1, "two"]], True, "stopped True", "e: 1", 40, "test", True, "shut down"],
}


async def run_all(client: Any, worker: Any, program: Any) -> dict[str, Any]:
    """Run the scenarios concurrently on one worker."""
    async with worker(
        client, task_queue=calls.QUEUE, workflows=program.WORKFLOWS, activities=program.ACTIVITIES
    ):
        run = uuid.uuid4()
        found = await asyncio.gather(
            *[scenario(client, f"{name}-{run}") for name, scenario in program.SCENARIOS.items()]
        )
    return dict(zip(program.SCENARIOS, found, strict=True))


def run_ported_calls(target: str) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        client = await Client.connect(target, interceptors=[ours.ChangingInterceptor()])
        try:
            return await run_all(client, Worker, ours)
        finally:
            await client.close()

    return asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_keyword_calls_of_temporalio_work_on_the_embedded_engine(tmp_path: Path, kind: str) -> None:
    assert run_ported_calls("local:" if kind == "memory" else f"local:{tmp_path}/app.db") == EXPECTED


@pytest.mark.server
@pytest.mark.parametrize("worker_library", ["theirs", "ours"])
def test_keyword_calls_return_the_same_under_temporalio_and_hourglass_workers(
    quick_server: DevServer, worker_library: str
) -> None:
    class TheirWorker(temporalio.worker.Worker):
        def __init__(self, client: Any, **options: Any) -> None:
            runner = temporalio.worker.UnsandboxedWorkflowRunner()
            super().__init__(client, workflow_runner=runner, **options)

    async def main() -> dict[str, Any]:
        client = await temporalio.client.Client.connect(
            quick_server.target, interceptors=[calls.ChangingInterceptor()]
        )
        return await run_all(client, TheirWorker, calls)

    found = asyncio.run(main()) if worker_library == "theirs" else run_ported_calls(quick_server.target)
    assert found == EXPECTED
