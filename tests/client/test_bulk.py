"""Bulk operations on all workflows that match a filter, on the embedded engine."""

from __future__ import annotations

from hourglass import AsyncClient, Client, Worker, workflow
from hourglass.client import BulkResult, WorkflowStatus


@workflow.defn
def waits_for_a_word() -> str:
    return workflow.Channel("word", str).receive()


def test_signal_cancel_and_terminate_by_filter() -> None:
    with Client.connect("local:") as client, Worker(client, workflows=[waits_for_a_word]):
        handles = {
            name: client.start_workflow(waits_for_a_word, id=f"{name}-{number}")
            for number in range(25)
            for name in (f"a{number}", f"b{number}", f"c{number}")
        }
        heard: list[tuple[int, int]] = []
        said = client.signal_workflows(
            "WorkflowId STARTS_WITH 'a'",
            "word",
            "hello",
            progress=lambda done, all: heard.append((done, all)),
        )
        assert (said.found, said.done, said.gone, said.errors) == (25, 25, 0, {})
        assert heard == [(20, 25), (25, 25)]
        assert {handles[f"a{number}"].result(timeout=30) for number in range(25)} == {"hello"}
        assert client.cancel_workflows("WorkflowId STARTS_WITH 'b'", reason="enough").done == 25
        assert client.terminate_workflows("WorkflowId STARTS_WITH 'c'", reason="now").done == 25
        assert handles["c3"].describe().status is WorkflowStatus.TERMINATED
        assert client.terminate_workflows("WorkflowId STARTS_WITH 'c'") == BulkResult()


async def test_async_bulk_operations_match_blocking_ones() -> None:
    async with await AsyncClient.connect("local:") as client:
        for number in range(3):
            await client.start_workflow(waits_for_a_word, id=f"w-{number}")
        assert (await client.terminate_workflows("")).done == 3
        assert (await client.cancel_workflows("")).found == 0
