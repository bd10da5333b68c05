"""temporalio's public samples with changed imports, on the embedded engine and on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import hourglass
from hourglass.aio import workflow
from hourglass.aio.client import (
    ActivityOptionsKeys,
    Client,
    Interceptor,
    OutboundInterceptor,
    StartActivityInput,
    StartWorkflowInput,
)
from hourglass.aio.worker import Worker
from hourglass.converter import default_converter
from hourglass.interceptors import Interceptor as PlainInterceptor
from hourglass.interceptors import (
    SignalWithStartWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.testing import Environment

from . import samples
from .porting import ported_module

ours = ported_module(samples.__file__, "tests.aio.samples_ported")

EXPECTED: dict[str, Any] = {
    "alone": [[9, 12], True, 15, 15, ["scale", "COMPLETED", 1], 18],
    "greet": ["Hello, World!", "Hi World", "B-World", "Local, World!", "By name World"],
    "parallel": ["Hello, a!", "Hello, b!", "Hello, c!"],
    "retry": 3,
    "exception": ["greeting failed: no such name for Nobody, who is NoSuchName", "NoSuchName"],
    "cancellation": True,
    "completion": "because",
    "dynamic": "Whatever with two: something of 3",
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
    """Run the named scenarios concurrently on one worker."""
    async with worker(
        client, task_queue=samples.QUEUE, workflows=program.WORKFLOWS, activities=program.ACTIVITIES
    ):
        found = await asyncio.gather(*[program.SCENARIOS[name](client) for name in names])
    return dict(zip(names, found, strict=True))


def test_samples_run_with_changed_imports() -> None:
    async def main() -> dict[str, Any]:
        client = await Client.connect("local:")
        try:
            return await run_all(client, Worker, ours, list(ours.SCENARIOS))
        finally:
            await client.close()

    assert asyncio.run(main()) == EXPECTED


def test_month_of_timers_passes_on_virtual_time() -> None:
    with Environment() as env:
        run = env.start_workflow(ours.SleepForDaysWorkflow.run, 30)
        env.after(days=100).signal(run, ours.SleepForDaysWorkflow.complete)
        assert run.result() == 4


class Seeing(Interceptor):
    """An interceptor as written for temporalio."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # type: ignore[override]
        return SeeingCalls(super().intercept_client(next), self.seen)


class SeeingCalls(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, seen: list[str]) -> None:
        super().__init__(next)
        self.seen = seen

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        self.seen.append(f"{input.workflow} {input.rpc_metadata}")
        return await super().start_workflow(input)

    async def start_activity(self, input: StartActivityInput) -> Any:
        self.seen.append(input.activity)
        return await super().start_activity(input)


def test_temporalio_interceptor_sees_calls_of_async_client() -> None:
    """A blocking client on the same connection bypasses it."""
    log = Seeing()

    async def main() -> None:
        client = await Client.connect("local:", interceptors=[log])
        start = {"task_queue": "none", "rpc_metadata": {"trace": "a"}}
        await client.start_workflow("none", id="w", **start)  # type: ignore[call-overload]
        handle = await client.start_activity("nothing", id="a", start_to_close_timeout=9)
        options = await handle.update_options([ActivityOptionsKeys.start_to_close_timeout.value_set(5)])
        assert options.start_to_close_timeout == 5
        blocking = hourglass.Client(client.wrapped._session)
        await asyncio.to_thread(blocking.start_workflow, "none")
        await client.close()

    asyncio.run(main())
    assert log.seen == ["none {'trace': 'a'}", "nothing"]


@workflow.defn
class Told:
    def __init__(self) -> None:
        self.heard: list[str] = []

    @workflow.run
    async def run(self, name: str) -> list[str]:
        await workflow.wait_condition(lambda: len(self.heard) > 1)
        return [name, *self.heard]

    @workflow.signal
    def tell(self, word: str) -> None:
        self.heard.append(word)


@workflow.defn
class Tells:
    @workflow.run
    async def run(self, id: str) -> bool:
        one = await workflow.signal_with_start_workflow(
            Told.run, "ann", id=id, task_queue="told", signal=Told.tell, signal_args="a"
        )
        other = await workflow.signal_with_start_workflow(
            Told.run, args=["bob"], id=id, task_queue="told", signal="tell", signal_args=["b"]
        )
        return one.run_id == other.run_id


class OnTheWay(PlainInterceptor):
    """Records signals with start, and adds a header."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        log = self.seen

        class Outbound(WorkflowOutboundInterceptor):
            def signal_with_start_workflow(self, input: SignalWithStartWorkflowInput) -> Any:
                log.append(f"{input.workflow} {input.workflow_id} {input.signal}")
                input.headers["by"] = default_converter.encode("tells")
                return super().signal_with_start_workflow(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound(next)


def test_signal_with_start_is_awaited() -> None:
    log = OnTheWay()

    async def main() -> None:
        client = await Client.connect("local:", interceptors=[log])
        async with Worker(client, task_queue="told", workflows=[Told, Tells]):
            assert await client.execute_workflow(Tells.run, "w", id="t", task_queue="told") is True
            told = client.get_workflow_handle("w")
            assert await told.result() == ["ann", "a", "b"]
            started = (await told.fetch_history()).events[0]
            assert "by" in started["workflowExecutionStartedEventAttributes"]["header"]["fields"]
        await client.close()

    asyncio.run(main())
    assert set(log.seen) == {"Told w tell"}
