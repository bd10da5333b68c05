"""Calls as a type checker sees them; a line that must be an error ends with the mark E. Never executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from hourglass import workflow
from hourglass.client import AsyncClient, AsyncWorkflowHandle, Client, WorkflowExecution, WorkflowHandle


@dataclass
class Order:
    id: str


@workflow.defn
def checkout(order: Order, express: bool = False) -> str:
    return ""


@workflow.defn
class Cart:
    @workflow.run
    def run(self, owner: str) -> list[str]:
        return []

    @workflow.signal
    def put(self, item: str, count: int = 1) -> None: ...

    @workflow.query
    def count(self) -> int:
        return 1


decisions: workflow.Channel[Order] = workflow.Channel("decisions", Order)


def starting(client: Client) -> None:
    assert_type(client.start_workflow(checkout, Order("a"), id="x"), WorkflowHandle[str])
    assert_type(client.start_workflow(checkout, Order("a"), True, task_queue="q").result(), str)
    assert_type(client.execute_workflow(checkout, Order("a")), str)
    assert_type(client.start_workflow(Cart.run, "ann").result(timeout=3), list[str])
    assert_type(client.start_workflow("Cart", "ann", result_type=int), WorkflowHandle[int])
    client.start_workflow(checkout, 3)  # E
    client.start_workflow(checkout, Order("a"), idd="x")  # E
    client.start_workflow(checkout, Order("a"), run_timeout="x")  # E
    client.start_workflow(Cart.run, 3)  # E


def finding(client: Client) -> None:
    assert_type(client.get_workflow_handle("x", workflow=checkout), WorkflowHandle[str])
    assert_type(client.get_workflow_handle("x", workflow=Cart.run), WorkflowHandle[list[str]])
    assert_type(client.get_workflow_handle("x", result_type=int), WorkflowHandle[int])
    assert_type(client.get_workflow_handle("x"), WorkflowHandle[Any])


def talking(handle: WorkflowHandle[str]) -> None:
    handle.signal("put", 1, 2)
    handle.signal(Cart.put, "a")
    handle.signal(Cart.put, "a", 2, rpc_timeout=3)
    handle.describe(rpc_timeout=3, rpc_metadata={"trace": "a"})
    handle.describe(rpc_limit=3)  # E
    handle.cancel("enough", rpc_metadata=["trace"])  # E
    handle.signal(Cart.put, 2)  # E
    handle.signal(decisions, Order("a"))
    handle.signal(decisions, 3)  # E
    assert_type(handle.query(Cart.count), int)
    handle.query(Cart.count, 3)  # E


async def awaited(client: AsyncClient) -> None:
    handle = await client.start_workflow(checkout, Order("a"), id="x")
    assert_type(handle, AsyncWorkflowHandle[str])
    assert_type(await handle.result(), str)
    assert_type(await handle.query(Cart.count), int)
    async for execution in client.list_workflows():
        assert_type(execution, WorkflowExecution)
