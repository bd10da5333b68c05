"""A FastAPI application that starts workflows, sends them signals and follows their progress.

    pip install fastapi uvicorn
    python examples/fastapi_app.py

    curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"item": "lamp"}'
    curl localhost:8000/orders/ID
    curl -N localhost:8000/orders/ID/events         (follows the order until it is done)
    curl -X POST localhost:8000/orders/ID/payment

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server. The workflow is in `orders.py`.

The application is stateless: restart it, and every order resumes where it stopped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse
from orders import QUEUE, Order, OrderFlow, Status, stages

from hourglass import AsyncClient, Worker
from hourglass.client import AsyncWorkflowHandle
from hourglass.errors import WorkflowNotFoundError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with await AsyncClient.connect() as client, Worker(client, QUEUE, modules=["orders"]):
        app.state.client = client
        yield


app = FastAPI(title="Orders", lifespan=lifespan)


def connected(request: Request) -> AsyncClient:
    client: AsyncClient = request.app.state.client
    return client


Connected = Annotated[AsyncClient, Depends(connected)]


def order_handle(id: str, client: Connected) -> AsyncWorkflowHandle[str]:
    return client.get_workflow_handle(id, workflow=OrderFlow.run)


OrderHandle = Annotated[AsyncWorkflowHandle[str], Depends(order_handle)]


@app.exception_handler(WorkflowNotFoundError)
async def not_found(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "there is no such order"}, status_code=404)


@app.post("/orders", status_code=201)
async def create(order: Order, client: Connected) -> dict[str, str]:
    handle = await client.start_workflow(OrderFlow.run, order, task_queue=QUEUE)
    return {"id": handle.id}


@app.get("/orders/{id}")
async def status(handle: OrderHandle) -> Status:
    return await handle.query(OrderFlow.status)


@app.post("/orders/{id}/payment", status_code=202)
async def pay(handle: OrderHandle) -> None:
    await handle.signal(OrderFlow.pay)


@app.get("/orders/{id}/result")
async def result(handle: OrderHandle) -> str:
    """Wait for the result. Thousands of requests can wait, without a thread each."""
    return await handle.result()


@app.get("/orders/{id}/events")
async def events(
    handle: OrderHandle, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Stream every stage of the order as server-sent events. A reconnecting browser sends the id of the last one."""
    await handle.describe()  # fail immediately if the order does not exist
    return StreamingResponse(changes(handle, last_event_id), media_type="text/event-stream")


async def changes(handle: AsyncWorkflowHandle[str], after: str | None) -> AsyncIterator[str]:
    stream = stages.follow(handle, after=after)
    async for stage in stream:
        yield f"id: {stream.position}\ndata: {stage}\n\n"


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app)
