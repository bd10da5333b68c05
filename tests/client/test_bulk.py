"""Bulk operations on all workflows that match a filter, on the embedded engine."""

from __future__ import annotations

from hourglass import AsyncClient, Client, Worker, workflow
from hourglass.client import BulkResult, WorkflowStatus


@workflow.defn
def waits_for_signal() -> str:
    return workflow.Channel("word", str).receive()


def test_bulk_signal_cancel_and_terminate_affect_only_matching_open_runs() -> None:
    with Client.connect("local:") as client, Worker(client, workflows=[waits_for_signal]):
        handles = {
            name: client.start_workflow(waits_for_signal, id=f"{name}-{number}")
            for number in range(25)
            for name in (f"a{number}", f"b{number}", f"c{number}")
        }
        progress_reports: list[tuple[int, int]] = []
        signal_result = client.signal_workflows(
            "WorkflowId STARTS_WITH 'a'",
            "word",
            "hello",
            progress=lambda done, all: progress_reports.append((done, all)),
        )
        assert (
            signal_result.found,
            signal_result.done,
            signal_result.already_closed,
            signal_result.errors,
        ) == (
            25,
            25,
            0,
            {},
        )
        assert progress_reports == [(20, 25), (25, 25)]
        assert {handles[f"a{number}"].result(timeout=30) for number in range(25)} == {"hello"}
        assert client.cancel_workflows("WorkflowId STARTS_WITH 'b'", reason="enough").done == 25
        assert client.terminate_workflows("WorkflowId STARTS_WITH 'c'", reason="now").done == 25
        assert handles["c3"].describe().status is WorkflowStatus.TERMINATED
        assert client.terminate_workflows("WorkflowId STARTS_WITH 'c'") == BulkResult()


async def test_async_client_terminates_and_cancels_workflows_by_filter() -> None:
    async with await AsyncClient.connect("local:") as client:
        for number in range(3):
            await client.start_workflow(waits_for_signal, id=f"w-{number}")
        assert (await client.terminate_workflows("")).done == 3
        assert (await client.cancel_workflows("")).found == 0
