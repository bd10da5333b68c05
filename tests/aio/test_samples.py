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


def test_temporalio_samples_return_the_same_with_changed_imports() -> None:
    async def main() -> dict[str, Any]:
        client = await Client.connect("local:")
        try:
            return await run_all(client, Worker, ours, list(ours.SCENARIOS))
        finally:
            await client.close()

    assert asyncio.run(main()) == EXPECTED


def test_temporalio_sleep_for_days_sample_runs_on_virtual_time() -> None:
    with Environment() as env:
        run = env.start_workflow(ours.SleepForDaysWorkflow.run, 30)
        env.after(days=100).signal(run, ours.SleepForDaysWorkflow.complete)
        assert run.result() == 4


class RecordingInterceptor(Interceptor):
    """An interceptor as written for temporalio."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # type: ignore[override]
        return RecordingCalls(super().intercept_client(next), self.calls)


class RecordingCalls(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, seen: list[str]) -> None:
        super().__init__(next)
        self.calls = seen

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        self.calls.append(f"{input.workflow} {input.rpc_metadata}")
        return await super().start_workflow(input)

    async def start_activity(self, input: StartActivityInput) -> Any:
        self.calls.append(input.activity)
        return await super().start_activity(input)


async def test_temporalio_interceptor_records_calls_of_the_async_client_only() -> None:
    """A blocking client on the same connection bypasses it."""
    interceptor = RecordingInterceptor()

    client = await Client.connect("local:", interceptors=[interceptor])
    start = {"task_queue": "none", "rpc_metadata": {"trace": "a"}}
    await client.start_workflow("none", id="w", **start)  # type: ignore[call-overload]
    handle = await client.start_activity("nothing", id="a", start_to_close_timeout=9)
    options = await handle.update_options([ActivityOptionsKeys.start_to_close_timeout.value_set(5)])
    assert options.start_to_close_timeout == 5
    blocking = hourglass.Client(client.wrapped._session)
    await asyncio.to_thread(blocking.start_workflow, "none")
    await client.close()
    assert interceptor.calls == ["none {'trace': 'a'}", "nothing"]


@workflow.defn
class SignalledWorkflow:
    def __init__(self) -> None:
        self.messages: list[str] = []

    @workflow.run
    async def run(self, name: str) -> list[str]:
        await workflow.wait_condition(lambda: len(self.messages) > 1)
        return [name, *self.messages]

    @workflow.signal
    def tell(self, word: str) -> None:
        self.messages.append(word)


@workflow.defn
class SignalsWithStart:
    @workflow.run
    async def run(self, id: str) -> bool:
        first = await workflow.signal_with_start_workflow(
            SignalledWorkflow.run,
            "ann",
            id=id,
            task_queue="told",
            signal=SignalledWorkflow.tell,
            signal_args="a",
        )
        second = await workflow.signal_with_start_workflow(
            SignalledWorkflow.run, args=["bob"], id=id, task_queue="told", signal="tell", signal_args=["b"]
        )
        return first.run_id == second.run_id


class SignalWithStartInterceptor(PlainInterceptor):
    """Records signals with start, and adds a header."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        interceptor = self.calls

        class Outbound(WorkflowOutboundInterceptor):
            def signal_with_start_workflow(self, input: SignalWithStartWorkflowInput) -> Any:
                interceptor.append(f"{input.workflow} {input.workflow_id} {input.signal}")
                input.headers["by"] = default_converter.encode("tells")
                return super().signal_with_start_workflow(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound(next)


async def test_signal_with_start_in_a_coroutine_workflow_passes_interceptors_and_headers() -> None:
    interceptor = SignalWithStartInterceptor()

    client = await Client.connect("local:", interceptors=[interceptor])
    async with Worker(client, task_queue="told", workflows=[SignalledWorkflow, SignalsWithStart]):
        assert await client.execute_workflow(SignalsWithStart.run, "w", id="t", task_queue="told") is True
        told = client.get_workflow_handle("w")
        assert await told.result() == ["ann", "a", "b"]
        started = (await told.fetch_history()).events[0]
        assert "by" in started["workflowExecutionStartedEventAttributes"]["header"]["fields"]
    await client.close()
    assert set(interceptor.calls) == {"SignalledWorkflow w tell"}
