"""What temporalio's public samples show runs here with changed imports: embedded, on virtual time, on a server."""

from __future__ import annotations

import asyncio
from typing import Any

from hourglass.aio.client import Client
from hourglass.aio.worker import Worker
from hourglass.testing import Environment

from . import samples
from .porting import ported_module

ours = ported_module(samples.__file__, "tests.aio.samples_ported")

EXPECTED: dict[str, Any] = {
    "greet": ["Hello, World!", "Hi World", "B-World", "Local, World!", "By name World"],
    "parallel": ["Hello, a!", "Hello, b!", "Hello, c!"],
    "retry": 3,
    "exception": ["greeting failed: no such name", "NoSuchName"],
    "cancellation": True,
    "completion": "because",
    "dynamic": "Whatever with 2: something of 2",
    "family": ["child of me", "child of wait", "child of wait", "cancelled"],
    "looping": 3,
    "patching": "HELLO, you!",
    "signals": [0, ["Hello, first", "Hello, second"]],
    "cluster": [
        ["0", "1", "2"],
        "there are only 1 nodes",
        "at least one node",
        ["3"],
        "first",
        ["0=first", "1=first", "2=first", "3=fourth"],
    ],
    "cart": [1, 2, 2, ["lamp", "desk"]],
    "polling": "gave up",
    "days": 1,
    "timer": [True, "rung"],
}


async def run_all(client: Any, worker: Any, program: Any, names: list[str]) -> dict[str, Any]:
    """Run programs side by side, on one worker."""
    async with worker(
        client, task_queue=samples.QUEUE, workflows=program.WORKFLOWS, activities=program.ACTIVITIES
    ):
        found = await asyncio.gather(*[program.SCENARIOS[name](client) for name in names])
    return dict(zip(names, found, strict=True))


def test_samples_run_with_changed_imports() -> None:
    """Every sample gives what it gives under temporalio, on the embedded engine."""

    async def main() -> dict[str, Any]:
        client = await Client.connect("local:")
        try:
            return await run_all(client, Worker, ours, list(ours.SCENARIOS))
        finally:
            await client.close()

    assert asyncio.run(main()) == EXPECTED


def test_days_pass_on_virtual_time() -> None:
    """A month between two mails takes no time in a test, and the run is executed twice and compared."""
    with Environment() as env:
        run = env.start_workflow(ours.SleepForDaysWorkflow.run, 30)
        env.after(days=100).signal(run, ours.SleepForDaysWorkflow.complete)
        assert run.result() == 4
